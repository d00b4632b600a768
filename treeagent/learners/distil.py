"""Policy distillation: the policy learns the distribution that search computed over the candidates of each state."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as SFTArguments
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from treeagent.generators.attention import base_model
from treeagent.learners.batches import Batches, lengths_of, pad, padded, row_numbers, tasks_of
from treeagent.learners.common import Learner, Model, fit, prepared
from treeagent.learners.config import DistilConfig
from treeagent.learners.memory import Inputs, part_bounds
from treeagent.learners.packed import PackedModel, why_unpackable
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.types import NothingToLearn
from treeagent.views.policy import PolicyRow


def train_distil(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[PolicyRow],
    config: DistilConfig,
    *,
    temperature: float = 1.0,
    **hooks: Unpack[Hooks],
) -> TrainResult:
    """Train a policy towards the search's policy π' over the candidates of states (expert iteration, Anthony et al.
    2017, equation 2; AlphaZero, Silver et al. 2017); changes ``model`` in place.

    The loss of a batch is the cross-entropy, in nats a token,

        L = -Σ_s Σ_a π'(a|s) log π(a|s) / Σ_s Σ_a π'(a|s) |a|

    where log π(a|s) is the sum over the |a| sampled tokens of candidate a. π is the distribution that the policy
    samples from: its logits are divided by the temperature, like those of the priors from which search computed π'. If
    π' puts all weight on one candidate of each state, and the temperature is 1, this is the loss of ``train_sft``. With
    Z(s) = Σ_a π(a|s), the probability of all candidates together,

        -Σ_a π' log π = -Σ_a π' log (π/Z) - log Z

    The first term alone is AlphaZero's loss: there the candidates are all legal moves, so that Z = 1. A language model
    has other actions, too; without the second term, probability could move to them.

    States of a task share a batch, and the common prefix of their prompts goes through the model only once, if the
    model can be packed (``treeagent.learners.packed``).

    Metrics, means over the steps since the last row: ``loss`` (L, in nats a token); ``kl`` (KL(π' || π), in nats a
    state); ``entropy`` (nats a token); ``num_tokens`` (tokens of all candidates so far, each
    with its prompt); ``grad_norm`` (before clipping).

    Args:
        model: the policy to train.
        tokenizer: saved with checkpoints; nothing is tokenised.
        rows: states with their candidates.
        config: the optimiser.
        temperature: the sampling temperature of the candidates, at which their log-probabilities were stored.
        hooks: observers of the training; see ``Hooks``.

    Raises:
        NothingToLearn: there are no rows.
        TrainingDiverged: a loss or a gradient is NaN or infinite.
    """
    if not rows:
        raise NothingToLearn(
            "no good end was found, whose states could be learned: collect more trees, or lower "
            "update.targets.min_return"
        )
    packable = not why_unpackable(model)
    with prepared(model, config, hooks) as arguments:
        trainer = _DistilTrainer(
            model=model,
            args=SFTArguments(
                **arguments,
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
                router_aux_loss_coef=0.0,  # the load of experts is defined on whole rows, not on packs
            ),
            train_dataset=row_numbers(len(rows)),
            processing_class=tokenizer,
            data_collator=lambda items: _collate([rows[item["row"]] for item in items]),
        )
        if temperature != 1:  # TRL scores at temperature 1
            add_fused_lm_head(base_model(model), temperature=temperature, outputs=("log_probs", "entropy"))
        trainer.packable = packable
        lengths = lengths_of(len(row.prompt_ids) for row in rows)
        groups = tasks_of(rows) if packable else ()
        return fit(trainer, config, rows, Batches(lengths, config.batch_size, config.seed, groups=groups), hooks)


def _collate(rows: Sequence[PolicyRow]) -> Inputs:
    """Collate states into one row per candidate, as (candidates, longest) tensors: ``input_ids``, ``attention_mask``,
    ``sampled_ids``, -100 except at the sampled tokens of the candidates, and ``targets``, π' of the candidate at these
    tokens and 0 elsewhere. ``floor`` holds the entropy of π' of each state, in nats.

    Candidates with π' = 0 add nothing to the loss, and are left out. No tensor is named ``labels``: a Trainer counts
    their tokens, and then expects a loss that is divided by those of all accumulated batches.
    """
    candidates = [(row.prompt_ids, each) for row in rows for each in row.candidates if each.target > 0]
    sequences = [(*prompt, *each.token_ids) for prompt, each in candidates]
    scored = [
        [*[False] * len(prompt), *(at not in each.forced for at in range(len(each.token_ids)))]
        for prompt, each in candidates
    ]
    mask, inputs = pad(scored, torch.bool), padded(sequences)
    targets = torch.tensor([[each.target] for _, each in candidates])
    return {
        **inputs,
        "sampled_ids": inputs["input_ids"].where(mask, -100),
        "targets": targets.where(mask, 0.0),
        "rows": rows,
        "floor": torch.tensor([-sum(e.target * math.log(e.target) for e in r.candidates if e.target) for r in rows]),
    }


class _DistilTrainer(Learner, SFTTrainer):
    packable: bool

    def part_losses(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Iterator[Callable[[], Tensor]]:
        """As in ``Learner``. The loss of a part is weighted by its share of the targets."""
        rows, target_sum = inputs["rows"], inputs["targets"].sum()

        def loss(first: int, last: int) -> Tensor:
            part = _collate(rows[first:last])
            device = target_sum.device
            part = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in part.items()}
            share: Tensor = part["targets"].sum() / target_sum
            return share * self.batch_loss(model, part, num_items_in_batch)

        return (partial(loss, first, last) for first, last in part_bounds(len(rows), self.parts))

    def batch_loss(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any) -> Tensor:
        called = PackedModel(model, self.model) if self.packable else model
        read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = called(**read, labels=inputs["sampled_ids"], use_cache=False, fused_lm_head=True)
        targets, floor = inputs["targets"], inputs["floor"]
        cross_entropy = -(targets[:, 1:] * outputs.log_probs).sum()
        scored = outputs.label_mask.sum()
        metrics = self._metrics["train"]
        metrics["kl"].append(((cross_entropy.detach() - floor.sum()) / len(floor)).item())
        metrics["entropy"].append((outputs.entropy.detach().sum() / scored).item())
        self._total_train_tokens += int(self.accelerator.gather(inputs["attention_mask"].sum()).sum())
        metrics["num_tokens"] = [self._total_train_tokens]
        loss: Tensor = cross_entropy / targets.sum()
        return loss
