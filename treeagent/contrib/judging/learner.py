"""Fit a reward model with a Bradley-Terry loss on pairs of token ids. Its score is the logit of a value head, so that a
reward model is a checkpoint with a head, which search could use like the policy's."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from peft import PeftModel
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from treeagent.agent.value_head import ValueHead
from treeagent.contrib.judging.comparisons import Comparison
from treeagent.generators.attention import hidden_states
from treeagent.learners.value import features
from treeagent.types import NothingToLearn
from treeagent.views.tokens import TokenRow

Model = PreTrainedModel | PeftModel
_STANDARDISED_BY = 256
"""About how many pairs give the means and deviations of the head's features."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FitOptions:
    """Options of ``treeagent reward fit``."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Peak learning rate of AdamW, which falls linearly to 0."""
    batch_size: Annotated[int, Field(gt=0)] = 8
    """Pairs in one step."""
    epochs: Annotated[int, Field(gt=0)] = 3
    max_steps: Annotated[int, Field(gt=0)] | None = None
    """Optimiser steps; unset means as many as ``epochs`` need."""
    centre: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the penalty (u(chosen) + u(rejected))², which keeps scores around 0 (Eisenstein et al. 2023)."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of a fit. Metrics are of the last step."""

    steps: int
    loss: float
    accuracy: float
    """Share of the step's pairs in the right order."""


def train_reward(
    model: Model,
    head: ValueHead,
    pairs: Sequence[Comparison],
    options: FitOptions,
    on_step: Callable[[Mapping[str, float]], None] = lambda metrics: None,
) -> Fitted:
    """Fit a score u of conversations; changes ``model`` and ``head`` in place. The loss of a pair, in nats, is -log
    σ(u(chosen) - u(rejected) - m) + c (u(chosen) + u(rejected))², where m is the margin as a share of the reward range
    (Touvron et al. 2023, equation 2) and c ``options.centre``."""
    if not pairs:
        raise NothingToLearn(
            "no task has two ends or siblings whose returns differ by update.pairs.min_margin: collect more trees, or "
            "lower it"
        )
    low, high = head.reward_range
    head.to(model.device)
    some = pairs[:: max(len(pairs) // _STANDARDISED_BY, 1)]
    ends = [ids for pair in some for ids in (pair.chosen_ids, pair.rejected_ids)]
    with torch.no_grad():
        head.standardise(features(model, head, _ends(ends), 32))
    weights = [each for each in (*model.parameters(), *head.parameters()) if each.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=0.0)
    total = options.max_steps or math.ceil(len(pairs) / options.batch_size) * options.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / total)
    batches, step, loss, accuracy = _batches(len(pairs), options), 0, math.nan, math.nan
    model.train()
    for step in range(1, total + 1):
        chosen = [pairs[index] for index in next(batches)]
        rows = [each.chosen_ids for each in chosen] + [each.rejected_ids for each in chosen]
        first, second = head(_last_states(model, rows)).chunk(2)
        margins = torch.tensor([each.margin / (high - low) for each in chosen], device=first.device)
        losses = -functional.logsigmoid(first - second - margins) + options.centre * (first + second).square()
        losses.mean().backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        loss, accuracy = losses.mean().item(), (first > second).float().mean().item()
        on_step({"step": float(step), "loss": loss, "accuracy": accuracy})
    model.eval()
    return Fitted(step, loss, accuracy)


def _batches(count: int, options: FitOptions) -> Iterator[Sequence[int]]:
    """Indices of pairs, without end; each pass is in another order."""
    order, shuffler = list(range(count)), random.Random(options.seed)
    while True:
        shuffler.shuffle(order)
        for start in range(0, count, options.batch_size):
            yield order[start : start + options.batch_size]


def _last_states(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    """The hidden state at the last token of each row, [rows, features]."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    mask = torch.arange(ids.shape[1], device=model.device) < lengths[:, None]
    with hidden_states(model) as collected:
        model(input_ids=ids, attention_mask=mask.long(), use_cache=False, logits_to_keep=ids[0, :0])
    return collected[0][torch.arange(len(rows), device=ids.device), lengths - 1]


@torch.no_grad()
def scores(model: Model, head: ValueHead, rows: Sequence[Sequence[int]], batch_size: int = 32) -> list[float]:
    """The head's logit u at the end of each row of token ids."""
    found: list[float] = head(features(model, head.to(model.device), _ends(rows), batch_size)).tolist()
    return found


def _ends(rows: Sequence[Sequence[int]]) -> list[TokenRow]:
    """Rows whose value is read at their last token."""
    return [TokenRow("", tuple(ids), (False,) * len(ids), (len(ids) - 1,)) for ids in rows]


def calibrate(head: ValueHead, found: Sequence[float], returns: Sequence[float]) -> tuple[float, float]:
    """Scale the head's logit so that V = σ(slope · u + shift) predicts the ``returns`` (reward units) of ends with the
    scores u ``found``, none of which were used in training (Platt 1999). The order of scores does not change. Returns
    slope and shift."""
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
    return slope, shift
