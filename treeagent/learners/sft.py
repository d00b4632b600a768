"""Learning by likelihood, on TRL's SFTTrainer: imitation of the agent's own tokens, with a value head if there is one,
and distillation of the distribution that search computed over the candidates of each state."""

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Unpack

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as SFTArguments
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from treeagent.agent.value_head import ValueHead
from treeagent.generators.attention import base_model, context_length, hidden_states
from treeagent.learners.common import Batches, Hooks, Learner, TrainResult, as_dataset, fit, lent, pad, padded
from treeagent.learners.config import DistilConfig, SFTConfig
from treeagent.learners.packed import Model, why_unpackable
from treeagent.types import NothingToLearn
from treeagent.views.policy import PolicyRow
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
def hard_rows(model: Model, rows: Sequence[TokenRow], count: int, seed: int) -> list[TokenRow]:
    """Draw ``count`` rows with replacement, in proportion to 1 - p, where p is the lowest probability among the row's
    tokens to imitate. If p is above 1/2, greedy decoding writes all of them."""
    model.eval()
    order, lowest = sorted(range(len(rows)), key=lambda row: len(rows[row].token_ids)), dict[int, float]()
    for start in range(0, len(order), _SCORED):
        batch = order[start : start + _SCORED]
        inputs = {name: each.to(model.device) for name, each in padded([rows[row].token_ids for row in batch]).items()}
        mask = pad([rows[row].mask[1:] for row in batch], torch.bool).to(model.device)
        # Logits take much memory with a large vocabulary, so compute them only from the first token to imitate on.
        first, labels = int(mask.any(0).int().argmax()), inputs["input_ids"][:, 1:, None]
        columns = torch.arange(first, mask.shape[1], device=model.device)
        logprobs = model(**inputs, logits_to_keep=columns).logits.float().log_softmax(-1)
        imitated = logprobs.gather(-1, labels[:, first:])[..., 0].masked_fill(~mask[:, first:], torch.inf)
        lowest.update(zip(batch, imitated.amin(-1).tolist(), strict=True))
    weights = [1 - math.exp(lowest[row]) for row in range(len(rows))]
    return random.Random(seed).choices(rows, weights if any(weights) else None, k=count)


def train_distil(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[PolicyRow] | Dataset,
    config: DistilConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy towards the search's policy π' over the candidates of states (expert iteration, Anthony et al.
    2017, equation 2; AlphaZero, Silver et al. 2017); changes ``model`` in place.

    The loss of a batch is the cross-entropy, in nats a token,

        L = -Σ_s Σ_a π'(a|s) log π(a|s) / Σ_s Σ_a π'(a|s) |a|

    where log π(a|s) is the sum over the |a| sampled tokens of candidate a, with logits divided by the sampling
    ``temperature``: AlphaZero's loss, and a term that keeps probability on the candidates.

    Metrics: ``loss`` and ``entropy`` (nats a token), ``kl`` (KL(π' || π), nats a state), ``num_tokens``, ``grad_norm``.
    """
    data = as_dataset(rows)
    if not len(data):
        raise NothingToLearn(
            "no good end was found, whose states could be learned: collect more trees, or lower "
            "update.targets.min_return"
        )
    with lent(model, config, hooks) as arguments:
        trainer = _DistilTrainer(
            model=model,
            args=SFTArguments(**arguments, max_length=None, dataset_kwargs={"skip_prepare_dataset": True}),
            train_dataset=data,
            processing_class=tokenizer,
            data_collator=_collate_candidates,
        )
        if temperature != 1:  # TRL scores at temperature 1
            add_fused_lm_head(base_model(model), temperature=temperature, outputs=("log_probs", "entropy"))
        groups = () if why_unpackable(model) else data["task_id"]
        batches = Batches(map(len, data["prompt_ids"]), config.batch_size, config.seed, groups)
        return fit(trainer, config, batches, hooks)


def _collate_candidates(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """One row per candidate with π' > 0, as (candidates, longest) tensors; ``sampled_ids`` are -100 except at sampled
    tokens, ``targets`` π' at these tokens, else 0. ``floor`` is the entropy of π' of each state, in nats."""
    learnt = [[each for each in row["candidates"] if each["target"] > 0] for row in rows]
    candidates = [(row["prompt_ids"], each) for row, kept in zip(rows, learnt, strict=True) for each in kept]
    scored = [
        [*[False] * len(prompt), *(at not in each["forced"] for at in range(len(each["token_ids"])))]
        for prompt, each in candidates
    ]
    mask, inputs = pad(scored, torch.bool), padded([(*prompt, *each["token_ids"]) for prompt, each in candidates])
    targets = torch.tensor([[each["target"]] for _, each in candidates])
    floor = [-sum(each["target"] * math.log(each["target"]) for each in kept) for kept in learnt]
    return {
        **inputs,
        "sampled_ids": inputs["input_ids"].where(mask, _IGNORED),
        "targets": targets.where(mask, 0.0),
        "floor": torch.tensor(floor),
    }


class _DistilTrainer(Learner, SFTTrainer):
    def batch_loss(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any) -> Tensor:
        read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**read, labels=inputs["sampled_ids"], use_cache=False, fused_lm_head=True)
        targets, floor = inputs["targets"], inputs["floor"]
        cross_entropy = -(targets[:, 1:] * outputs.log_probs).sum()
        metrics = self._metrics["train"]
        metrics["kl"].append(((cross_entropy.detach() - floor.sum()) / len(floor)).item())
        metrics["entropy"].append((outputs.entropy.detach().sum() / outputs.label_mask.sum()).item())
        self._total_train_tokens += int(self.accelerator.gather(inputs["attention_mask"].sum()).sum())
        metrics["num_tokens"] = [self._total_train_tokens]
        loss: Tensor = cross_entropy / targets.sum()
        return loss
