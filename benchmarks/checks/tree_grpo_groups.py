"""What Tree-GRPO's advantage is with one tree a task: its intra-tree and inter-tree terms are then equal, so that it is
twice GRPO's. Prints the greatest difference from that, and the settings in which the baseline recipes differ.

    PYTHONPATH=tests/search python benchmarks/checks/tree_grpo_groups.py
"""

import asyncio
from dataclasses import asdict
from pathlib import Path

from toy_search import HashValue, Maze, TablePolicy, task

from treeagent.config import load_config
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.stages.update import by_task
from treeagent.views.advantages import AdvantageConfig, advantages

cfg = SearchConfig(method="random_expand", limits=Limits(simulations=10))
tasks = [task(f"t{i}") for i in range(50)]
trees = asyncio.run(
    make_search(TablePolicy({"a": 0.5, "b": 0.3, "c": 0.2}), Maze(), cfg, HashValue()).run(tasks, list(range(50)))
)
worst = 0
n = 0
for group in by_task(trees):
    t = advantages(group, AdvantageConfig(kind="tree_grpo"))
    g = advantages(group, AdvantageConfig(kind="grpo"))
    assert t.keys() == g.keys()
    n += len(t)
    worst = max([worst, *(abs(t[k] - 2 * g[k]) for k in t)])
print("edges", n, "max |A_tree_grpo - 2 A_grpo| =", worst)


c = load_config(Path("configs/baselines/tree_grpo.toml"))
print(
    "tree_grpo.toml: trees per task and round = 1 (collect one tree a task); curriculum",
    c.adapt.curriculum,
    "replay",
    c.adapt.replay,
    "method",
    c.search.method,
    "initial chains",
    c.search.chains.initial,
)


def flat(d, p=""):
    o = {}
    for k, v in d.items():
        o |= flat(v, p + k + ".") if isinstance(v, dict) else {p + k: v}
    return o


L = {
    n: flat(asdict(load_config(Path(f"configs/baselines/{n}.toml"))))
    for n in ("flat_grpo", "dapo", "rloo", "ppo", "starpo_s", "tree_grpo", "rft")
}
for n in L:
    if n != "flat_grpo":
        print(
            n,
            "differs from flat_grpo in",
            {k: (L["flat_grpo"].get(k), L[n].get(k)) for k in L[n] if L[n].get(k) != L["flat_grpo"].get(k)},
        )
