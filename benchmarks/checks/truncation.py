"""What becomes of environments in which only a success ends the episode, so that every failure is a truncation. Prints
the spread and accuracy of mixed trees, what the curriculum and StarPO-S make of them, and how the value head's targets
develop over six rounds.

    PYTHONPATH=tests/search python benchmarks/checks/truncation.py
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from toy_search import TablePolicy, after, begin, calls, task

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import accuracy, return_spread
from treeagent.stages.rounds import Searched, choose_tasks, is_worth_learning
from treeagent.stages.update import informative
from treeagent.types import Estimate, Transition
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.figures import tree_figures
from treeagent.views.values import ValueTargetConfig, state_return


@dataclass(frozen=True)
class Hall:
    """'good' twice in a row wins and ends; 'pit' leads nowhere else; six steps at most, reward 0 there."""

    async def reset(self, t):
        return begin(t, "start")

    async def step(self, s, a):
        place = s.messages[-1].content
        n = len(calls(s)) + 1
        if place == "pit" or a.call == "pit":
            new = "pit"
        elif a.call == "good":
            new = {"start": "mid", "mid": "won"}[place]
        else:
            new = "start"
        won = new == "won"
        return Transition(after(s, a, new), reward=float(won), terminated=won, truncated=not won and n >= 6)


class Tab:
    def __init__(self):
        self.v = defaultdict(lambda: 0.5)  # the fresh head's V: the middle of the range

    async def estimate(self, states):
        return [Estimate(self.v[s.messages[-1].content], (1,)) for s in states]


pol = TablePolicy({"good": 0.35, "wait": 0.35, "pit": 0.3})
tasks = [task(f"t{i}") for i in range(200)]
for method, sims in (("best_of_n", 8), ("mcts", 24)):
    tab = Tab()
    print("==", method)
    for rnd in range(6):
        trees = asyncio.run(
            make_search(pol, Hall(), SearchConfig(method=method, limits=Limits(simulations=sims)), tab).run(
                tasks, list(range(200))
            )
        )
        if rnd == 0:
            mixed = [t for t in trees if any(n.terminated for n in t.nodes()) and any(n.truncated for n in t.nodes())]
            print(
                len(mixed),
                "of 200 trees hold successes and failures; return_spread of them:",
                set(return_spread(t) for t in mixed),
                "accuracy:",
                set(accuracy(t) for t in mixed),
            )
            print("  reward figure:", tree_figures(trees)["reward"], "reward_std:", tree_figures(trees)["reward_std"])
            s = {i: Searched(return_spread(t), accuracy(t)) for i, t in enumerate(trees)}
            print(
                "  curriculum: tasks searched again of 100:",
                sum(map(len, choose_tasks(s, 100, 0.5)[1:])),
                " variation can be worth learning:",
                any(is_worth_learning(x.accuracy, y.accuracy) for x in s.values() for y in s.values()),
            )
            print(
                "  StarPO-S keep 1/4 keeps the first trees whatever they hold:",
                informative([return_spread(t) for t in trees], 0.25) == [*range(50)],
            )
        if method == "best_of_n":
            sc = advantages([mixed[0]], AdvantageConfig(kind="grpo")) if rnd == 0 else {}
        targets = defaultdict(list)
        for t in trees:
            for path, node in t.walk():
                r = state_return(node, path[-1] if path else None, ValueTargetConfig())
                if r is not None:
                    targets[node.state.messages[-1].content].append(r)
        zero = sum(x == 0 for k in targets for x in targets[k])
        for k, x in targets.items():
            tab.v[k] = sum(x) / len(x)
        print(
            "round",
            rnd,
            "targets of 0:",
            zero,
            "of",
            sum(map(len, targets.values())),
            {k: round(v, 3) for k, v in sorted(tab.v.items())},
        )
print("true value of pit: 0")
