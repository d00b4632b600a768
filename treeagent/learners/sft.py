"""Supervised fine-tuning on the agent's own tokens; a value head can learn from the same forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as SFTArguments
from trl.trainer.sft_trainer import SFTTrainer

from treeagent.agent.value_head import ValueHead
from treeagent.generators.attention import context_length, hidden_states
from treeagent.learners.batches import Batches, lengths_of, pad, padded, row_numbers
from treeagent.learners.common import Learner, Model, fit, prepared
from treeagent.learners.config import SFTConfig
from treeagent.learners.memory import Inputs, part_bounds, slice_rows
from treeagent.learners.packed import PackedModel, why_unpackable
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.types import NothingToLearn
from treeagent.views.tokens import TokenRow, within

_IGNORED = -100
"""The label of a token that carries no loss, to torch and TRL alike."""
_VALUE_WEIGHT = 0.5
"""Weight c of the value head's cross-entropy, relative to the mean token loss."""


def train_sft(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[TokenRow],
    config: SFTConfig,
    *,
    head: ValueHead | None = None,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy to imitate the masked tokens of rows; changes ``model`` and ``head`` in place.

    The loss of a batch is L = -(1/M) Σ_{t masked} log π(y_t | y_<t) + c L_value: the mean over its M masked tokens, in
    nats, plus the head's mean binary cross-entropy over the value positions of the batch, in nats, times c = 0.5. The
    second term is added only if a head is given and rows have value positions.

    Metrics, means over the steps since the last row: ``loss`` (L, in nats); ``value_loss`` (L_value, in nats);
    ``mean_token_accuracy`` (share of masked tokens that are the likeliest); ``entropy`` (nats a token); ``num_tokens``
    (tokens read so far); ``grad_norm`` (before clipping).

    Args:
        model: the policy to train.
        tokenizer: saved with checkpoints; nothing is tokenised.
        rows: rows of ``imitation_rows`` or ``world_rows``; those with nothing to learn are left out. What the model's
            context does not hold is cut off.
        config: the optimiser.
        head: a value head to train together with the policy; its gradient also reaches the policy. It needs a single
            process.
        hooks: observers of the training; see ``Hooks``.

    Raises:
        NothingToLearn: there are no rows, or none has anything to learn.
        UserError: a value target is outside the head's range.
        TrainingDiverged: a loss or a gradient is NaN or infinite.
    """
    row_count, context = len(rows), context_length(model)

    def teaches(row: TokenRow) -> bool:
        row = within(row, context)
        return any(row.mask[1:]) or (head is not None and bool(row.value_positions))

    rows = [row for row in rows if teaches(row)]
    if not rows:
        raise NothingToLearn(
            f"none of {row_count} rows has a token to imitate or a value to learn: collect more trees, or lower "
            "update.imitation.min_return"
        )
    with prepared(model, config, hooks, head) as arguments:
        trainer = _SFTTrainer(
            model=model,
            args=SFTArguments(
                **arguments,
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=row_numbers(len(rows)),
            processing_class=tokenizer,
            data_collator=lambda items: _collate([within(rows[item["row"]], context) for item in items]),
        )
        trainer.head = head
        lengths = lengths_of(min(len(row.token_ids), context) for row in rows)
        return fit(trainer, config, rows, Batches(lengths, config.batch_size, config.seed), hooks)


def _collate(rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    """Collate rows into ``input_ids``, ``attention_mask`` and ``labels`` (rows, longest), ``value_indices`` (states, 2:
    row and column) and ``value_targets`` (states)."""
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

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Inputs], Any]:
        batches, tokens = super().get_batch_samples(*args, **kwargs)
        self.value_positions = sum(len(batch["value_targets"]) for batch in batches)
        return batches, tokens

    def batch_loss(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Tensor:
        inputs = dict(inputs)
        indices, targets = inputs.pop("value_indices"), inputs.pop("value_targets")
        packed = None if why_unpackable(self.model) else PackedModel(model, self.model, whole=self.head is not None)
        with hidden_states(self.model) if self.head is not None else nullcontext(list[Tensor]()) as collected:
            loss: Tensor = SFTTrainer.compute_loss(self, packed or model, inputs, False, num_items_in_batch)
        if self.head is None or not len(targets):
            return loss
        states = collected[0].flatten(0, 1)
        grid = torch.arange(inputs["input_ids"].numel(), device=states.device).view_as(inputs["input_ids"])
        flat_indices = grid if packed is None else packed.flat_indices
        value_loss: Tensor = self.head.loss(states[flat_indices[indices[:, 0], indices[:, 1]]], targets)
        self._metrics["train"]["value_loss"].append(value_loss.item())
        # Like the token loss, the value loss is a mean over all accumulated batches.
        return loss + _VALUE_WEIGHT * len(targets) / self.value_positions * value_loss

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        indices, targets, rows = inputs["value_indices"], inputs["value_targets"], len(inputs["input_ids"])
        tokens = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
        if num_items_in_batch is None:
            num_items_in_batch = inputs["labels"][:, 1:].ne(_IGNORED).sum()
        for first, last in part_bounds(rows, self.parts):
            mine = (indices[:, 0] >= first) & (indices[:, 0] < last)
            part = slice_rows(tokens, first, last, rows) | {
                "value_indices": indices[mine] - torch.tensor([first, 0], device=indices.device),
                "value_targets": targets[mine],
            }
            yield partial(self.batch_loss, model, part, num_items_in_batch)
