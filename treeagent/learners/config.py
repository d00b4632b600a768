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
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip
_SMOOTHED = frozenset({"sigmoid", "exo_pair", "robust", "aot", "aot_unpaired"})
"""The terms that honour label smoothing."""
PolicyLoss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


@dataclass(frozen=True, config=_STRICT)
class LoraConfig:
    """A low-rank adapter beside frozen weights (Hu et al. 2021): h = W x + (alpha / rank) B A x, B being zero at
    first."""

    rank: Count = 16
    """Rows of A and columns of B."""
    alpha: Positive = 32.0
    """Scale of what the adapter adds, times the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the adapter's inputs in imitation; preference and policy-gradient updates take none."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get one, by the last part of their names; "all-linear" leaves out the language-model head, which can
    have none."""


@dataclass(frozen=True, config=_STRICT)
class OptimiserConfig:
    """How gradient steps are taken, watched and saved. Defaults suit models of up to a few million parameters."""

    optimiser: Literal["adamw", "muon"] = "adamw"
    """Muon, for weight matrices, with AdamW for the rest, learns from scratch in about half the steps."""
    learning_rate: Positive = 1e-3
    """Peak step size."""
    epochs: Positive = 1.0
    """Passes over the rows."""
    max_steps: Count | None = None
    """Optimiser steps; overrides ``epochs``."""
    batch_size: Count = 32
    """Rows (or pairs) per forward pass."""
    accumulation: Count = 1
    """Forward passes per optimiser step."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """AdamW's decay; at 0, a zero gradient leaves the weights exactly as they are."""
    max_grad_norm: NonNegative = 1.0
    """Gradients are clipped to this norm, policy and value head together; 0 clips nothing."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward pass; bfloat16 means mixed precision."""
    attention: Literal["sdpa", "eager"] | None = None
    """By transformers' names, while it trains; none leaves the model's own. On a CPU, eager attention in bfloat16 is
    the faster one for rows up to about 400 tokens."""
    gradient_checkpointing: bool = False
    """Recompute activations to save memory, about 20 % slower."""
    log_every: Count = 10
    """Steps per row of metrics."""
    validate_every: Count = 50
    """Steps between validations, where a validation is given."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations in a row without a new best before training stops; 0 never stops."""
    save_every: Count = 100
    """Steps between checkpoints, where a folder for them is given."""
    seed: Seed = 0
    """Orders the rows, and seeds dropout; in a config file the run's, where none is given."""


@dataclass(frozen=True, config=_STRICT)
class SFTConfig(OptimiserConfig):
    """Supervised imitation of the agent's own tokens."""

    value_weight: NonNegative = 0.5
    """Weight of the value head's cross-entropy beside the mean token loss."""


@dataclass(frozen=True, config=_STRICT)
class DPOConfig(OptimiserConfig):
    """Direct preference optimisation against stored behaviour log-probabilities."""

    learning_rate: Positive = 2e-4
    """Peak step size."""
    loss_type: tuple[PreferenceLoss, ...] = ("sigmoid", "sft")
    """Terms of the loss, by TRL's names. Sigmoid alone may lower the chosen actions' likelihood too (likelihood
    displacement, Razin et al. 2024); "sft" anchors it: the mean negative log-likelihood, in nats, of all chosen tokens
    of the batch together (so long actions weigh more), rejected ones not counted."""
    loss_weights: tuple[NonNegative, ...] = (1.0, 0.5)
    """One weight for each term of ``loss_type``."""
    beta: Positive = 0.3
    """Strength of the pull towards the behaviour policy."""
    label_smoothing: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Chance that a pair's label is wrong, a floor under each pair's own smoothing."""

    @model_validator(mode="after")
    def _weights_match(self) -> Self:
        if len(self.loss_type) != len(self.loss_weights):
            raise ValueError(f"loss_type {self.loss_type} needs one weight for each term, not {self.loss_weights}")
        if not self.loss_type:
            raise ValueError('loss_type is empty: name at least one term, such as "sigmoid"')
        smoothing, smoothed = self.label_smoothing, _SMOOTHED.intersection(self.loss_type)
        if smoothing and not smoothed:
            raise ValueError(
                f"label_smoothing is {smoothing:g}, which {', '.join(self.loss_type)} would ignore: leave it out, or "
                f"name one of {', '.join(sorted(_SMOOTHED))}"
            )
        if "exo_pair" in smoothed and not smoothing:
            raise ValueError("label_smoothing is 0, where exo_pair has no value: give it more than 0, such as 0.001")
        if "robust" in smoothed and smoothing == 0.5:
            raise ValueError("label_smoothing is 0.5, where robust has no value: give it less")
        return self


@dataclass(frozen=True, config=_STRICT)
class GRPOConfig(OptimiserConfig):
    """Clipped policy gradient on stored actions with advantages computed from trees."""

    learning_rate: Positive = 2e-4
    """Peak step size."""
    loss_type: PolicyLoss = "dapo"
    """Which surrogate and which normalisation, by TRL's names. "dapo" divides by the trained tokens of the batch."""
    importance_sampling: Literal["token", "sequence"] = "token"
    """Ratio per token, or per sequence (GSPO)."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Ratios below 1 - epsilon are clipped."""
    epsilon_high: Positive | None = None
    """Ratios above 1 + epsilon_high are clipped; for "cispo" the cap of the ratio itself. By default 0.28 (DAPO's
    clip-higher), and 5.0 for "cispo"."""
    beta: NonNegative = 0.0
    """Weight of KL(policy || behaviour), in nats per token: the k3 estimate times the importance ratio, which makes its
    gradient unbiased (DeepSeek-V3.2)."""
    entropy: NonNegative = 0.0
    """Weight of the entropy bonus, mean over trained tokens."""
    anchor: NonNegative = 0.0
    """Weight of the mean negative log-likelihood of tokens with a positive advantage."""
    iterations: Count = 1
    """Optimiser steps taken on each batch (μ)."""
    max_completion_tokens: Count | None = None
    """The constant that "dr_grpo" divides by, in tokens per row; by default the longest row's completion."""
    batch_size: Annotated[int, Field(ge=2)] = 32
    """Rows per forward pass; TRL wants two or more."""
    packed: bool = True
    """Compute what rows of a batch begin with in common once, and draw the rows of a task into one batch. The loss of a
    batch is the same."""
    pack_tokens: Count = 2048
    """Most tokens of a pack, whose attention mask takes their square in memory; a longer row is a pack of its own."""

    @model_validator(mode="after")
    def _cap_is_a_ratio(self) -> Self:
        if self.loss_type == "cispo" and self.clip_high < 1:
            raise ValueError(
                f"epsilon_high={self.epsilon_high} would shrink every ratio under loss_type='cispo', where it caps the "
                "ratio itself: leave it out (5.0) or set it above 1"
            )
        return self

    @property
    def clip_high(self) -> float:
        """``epsilon_high`` with its default filled in."""
        if self.epsilon_high is not None:
            return self.epsilon_high
        return 5.0 if self.loss_type == "cispo" else 0.28


@dataclass(frozen=True, config=_STRICT)
class ValueConfig:
    """Fitting the value head alone, on frozen hidden states."""

    learning_rate: Positive = 1e-3
    """Step size of AdamW."""
    weight_decay: NonNegative = 0.01
    """AdamW's decay."""
    epochs: Count = 50
    """Most passes over the training positions."""
    batch_size: Count = 256
    """Positions per step."""
    forward_batch_size: Count = 32
    """Rows per forward pass of the frozen policy."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of tasks kept for early stopping and for the reported numbers."""
    patience: Count = 5
    """Epochs in a row without a lower held-out loss before training stops."""
    seed: Seed = 0
    """Splits the tasks and orders the positions; in a config file the run's, where none is given."""
