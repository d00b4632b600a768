"""Settings of every learner. Imports neither torch nor TRL, so that a command line can read them at once."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""NumPy, which training seeds too, takes no other."""

PreferenceLoss = Literal[
    "sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
    "discopop", "sft", "sigmoid_norm",
]  # fmt: skip
PolicyLoss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]
Optimiser = Literal["adamw", "muon"]


@dataclass(frozen=True, config=_STRICT)
class TrainingConfig:
    """What all trainings of a run share; a stage's own table holds what differs."""

    schedule: Schedule = "linear"
    """Course of the learning rate after the warm-up steps, in every training."""
    epochs: Positive = 1.0
    """Passes over the training rows in every training whose own ``max_steps`` is unset."""
    accumulation: Count = 1
    """Forward passes of one optimiser step; raise it where a smaller batch_size must fit the memory."""
    precision: Precision = "float32"
    """Arithmetic of the forward pass in training; "bfloat16" means mixed precision."""
    gradient_checkpointing: bool = False
    """Recomputes activations in the backward pass, which saves memory and takes about 20 % more time."""
    save_every: Count = 100
    """Optimiser steps between two checkpoints from which an interrupted training resumes."""


@dataclass(frozen=True, config=_STRICT)
class OptimiserConfig(TrainingConfig):
    """How a learner takes gradient steps, watches them and saves them. A run composes it from ``[training]`` and the
    stage's own table."""

    schedule: Schedule = "constant"
    optimiser: Optimiser = "adamw"
    """"adamw", or "muon": Muon for weight matrices with AdamW for the rest, which learns from scratch in about half the
    steps."""
    learning_rate: Positive = 1e-3
    """Peak learning rate."""
    max_steps: Count | None = None
    """Optimiser steps; unset means as many as ``epochs`` take."""
    batch_size: Count = 32
    """Rows (or pairs) of one forward pass."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps over which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay; at 0 a zero gradient leaves the weights exactly as they are."""
    attention: Literal["sdpa", "eager"] | None = None
    """Attention implementation while the model trains, by transformers' names; unset means the model's own."""
    log_every: Count = 10
    """Optimiser steps between two rows of a training's metrics."""
    validate_every: Count = 50
    """Optimiser steps between two validations, where a validation is given."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations in a row without a new best after which training stops; 0 never stops early."""
    seed: Seed = 0
    """Seed of the order of rows and of dropout."""


@dataclass(frozen=True, config=_STRICT)
class SFTConfig(OptimiserConfig):
    """Supervised imitation of the agent's own tokens."""


@dataclass(frozen=True, config=_STRICT)
class DistilConfig(OptimiserConfig):
    """Distillation of the search's policy over the candidates of each state."""

    batch_size: Count = 32
    """States of one forward pass."""


@dataclass(frozen=True, config=_STRICT)
class DPOLoss:
    """The loss of direct preference optimisation."""

    loss_type: tuple[PreferenceLoss, ...] = ("sigmoid", "sft")
    """Terms of DPO's loss, by TRL's names. "sigmoid" alone may lower the likelihood of the chosen actions too
    (likelihood displacement, Razin et al. 2024); "sft", the mean negative log-likelihood of all chosen tokens in nats,
    prevents it."""
    loss_weights: tuple[NonNegative, ...] = (1.0, 0.5)
    """Weight of each term of ``loss_type``."""
    beta: Positive = 0.3
    """Strength with which DPO holds the policy close to the policy that sampled the trees."""

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
    """Surrogate and normalisation of the policy-gradient loss, by TRL's names; "dapo" divides by the trained tokens of
    the batch, "bnpo" by those of one forward pass; "grpo" takes the mean over the tokens of each row, "luspo" their
    sum, and then the mean over rows."""
    epsilon_high: Positive | None = None
    """Probability ratios above 1 + epsilon_high are clipped; under "cispo" the ratio itself is capped at epsilon_high.
    Unset means 0.28 (DAPO's clip-higher), or 5.0 under "cispo"."""
    delta: Annotated[float, Field(gt=1)] | None = None
    """Cap of the probability ratio where the advantage is negative, which the clipping leaves open: a stale token that
    has become likely since weighs no more (two-sided clipping, INTELLECT-2). Unset caps nothing; "cispo", "sapo" and
    "vespo" need none."""
    beta: NonNegative = 0.0
    """Weight of KL(policy || behaviour), in nats per token: the k3 estimate times the importance ratio, whose gradient
    is unbiased (DeepSeek-V3.2)."""
    anchor: NonNegative = 0.0
    """Weight of the mean negative log-likelihood of tokens with a positive advantage."""
    packed: bool = True
    """Computes the common beginning of a batch's rows once, and draws the rows of a task into one batch; the loss of a
    batch is the same."""

    @model_validator(mode="after")
    def _cap_is_a_ratio(self) -> Self:
        if self.loss_type == "cispo" and self.clip_high < 1:
            raise ValueError(
                f"epsilon_high={self.epsilon_high} would shrink every ratio under loss_type='cispo', where it caps the "
                "ratio itself: leave it out (5.0) or set it above 1"
            )
        if self.delta is not None and self.loss_type in ("cispo", "sapo", "vespo"):
            raise ValueError(f"delta={self.delta} has no effect under loss_type={self.loss_type!r}: leave it out")
        return self

    @property
    def clip_high(self) -> float:
        """``epsilon_high`` with its default filled in."""
        return self.epsilon_high or (5.0 if self.loss_type == "cispo" else 0.28)


@dataclass(frozen=True, config=_STRICT)
class GRPOConfig(GRPOLoss, OptimiserConfig):
    """Clipped policy gradient on stored actions with advantages computed from trees."""

    learning_rate: Positive = 2e-4
    batch_size: Annotated[int, Field(ge=2)] = 32
    """Rows of one forward pass; TRL needs two or more."""


@dataclass(frozen=True, config=_STRICT)
class ValueConfig:
    """Fitting the value head alone, on frozen hidden states."""

    learning_rate: Positive = 1e-3
    """Learning rate of AdamW."""
    epochs: Count = 50
    """Most passes over the training positions."""
    batch_size: Count = 256
    """Positions of one optimiser step."""
    forward_batch_size: Count = 32
    """Rows of one forward pass of the frozen policy."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the tasks kept for early stopping and for the reported numbers."""
    patience: Count = 5
    """Epochs in a row without a lower held-out loss after which training stops."""
    seed: Seed = 0
    """Seed of the split of the tasks and of the order of positions."""


@dataclass(frozen=True, config=_STRICT)
class RewardModelConfig(OptimiserConfig):
    """A reward model by Bradley-Terry."""

    centre: NonNegative = 0.01
    """Weight of (u(chosen) + u(rejected))², which keeps the scores of a reward model around 0."""
