"""A reward model: a language model whose head gives one score u of a conversation at its last token, instead of the
next token. It learns by TRL's ``RewardTrainer`` which of two ends of a task is better."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import peft
import torch
from datasets import Dataset
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PrinterCallback
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from treeagent.agent.checkpoint import Checkpoint, no_old_names, no_progress_bars
from treeagent.generators.config import LoraConfig

_CENTRE = 0.01
"""Weight c of the penalty (u(chosen) + u(rejected))², which keeps scores around 0 (Eisenstein et al. 2023)."""
_BATCH = 32
"""Conversations of one forward pass that only scores them."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FitOptions:
    """Options of ``treeagent reward``."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Peak learning rate of AdamW, which falls linearly to 0."""
    batch_size: Annotated[int, Field(gt=0)] = 8
    """Pairs in one step."""
    epochs: Annotated[int, Field(gt=0)] = 3


def make_scorer(checkpoint: Checkpoint, seed: int) -> PreTrainedModel:
    """A model with the layers of a policy, which it takes over, and a new head."""
    model: Any = checkpoint.model
    model.config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = AutoModelForSequenceClassification.from_config(model.config)
    setattr(scorer, scorer.base_model_prefix, model.base_model)
    tokenizer = checkpoint.tokenizer
    scorer.config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return cast(PreTrainedModel, scorer.to(model.device).float())


def train_scorer(
    scorer: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    options: FitOptions,
    lora: LoraConfig | None = None,
    seed: int = 0,
) -> tuple[PreTrainedModel, list[dict[str, float]]]:
    """Train a scorer on pairs: ``chosen_ids``, ``rejected_ids``, and ``margin`` m, the difference in return as a share
    of the range. The loss is -log σ(u(chosen) - u(rejected) - m) + c (u(chosen) + u(rejected))², in nats (Touvron et
    al. 2023, equation 2), with c = 0.01. Returns the scorer and TRL's metrics of each step."""
    adapter = None
    if lora is not None:
        adapter = peft.LoraConfig(task_type="SEQ_CLS", r=lora.rank, target_modules="all-linear")
    arguments: dict[str, Any] = {
        "learning_rate": options.learning_rate,
        "per_device_train_batch_size": options.batch_size,
        "num_train_epochs": options.epochs,
        "center_rewards_coefficient": _CENTRE,
        "max_length": None,
        "bf16": False,
        "gradient_checkpointing": None,  # TRL's default is on; False is deprecated
        "use_cpu": scorer.device.type == "cpu",
        "seed": seed,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    with tempfile.TemporaryDirectory(prefix="treeagent-") as spare, no_old_names(), no_progress_bars():
        settings = RewardConfig(output_dir=spare, **arguments)
        data = Dataset.from_list([dict(row) for row in rows])
        trainer = RewardTrainer(scorer, settings, train_dataset=data, processing_class=tokenizer, peft_config=adapter)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    trained: Any = trainer.model
    scorer = trained if adapter is None else trained.merge_and_unload()
    return scorer.eval(), [row for row in trainer.state.log_history if "loss" in row]


@torch.no_grad()
def scores(scorer: PreTrainedModel, rows: Sequence[Sequence[int]]) -> list[float]:
    """The score u of each row of token ids."""
    found, padding = list[float](), scorer.config.pad_token_id
    for start in range(0, len(rows), _BATCH):
        batch = [torch.tensor(row) for row in rows[start : start + _BATCH]]
        ids = pad_sequence(batch, batch_first=True, padding_value=padding)
        mask = pad_sequence([torch.ones_like(row) for row in batch], batch_first=True)
        logits = scorer(input_ids=ids.to(scorer.device), attention_mask=mask.to(scorer.device)).logits
        found += logits[:, 0].tolist()
    return found


def calibrate(found: Sequence[float], targets: Sequence[float]) -> tuple[float, float]:
    """Platt scaling (Platt 1999): (slope, shift) with which σ(slope · u + shift) predicts ``targets``, the returns of
    held-out ends as shares of their range, from ``found``, their scores u. The slope is positive."""
    if not found:
        return 1.0, 0.0
    us, goals = torch.tensor(found, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)
    wide = max(us.std(correction=0).item(), 1e-6)
    fitted = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log(slope * wide), shift
    # As in Platt: targets are kept off 0 and 1, or else perfectly ordered scores would give an infinite slope.
    smooth = (goals * len(found) + 1) / (len(found) + 2)
    optimiser = torch.optim.LBFGS([fitted], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = fitted[0].exp() * us / wide + fitted[1]
        loss = functional.binary_cross_entropy_with_logits(logits, smooth) + 1e-4 * fitted.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return math.exp(fitted[0].item()) / wide, fitted[1].item()
