"""Why the critic of configs/baselines/ppo.toml must be fitted to mean returns. Fitted to the best return found below a
state, V is too high, and the mean advantage (GAE) of the first action falls below 0 in a world of two coin flips.

    PYTHONPATH=tests/search python benchmarks/checks/ppo_critic.py
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from toy_search import TablePolicy, after, begin, calls, task

from treeagent.config import load_config
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.types import Estimate, Transition
from treeagent.views.advantages import advantages
from treeagent.views.values import ValueTargetConfig, state_return

cfg = load_config(Path("configs/baselines/ppo.toml"))


@dataclass(frozen=True)
class TwoStep:
    """Two coin flips by the policy: 'good good' pays 1; every episode ends after two steps."""

    async def reset(self, t):
        return begin(t, "start")

    async def step(self, s, a):
        c = (*calls(s), a.call)
        end = len(c) == 2
        return Transition(after(s, a, " ".join(c)), float(c == ("good", "good")), terminated=end)


class Tab:
    def __init__(self):
        self.v = defaultdict(lambda: 0.5)

    async def estimate(self, states):
        return [Estimate(self.v[s.messages[-1].content], (1,)) for s in states]


pol = TablePolicy({"good": 0.66, "bad": 0.34})
tasks = [task(f"t{i}") for i in range(100)]
for kind in ("best", "mean"):
    tab = Tab()
    targets = ValueTargetConfig(target=kind)
    for rnd in range(3):
        search = replace(cfg.search, limits=Limits(simulations=10))
        trees = asyncio.run(make_search(pol, TwoStep(), search, tab).run(tasks, list(range(100))))
        first = []
        for t in trees:
            sc = advantages([t], cfg.update.advantages)
            first += [sc.get(id(e), 0.0) for e in t.root.edges]
        found = defaultdict(list)
        for t in trees:
            for path, n in t.walk():
                r = state_return(n, path[-1] if path else None, targets)
                if r is not None:
                    found[n.state.messages[-1].content].append(r)
        print(
            kind,
            "round",
            rnd,
            "mean GAE of the first action: %+.2f" % (sum(first) / len(first)),
            " share > 0: %.2f" % (sum(a > 0 for a in first) / len(first)),
            " V(start) used: {:.2f}".format(tab.v["start"]),
        )
        for k, x in found.items():
            tab.v[k] = sum(x) / len(x)
print("true V(start) of the policy: %.2f" % (0.66**2))
