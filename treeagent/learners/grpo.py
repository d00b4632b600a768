"""Clipped policy gradient (PPO, GRPO and their variants) on stored actions with advantages from trees. TRL's
GRPOTrainer computes the loss; its stage of generation and rewards is replaced by the collation of stored rows."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig as GRPOArguments
from trl.trainer.grpo_trainer import GRPOTrainer

from treeagent.learners.common import Batches, Hooks, Learner, TrainResult, as_dataset, fit, lent, pad, padded
from treeagent.learners.config import GRPOConfig
from treeagent.learners.packed import Model, why_unpackable
from treeagent.types import NothingToLearn
from treeagent.views.advantages import AdvantageRow


def train_grpo(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[AdvantageRow] | Dataset,
    config: GRPOConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy by the clipped policy gradient (PPO, Schulman et al. 2017; GRPO, Shao et al. 2024, equation 3);
    changes ``model`` in place.

    The loss of a token with advantage A is -min(ρ A, clip(ρ, 0.8, 1 + ε_high) A), where ρ = π / μ, and μ is the policy
    that sampled the token at ``temperature``, also the reference of the KL term. Other tokens get no gradient.

    Metrics: ``loss`` (advantage units), ``entropy``, ``kl``, ``anchor`` and ``logp_difference`` (mean |log ρ|: before
    the first step how stale the rows are), in nats a token, ``clip_ratio/*``, ``grad_norm``.
    """
    data = as_dataset(rows)
    kept = [index for index, row in enumerate(data) if any(row["mask"])]
    if not kept:
        raise NothingToLearn(f"none of {len(data)} advantage rows trains a token: collect more trees")
    data = data.select(kept)
    lengths = [(len(row["prompt_ids"]), len(row["completion_ids"])) for row in data]
    with lent(model, config, hooks) as arguments:
        trainer = _GRPOTrainer(
            model=model,
            reward_funcs=lambda **unused: [],  # required, but nothing is generated that it would score
            args=GRPOArguments(
                **arguments,
                loss_type=config.loss_type,
                epsilon_high=config.clip_high,
                use_bias_correction_kl=True,
                temperature=temperature,
                max_completion_length=max(completion for _, completion in lengths),
                num_generations=config.batch_size,  # unused, but TRL checks that it divides the batch
                disable_dropout=True,  # the behaviour log-probabilities were computed without dropout
            ),
            train_dataset=data,
            processing_class=tokenizer,
        )
        trainer.data_collator = _collate
        trainer.anchor = config.anchor
        trainer.beta = config.beta  # set here, because TRL's constructor would load a reference model
        trainer.packs = config.packed
        groups = data["task_id"] if config.packed and not why_unpackable(model) else ()
        return fit(trainer, config, Batches(map(sum, lengths), config.batch_size, config.seed, groups), hooks)


_MEANS_OVER_ROWS = ("grpo", "dr_grpo", "luspo")
"""Losses that are means over the rows of a batch."""


def _collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows as the (rows, tokens) tensors that TRL's loss reads. Every "prompt" is as long as the shortest one, and the
    rest goes untrained to the "completion": padding on the left would shift absolute positions."""
    rows = [AdvantageRow(**item) for item in items]
    shared = min(len(row.prompt_ids) for row in rows)
    completions = [(*row.prompt_ids[shared:], *row.completion_ids) for row in rows]

    def aligned(name: str, dtype: torch.dtype) -> Tensor:
        return pad([[*[0] * (len(row.prompt_ids) - shared), *getattr(row, name)] for row in rows], dtype)

    mask = aligned("mask", torch.bool)
    prompts, completed = torch.tensor([row.prompt_ids[:shared] for row in rows]), padded(completions)
    # Values at untrained tokens must not reach the loss, because 0 * NaN is NaN.
    behaviour = aligned("logprobs", torch.float).where(mask, 0.0)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completed["input_ids"],
        "completion_mask": completed["attention_mask"],
        "tool_mask": mask.long(),
        "advantages": aligned("advantages", torch.float).where(mask, 0.0),
        "old_per_token_logps": behaviour,
        "ref_per_token_logps": behaviour,
    }


class _GRPOTrainer(Learner, GRPOTrainer):
    anchor: float

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[dict[str, Any]], Any]:
        """The batches of an optimiser step, each with figures of all of them."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        counts = [torch.stack([batch["tool_mask"].sum(), (batch["advantages"] > 0).sum()]) for batch in batches]
        trained, positives = self.accelerator.reduce(torch.stack(counts).sum(0))
        rows = sum(len(batch["prompt_ids"]) for batch in batches)
        for batch in batches:
            batch["num_items_in_batch"] = trained * self.args.steps_per_generation / len(batches)
            batch["positives"] = positives
            batch["share"] = len(batch["prompt_ids"]) * len(batches) / rows
        return batches, None

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch  # nothing is generated

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        self._trained = inputs["tool_mask"].bool()
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        if self.loss_type in _MEANS_OVER_ROWS:  # TRL weights all batches of a step alike
            loss = loss * inputs["share"]
        if self._trained.any():
            difference = (self._logps.detach() - inputs["old_per_token_logps"])[self._trained].abs().mean()
            self._metrics["train"]["logp_difference"].append(difference.item())
        positive = self._trained & (inputs["advantages"] > 0)
        if self.anchor and positive.any():
            logp = self._logps[positive].mean()
            self._metrics["train"]["anchor"].append(-logp.item())
            # The losses of forward passes are added, and gradients are averaged over processes.
            share = positive.sum() / inputs["positives"] * self.accelerator.num_processes
            loss = loss - self.anchor * share * logp
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        **unused: object,
    ) -> tuple[Tensor, Tensor, None]:
        """Log-probabilities and entropies (rows, logits_to_keep), 0 at untrained tokens: the KL term exp(0 - log π)
        would overflow at an observation that is unlikely under the policy."""
        trained = functional.pad(self._trained, (input_ids.shape[1] - logits_to_keep, 0))
        labels = input_ids.where(trained, -100)
        with self.accelerator.autocast():
            outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
        self._logps = outputs.log_probs[:, -logits_to_keep:]
        return self._logps, outputs.entropy[:, -logits_to_keep:], None
