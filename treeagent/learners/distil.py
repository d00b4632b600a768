"""Policy distillation: the policy learns the distribution that search computed over the candidates of each state."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as SFTArguments
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from treeagent.generators.attention import base_model
from treeagent.learners.common import Batches, Hooks, Learner, TrainResult, as_dataset, fit, lent, pad, padded
from treeagent.learners.config import DistilConfig
from treeagent.learners.packed import Model, why_unpackable
from treeagent.types import NothingToLearn
from treeagent.views.policy import PolicyRow


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
            data_collator=_collate,
        )
        if temperature != 1:  # TRL scores at temperature 1
            add_fused_lm_head(base_model(model), temperature=temperature, outputs=("log_probs", "entropy"))
        groups = () if why_unpackable(model) else data["task_id"]
        batches = Batches(map(len, data["prompt_ids"]), config.batch_size, config.seed, groups)
        return fit(trainer, config, batches, hooks)


def _collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
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
        "sampled_ids": inputs["input_ids"].where(mask, -100),
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
