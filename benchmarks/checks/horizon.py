"""When a tree beats best-of-N. The world is a ladder of H decisions with K actions each, of which one is right; a
mistake cannot be undone. The policy takes the right action with probability q. V(s) is 0.8 where all is right so
far and 0.2 elsewhere, plus noise drawn once a state; ends are judged with the noise of ``--end-noise``. All methods get
the same number of generated tokens (10 an action). Prints success in percent and (in brackets) environment steps.

    PYTHONPATH=tests/search python benchmarks/checks/horizon.py --horizons 4 8 --tasks 50
"""

import argparse
import asyncio
import math
import random
import statistics

from toy_search import act, after, begin, calls, task

from treeagent.search.config import ABMCTSConfig, BeamConfig, RebaseConfig, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.types import Estimate, Proposal, Transition, derive_seed

WORDS = "abcd"
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--q", type=float, default=0.7)
p.add_argument("--noise", type=float, default=0.2)
p.add_argument("--end-noise", type=float, default=0.1)
p.add_argument("--tokens", type=int, default=1600)
p.add_argument("--tasks", type=int, default=200)
p.add_argument("--only", nargs="+", help="names of methods; by default all")
p.add_argument("--horizons", type=int, nargs="+", default=[4, 8, 12, 16, 24])
a = p.parse_args()


def right(name, steps):
    return WORDS[derive_seed(0, name, len(steps)) % 4]


def alive(name, steps):
    return all(w == right(name, steps[:i]) for i, w in enumerate(steps))


class Ladder:
    def __init__(self, height):
        self.height = height

    async def reset(self, t):
        return begin(t, "start")

    async def step(self, s, action):
        steps = (*calls(s), str(action.call))
        return Transition(after(s, action, str(len(steps))), reward=None, terminated=len(steps) >= self.height)


class Policy:
    async def propose(self, states, count, seeds):
        out = []
        for s, seed in zip(states, seeds, strict=True):
            good = right(s.task.id, calls(s))
            table = {w: a.q if w == good else (1 - a.q) / 3 for w in WORDS}
            words = random.Random(seed).choices(list(table), list(table.values()), k=count)
            out.append(Proposal((1,), tuple(act(w, math.log(table[w]), tokens=10) for w in words)))
        return out


class Value:
    def __init__(self, height):
        self.height = height

    async def estimate(self, states):
        out = []
        for s in states:
            steps = calls(s)
            rng = random.Random(derive_seed(1, s.task.id, *steps))
            end = len(steps) >= self.height
            out.append(
                Estimate(
                    0.5 + (0.3 if alive(s.task.id, steps) else -0.3) + rng.gauss(0, a.end_noise if end else a.noise),
                    (1,),
                )
            )
        return out


METHODS = {
    "best_of_n": dict(method="best_of_n"),
    "puct, the default": {},
    "puct K=4 c=0.1": dict(widening=None, candidates=4, c_init=0.1),
    "puct K=6 c=2.5": dict(widening=None, candidates=6, c_init=2.5),
    "beam 4": dict(method="beam", candidates=4, beam=BeamConfig(4)),
    "best_first": dict(method="best_first", candidates=4),
    "ab_mcts gaussian": dict(method="ab_mcts"),
    "ab_mcts beta": dict(method="ab_mcts", ab_mcts=ABMCTSConfig("beta")),
    "rebase 6": dict(method="rebase", rebase=RebaseConfig(6)),  # 24 depths fit into the tokens
}
METHODS = {name: settings for name, settings in METHODS.items() if not a.only or name in a.only}
print(
    f"q={a.q} noise={a.noise} end noise={a.end_noise} tokens={a.tokens}; "
    f"success of {a.tasks} tasks (environment steps a task)"
)
print("H     p=q^H   " + "".join(f"{m:>28s}" for m in METHODS))
for h in a.horizons:
    row = ""
    for kw in METHODS.values():
        limits = Limits(generated_tokens=a.tokens)
        trees = asyncio.run(
            make_search(Policy(), Ladder(h), SearchConfig(limits=limits, **kw), Value(h)).run(
                [task(f"t{i}") for i in range(a.tasks)], list(range(a.tasks))
            )
        )
        ok = 0
        for t in trees:
            path = best_path(t, "leaf")
            steps = tuple(str(e.action.call) for e in path)
            ok += len(steps) == h and alive(t.task.id, steps)
        row += f"{100 * ok / len(trees):18.1f} ({statistics.mean(t.budget.environment_steps for t in trees):6.1f}) "
    print(f"{h:<4d} {a.q**h:8.4f}   {row}", flush=True)
