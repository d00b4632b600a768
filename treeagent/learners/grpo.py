"""Clipped policy gradient (PPO, GRPO and their variants) on stored actions. Advantages come from trees; nothing is
generated.

TRL's GRPOTrainer computes the loss. Its stage before that, which generates completions, rewards and advantages, is
replaced by one that collates stored rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig as GRPOArguments
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from treeagent.learners.batches import Batches, lengths_of, pad, padded, row_numbers, tasks_of
from treeagent.learners.common import Learner, Model, fit, prepared
from treeagent.learners.config import GRPOConfig
from treeagent.learners.memory import Inputs, part_bounds, slice_rows
from treeagent.learners.packed import PackedModel, why_unpackable
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.types import NothingToLearn
from treeagent.views.advantages import AdvantageRow


def train_grpo(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[AdvantageRow],
    config: GRPOConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy by the clipped policy gradient (PPO, Schulman et al. 2017; GRPO, Shao et al. 2024, equation 3);
    changes ``model`` in place.

    The loss of a token with advantage A is -min(ρ A, clip(ρ, 0.8, 1 + ε_high) A), where ρ = π / μ. μ is the behaviour
    policy, given by the log-probabilities stored when the token was sampled; it is also the reference of the KL term.
    If ``config.delta`` is set, it caps the first ρ (two-sided clipping, INTELLECT-2 2025). ``config.loss_type`` decides
    how tokens are averaged. Tokens outside the mask get exactly no gradient, and rows without any masked token are left
    out.

    Metrics, means over the steps since the last row: ``loss`` (advantage units); ``entropy`` (nats a token); ``kl``
    (nats a token, if ``config.beta`` is set); ``logp_difference`` (mean |log ρ| of trained tokens, in nats: before the
    first step it measures how stale the rows are); ``clip_ratio/*`` and ``cispo_clip_ratio`` (share of clipped tokens);
    ``anchor`` (nats a token, if ``config.anchor`` is set); ``grad_norm`` (before clipping).

    Args:
        model: the policy to train.
        tokenizer: saved with checkpoints; nothing is tokenised.
        rows: tokens with their advantages and behaviour log-probabilities.
        config: the loss and the optimiser.
        temperature: the sampling temperature of the rows, at which their log-probabilities were stored.
        hooks: observers of the training; see ``Hooks``.

    Raises:
        NothingToLearn: no row trains a token.
        TrainingDiverged: a loss or a gradient is NaN or infinite.
    """
    row_count = len(rows)
    rows = [row for row in rows if any(row.mask)]
    if not rows:
        raise NothingToLearn(f"none of {row_count} advantage rows trains a token: collect more trees")
    packed = config.packed and not why_unpackable(model)
    longest = max(len(row.completion_ids) for row in rows)
    with prepared(model, config, hooks) as arguments:
        trainer = _GRPOTrainer(
            model=model,
            reward_funcs=_no_reward,
            args=GRPOArguments(
                **arguments,
                loss_type=config.loss_type,
                epsilon_high=config.clip_high,
                delta=config.delta,
                use_bias_correction_kl=True,
                temperature=temperature,
                max_completion_length=longest,
                num_generations=config.batch_size,  # unused, but TRL checks that it divides the batch
                disable_dropout=True,  # the behaviour log-probabilities were computed without dropout
            ),
            train_dataset=row_numbers(len(rows)),
            processing_class=tokenizer,
        )
        trainer.rows = rows
        trainer.anchor = config.anchor
        trainer.packed = packed
        trainer.beta = config.beta  # set here, because TRL's constructor would load a reference model
        # TRL draws `accumulation` batches at once, and draws the same ones again for every forward pass.
        batches = Batches(
            lengths_of(len(row.prompt_ids) + len(row.completion_ids) for row in rows),
            config.batch_size * config.accumulation,
            config.seed,
            repeats=config.accumulation,
            groups=tasks_of(rows) if packed else (),
        )
        return fit(trainer, config, rows, batches, hooks)


def _no_reward(completions: Sequence[object], **columns: object) -> list[float | None]:
    """A placeholder: TRL requires a reward function, but the stage that would call it is replaced."""
    return [0.0] * len(completions)


def _collate(rows: Sequence[AdvantageRow]) -> dict[str, Tensor]:
    """Collate rows into the dictionary that TRL's loss reads; every tensor is (rows, tokens).

    The "prompt" of every row has the length of the shortest prompt. The rest of a longer prompt goes to the beginning
    of its "completion" and is not trained. So nothing is padded on the left, which would shift absolute positions.
    """
    shared = min(len(row.prompt_ids) for row in rows)
    completions = [(*row.prompt_ids[shared:], *row.completion_ids) for row in rows]

    def aligned(name: str, dtype: torch.dtype) -> Tensor:
        fronts = [[0] * (len(row.prompt_ids) - shared) for row in rows]
        return pad([[*front, *getattr(row, name)] for front, row in zip(fronts, rows, strict=True)], dtype)

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
    rows: Sequence[AdvantageRow]
    anchor: float
    packed: bool
    _buffered_inputs: Any  # TRL declares it with the type None

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Tensor]:
        """As TRL's method, but without its shuffling, which would separate rows that share a prefix."""
        parts = self.args.steps_per_generation
        if self._buffered_inputs is None or self._step % parts == 0:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict({**batch}, parts)
        inputs: dict[str, Tensor] = self._buffered_inputs[self._step % parts]
        return inputs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        rows = [self.rows[item["row"]] for item in inputs]
        device, passes, real = self.accelerator.device, self.args.steps_per_generation, len(rows)
        # TRL splits a batch into equal parts, drops the remainder, and expects as many rows from every process. So the
        # batch is filled up with rows that train nothing.
        row_count = int(self.accelerator.gather(torch.tensor([len(rows)], device=device)).max())
        while len(rows) < row_count or len(rows) % passes:
            rows.append(AdvantageRow(rows[0].task_id, rows[0].prompt_ids, (), (), (), ()))
        batch = {name: tensor.to(device) for name, tensor in _collate(rows).items()}
        batch["num_items_in_batch"] = self.accelerator.gather(batch["tool_mask"].sum()).sum()
        # Advantages at untrained tokens are 0.
        batch["positives"] = self.accelerator.gather((batch["advantages"] > 0).sum()).sum()
        # TRL takes the mean over all rows or, for "bnpo", over all forward passes, also over those that train nothing.
        share = 1.0
        if self.loss_type in ("grpo", "dr_grpo", "sapo", "luspo"):
            share = real / len(rows)
        elif self.loss_type == "bnpo":
            share = math.ceil(real / (len(rows) // passes)) / passes
        batch["filled"] = self.accelerator.gather(torch.tensor([share], device=device)).mean()
        return batch

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        """As in ``Learner``. Losses that divide by the tokens of all accumulated batches add up without a weight. A
        part is weighted by its share of the trained tokens for "bnpo", and by its share of the rows for other
        losses."""
        rows, trained = len(inputs["prompt_ids"]), inputs["tool_mask"].bool()

        def loss(first: int, last: int) -> Tensor:
            part, anchor = slice_rows(inputs, first, last, rows), self.anchor
            weight = (last - first) / rows
            if self.loss_type in ("dapo", "cispo", "vespo"):
                weight = 1.0
            elif self.loss_type == "bnpo":
                weight = (trained[first:last].sum() / trained.sum().clamp(min=1)).item()
            self.anchor = anchor / weight if weight else 0.0  # the anchor adds up without a weight
            try:
                return weight * self.batch_loss(model, part, num_items_in_batch)
            finally:
                self.anchor = anchor

        return (partial(loss, first, last) for first, last in part_bounds(rows, self.parts))

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        self._trained = inputs["tool_mask"].bool()
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        loss = loss / inputs["filled"]
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
        compute_aux_loss: bool = False,
        **unused: object,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probabilities and entropies (rows, logits_to_keep), 0 at untrained tokens.

        TRL would also score untrained tokens. That wastes time, and the KL term exp(0 - log π) overflows at an
        observation that is unlikely under the policy.
        """
        trained = functional.pad(self._trained, (input_ids.shape[1] - logits_to_keep, 0))
        labels = input_ids.where(trained, -100)
        router = {"output_router_logits": True} if compute_aux_loss else {}
        called = PackedModel(model, self.model) if self.packed else model
        with self.accelerator.autocast():
            outputs = called(
                input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True, **router
            )
        self._logps = outputs.log_probs[:, -logits_to_keep:]
        return self._logps, outputs.entropy[:, -logits_to_keep:], outputs.aux_loss
