"""Direct preference optimisation on pairs from trees, with the stored behaviour log-probabilities as the reference."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack
from unittest.mock import patch

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer import dpo_trainer
from trl.trainer.dpo_config import DPOConfig as DPOArguments
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import add_fused_lm_head

from treeagent.generators.attention import base_model
from treeagent.learners.batches import Batches, lengths_of, pad, padded, row_numbers
from treeagent.learners.common import Learner, Model, fit, prepared
from treeagent.learners.config import DPOConfig
from treeagent.learners.memory import Inputs, part_bounds, slice_rows
from treeagent.learners.packed import PackedModel, why_unpackable
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.types import NothingToLearn
from treeagent.views.pairs import PreferencePair


def train_dpo(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair],
    config: DPOConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy by direct preference optimisation (DPO, Rafailov et al. 2023, equation 7); changes ``model`` in
    place.

    The sigmoid loss of a pair is -log σ(h) with h = β [log π(chosen) - log μ(chosen) - log π(rejected) +
    log μ(rejected)]. π is the model. μ is the policy that sampled the pair; it replaces the reference policy. Its
    log-probabilities are stored with the pair, so no reference model is in memory. Log-probabilities are summed over
    the tokens that the policy sampled; observations between them do not count.

    Metrics, means over the steps since the last row: ``loss`` (weighted sum of the terms, in nats for the sigmoid);
    ``rewards/chosen`` and ``rewards/rejected`` (β log π/μ, in nats), ``rewards/margins`` (their difference, h);
    ``rewards/accuracies`` (share of pairs with h > 0); ``logps/chosen`` and ``logps/rejected`` (log-probability of a
    continuation, in nats); ``logits/chosen`` and ``logits/rejected`` (mean logit); ``mean_token_accuracy`` (share of
    chosen tokens that are the likeliest); ``entropy`` (nats a token); ``num_tokens`` (tokens read so far);
    ``grad_norm`` (before clipping).

    Args:
        model: the policy to train.
        tokenizer: saved with checkpoints; nothing is tokenised.
        pairs: the preference pairs, with the log-probabilities as sampled.
        config: the loss and the optimiser.
        temperature: the sampling temperature of the pairs, at which their log-probabilities were stored.
        hooks: observers of the training; see ``Hooks``.

    Raises:
        NothingToLearn: there are no pairs.
        TrainingDiverged: a loss or a gradient is NaN or infinite.
    """
    if not pairs:
        raise NothingToLearn("no preference pairs: collect more trees, or lower update.pairs.min_margin")
    # TRL would load a reference model if weights are sharded, and would hash the policy as a cache key for the
    # reference log-probabilities that it computes. Neither is needed here.
    without_reference = patch.multiple(
        dpo_trainer, create_model_from_path=lambda *args, **kwargs: None, hash_module=lambda module: ""
    )
    with prepared(model, config, hooks) as arguments, without_reference:
        trainer = _DPOTrainer(
            model=model,
            args=DPOArguments(
                **arguments,
                loss_type=list(config.loss_type),
                loss_weights=list(config.loss_weights),
                beta=config.beta,
                max_length=None,
                precompute_ref_log_probs=True,
            ),
            train_dataset=row_numbers(len(pairs)),
            processing_class=tokenizer,
            data_collator=lambda items: _collate([pairs[item["row"]] for item in items]),
        )
        if isinstance(model, PeftModel):
            model.delete_adapter("ref")  # TRL's copy of the adapter, made for its reference
        if temperature != 1:  # TRL scores at temperature 1, to which the stored log-probabilities would not correspond
            outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
            add_fused_lm_head(base_model(model), temperature=temperature, outputs=outputs)
        lengths = lengths_of(
            len(pair.context_ids) + max(len(pair.chosen.token_ids), len(pair.rejected.token_ids)) for pair in pairs
        )
        # TRL expects as many pairs from every process.
        return fit(trainer, config, pairs, Batches(lengths, config.batch_size, config.seed, full=True), hooks)


def _collate(pairs: Sequence[PreferencePair]) -> dict[str, Tensor]:
    """Collate pairs into (2 * pairs, longest) tensors, chosen rows first as TRL expects, and (pairs,) reference
    log-probabilities."""
    sides = [(pair.context_ids, pair.chosen) for pair in pairs] + [(pair.context_ids, pair.rejected) for pair in pairs]
    rows = [(*context, *side.token_ids) for context, side in sides]
    completion = [[*[False] * len(context), *side.mask] for context, side in sides]
    return {
        **padded(rows),
        "completion_mask": pad(completion, torch.long),
        "ref_chosen_logps": torch.tensor([pair.chosen.logprob for pair in pairs]),
        "ref_rejected_logps": torch.tensor([pair.rejected.logprob for pair in pairs]),
    }


class _DPOTrainer(Learner, DPOTrainer):
    loss_weights: list[float]

    @property
    def separable(self) -> bool:
        """As in ``Learner``, and False with the terms "aot" and "aot_unpaired", which sort the pairs of a batch."""
        return super().separable and not any(kind.startswith("aot") for kind in self.loss_types)

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        """As in ``Learner``. The loss of a part is weighted by its share of the pairs; the term "sft", a mean over
        chosen tokens, by its share of these tokens."""
        pairs = len(inputs["ref_chosen_logps"])
        chosen_tokens = inputs["completion_mask"][:pairs, 1:].sum(dim=1)
        sides = [slice_rows(inputs, 0, pairs, 2 * pairs), slice_rows(inputs, pairs, 2 * pairs, 2 * pairs)]

        def loss(first: int, last: int) -> Tensor:
            chosen, rejected = (slice_rows(side, first, last, pairs) for side in sides)
            part = {
                name: rows if name.startswith("ref_") else torch.cat([rows, rejected[name]])
                for name, rows in chosen.items()
            }
            pair_share = (last - first) / pairs
            token_share = (chosen_tokens[first:last].sum() / chosen_tokens.sum()).item()
            weights = self.loss_weights
            self.loss_weights = [
                weight * (token_share if kind == "sft" else pair_share)
                for weight, kind in zip(weights, self.loss_types, strict=True)
            ]
            try:
                return self.batch_loss(model, part, num_items_in_batch)
            finally:
                self.loss_weights = weights

        return (partial(loss, first, last) for first, last in part_bounds(pairs, self.parts))

    def _compute_loss(self, model: nn.Module, inputs: Inputs, return_outputs: bool) -> Tensor:
        """As TRL's method; the context that both sides of a pair share is computed once."""
        called = model if why_unpackable(self.model) else PackedModel(model, self.model)
        loss: Tensor = super()._compute_loss(called, inputs, return_outputs)  # type: ignore[no-untyped-call]
        return loss

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset  # the pairs were tokenised when they were sampled

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset  # the log-probabilities were stored when the pairs were sampled
