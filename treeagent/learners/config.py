"""Settings of every learner. This module imports neither torch nor TRL, so that a command line reads them quickly."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""The range of seeds that NumPy accepts; training seeds NumPy, too."""

PreferenceLoss = Literal["sigmoid", "hinge", "ipo", "sft", "sigmoid_norm"]
PolicyLoss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]
Optimiser = Literal["adamw", "muon"]


@dataclass(frozen=True, config=_STRICT)
class TrainingConfig:
    """Settings that all trainings of a run share. The table of each training holds its other settings."""

    schedule: Schedule = "linear"
    """Schedule of the learning rate after the warm-up steps, in every training."""
    epochs: Positive = 1.0
    """Passes over the training rows, in every training that leaves its own ``max_steps`` unset."""
    accumulation: Count = 1
    """Forward passes per optimiser step (gradient accumulation). If memory is short, raise it and lower batch_size."""
    precision: Literal["auto", Precision] = "auto"
    """Number format of the forward pass in training; "bfloat16" means mixed precision. "auto" means "bfloat16" on a GPU
    that computes in it and, for a policy of 30 million weights or more, on a processor that multiplies it faster than
    float32; otherwise "float32"."""
    gradient_checkpointing: bool = False
    """Recomputes activations in the backward pass. This saves memory and takes about 20 % more time."""
    save_every: Count = 100
    """Optimiser steps between two checkpoints from which an interrupted training resumes."""


@dataclass(frozen=True, config=_STRICT)
class OptimiserConfig(TrainingConfig):
    """Settings of a learner's optimiser, validation and checkpoints. A run combines them from ``[training]`` and the
    table of the training."""

    schedule: Schedule = "constant"
    precision: Precision = "float32"
    optimiser: Optimiser = "adamw"
    """"adamw", or "muon": Muon for weight matrices and AdamW for all other weights. Training from scratch takes about
    half as many steps with "muon"."""
    learning_rate: Positive = 1e-3
    """Peak learning rate."""
    max_steps: Count | None = None
    """Optimiser steps; unset means the steps of ``epochs`` passes over the rows."""
    batch_size: Count = 32
    """Rows (or pairs) of one forward pass."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps over which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """Weight decay, decoupled as in AdamW. At 0, weights that never get a gradient stay exactly as they are."""
    log_every: Count = 10
    """Optimiser steps between two rows of the training's metrics."""
    validate_every: Count = 50
    """Optimiser steps between two validations, if the training validates."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Training stops after this many validations in a row without a new best; 0 never stops early."""
    seed: Seed = 0
    """Seed of the order of rows and of dropout."""


@dataclass(frozen=True, config=_STRICT)
class SFTConfig(OptimiserConfig):
    """Supervised imitation of the agent's own tokens."""


@dataclass(frozen=True, config=_STRICT)
class DistilConfig(OptimiserConfig):
    """Distillation of the policy that search computes over the candidates of each state."""

    batch_size: Count = 32
    """States of one forward pass."""


@dataclass(frozen=True, config=_STRICT)
class DPOLoss:
    """The loss of direct preference optimisation."""

    loss_type: tuple[PreferenceLoss, ...] = ("sigmoid", "sft")
    """Terms of DPO's loss, by their names in TRL. "sigmoid" alone may also lower the likelihood of the chosen actions
    (likelihood displacement, Razin et al. 2024). Adding "sft" prevents this: the mean negative log-likelihood, in nats,
    of all chosen tokens and, with pairs of siblings, of the good actions that no pair names (``update.imitation``)."""
    loss_weights: tuple[NonNegative, ...] = (1.0, 0.5)
    """Weight of each term of ``loss_type``."""
    beta: Positive = 0.3
    """Strength β with which DPO keeps the policy close to the policy that sampled the trees."""

    @model_validator(mode="after")
    def _weights_match(self) -> Self:
        if not self.loss_type or len(self.loss_type) != len(self.loss_weights):
            raise ValueError(f"loss_type {self.loss_type} needs one weight for each term, not {self.loss_weights}")
        return self


@dataclass(frozen=True, config=_STRICT)
class DPOConfig(DPOLoss, OptimiserConfig):
    """Direct preference optimisation against stored behaviour log-probabilities."""

    learning_rate: Positive = 2e-4


@dataclass(frozen=True, config=_STRICT)
class GRPOLoss:
    """The loss of the clipped policy gradient."""

    loss_type: PolicyLoss = "dapo"
    """Surrogate and normalisation of the policy-gradient loss, by its name in TRL. "dapo" divides by the trained tokens
    of the batch, "bnpo" by the trained tokens of one forward pass. "grpo" takes the mean over the tokens of each row
    and "luspo" their sum; both then take the mean over rows."""
    epsilon_high: Positive | None = None
    """Probability ratios above 1 + epsilon_high are clipped; under "cispo" the ratio itself is capped at epsilon_high.
    Unset means 0.28 (DAPO's clip-higher), or 5.0 under "cispo"."""
    beta: NonNegative = 0.0
    """Weight of KL(policy || behaviour), in nats per token. The estimate is k3 times the importance ratio, so that its
    gradient is unbiased (DeepSeek-V3.2)."""
    anchor: NonNegative = 0.0
    """Weight of an extra loss: the mean negative log-likelihood of tokens with a positive advantage. Most recipes use
    0.5. Without it, many steps on the kinds "q" and "gae" can unlearn how to end an episode."""
    packed: bool = True
    """Draws the rows of a task into one batch, and computes the common prefix of the rows of a batch only once. The
    loss of a batch stays the same. Without effect for a model that trains on whole rows, such as one with sliding
    windows."""

    @property
    def clip_high(self) -> float:
        """``epsilon_high`` with its default filled in."""
        return self.epsilon_high or (5.0 if self.loss_type == "cispo" else 0.28)


@dataclass(frozen=True, config=_STRICT)
class GRPOConfig(GRPOLoss, OptimiserConfig):
    """Clipped policy gradient on stored actions with advantages computed from trees."""

    learning_rate: Positive = 2e-4
    batch_size: Annotated[int, Field(ge=2)] = 32
    """Rows of one forward pass; TRL needs at least two."""


@dataclass(frozen=True, config=_STRICT)
class ValueConfig:
    """Settings for fitting the value head alone, on the frozen policy. They are no settings of a run."""

    learning_rate: float = 1e-3
    epochs: int = 50
    batch_size: int = 256
    """Positions of one optimiser step."""
    forward_batch_size: int = 32
    """Rows of one forward pass of the frozen policy."""
    precision: Precision = "float32"
    """Number format of this forward pass: that of the policy's training, and with it of its sampling."""
    held_out: float = 0.2
    """Share of the tasks held out."""
    patience: int = 5
    """Training stops after this many epochs in a row without a lower held-out loss."""
    seed: int = 0
