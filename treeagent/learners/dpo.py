"""Direct preference optimisation on pairs from trees, with the stored behaviour log-probabilities as the reference."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, Unpack

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl.trainer.dpo_config import DPOConfig as DPOArguments
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import add_fused_lm_head

from treeagent.generators.attention import base_model
from treeagent.learners.common import Batches, Hooks, Learner, TrainResult, as_dataset, fit, lent, pad, padded
from treeagent.learners.config import DPOConfig
from treeagent.learners.packed import Model, why_unpackable
from treeagent.types import NothingToLearn
from treeagent.views.pairs import PreferencePair


def train_dpo(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair] | Dataset,
    config: DPOConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy by direct preference optimisation (DPO, Rafailov et al. 2023, equation 7); changes ``model`` in
    place.

    The sigmoid loss of a pair is -log σ(h) with h = β [log π(chosen) - log μ(chosen) - log π(rejected) + log
    μ(rejected)]. μ is the policy that sampled the pair at ``temperature``; its stored log-probabilities replace the
    reference model. Log-probabilities are sums over sampled tokens; observations do not count.

    Metrics are TRL's: ``loss``, ``rewards/margins`` (h, in nats), ``rewards/accuracies`` (share with h > 0) and others.
    """
    data = as_dataset(pairs)
    if not len(data) or not any(data["margin"]):  # rows paired with themselves alone are no preferences
        raise NothingToLearn("no preference pairs: collect more trees, or lower update.pairs.min_margin")
    with lent(model, config, hooks) as arguments:
        trainer = _DPOTrainer(
            model=model,
            args=DPOArguments(
                **arguments,
                loss_type=list(config.loss_type),
                loss_weights=list(config.loss_weights),
                beta=config.beta,
                max_length=None,
                precompute_ref_log_probs=True,  # they were stored when the pairs were sampled
            ),
            train_dataset=data,
            processing_class=tokenizer,
            data_collator=_collate,
        )
        if isinstance(model, PeftModel):
            model.delete_adapter("ref")  # TRL's copy of the adapter, made for its reference
        if temperature != 1:  # TRL scores at temperature 1
            outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
            add_fused_lm_head(base_model(model), temperature=temperature, outputs=outputs)
        sides = ("chosen", "rejected")
        lengths = (len(each["context_ids"]) + max(len(each[side]["token_ids"]) for side in sides) for each in data)
        # The pairs of a tree share most of their prompts, which packs compute once.
        groups = () if why_unpackable(model) else data["task_id"]
        return fit(trainer, config, Batches(lengths, config.batch_size, config.seed, groups), hooks)


def _collate(pairs: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """(2 * pairs, longest) tensors, chosen rows first as TRL expects, and (pairs,) reference log-probabilities."""
    sides = [(pair["context_ids"], pair[side]) for side in ("chosen", "rejected") for pair in pairs]
    completion = [[*[False] * len(context), *side["mask"]] for context, side in sides]
    logps = [sum(compress(side["logprobs"], side["mask"])) for _, side in sides]
    return {
        **padded([(*context, *side["token_ids"]) for context, side in sides]),
        "completion_mask": pad(completion, torch.long),
        "ref_chosen_logps": torch.tensor(logps[: len(pairs)]),
        "ref_rejected_logps": torch.tensor(logps[len(pairs) :]),
    }


class _DPOTrainer(Learner, DPOTrainer):
    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset  # the pairs were tokenised when they were sampled

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset  # the collator gives them
