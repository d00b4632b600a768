"""Updates of a tiny model from file to file in one of several processes, for tests of how they share their work.

    updates_program.py PROCESSES FOLDER whole|killed

FOLDER holds a model "base". Reports and checkpoints are written to FOLDER.
"""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from tiny import HIDDEN, make_model, make_tokenizer, pairs, token_rows, weights

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.agent.value_head import ValueHead
from treeagent.contrib.scale.sharding import run_on_leader, sharing, whole_weights
from treeagent.generators.base import SampleRequest
from treeagent.generators.config import LoraConfig
from treeagent.generators.local import LocalGenerator
from treeagent.learners.config import DPOConfig, SFTConfig, ValueConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.packed import Model
from treeagent.learners.sft import train_sft
from treeagent.learners.value import fit_value

torch.set_num_threads(1)
processes, folder, killed = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "killed"
rank = int(os.environ.get("RANK", "0"))
leads = rank == 0
if sharing():  # as the processes of an update do
    PartialState(cpu=True)
tokenizer, told = make_tokenizer(), dict[str, Any]()
sft = SFTConfig(batch_size=4, accumulation=2 // processes, epochs=4, log_every=1, save_every=5)  # 5: within an epoch
dpo = DPOConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, learning_rate=1e-3)


def base() -> Model:
    # Only one process loads weights, as with fsdp_cpu_ram_efficient_loading.
    return load_checkpoint(folder / "base").model


def saved(name: str, model: Model, head: ValueHead | None = None) -> None:
    whole = whole_weights(model)
    if leads:
        save_checkpoint(Checkpoint(model, tokenizer, head), folder / name, whole)


def die(done: int, total: int) -> None:
    if killed and done == 6 and leads:
        os.kill(os.getpid(), 9)


model = base()
result = train_sft(model, tokenizer, token_rows(16), sft, checkpoint_dir=folder / "killed", on_progress=die)
told["killed"] = result.steps, result.metrics["loss"]
saved("sft", model)

model = base()  # again, as if the model had not been saved
again = train_sft(model, tokenizer, token_rows(16), sft, checkpoint_dir=folder / "killed")
told["again"] = again.steps, weights(model)

scores = iter([0.0, 2.0, 1.0, 0.5])
model = base()
generator = LocalGenerator(model)
drawn: list[tuple[int, ...]] = []


def score() -> float:
    generator.forget()
    drawn.append(generator.sample(SampleRequest([(4, 5, 6)], 2, [0], stop_id=1, max_new_tokens=5))[0][0].token_ids)
    return next(scores)


by_leader: Any = partial(run_on_leader, model, score, leads=leads)
best = train_sft(model, tokenizer, token_rows(16), replace(sft, validate_every=2, patience=2), validate=by_leader)
told["best"] = best.steps, best.best_step, drawn
head = ValueHead(HIDDEN)
fitted = run_on_leader(model, lambda: fit_value(model, head, token_rows(16), ValueConfig(epochs=2)), leads=leads)
told["value"] = fitted and fitted.held_out_loss
saved("best", model, head)

model = with_adapter(base(), LoraConfig(rank=2), 0)
result = train_dpo(model, tokenizer, pairs(make_model(), 15, shift=1.0), dpo)
saved("lora", model)

torch.save(told, folder / f"told-{rank}.pt")
