"""How far evaluation falls short of what its trees found. Replays every end in the environment and prints the share
of tasks with a success among the ends (oracle), the share chosen, and the AUC of V at ends.

    python benchmarks/checks/judge_gap.py runs/quickstart evaluate-base-mcts
"""

import argparse
from pathlib import Path

import numpy as np

from treeagent.config import load_config
from treeagent.envs import make_env
from treeagent.search.decide import best_path
from treeagent.search.node import path_logprob
from treeagent.search.record import from_record
from treeagent.store import read_as

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run", type=Path)
parser.add_argument("names", nargs="*", help="series of trees; by default all of evaluation")
arguments = parser.parse_args()
run = arguments.run
config = load_config(run / "config.toml")
names = arguments.names or sorted({p.name.rsplit("-", 1)[0] for p in (run / "trees").glob("evaluate-*")})
env = make_env(config.environment.name, config.environment.options)


def real(task, path):
    env.reset(options={"task": task})
    total = 0.0
    for edge in path:
        if edge.thought:
            continue
        call = edge.action.call
        if edge.action.error:
            continue
        out = env.step(call)
        total += out[1]
        if out[2]:
            break
    v = env.verify()
    return v if v is not None else total


for name in names:
    oracle = chosen = anyend = 0
    n = 0
    scores = []
    labels = []
    within = []
    tokens = 0
    for tree in read_as(from_record, run / "trees", name):
        n += 1
        tokens += tree.budget.generated_tokens
        ends = [(list(p), node) for p, node in tree.walk() if p and node.terminated]
        rs = [real(tree.task, p) for p, _ in ends]
        best = best_path(tree, "leaf", None, config.evaluate.likelihood_weight)
        oracle += any(r >= 0.999 for r in rs)
        if ends:
            anyend += 1
            ids = [id(p[-1]) for p, _ in ends]
            chosen += (rs[ids.index(id(best[-1]))] >= 0.999) if best and id(best[-1]) in ids else 0
            v = [node.value + config.evaluate.likelihood_weight * path_logprob(p) for p, node in ends]
            scores += v
            labels += [r >= 0.999 for r in rs]
            if any(labels[-len(rs) :]) and not all(labels[-len(rs) :]):
                a = np.array(v)
                hit = np.array(labels[-len(rs) :])
                within.append((a[hit][:, None] > a[~hit][None]).mean())
    s, hit = np.array(scores), np.array(labels)
    o = s.argsort()
    ranks = np.empty(len(s))
    ranks[o] = np.arange(1, len(s) + 1)
    auc = (ranks[hit].sum() - hit.sum() * (hit.sum() + 1) / 2) / (hit.sum() * (~hit).sum())
    print(
        f"{name:32s} n={n} tokens/task={tokens / n:.0f} ended={anyend / n:.3f} oracle={oracle / n:.3f} "
        f"chosen={chosen / n:.3f} ends/tree={len(s) / n:.1f} success share of ends={hit.mean():.2f} AUC={auc:.3f} "
        f"within-tree AUC={np.mean(within):.3f} ({len(within)} mixed trees)"
    )
