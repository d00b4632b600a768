"""Fit the value head alone: its inputs from the policy are computed once, and then a small regression runs on them."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.generators.attention import context_length, hidden_states
from treeagent.learners.common import copy_weights, diverged, padded, restore_weights
from treeagent.learners.config import ValueConfig
from treeagent.learners.packed import Model, pack_prefixes, states_at, why_unpackable
from treeagent.types import NothingToLearn
from treeagent.views.tokens import TokenRow, within

_NO_SPREAD = 1e-10
"""Rescaled targets with a variance below this count as equal; it is the square of 1e-5."""
_CHOSEN_BY = 512
"""Number of states by whose log-probabilities a ``LogprobHead`` chooses its tokens."""


@dataclass(frozen=True, slots=True)
class ValueResult:
    """How well the head predicts the returns of held-out tasks. Losses are mean cross-entropies in nats."""

    epochs: int
    best_epoch: int
    """The epoch of the head that was kept; 0 is the initial head."""
    train_loss: float
    held_out_loss: float
    constant_loss: float
    """The held-out loss of a predictor that always gives the training mean."""
    explained_variance: float
    """1 - Var(g - v) / Var(g) over held-out targets g and values v; 1 if all targets are equal."""
    train_positions: int
    held_out_positions: int


def fit_value(
    model: Model,
    head: ValueHead,
    rows: Sequence[TokenRow],
    config: ValueConfig,
    *,
    on_metrics: Callable[[Mapping[str, float]], None] = lambda row: None,
    on_progress: Callable[[int, int], None] = lambda done, most: None,
) -> ValueResult:
    """Fit ``head`` to the value targets of rows, in place; ``model`` does not change.

    The loss is the mean binary cross-entropy -g log v - (1 - g) log(1 - v), in nats, of the value v against the target
    g, both rescaled to [0, 1]. Features are standardised first, whole tasks are held out, and the head of the epoch
    with the lowest held-out loss is kept. A new ``LogprobHead`` chooses its tokens first.
    """
    context = context_length(model)
    read = (within(row, context) for row in rows)
    training_rows, held_out = _split([row for row in read if row.value_positions], config)
    if isinstance(head, LogprobHead) and not head.tokens.any():
        some = random.Random(config.seed).sample(training_rows, len(training_rows))
        counts = accumulate(len(row.value_positions) for row in some)
        some = some[: sum(count < _CHOSEN_BY for count in counts) + 1]
        head.to(model.device).choose(features(model, head, some, config.forward_batch_size)[:_CHOSEN_BY])
    train, test = _states(model, head, training_rows, config), _states(model, head, held_out, config)
    head.standardise(train[0])
    optimiser = torch.optim.AdamW(head.parameters(), lr=config.learning_rate)
    shuffler = torch.Generator().manual_seed(config.seed)
    epoch, train_loss = 0, _loss(head, *train)
    best_epoch, best_loss, best = 0, _loss(head, *test), copy_weights(head)
    while epoch < config.epochs and epoch - best_epoch < config.patience:
        epoch, train_loss = epoch + 1, 0.0
        order = torch.randperm(len(train[1]), generator=shuffler)
        for batch in torch.split(order.to(train[1].device), config.batch_size):
            loss = head.cross_entropy(train[0][batch], train[1][batch])
            if not torch.isfinite(loss):
                raise diverged(f"the value loss is {loss.item()} in epoch {epoch}")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            train_loss += loss.item() * len(batch)
        train_loss /= len(order)
        held_out_loss = _loss(head, *test)
        on_metrics({"epoch": float(epoch), "loss": train_loss, "held_out_loss": held_out_loss})
        on_progress(epoch, config.epochs)
        if held_out_loss < best_loss:
            best_epoch, best_loss, best = epoch, held_out_loss, copy_weights(head)
    restore_weights(head, best)
    head.zero_grad()
    constant = train[1].mean().clamp(1e-6, 1 - 1e-6).expand_as(test[1])
    states, targets = test
    with torch.no_grad():
        values = torch.sigmoid(head(states))
    error, spread = (targets - values).var(correction=0).item(), targets.var(correction=0).item()
    return ValueResult(
        epochs=epoch,
        best_epoch=best_epoch,
        train_loss=train_loss,
        held_out_loss=best_loss,
        constant_loss=functional.binary_cross_entropy(constant, test[1]).item(),
        explained_variance=1 - error / spread if spread > _NO_SPREAD else 1.0,
        train_positions=len(train[1]),
        held_out_positions=len(test[1]),
    )


def check_value_rows(head: ValueHead, rows: Sequence[TokenRow], config: ValueConfig) -> None:
    """Raise ``NothingToLearn`` or ``UserError`` if ``fit_value`` cannot learn from rows."""
    _split([row for row in rows if row.value_positions], config)
    head.rescale(torch.tensor([target for row in rows for target in row.value_targets]))


def _split(rows: Sequence[TokenRow], config: ValueConfig) -> tuple[list[TokenRow], list[TokenRow]]:
    """(rows to train on, rows of held-out tasks)."""
    tasks = sorted({row.task_id for row in rows})
    if len(tasks) < 2:
        raise NothingToLearn(
            f"the token rows (views.value_rows) carry value targets of {len(tasks)} task(s), and fitting needs two or "
            "more, one of them held out: collect trees of more tasks"
        )
    random.Random(config.seed).shuffle(tasks)
    held_out = set(tasks[: min(math.ceil(config.held_out * len(tasks)), len(tasks) - 1)])
    return [row for row in rows if row.task_id not in held_out], [row for row in rows if row.task_id in held_out]


@torch.no_grad()
def _states(model: Model, head: ValueHead, rows: Sequence[TokenRow], config: ValueConfig) -> tuple[Tensor, Tensor]:
    """The inputs of the head, (positions, features), and the rescaled targets, (positions,)."""
    rows = sorted(rows, key=lambda row: len(row.token_ids))
    targets = torch.tensor([target for row in rows for target in row.value_targets], device=model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        read = features(model, head.to(model.device), rows, config.forward_batch_size)
    return read, head.rescale(targets)


@torch.no_grad()
def features(model: Model, head: ValueHead, rows: Sequence[TokenRow], batch_size: int) -> Tensor:
    """What the head reads at the value positions of the rows, (positions, features): hidden states, or
    log-probabilities of its tokens, or of the whole vocabulary before it has chosen them."""
    training, packable, found = model.training, not why_unpackable(model), dict[int, Tensor]()
    model.eval()
    # Rows with a common prefix, or else rows of similar length, go through the model together.
    order = sorted(range(len(rows)), key=lambda row: rows[row].token_ids if packable else (len(rows[row].token_ids),))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        read = [rows[row].token_ids[: max(rows[row].value_positions) + 1] for row in batch]
        inputs = {name: each.to(model.device) for name, each in padded(read).items()}
        grid = torch.arange(inputs["input_ids"].numel(), device=model.device).view_as(inputs["input_ids"])
        at = [(number, place) for number, row in enumerate(batch) for place in rows[row].value_positions]
        indices = torch.tensor(at, device=model.device).T.unbind()
        packs = pack_prefixes(model) if packable else nullcontext()
        if isinstance(head, LogprobHead):
            with packs, states_at(model, grid[indices]):
                read_at = model(**inputs, use_cache=False).logits[0].float().log_softmax(-1)
            read_at = read_at[:, head.tokens] if head.tokens.any() else read_at
        else:
            # These hooks run before those that take packs apart, so the states are those of packs.
            with hidden_states(model) as collected, packs as packing:
                model(**inputs, use_cache=False, logits_to_keep=indices[0][:0])
            places = grid if packing is None else packing.flat_indices
            read_at = collected[0].flatten(0, 1)[places[indices]].float()
        counts = [len(rows[row].value_positions) for row in batch]
        found.update(zip(batch, torch.split(read_at, counts), strict=True))
    model.train(training)
    return torch.cat([found[row] for row in range(len(rows))])


@torch.no_grad()
def _loss(head: ValueHead, states: Tensor, targets: Tensor) -> float:
    return functional.binary_cross_entropy_with_logits(head(states), targets).item()
