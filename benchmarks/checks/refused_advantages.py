"""What advantages of refused calls do to the policy. Trains GRPO on the trees of a quickstart and prints greedy
success and the share of refused steps. Arms: "warm" (no training), "plain", "clamp" (no positive advantage for a
refused call), "sib" (the siblings' mean as baseline), "noanchor"; parts combine, as in "clamp-sib". A run takes
minutes.

    python benchmarks/checks/refused_advantages.py clamp 0 --run runs/quickstart
"""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import treeagent.stages.play as E
import treeagent.views.advantages as A
from treeagent.agent.checkpoint import load_checkpoint
from treeagent.config import load_config
from treeagent.learners.grpo import train_grpo
from treeagent.search.record import from_record
from treeagent.stages.build import environment, make_policy, play_on
from treeagent.store import read_as

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("arm")
parser.add_argument("seed", type=int)
parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a finished quickstart")
arguments = parser.parse_args()
torch.set_num_threads(1)
arm, seed = arguments.arm, arguments.seed
cfg = load_config(Path("configs/adapt.toml"))
run = arguments.run
trees = [t for _, t in zip(range(400), read_as(from_record, run / "trees", "collect"), strict=False)]
ck = load_checkpoint(run / "checkpoints" / "warm")


def evaluate():
    env = environment(cfg)
    pol = make_policy(ck, cfg)
    tasks = env.tasks("validation", 300)
    ck.model.eval()
    pol.generator.forget()
    steps = [0, 0]
    tk = E.take_step

    async def counting(d, g, p, s=None):
        await tk(d, g, p, s)
        steps[0] += 1
        steps[1] += bool(p[-1].child is not None and p[-1].child.invalid)

    E.take_step = counting
    out, _ = asyncio.run(E.execute(pol.greedy(), play_on(env, cfg, "validate"), tasks, [0] * 300, [()] * 300))
    E.take_step = tk
    return sum(o.success for o in out) / 300, steps[1] / steps[0]


if arm == "warm":
    print("warm: greedy {:.3f} refused steps {:.3f}".format(*evaluate()))
    sys.exit()
rows = []
for t in trees:
    sc = A.advantages([t], A.AdvantageConfig())
    if "clamp" in arm:
        for n in t.nodes():
            for e in n.edges:
                if e.child is not None and e.child.invalid and sc.get(id(e), 0) > 0:
                    del sc[id(e)]
    if "sib" in arm:
        for n in t.nodes():
            tr = [e for e in n.edges if e.visits]
            if len(tr) < 2:
                continue
            m = sum(e.value for e in tr) / len(tr)
            for e in tr:
                sc[id(e)] = e.value - m
                if "clamp" in arm and e.child.invalid and sc[id(e)] > 0:
                    del sc[id(e)]
    rows += list(A.advantage_rows(t, sc))
t0 = time.time()
g = replace(cfg.update.grpo, seed=seed, packed=False, max_steps=120)
if "noanchor" in arm:
    g = replace(g, anchor=0.0)
res = train_grpo(ck.model, ck.tokenizer, rows, g, temperature=cfg.policy.temperature)
t1 = time.time()
print(
    arm,
    seed,
    "rows",
    len(rows),
    "steps",
    res.steps,
    "greedy {:.3f} refused steps {:.3f}".format(*evaluate()),
    f"train {t1 - t0:.0f}s eval {time.time() - t1:.0f}s",
    flush=True,
)
