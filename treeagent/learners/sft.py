"""Supervised fine-tuning on the agent's own tokens; a value head can learn from the same forward pass."""

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import compress
from typing import Any, Unpack

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as SFTArguments
from trl.trainer.sft_trainer import SFTTrainer

from treeagent.agent.value_head import ValueHead
from treeagent.generators.attention import context_length, hidden_states
from treeagent.learners.common import Batches, Hooks, Learner, TrainResult, as_dataset, fit, lent, pad, padded
from treeagent.learners.config import SFTConfig
from treeagent.learners.packed import Model
from treeagent.types import NothingToLearn
from treeagent.views.tokens import TokenRow, within

_IGNORED = -100
"""The label of a token that carries no loss, to torch and TRL alike."""
_SCORED = 16
"""Rows of one forward pass that only scores tokens."""
_VALUE_WEIGHT = 0.5
"""Weight c of the value head's cross-entropy, relative to the mean token loss."""


def train_sft(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[TokenRow] | Dataset,
    config: SFTConfig,
    *,
    head: ValueHead | None = None,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy to imitate the masked tokens of rows; changes ``model`` and ``head`` in place.

    The loss of a batch is L = -(1/M) Σ_{t masked} log π(y_t | y_<t) + c L_value: the mean over its M masked tokens, in
    nats, plus, if a ``head`` is given, its mean binary cross-entropy over the value positions, times c = 0.5.

    Metrics: ``loss``, ``value_loss`` and ``entropy`` (nats), ``mean_token_accuracy``, ``num_tokens``, ``grad_norm``.
    """
    data, context = as_dataset(rows), context_length(model)
    kept, lengths = list[int](), list[int]()
    for index, item in enumerate(data):
        row = within(TokenRow(**item), context)
        if any(row.mask[1:]) or (head is not None and row.value_positions):
            kept.append(index)
            lengths.append(len(row.token_ids))
    if not kept:
        raise NothingToLearn(
            f"none of {len(data)} rows has a token to imitate or a value to learn: collect more trees, or lower "
            "update.imitation.min_return"
        )
    with lent(model, config, hooks, head) as arguments:
        trainer = _SFTTrainer(
            model=model,
            args=SFTArguments(**arguments, max_length=None, dataset_kwargs={"skip_prepare_dataset": True}),
            train_dataset=data.select(kept),
            processing_class=tokenizer,
            data_collator=lambda items: _collate([within(TokenRow(**item), context) for item in items]),
        )
        trainer.head = head
        return fit(trainer, config, Batches(lengths, config.batch_size, config.seed), hooks)


def _collate(rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    """(rows, longest) tensors, ``value_indices`` (states, 2: row and column) and ``value_targets`` (states)."""
    labels = [[i if m else _IGNORED for i, m in zip(row.token_ids, row.mask, strict=True)] for row in rows]
    indices = [(number, position) for number, row in enumerate(rows) for position in row.value_positions]
    return {
        **padded([row.token_ids for row in rows]),
        "labels": pad(labels, torch.long, _IGNORED),
        "value_indices": torch.tensor(indices, dtype=torch.long).reshape(-1, 2),
        "value_targets": torch.tensor([target for row in rows for target in row.value_targets]),
    }


class _SFTTrainer(Learner, SFTTrainer):
    value_positions = 0
    """Number of value positions in all batches of the optimiser step."""

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[dict[str, Any]], Any]:
        batches, tokens = super().get_batch_samples(*args, **kwargs)
        self.value_positions = sum(len(batch["value_targets"]) for batch in batches)
        return batches, tokens

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        indices, targets = inputs.pop("value_indices"), inputs.pop("value_targets")
        # These hooks run before those that take packs apart, so the states are those of packs.
        with hidden_states(self.model) if self.head is not None else nullcontext(list[Tensor]()) as collected:
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
        if self.head is None or not len(targets):
            return loss
        states = collected[0].flatten(0, 1)
        grid = torch.arange(inputs["input_ids"].numel(), device=states.device).view_as(inputs["input_ids"])
        flat_indices = grid if self.packing is None else self.packing.flat_indices
        value_loss: Tensor = self.head.loss(states[flat_indices[indices[:, 0], indices[:, 1]]], targets)
        self._metrics["train"]["value_loss"].append(value_loss.item())
        # Like the token loss, the value loss is a mean over all accumulated batches.
        return loss + _VALUE_WEIGHT * len(targets) / self.value_positions * value_loss


@torch.no_grad()
def token_logprobs(
    model: Model, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float = 1.0
) -> list[list[float]]:
    """For each pair (prompt, completion), log π in nats of each token of the completion."""
    model.eval()
    found: list[list[float]] = [[] for _ in pairs]
    order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
    for start in range(0, len(order), _SCORED):
        indices = order[start : start + _SCORED]
        batch = [pairs[index] for index in indices]
        rows = [(*prompt, *completion) for prompt, completion in batch]
        ids, mask = (each.to(model.device) for each in padded(rows).values())
        # Logits take much memory with a large vocabulary, so compute them only from the first completion token on.
        first = min(len(prompt) for prompt, _ in batch)
        columns = torch.arange(first - 1, ids.shape[1] - 1, device=model.device)
        kept = model(input_ids=ids, attention_mask=mask, logits_to_keep=columns).logits
        logits = kept.float() / temperature
        chosen = logits.log_softmax(-1).gather(-1, ids[:, first:, None])[..., 0].cpu()
        for row, (index, (prompt, completion)) in enumerate(zip(indices, batch, strict=True)):
            begin = len(prompt) - first
            found[index] = chosen[row, begin : begin + len(completion)].tolist()
    return found


def hard_rows(model: Model, rows: Sequence[TokenRow], count: int, seed: int) -> list[TokenRow]:
    """Draw ``count`` rows with replacement, in proportion to 1 - p, where p is the lowest probability among the row's
    tokens to imitate, which are at its end. If p is above 1/2, greedy decoding writes all of them."""
    starts = [row.mask.index(True) for row in rows]
    pairs = [(row.token_ids[:start], row.token_ids[start:]) for row, start in zip(rows, starts, strict=True)]
    scored = zip(rows, starts, token_logprobs(model, pairs), strict=True)
    lowest = [min(compress(logprobs, row.mask[start:])) for row, start, logprobs in scored]
    weights = [1 - math.exp(logprob) for logprob in lowest]
    return random.Random(seed).choices(rows, weights if any(weights) else None, k=count)
