"""Code that all learners based on TRL share: lend a model to a trainer, run the trainer, and write crash-safe
checkpoints."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl.trainer import utils as trl_utils

from treeagent.agent.checkpoint import refusals_named
from treeagent.agent.value_head import ValueHead
from treeagent.contrib.scale.sharding import allow_cpu, gather_weights, sharing, trains_on_cpu
from treeagent.generators.attention import base_model
from treeagent.generators.quiet import no_old_names, no_progress_bars
from treeagent.learners import checkpoints
from treeagent.learners.batches import Batches
from treeagent.learners.config import OptimiserConfig
from treeagent.learners.memory import Inputs, SavedGradients, return_memory, sum_losses
from treeagent.learners.optimiser import MuonAdamW
from treeagent.learners.watch import Hooks, TrainingDiverged, TrainResult, Watch, restore_weights
from treeagent.types import UserError

Model = PreTrainedModel | PeftModel
_ROUTER = ("output_router_logits", "router_aux_loss_coef")
"""Names that TRL's supervised trainer sets in the configuration of a mixture of experts."""


def _arguments(config: OptimiserConfig, model: Model, hooks: Hooks, spare: str) -> dict[str, Any]:
    """Arguments for ``transformers.TrainingArguments``, without console output or network access. A Trainer needs an
    output folder: without ``checkpoint_dir`` it is ``spare``."""
    schedule = "constant_with_warmup" if config.schedule == "constant" and config.warmup_steps else config.schedule
    return {
        "output_dir": str(hooks.get("checkpoint_dir") or spare),
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
        "logging_steps": config.log_every,
        "logging_nan_inf_filter": False,  # the filter would hide a divergence
        "save_strategy": "steps" if hooks.get("checkpoint_dir") else "no",
        "save_steps": config.save_every,
        "save_total_limit": 2,  # the newest may be half-written
        "seed": config.seed,
        "use_cpu": trains_on_cpu(model),
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "accelerator_config": {"even_batches": False},  # ``Batches`` gives each process equally many
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


def labelled_only() -> AbstractContextManager[object]:
    """A context in which TRL runs the language-model head over labelled positions only.

    Without Triton it runs over every position, because Neuron needs fixed shapes. On a CPU this takes 30 % of a step if
    a quarter of the tokens is trained.
    """
    return patch.object(trl_utils, "_use_triton", lambda device: True)


@contextmanager
def prepared(
    model: Model, config: OptimiserConfig, hooks: Hooks, head: ValueHead | None = None
) -> Iterator[dict[str, Any]]:
    """Lend a model to a trainer. Yields the trainer's arguments.

    Inside the context, the value head is a submodule of the model (one optimiser, one gradient norm). If all weights
    are trained, they are in float32: in bfloat16 most steps are smaller than half of a weight's last digit, and would
    be lost.

    On exit, everything that trainers change is undone: a patched ``forward`` (otherwise each round would wrap it once
    more), ``use_cache`` off, dropout set to 0, gradient checkpointing, the auxiliary loss of routers, and the float32
    copy of weights in a shorter format.
    """
    modules: set[nn.Module] = {model, base_model(model)}
    forwards = [module.__dict__.get("forward") for module in modules]
    switches = [
        (module, name, getattr(module, name))
        for module in model.modules()
        for name in ("p", "gradient_checkpointing")
        if isinstance(getattr(module, name, None), float | bool)
    ]
    training, dtype = model.training, model.dtype
    use_cache = getattr(model.config, "use_cache", None)  # Gemma 3 has it only in the configs of its parts
    buffers = [
        (module, name, buffer.dtype)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    text_config = model.config.get_text_config()
    router = {name: getattr(text_config, name) for name in _ROUTER if hasattr(text_config, name)}
    if head is not None:
        model.value_head = head.to(model.device)
    if dtype.itemsize < torch.float32.itemsize and not isinstance(model, PeftModel):  # PEFT's adapters are in float32
        nn.Module.to(model, torch.float32)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="treeagent-") as spare,
            labelled_only(),
            no_old_names(),
        ):
            yield _arguments(config, model, hooks, spare)
    finally:
        if head is not None:
            del model.value_head
        for module, forward in zip(modules, forwards, strict=True):
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward
        for module, name, value in switches:
            setattr(module, name, value)
        if use_cache is None:
            with suppress(AttributeError):
                del model.config.use_cache
        else:
            model.config.use_cache = use_cache
        for name, value in router.items():
            setattr(text_config, name, value)
        if model.dtype != dtype:
            # Buffers keep their own format: the frequencies of rotary embeddings are in float32 in every model.
            own = [(module, name, getattr(module, name).to(format)) for module, name, format in buffers]
            nn.Module.to(model, dtype)
            for module, name, buffer in own:
                setattr(module, name, buffer)
        model.zero_grad()
        model.train(training)
        return_memory()


class Learner(Trainer):
    """Base class with the changes to a Trainer that all learners share. It must precede TRL's trainer among the base
    classes."""

    args: Any  # a subclass of TrainingArguments, which differs by trainer
    model: Any  # the base class also allows None or a bare module, which never occur here
    train_dataset: Any
    batches: Batches
    watch: Watch
    fingerprint: str
    """Fingerprint of the configuration and the rows; empty if no checkpoints are written."""
    head: ValueHead | None = None
    optimiser: str = "adamw"
    aux_loss_enabled: bool
    rows_per_batch: int
    """Rows of a whole batch."""
    parts: int = 1
    """Parts in which a batch goes through the model; more than 1 if a whole batch did not fit into memory."""
    _total_train_tokens: int = 0

    def create_accelerator_and_postprocess(self) -> None:
        allow_cpu(self.args.distributed_state)
        super().create_accelerator_and_postprocess()

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator
        )
        return cast(DataLoader[Any], self.accelerator.prepare(loader))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        if self.optimizer is None and self.optimiser == "muon":
            self.optimizer = MuonAdamW(
                self.model, learning_rate=self.args.learning_rate, weight_decay=self.args.weight_decay
            )
        return super().create_optimizer(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        single_process = self.accelerator.num_processes == 1
        saved = SavedGradients(model) if single_process and self.current_gradient_accumulation_steps > 1 else None
        loss: Tensor | None = None
        while loss is None:
            counted = self._total_train_tokens
            try:
                loss = super().training_step(model, inputs, num_items_in_batch)
            except torch.OutOfMemoryError as error:
                self._take_less_memory(str(error).partition("\n")[0])
            if loss is None:  # outside the handler: until here, the error's traceback kept the activations in memory
                self._total_train_tokens = counted
                model.zero_grad(set_to_none=True)
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        if saved is not None:
            saved.add()
        everywhere = self.accelerator.gather(loss.detach())  # all processes stop together, or the others would wait
        if not torch.isfinite(everywhere).all():
            raise TrainingDiverged(f"the loss is {everywhere.sum().item()} at step {self.state.global_step + 1}")
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The loss of a batch. If memory is short, it is computed part by part; the losses of the parts add up to
        it."""
        if self.parts == 1:
            return self.batch_loss(model, inputs, num_items_in_batch)
        return sum_losses(self.model, self.part_losses(model, inputs, num_items_in_batch))

    def batch_loss(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Tensor:
        return cast(Tensor, super().compute_loss(model, inputs, False, num_items_in_batch))

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        """Functions that compute the loss of each of the ``parts`` parts of a batch, weighted so that their sum is the
        loss of the batch."""
        raise NotImplementedError

    @property
    def separable(self) -> bool:
        """Whether the loss of a batch is a sum over its rows. The auxiliary loss that balances experts is not."""
        return not self.aux_loss_enabled

    def _take_less_memory(self, error: str) -> None:
        """Split batches into twice as many parts. If the parts are single rows already, or the loss is not a sum over
        rows, compute activations again in the backward pass.

        Raises:
            UserError: that is done already, or several processes train together: those without this error would wait
                forever.
        """
        step = self.state.global_step + 1
        alone = self.accelerator.num_processes == 1
        if alone and self.separable and self.parts < self.rows_per_batch:
            self.parts *= 2
            self.watch.on_metrics({"step": float(step), "parts": float(self.parts)})
        elif alone and not self.recomputes:
            self.args.gradient_checkpointing = True
            # Newer versions of transformers call it activation checkpointing.
            names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
            enable = getattr(self.model, next(name for name in names if hasattr(self.model, name)))
            enable({"use_reentrant": False})
            self.watch.on_metrics({"step": float(step), "recomputes": 1.0})
        else:
            raise UserError(
                f"step {step} of a training ran out of memory ({error}): set training.gradient_checkpointing=true, "
                "halve its batch_size and double training.accumulation, or train an adapter (policy.lora.rank=16)"
            )

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass computes activations again."""
        return bool(self.args.gradient_checkpointing)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with no_progress_bars():
            super()._save(output_dir, state_dict)
        if self.head is not None and output_dir is not None:  # a checkpoint of an adapter holds the adapter only
            self.head.save(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.head is not None:
            saved = ValueHead.load(Path(resume_from_checkpoint))
            if (saved.middle is None) != (self.head.middle is None):
                raise UserError(
                    f"the training in {resume_from_checkpoint} was begun by another version of treeagent, whose value "
                    "head reads other layers: remove the folder of the run, or finish it with that version"
                )
            self.head.load_state_dict(saved.state_dict())

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        with refusals_named(folder):
            super()._save_checkpoint(model, trial)
        best = gather_weights(self.watch.best)
        self.accelerator.wait_for_everyone()  # until each process has written its random state
        if self.accelerator.is_main_process:
            with refusals_named(folder):
                checkpoints.seal(folder, self.state.global_step, self.fingerprint, self.watch.progress, best)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no model card is written."""

    def _send_telemetry(self) -> None:
        """Do nothing: no telemetry is sent."""


class _Epochs(TrainerCallback):
    """Tells the batches which epoch begins, because their order depends on it. transformers passes the epoch on through
    one wrapper of the batches. A training of several processes that resumes within an epoch has two."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.batches.set_epoch(int((state.epoch or 0.0) + 1e-6))  # on resuming, with the part that is done


def fit(
    trainer: Learner, config: OptimiserConfig, rows: Sequence[object], batches: Batches, hooks: Hooks
) -> TrainResult:
    """Run a trainer to its end. If an earlier run of the same call was cut short, resume from its last checkpoint.

    Raises:
        TrainingDiverged: a loss or a gradient is NaN or infinite.
        UserError: the checkpoint folder belongs to a training with another configuration or other rows, or the
            training runs out of memory (``Learner._take_less_memory``).
    """
    start = time.perf_counter()
    model = trainer.model
    trainer.batches, trainer.optimiser, trainer.rows_per_batch = batches, config.optimiser, config.batch_size
    batches.processes = trainer.accelerator.num_processes
    trainer.watch = watch = Watch(model, config, hooks)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    trainer.add_callback(_Epochs(batches))
    folder = hooks.get("checkpoint_dir")
    trainer.fingerprint = checkpoints.fingerprint(config, rows) if folder else ""
    with trainer.accelerator.main_process_first():  # ``newest`` removes incomplete checkpoints
        checkpoint = checkpoints.newest(folder, trainer.fingerprint) if folder else None
    if checkpoint:
        watch.progress, watch.best = checkpoints.read(checkpoint, model.device)
        trainer._total_train_tokens = int(watch.progress.metrics.get("num_tokens", 0))  # TRL counts from 0 again
    if checkpoint and watch.progress.finished:
        if sharing():  # weights are sharded only when a training begins
            trainer._prepare_for_training(watch.progress.step, trainer.get_train_dataloader(), str(checkpoint))  # type: ignore[no-untyped-call]
        else:
            trainer._load_from_checkpoint(str(checkpoint))
    else:
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except TrainingDiverged:
            restore_weights(model, watch.best)
            raise
    restore_weights(model, watch.best)
    done = watch.progress
    seconds = time.perf_counter() - start
    return TrainResult(
        done.step, done.metrics, done.best_validation, done.best_step, seconds, trainer.parts, trainer.recomputes
    )
