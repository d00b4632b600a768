"""What all trainings share: rows as a data set, batches, the trainer's base class, and its run to the end."""

import json
import math
import os
import random
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, cast
from unittest.mock import patch

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import PeftModel
from peft.helpers import disable_input_dtype_casting
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer import utils as trl_utils

from treeagent.agent.checkpoint import no_old_names, no_progress_bars, refusals_named
from treeagent.agent.value_head import ValueHead
from treeagent.generators.attention import base_model
from treeagent.learners.config import OptimiserConfig
from treeagent.learners.packed import Model, Packing, pack_prefixes, why_unpackable
from treeagent.store import regular
from treeagent.types import UserError

_POOL = 8
"""Number of batches whose rows are sorted by length together. This saves padding, and batches still differ between
epochs."""
_STATE = "trainer_state.json"
"""The file that transformers writes last, so that a checkpoint with it is complete."""
_BEST = "best.safetensors"
_MOMENTUM = 0.95


class Hooks(TypedDict, total=False):
    """Hooks that a caller may attach to a training; each may also be ``None``."""

    on_metrics: Callable[[Mapping[str, float]], None] | None
    """Receives every row of metrics: step, loss, grad_norm, learning_rate and the metrics of the trainer."""
    on_progress: Callable[[int, int], None] | None
    """Receives the number of steps done and the total number of steps."""
    validate: Callable[[], float] | None
    """Scores the current weights, higher is better; called in all processes, also before the first step."""
    checkpoint_dir: Path | None
    """Folder of checkpoints; a rerun of the same call resumes from the newest complete one."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training; the model holds the weights of the best validation (step 0: the initial ones)."""

    steps: int
    metrics: Mapping[str, float]
    """The last row of metrics."""
    best_validation: float | None
    best_step: int | None
    seconds: float
    """Wall time of this call."""


def as_dataset(rows: Sequence[Any] | Dataset) -> Dataset:
    """The rows of a view as a data set in memory; a data set, such as one of ``Dataset.from_generator``, stays."""
    return rows if isinstance(rows, Dataset) else Dataset.from_list([asdict(row) for row in rows])


class Batches(Sampler[list[int]]):
    """Batches of rows of similar ``lengths`` (in tokens), or of one group if ``groups`` are given, in an order that
    depends on seed and epoch alone."""

    drop_last = False  # accelerate reads it

    def __init__(self, lengths: Iterable[int], batch_size: int, seed: int, groups: Sequence[str] = ()) -> None:
        self.lengths, self.batch_size, self.seed, self.groups = array("q", lengths), batch_size, seed, groups
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """transformers calls this at the beginning of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        shuffler = random.Random(f"{self.seed}/{self.epoch}")
        if self.groups:
            names = list(dict.fromkeys(self.groups))
            shuffler.shuffle(names)
            place = {name: number for number, name in enumerate(names)}
            order = sorted(range(len(self.groups)), key=lambda row: place[self.groups[row]])
        else:
            order, pool = list(range(len(self.lengths))), self.batch_size * _POOL
            shuffler.shuffle(order)
            for start in range(0, len(order), pool):
                order[start : start + pool] = sorted(order[start : start + pool], key=self.lengths.__getitem__)
        starts = list(range(0, len(order), self.batch_size))
        shuffler.shuffle(starts)
        if "WORLD_SIZE" in os.environ:  # of several processes' batches, accelerate fills up the last with other rows
            starts.sort(key=lambda start: start + self.batch_size > len(order))
        return (order[start : start + self.batch_size] for start in starts)


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> Tensor:
    """Stack rows into a (rows, longest) tensor, padded on the right with ``value``."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype)


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask`` of rows of token ids, (rows, longest)."""
    return {"input_ids": pad(rows, torch.long), "attention_mask": pad([[1] * len(row) for row in rows], torch.long)}


@contextmanager
def lent(
    model: Model, config: OptimiserConfig, hooks: Hooks, head: ValueHead | None = None
) -> Iterator[dict[str, Any]]:
    """Lend a model to a trainer, with the value head as a submodule. Yields the trainer's arguments,
    without console output or network access.

    Weights that are all trained are in float32 meanwhile: in bfloat16 most steps are smaller than half of a weight's
    last digit. Without Triton, TRL would run the language-model head over every position (30 % of a step on a CPU);
    here it runs over labelled positions only.
    """
    schedule = "constant_with_warmup" if config.schedule == "constant" and config.warmup_steps else config.schedule
    arguments: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "num_train_epochs": config.epochs,
        "max_steps": config.max_steps or -1,
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.accumulation,
        "lr_scheduler_type": schedule,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "bf16": config.precision == "bfloat16",
        "gradient_checkpointing": config.gradient_checkpointing or None,  # TRL's default is on; False is deprecated
        "use_cache": getattr(model.config, "use_cache", True),  # a Trainer writes it into the model's configuration
        "logging_steps": config.log_every,
        "logging_nan_inf_filter": False,  # the filter would hide a divergence
        "save_strategy": "steps" if hooks.get("checkpoint_dir") else "no",
        "save_steps": config.save_every,
        "save_total_limit": 2,  # the newest may be half-written
        "seed": config.seed,
        "use_cpu": model.device.type == "cpu" and not ("LOCAL_RANK" in os.environ and torch.cuda.is_available()),
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "remove_unused_columns": False,
        "router_aux_loss_coef": 0.0,  # the load of experts is defined on whole rows, not on packs
        "report_to": "none",
        "disable_tqdm": True,
    }
    whole, dtype = not isinstance(model, PeftModel), model.dtype  # PEFT's adapters are in float32
    if head is not None:
        model.value_head = head.to(model.device)
    if whole:
        _convert(model, max(dtype, torch.float32, key=lambda each: each.itemsize))
    labelled_only = patch.object(trl_utils, "_use_triton", lambda device: True)
    try:
        with tempfile.TemporaryDirectory(prefix="treeagent-") as spare, labelled_only, no_old_names():
            yield arguments | {"output_dir": str(hooks.get("checkpoint_dir") or spare)}
    finally:
        if head is not None:
            del model.value_head
        for module in (model, base_model(model)):
            module.__dict__.pop("forward", None)  # TRL's fused head
        if whole:
            _convert(model, dtype)
        model.zero_grad()
        model.eval()


def _convert(model: Model, dtype: torch.dtype) -> None:
    """Change the number format of all weights; buffers, such as rotary frequencies, keep theirs."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


class Learner(Trainer):
    """What all learners change in a Trainer; it must precede TRL's trainer among the base classes."""

    args: Any
    model: Any
    train_dataset: Any
    batches: Batches
    watch: "Watch"
    head: ValueHead | None = None
    optimiser: str = "adamw"
    _total_train_tokens: int = 0
    packs: bool = True
    """Whether batches are packed if the model can be."""
    packing: Packing | None = None
    """The packs of the current batch; None if batches are not packed."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator
        )
        return cast(DataLoader[Any], self.accelerator.prepare(loader))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        if self.optimizer is None and self.optimiser == "muon":
            rate, decay = self.args.learning_rate, self.args.weight_decay
            self.optimizer = MuonAdamW(self.model, learning_rate=rate, weight_decay=decay)
        return super().create_optimizer(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        step = self.state.global_step + 1
        # PEFT makes a float32 copy of each layer's input, which autocast at once turns back into bfloat16.
        copies = isinstance(self.model, PeftModel) and self.args.bf16
        try:
            with disable_input_dtype_casting(self.model) if copies else nullcontext():
                loss = super().training_step(model, inputs, num_items_in_batch)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"step {step} of a training ran out of memory ({str(error).partition(chr(10))[0]}): halve its "
                "batch_size and double its accumulation, set gradient_checkpointing=true, or train an adapter "
                "(policy.lora.rank=16)"
            ) from error
        everywhere = self.accelerator.gather(loss.detach())  # all processes stop together, or the others would wait
        if not torch.isfinite(everywhere).all():
            raise diverged(f"the loss is {everywhere.sum().item()} at step {step}")
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The loss of a batch, whose common prefixes go through the model once, if it can be packed."""
        if not self.packs or why_unpackable(self.model):
            return self.batch_loss(model, inputs, num_items_in_batch)
        with pack_prefixes(self.model) as self.packing:
            return self.batch_loss(model, inputs, num_items_in_batch)

    def batch_loss(self, model: nn.Module, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """The loss of a batch, as TRL computes it."""
        return cast(Tensor, super().compute_loss(model, inputs, False, num_items_in_batch))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        with refusals_named(folder), no_progress_bars():
            checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            checkpoint.mkdir(exist_ok=True)
            if self.watch.best and self.args.should_save:
                save_file(self.watch.best, checkpoint / _BEST)
            if self.head is not None and self.args.should_save:
                self.head.save(checkpoint)
            super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.head is not None:  # an adapter's checkpoint holds nothing else
            self.head.load_state_dict(ValueHead.load(Path(resume_from_checkpoint)).state_dict())

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no model card is written."""

    def _send_telemetry(self) -> None:
        """Do nothing: no telemetry is sent."""


def diverged(what: str) -> UserError:
    """The error of a training that produced NaN or infinity."""
    return UserError(f"the training diverged: {what}: lower its learning_rate")


class Watch(TrainerCallback, ExportableState):
    """Observes a trainer: metrics, progress, the best weights, divergence. Checkpoints hold its figures."""

    def __init__(self, model: nn.Module, config: OptimiserConfig, hooks: Hooks) -> None:
        self.model, self.config, self.validate = model, config, hooks.get("validate")
        self.on_metrics = hooks.get("on_metrics") or (lambda row: None)
        self.on_progress = hooks.get("on_progress") or (lambda done, total: None)
        self.best, self.metrics = dict[str, Tensor](), dict[str, float]()
        self.step, self.finished = 0, False
        self.best_validation: float | None = None
        self.best_step: int | None = None
        self.stale = 0
        """Number of validations since the best one."""

    def state(self) -> dict[str, Any]:
        """The figures that a resumed training needs, as JSON values."""
        names = ("step", "finished", "metrics", "best_validation", "best_step", "stale")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def resume(self, checkpoint: Path) -> None:
        """Take up the figures and the best weights of a checkpoint."""
        stored = json.loads(regular(checkpoint / _STATE).read_text())["stateful_callbacks"][type(self).__name__]
        for name, value in stored["attributes"].items():
            setattr(self, name, value)
        if (checkpoint / _BEST).exists():
            self.best = load_file(checkpoint / _BEST, device=str(next(self.model.parameters()).device))

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        if state.global_step == 0 and self.validate:
            self._validate(state)
        self.on_progress(state.global_step, state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])
        if not torch.isfinite(norm).all():
            raise diverged(f"the gradient norm is {norm.item()} at step {state.global_step + 1}")

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        self.step = state.global_step
        last = self.step >= state.max_steps
        if self.validate and (last or self.step % self.config.validate_every == 0):
            self._validate(state)
            if self.config.patience and self.stale >= self.config.patience:
                control.should_training_stop = True
        if control.should_training_stop:
            self.finished = control.should_log = True
            control.should_save = args.save_strategy != "no"
        # No row of metrics (a mean since the last one) spans a checkpoint, or a resumed run would log other rows.
        control.should_log |= control.should_save
        self.on_progress(self.step, state.max_steps)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **told: Any) -> None:
        if "loss" in told["logs"]:  # the summary that closes a training has none
            numbers = {name: float(value) for name, value in told["logs"].items() if isinstance(value, int | float)}
            self.metrics = {"step": float(state.global_step), **numbers}
            self.on_metrics(self.metrics)

    def _validate(self, state: TrainerState) -> None:
        assert self.validate is not None
        training, device = self.model.training, next(self.model.parameters()).device
        self.model.eval()
        # A validation that samples must not change the random numbers of the training.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            score = float(broadcast_object_list([self.validate()])[0])
        self.model.train(training)
        self.on_metrics({"step": float(state.global_step), "validation": score})
        if self.best_validation is None or score > self.best_validation:
            self.best_validation, self.best_step, self.stale = score, state.global_step, 0
            self.best = copy_weights(self.model)
        else:
            self.stale += 1


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the trainable weights, by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put copied weights back into the model. Weights without a copy stay as they are."""
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])


def fit(trainer: Learner, config: OptimiserConfig, batches: Batches, hooks: Hooks) -> TrainResult:
    """Run a trainer to its end, from the newest complete checkpoint if an earlier run of the call was cut short."""
    start = time.perf_counter()
    trainer.batches, trainer.optimiser = batches, config.optimiser
    trainer.watch = watch = Watch(trainer.model, config, hooks)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    folder, checkpoint = hooks.get("checkpoint_dir"), None
    if folder:
        complete = [path.parent for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_STATE}")]
        checkpoint = max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    if checkpoint:
        watch.resume(checkpoint)
        trainer._total_train_tokens = int(watch.metrics.get("num_tokens", 0))  # TRL counts from 0 again
    if checkpoint and watch.finished:
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    restore_weights(trainer.model, watch.best)
    return TrainResult(watch.step, watch.metrics, watch.best_validation, watch.best_step, time.perf_counter() - start)


class MuonAdamW(AdamW):
    """Muon (Jordan et al. 2024) for weight matrices, and AdamW for embeddings (input and output), norms and vectors.
    Muon's step is scaled to the size of AdamW's (Liu et al. 2025), so that both use one learning rate."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        """Optimise all trainable parameters of ``model``."""
        outputs = [each.get_output_embeddings() for each in model.modules() if isinstance(each, PreTrainedModel)]
        inputs = [each for each in model.modules() if isinstance(each, nn.Embedding)]
        embeddings = {id(each.weight) for each in (*inputs, *outputs) if each is not None}
        trained = {id(each): each for each in model.parameters() if each.requires_grad}.values()
        matrices = [each for each in trained if each.ndim == 2 and id(each) not in embeddings]
        others = [each for each in trained if each.ndim != 2 or id(each) in embeddings]
        groups = [{"params": matrices, "muon": True}, {"params": others, "muon": False}]
        super().__init__([group for group in groups if group["params"]], lr=learning_rate, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Trainers pass no closure
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["muon"]]
        super().step()
        self.param_groups = groups
        matrices = ((weight, group) for group in groups if group["muon"] for weight in group["params"])
        for weight, group in matrices:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(weight.grad)
                state["step"] = torch.zeros(())  # AdamW expects it in every stored state
            momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - _MOMENTUM)
            update = orthogonal(weight.grad.lerp(momentum, _MOMENTUM))
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            # Scale to the size of AdamW's steps: 0.2 sqrt(max(rows, columns)), Liu et al. 2025, equation 4.
            weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))


def orthogonal(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Keep the singular vectors of a matrix and set its singular values to about 1: X ← a X + (b A + c A²) X with A =
    X Xᵀ (Newton-Schulz, Jordan et al. 2024). In bfloat16, except on a CPU, where the conversion takes three quarters
    of a training step."""
    a, b, c = (3.4445, -4.775, 2.0315)
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    if tall := matrix.shape[0] > matrix.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
