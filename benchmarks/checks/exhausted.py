"""What exhausted subtrees do to visit counts. In a state whose best action ends the task at once, search visits that
action once and then leaves it. The script prints N and Q with and without ``skip_exhausted``, the targets made of the
visits, and the preference pairs made of Q.

    PYTHONPATH=tests/search python benchmarks/checks/exhausted.py
"""

from dataclasses import dataclass

from toy_search import AllPolicy, ConstantValue, after, begin, calls, grow

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.types import Transition
from treeagent.views import PairConfig, preference_pairs


@dataclass(frozen=True)
class Shop:
    """'buy' ends with 1; 'a' and 'b' dawdle: five steps deep, then 0."""

    async def reset(self, t):
        return begin(t, "s")

    async def step(self, s, a):
        c = (*calls(s), a.call)
        if c == ("buy",):
            return Transition(after(s, a, "bought"), 1.0, terminated=True)
        end = len(c) >= 5 or a.call == "buy"
        return Transition(after(s, a, " ".join(c)), 0.0, terminated=end)


@dataclass(frozen=True)
class Two:
    """L: of its four ways on one wins at once, the others lead to long failures. R: everything ends with 0.5."""

    async def reset(self, t):
        return begin(t, "s")

    async def step(self, s, a):
        c = (*calls(s), a.call)
        if c[0] == "a":
            if c == ("a", "a"):
                return Transition(after(s, a, "won"), 1.0, terminated=True)
            return Transition(after(s, a, " ".join(c)), 0.0, terminated=len(c) >= 5)
        return Transition(after(s, a, " ".join(c)), 0.5 if len(c) >= 5 else 0.0, terminated=len(c) >= 5)


for skip in (True, False):
    cfg = SearchConfig(limits=Limits(simulations=64), skip_exhausted=skip)
    [t] = grow(AllPolicy("buy", "a", "b"), Shop(), cfg, ConstantValue(0.5))
    N = {e.action.text: e.visits for e in t.root.edges}
    Q = {e.action.text: round(e.value, 2) for e in t.root.edges}
    pi = [round(visits / sum(N.values()), 3) for visits in N.values()]
    print("skip_exhausted", skip, "N", N, "Q", Q, "visit-count target of (buy,a,b)", pi)
    for p in list(preference_pairs(t, PairConfig()))[:1]:
        print("   pair", p.chosen.text, ">", p.rejected.text)
    [t] = grow(
        AllPolicy("a", "b"), Two(), SearchConfig(limits=Limits(simulations=64), skip_exhausted=skip), ConstantValue(0.5)
    )
    print(
        "   Two: N",
        {e.action.text: e.visits for e in t.root.edges},
        "Q",
        {e.action.text: round(e.value, 3) for e in t.root.edges},
        "pairs at root",
        [(p.chosen.text, round(p.margin, 2)) for p in preference_pairs(t, PairConfig()) if len(p.context_ids) == 1],
    )
