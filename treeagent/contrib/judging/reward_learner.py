"""Train a reward model with a Bradley-Terry loss: TRL's ``RewardTrainer`` on pairs of token ids, with the value head's
logit as the score.

TRL's own model class, a sequence classifier, would not load as a policy's checkpoint. With the value head as the score,
a reward model is a checkpoint with a head, and search uses it like the policy's value head.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput
from trl.trainer.reward_config import RewardConfig as RewardArguments
from trl.trainer.reward_trainer import RewardTrainer

from treeagent.agent.value_head import ValueHead
from treeagent.contrib.judging.comparisons import Comparison
from treeagent.generators.attention import hidden_states, logit_columns
from treeagent.learners.batches import Batches, padded, row_numbers
from treeagent.learners.common import Learner, Model, fit, prepared
from treeagent.learners.config import RewardModelConfig
from treeagent.learners.memory import Inputs, part_bounds
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.types import NothingToLearn

_STANDARDISED_BY = 256
"""About how many pairs give the means and deviations of the head's features."""


def train_reward(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    head: ValueHead,
    pairs: Sequence[Comparison],
    config: RewardModelConfig,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a score u of conversations with a Bradley-Terry loss; changes ``model`` and ``head`` in place.

    The loss of a pair is -log σ(u(chosen) - u(rejected) - m) + c (u(chosen) + u(rejected))², in nats, where u is the
    head's logit at the last token, m the pair's margin as a share of the head's reward range (Touvron et al. 2023,
    equation 2) and c ``config.centre`` (Eisenstein et al. 2023). First, the head's features are standardised over some
    of the pairs.

    Metrics, means over the steps since the last row: ``loss``; ``accuracy`` (share of pairs in the right order);
    ``margin`` (mean u(chosen) - u(rejected)); ``min_reward``, ``mean_reward`` and ``max_reward`` (of u); ``num_tokens``
    (tokens read so far); ``grad_norm`` (before clipping).

    Raises:
        NothingToLearn: there are no pairs.
        TrainingDiverged: a loss or a gradient is NaN or infinite.
    """
    if not pairs:
        raise NothingToLearn(
            "no task has two ends or siblings whose returns differ by update.pairs.min_margin: collect more trees, or "
            "lower it"
        )
    low, high = head.reward_range
    some = pairs[:: max(len(pairs) // _STANDARDISED_BY, 1)]
    ends = [ids for pair in some for ids in (pair.chosen_ids, pair.rejected_ids)]
    head.standardise(torch.cat([states.float() for _, states in _states(model, ends)]))
    text = model.config.get_text_config()
    padding, labels = text.pad_token_id, model.config.num_labels
    model.config.num_labels = 1  # TRL requires it
    try:
        with prepared(model, config, hooks, head) as arguments:
            trainer = _RewardTrainer(
                model=model,
                args=RewardArguments(**arguments, max_length=None, center_rewards_coefficient=config.centre or None),
                train_dataset=row_numbers(len(pairs)),
                processing_class=tokenizer,
                data_collator=lambda items: _collate([pairs[item["row"]] for item in items], high - low),
            )
            trainer.head = head
            lengths = [max(len(pair.chosen_ids), len(pair.rejected_ids)) for pair in pairs]
            # TRL expects as many pairs from every process.
            return fit(trainer, config, pairs, Batches(lengths, config.batch_size, config.seed, full=True), hooks)
    finally:
        model.config.num_labels, text.pad_token_id = labels, padding


def _collate(pairs: Sequence[Comparison], span: float) -> dict[str, Tensor]:
    """Collate pairs into (2 * pairs, longest) tensors, chosen rows first as TRL expects, and (pairs,) margins."""
    rows = [pair.chosen_ids for pair in pairs] + [pair.rejected_ids for pair in pairs]
    return {
        **padded(rows),
        "margin": torch.tensor([pair.margin / span for pair in pairs]),
    }


class _RewardTrainer(Learner, RewardTrainer):
    aux_loss_enabled = False

    def batch_loss(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Tensor:
        inputs = dict(inputs)

        def scored(input_ids: Tensor, attention_mask: Tensor, use_cache: bool, **_: Any) -> SequenceClassifierOutput:
            assert self.head is not None
            logits = _logits(self.model, model, self.head, input_ids, attention_mask)
            return SequenceClassifierOutput(logits=logits[:, None])

        loss: Tensor = RewardTrainer.compute_loss(self, scored, inputs)
        return loss

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        pairs = len(inputs["margin"])

        def loss(first: int, last: int) -> Tensor:
            indices = [*range(first, last), *range(pairs + first, pairs + last)]
            part = {name: inputs[name][indices] for name in ("input_ids", "attention_mask")}
            part["margin"] = inputs["margin"][first:last]
            return self.batch_loss(model, part, None) * ((last - first) / pairs)

        return (partial(loss, first, last) for first, last in part_bounds(pairs, self.parts))

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset  # the pairs were tokenised when they were sampled


def _logits(model: Model, forward: Callable[..., Any], head: ValueHead, ids: Tensor, mask: Tensor) -> Tensor:
    """The head's logit at the last token of each row, (rows, tokens) to (rows)."""
    logits: Tensor = head(_last_states(model, forward, ids, mask))
    return logits


def _last_states(model: Model, forward: Callable[..., Any], ids: Tensor, mask: Tensor) -> Tensor:
    """The hidden state at the last token of each row, (rows, tokens) to (rows, features)."""
    with hidden_states(model) as collected:
        forward(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=logit_columns(model, 0, 0))
    return collected[0][torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]


@torch.no_grad()
def scores(model: Model, head: ValueHead, rows: Sequence[Sequence[int]], batch_size: int = 32) -> list[float]:
    """The head's logit u at the end of each row of token ids."""
    head.to(model.device)
    found = dict[int, float]()
    for indices, states in _states(model, rows, batch_size):
        found |= zip(indices, head(states).float().tolist(), strict=True)
    return [found[index] for index in range(len(rows))]


@torch.no_grad()
def _states(
    model: Model, rows: Sequence[Sequence[int]], batch_size: int = 32
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """The hidden state at the end of each row of token ids, in batches of rows of similar length: the indices of the
    rows and their states, (rows, features)."""
    training, device = model.training, model.device
    model.eval()
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        ids, mask = (each.to(device) for each in padded([rows[index] for index in indices]).values())
        yield indices, _last_states(model, model, ids, mask)
    model.train(training)


@dataclass(frozen=True, slots=True)
class Calibration:
    """σ(slope · u + shift) predicts the return, rescaled to [0, 1], of an end with score u."""

    slope: float
    shift: float


def calibrate(head: ValueHead, found: Sequence[float], returns: Sequence[float]) -> Calibration:
    """Scale the head's logit so that V = σ(slope · u + shift) predicts returns (Platt 1999). The order of scores
    does not change. Calibration is needed because the Bradley-Terry loss leaves the shift of u undetermined, and the
    scale of u fits preferences, not returns.

    Args:
        found: scores u of ends that were not used in training.
        returns: the returns of these ends, in reward units.
    """
    scores_, targets = torch.tensor(found, dtype=torch.float64), head.rescale(torch.tensor(returns)).double()
    wide = max(scores_.std(correction=0).item(), 1e-6) if len(found) else 1.0
    fitted = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log(slope * wide), shift
    # As in Platt: targets are kept off 0 and 1, or else perfectly ordered scores would give an infinite slope.
    smooth = (targets * len(found) + 1) / (len(found) + 2)
    optimiser = torch.optim.LBFGS([fitted], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = fitted[0].exp() * scores_ / wide + fitted[1]
        loss = functional.binary_cross_entropy_with_logits(logits, smooth) + 1e-4 * fitted.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    if len(found):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    slope, shift = math.exp(fitted[0].item()) / wide, fitted[1].item()
    head.scale(slope, shift)
    return Calibration(slope, shift)
