"""Observe a running trainer: metrics, progress, validation, the best weights, divergence."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from treeagent.contrib.scale.sharding import run_on_leader, shared_as, whole
from treeagent.learners.checkpoints import Progress
from treeagent.learners.config import OptimiserConfig


class TrainingDiverged(RuntimeError):
    """A loss or a gradient is NaN or infinite. The model then holds its best weights by validation; without a
    validation, the weights after the last step."""


class Hooks(TypedDict, total=False):
    """Hooks that a caller may attach to a training; each may also be ``None``."""

    on_metrics: Callable[[Mapping[str, float]], None] | None
    """Receives every row of metrics: step, loss, grad_norm, learning_rate and the metrics of the trainer."""
    on_progress: Callable[[int, int], None] | None
    """Receives the number of steps done and the total number of steps."""
    validate: Callable[[], float] | None
    """Scores the model's current weights, higher is better. It is also called before the first step. If several
    processes train together, only the first one calls it."""
    checkpoint_dir: Path | None
    """Folder of checkpoints; a rerun of the same call resumes from the newest complete one."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training."""

    steps: int
    """Optimiser steps taken, including those before a resumption."""
    metrics: Mapping[str, float]
    """The last row of metrics."""
    best_validation: float | None
    """The highest validation score; ``None`` without a validation."""
    best_step: int | None
    """The step of the best validation, whose weights the model holds; 0 means the initial weights."""
    seconds: float
    """Wall time of this call."""
    parts: int = 1
    """Parts in which each batch finally went through the model; more than 1 if memory was short."""
    recomputes: bool = False
    """Whether the backward pass computed activations again, by its settings or because memory was short."""


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the trainable weights, by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put copied weights back into the model. Weights without a copy stay as they are."""
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(shared_as(weights[name], parameter))


class Watch(TrainerCallback):
    """Reports a training to its hooks and keeps its best weights."""

    def __init__(self, model: nn.Module, config: OptimiserConfig, hooks: Hooks) -> None:
        self.model = model
        self.config = config
        self.on_metrics = hooks.get("on_metrics") or (lambda row: None)
        self.on_progress = hooks.get("on_progress") or (lambda done, total: None)
        self.validate = hooks.get("validate")
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        """The best weights that were validated; empty without a validation."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step == 0 and self.validate:
            self._validate(state)
        self.on_progress(state.global_step, state.max_steps)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients)).item()
        if not math.isfinite(norm):
            raise TrainingDiverged(f"the gradient norm is {norm} at step {state.global_step + 1}")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        step = self.progress.step = state.global_step
        last = step >= state.max_steps
        if self.validate and (last or step % self.config.validate_every == 0):
            self._validate(state)
            if self.config.patience and self.progress.stale >= self.config.patience:
                control.should_training_stop = True
        if control.should_training_stop:
            self.progress.finished = control.should_log = True
            control.should_save = args.save_strategy != "no"
        # A row of metrics is a mean since the last row. No row may span a checkpoint, or a resumed run would log
        # different rows.
        control.should_log |= control.should_save
        self.on_progress(step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        if logs and "loss" in logs:  # the summary that closes a training has none
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            self.progress.metrics = {"step": float(state.global_step), **numbers}
            self.on_metrics(self.progress.metrics)

    def _validate(self, state: TrainerState) -> None:
        assert self.validate is not None
        step = state.global_step
        training = self.model.training
        device = next(self.model.parameters()).device
        self.model.eval()
        # A validation that samples must not change the random numbers of the training.
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.no_grad(),
            # Accelerate does this only if weights are not sharded.
            torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"),
        ):
            scores = [run_on_leader(self.model, self.validate, leads=state.is_world_process_zero)]
        score = float(broadcast_object_list(scores)[0])
        self.model.train(training)
        self.on_metrics({"step": float(step), "validation": score})
        progress = self.progress
        if progress.best_validation is None or score > progress.best_validation:
            progress.best_validation, progress.best_step, progress.stale = score, step, 0
            self.best = copy_weights(self.model)
        else:
            progress.stale += 1
