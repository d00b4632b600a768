"""Which paths of a tree are worth imitating: one successful path a tree, all of them, or the best action of each
state. Trains the warm checkpoint of a quickstart on each kind of rows and prints its greedy success on 300 validation
tasks. A run takes minutes.

    python benchmarks/checks/imitation_arms.py states 0 --run runs/quickstart
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.config import load_config
from treeagent.learners.sft import train_sft
from treeagent.search.record import from_record
from treeagent.stages.update import greedy_success
from treeagent.store import read_as
from treeagent.views.imitation import ImitationConfig, imitation_rows

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("arm")
parser.add_argument("seed", type=int)
parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a finished quickstart")
arguments = parser.parse_args()
torch.set_num_threads(1)
arm, seed = arguments.arm, arguments.seed
cfg = load_config(Path("configs/adapt.toml"))
cfg = replace(cfg, update=replace(cfg.update, validation_tasks=300))
run = arguments.run
trees = [t for _, t in zip(range(400), read_as(from_record, run / "trees", "collect"), strict=False)]
ck = load_checkpoint(run / "checkpoints" / "warm")
tc = {
    "path1": ImitationConfig(),
    "paths": ImitationConfig(paths_per_tree=1000),
    "states": ImitationConfig(what="states"),
}[arm]
rows = [r for t in trees for r in imitation_rows(t, tc)]
t0 = time.time()
res = train_sft(ck.model, ck.tokenizer, rows, replace(cfg.update.rft, seed=seed))
t1 = time.time()
s = greedy_success(ck, cfg)()
print(
    arm,
    "seed",
    seed,
    "rows",
    len(rows),
    "tokens",
    sum(sum(r.mask) for r in rows),
    "steps",
    res.steps,
    f"greedy on 300 validation tasks: {s:.3f}",
    f"train {t1 - t0:.0f}s eval {time.time() - t1:.0f}s",
    flush=True,
)
