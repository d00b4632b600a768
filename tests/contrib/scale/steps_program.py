"""The steps of all learners in one of several processes. One program runs them all, so that processes start only once.

    steps_program.py PROCESSES FOLDER

The final state of each learner is written to FOLDER.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from tiny import advantage_rows, make_model, make_tokenizer, pairs, policy_rows, token_rows, weights

from treeagent.agent.checkpoint import with_adapter
from treeagent.contrib.scale.sharding import run_on_leader, sharing
from treeagent.generators.config import LoraConfig
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.packed import Model
from treeagent.learners.sft import train_distil, train_sft
from treeagent.types import UserError

torch.set_num_threads(1)
processes, folder = int(sys.argv[1]), Path(sys.argv[2])
rank = int(os.environ.get("RANK", "0"))
if sharing():  # as the processes of an update do
    PartialState(cpu=True)
tokenizer, results, untrained, asked = make_tokenizer(), dict[str, Any](), dict[str, Any](), list[int]()


def learn(
    name: str,
    train: Callable[..., Any],
    model: Model,
    rows: Any,
    config: Any,
    **hooks: Any,
) -> None:
    untrained[name] = weights(model)
    result = train(model, tokenizer, rows, config, checkpoint_dir=folder / name, **hooks)
    results[name] = (result.steps, result.metrics["loss"], weights(model))


# One process takes a step on two batches where each of two processes takes it on one.
sft = SFTConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, save_every=1)
distil = DistilConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1)
dpo = DPOConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, learning_rate=1e-3)
grpo = GRPOConfig(batch_size=8 // processes, epochs=4, log_every=1, learning_rate=1e-3)
rows, stored = token_rows(16), pairs(make_model(), 16, shift=1.0)
learn("sft", train_sft, make_model(), rows, sft)
learn("distil", train_distil, make_model(), policy_rows(16), distil)
learn("dpo", train_dpo, make_model(), stored, dpo)
learn("ragged", train_dpo, make_model(), stored[:13], replace(dpo, epochs=1))
adapted = with_adapter(make_model(), LoraConfig(rank=2), 0)
learn("lora", train_dpo, adapted, stored, replace(dpo, gradient_checkpointing=True))
scored = advantage_rows(make_model(), 8, stale=0.3)
learn("grpo", train_grpo, make_model(), scored, grpo)
learn("grpo-ragged", train_grpo, make_model(), scored[:7], grpo)
by_rows = replace(grpo, loss_type="grpo", anchor=0.3)
learn("grpo-by-rows", train_grpo, make_model(), scored, by_rows)


def score() -> float:
    asked.append(1)
    return -float(len(asked))  # so the first validation is the best


validated = make_model()
by_leader = partial(run_on_leader, validated, score, leads=rank == 0)
learn("validated", train_sft, validated, rows, replace(sft, validate_every=2), validate=by_leader)
bad = replace(stored[5], chosen=replace(stored[5].chosen, logprobs=(float("nan"),) * len(stored[5].chosen.mask)))
diverged, model = "", make_model()
try:
    train_dpo(model, tokenizer, [*stored[:5], bad, *stored[6:]], dpo)
except UserError as reason:
    diverged = str(reason)
finite = bool(torch.isfinite(weights(model)).all())
told = {"results": results, "untrained": untrained, "asked": len(asked), "diverged": diverged, "finite": finite}
torch.save(told, folder / f"{rank}.pt")
