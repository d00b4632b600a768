"""The same search as DeepMind's mctx: equal visits at every state, equal Q, equal improved policy and action.

mctx expands a leaf with the priors of all its actions; a policy that proposes every action does that here. mctx
searches on through ends, so exhausted subtrees are revisited; ``Revisiting`` does that here. See
benchmarks/mctx_golden.py for the rest, and for what differs by design.
"""

import asyncio
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_gumbel import considered_visits
from toy_search import Revisiting, RevisitingGumbel, task

from treeagent.search import gumbel, puct
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.gumbel import best_root_edge, gumbel_noise, improved_policy
from treeagent.search.puct import ValueRange
from treeagent.search.searcher import Growth
from treeagent.types import Action, Estimate, Message, Proposal, State, Task, Transition

GOLDEN = Path(__file__).parents[1] / "golden" / "mctx.json"
Case = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class World:
    """The tables of a case as policy, value function and dynamics. The last message of a state is its number."""

    case: Case

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._actions(self.case["prior"][place(state)]))) for state in states]

    def _actions(self, priors: Sequence[float]) -> Iterable[Action]:
        total = sum(priors)
        for number, prior in enumerate(priors):
            yield Action(str(number), str(number), "", (number,), (math.log(prior / total),))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self.case["value"][place(state)]) for state in states]

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "0"),))

    async def step(self, state: State, action: Action) -> Transition:
        here, taken = place(state), int(action.text)
        after: int = self.case["next"][here][taken]
        truncated = self.case["ends"][after] == "truncated"  # mctx adds V there; treeagent takes a limit for an end
        rest = self.case["settings"].get("discount", 1.0) * self.case["value"][after] if truncated else 0.0
        told = (*state.messages, Message("assistant", action.text), Message("user", str(after)))
        return Transition(
            State(state.task, told),
            self.case["reward"][here][taken] + rest,
            terminated=self.case["ends"][after] == "terminated",
            truncated=truncated,
        )


def place(state: State) -> int:
    return int(state.messages[-1].content)


CONSTANTS = {
    "c_base": (puct, "C_BASE"),
    "first_play_reduction": (puct, "FIRST_PLAY_REDUCTION"),
    "gumbel_visit_offset": (gumbel, "VISIT_OFFSET"),
    "gumbel_value_scale": (gumbel, "VALUE_SCALE"),
}
"""Settings of a case that are constants in treeagent. The formulas must agree with mctx at other values, too."""


class FixedRange(ValueRange):
    """Values that are seen do not widen it."""

    def include(self, value: float) -> None:
        pass


def by_treeagent(case: Case) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, constant) in CONSTANTS.items():
            if name in case["settings"]:
                patch.setattr(module, constant, case["settings"][name])
        return _searched(case)


def _searched(case: Case) -> Result:
    settings = {name: value for name, value in case["settings"].items() if name not in CONSTANTS}
    options = {"widening": 0}
    if "c_init" in settings:
        options["c_init"] = settings.pop("c_init")
    if case["method"] == "gumbel":
        options["considered"] = settings.pop("gumbel_considered")
    value_range = settings.pop("value_range", None)
    noise = bool(settings.pop("gumbel_scale", 1.0))  # each case has full noise or none
    limits = Limits(simulations=case["simulations"])
    config = SearchConfig(limits=limits, options=options, **settings)
    world, kind = World(case), RevisitingGumbel if case["method"] == "gumbel" else Revisiting

    class Ranged(kind):  # type: ignore[misc, valid-type]
        async def grow(self, growth: Growth) -> None:
            if value_range is not None:
                growth.value_range = FixedRange(*value_range)
            await super().grow(growth)

    [tree] = asyncio.run(Ranged(world, world, config, world, noise=noise).run([task()], [case["seed"]]))
    result: Result = {
        "visits": {
            "".join(f"/{edge.action.text}" for edge in path): [edge.visits for edge in node.edges]
            for path, node in tree.walk()
            if node.visits
        },
        "values": [edge.value for edge in tree.root.edges],
    }
    if case["method"] == "gumbel":
        result["weights"] = improved_policy(tree.root)
        result["action"] = int(best_root_edge(tree, noise=noise).action.text)
    return result


def agrees(mine: Result, other: Result) -> bool:
    """Numbers may differ by rounding: mctx stores means, treeagent sums."""
    return mine == {
        key: value if key in ("visits", "action") else pytest.approx(value, rel=1e-9, abs=1e-9)
        for key, value in other.items()
    }


def count_agreeing(pairs: Sequence[tuple[Case, Result]]) -> int:
    agreeing = sum(agrees(by_treeagent(case), other) for case, other in pairs)
    print(f"{agreeing} of {len(pairs)} cases agree")
    return agreeing


@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_every_visit_and_value_is_that_of_mctx(method: str) -> None:
    """80 PUCT and 40 Gumbel searches of worlds of ten states with rewards, ends, limits and discounts."""
    golden = [row for row in json.loads(GOLDEN.read_text())["cases"] if row["method"] == method]
    assert len(golden) == (80 if method == "puct" else 40)
    assert count_agreeing([(row, row["mctx"]) for row in golden]) == len(golden)


def test_numpy_draws_the_noise_that_mctx_was_given() -> None:
    """If this fails, write the golden file again."""
    for row in json.loads(GOLDEN.read_text())["cases"]:
        assert gumbel_noise(len(row["noise"]), row["seed"]) == pytest.approx(row["noise"])


def test_the_schedules_are_those_of_mctx() -> None:
    schedules = json.loads(GOLDEN.read_text())["schedules"]
    assert len(schedules) == 48
    for considered, simulations, visits in schedules:
        assert considered_visits(considered, simulations) == visits
