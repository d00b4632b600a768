"""CVaR of a plan's return: by hand, and in a case where the mean hides a rare disaster."""

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from treeagent.cli.preflight import require
from treeagent.config import EvaluateConfig, load_config
from treeagent.contrib.methods.risk import cvar
from treeagent.contrib.worlds.frozenlake import FrozenLakeEnv
from treeagent.envs import Env, EnvDynamics
from treeagent.envs.base import SnapshotKind, StepResult, task_to_play
from treeagent.envs.forks import Snapshots, snapshot_size
from treeagent.pipeline.outcomes import Outcome
from treeagent.pipeline.play import Actors, play
from treeagent.search import Limits, SearchConfig
from treeagent.search.decide import ranked_ends
from treeagent.search.node import Tree
from treeagent.types import Action, Estimate, Proposal, Split, State, Task, ToolCall, UserError


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1.0, 1.5), (0.5, 0.5), (0.25, 0.0), (0.1, 0.0), (0.375, 1 / 3)],  # (0 + 1 / 2) / 1.5
)
def test_cvar_by_hand(level: float, expected: float) -> None:
    assert cvar([3.0, 0.0, 2.0, 1.0], level) == pytest.approx(expected)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=12), st.floats(0.01, 1))
def test_cvar_is_the_maximum_of_rockafellar_and_uryasev(returns: list[float], level: float) -> None:
    """The function is concave and piecewise linear, so its maximum lies at one of the returns."""
    told = max(η - fmean(max(η - each, 0) for each in returns) / level for η in returns)
    assert cvar(returns, level) == pytest.approx(told, abs=1e-9)


class Arms(Env):
    """``safe`` pays 0.6. ``risky`` pays 1, but one time in ten -1, which is 0.8 on average."""

    snapshot_kind: SnapshotKind = "exact"
    stochastic = True

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"arms-{n}", "Pull an arm.", split, n) for n in range(start, start + count)]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task = task_to_play(self, seed, options)
        self.rng = random.Random(seed)
        return "safe or risky?", {}

    def step(self, action: str | ToolCall) -> StepResult:
        paid = 0.6 if action == "safe" else -1.0 if self.rng.random() < 0.1 else 1.0
        return f"paid {paid}", paid, True, False, {}

    def snapshot(self) -> object:
        return self.rng.getstate()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.rng.seed(reseed)


class Pulls:
    """Proposes both arms."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal(actions=(Action("safe", "safe"), Action("risky", "risky")))] * len(states)


class Reads:
    """V(s) of an end is the payment in its observation."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        said = (re.search(r"paid (\S+)", state.messages[-1].content) for state in states)
        return [Estimate(float(found[1]) if found else 0.0) for found in said]


def played(
    tasks: int, snapshots: Snapshots | None = None, **settings: object
) -> tuple[list[Outcome], list[Tree], list[Tree]]:
    config = EvaluateConfig(**settings)  # type: ignore[arg-type]
    blind = EnvDynamics(Arms(), max_steps=3, reveal_reward=False, snapshots=snapshots)
    verified = EnvDynamics(Arms(), max_steps=3)
    actors, search = Actors(Pulls(), Pulls(), Reads()), SearchConfig(Limits(simulations=4), candidates=2)
    return asyncio.run(play(actors, blind, verified, Arms().tasks("test", tasks), "mcts", config, search, 0))


def taken(episodes: Sequence[Tree]) -> list[object]:
    return [episode.root.edges[0].action.call for episode in episodes]


def test_the_mean_takes_the_risky_arm_and_the_tail_the_safe_one() -> None:
    _, trees, once = played(20)
    # A single draw decides: risky unless the search happened to meet the disaster.
    met = [
        any(edge.child is not None and "-1" in edge.child.state.messages[-1].content for edge in tree.root.edges)
        for tree in trees
    ]
    assert 0 < sum(met) < 20 and taken(once) == ["safe" if each else "risky" for each in met]
    by_mean, grown, often = played(20, replays=40)
    assert taken(often).count("risky") >= 18  # the mean of 40 is about 0.8, against 0.6
    assert all(tree.budget.environment_steps == 2 + 2 * 40 for tree in grown)
    by_tail, _, careful = played(20, replays=40, cvar=0.1)
    assert taken(careful) == ["safe"] * 20  # the worst 4 of 40 include a disaster
    assert min(each.reward for each in by_tail) == 0.6 and min(each.reward for each in by_mean) == -1.0
    assert taken(played(20, replays=40, cvar=0.1)[2]) == taken(careful)


def test_the_snapshots_of_one_plans_replays_make_room_for_the_next_ones() -> None:
    """Each of two trees holds three snapshots. Without room for a plan's replays, the tree gets their error."""
    each = snapshot_size(Arms().snapshot())
    outcomes, trees, _ = played(2, Snapshots(50 * each), replays=40)
    assert not any(outcome.error for outcome in outcomes)
    outcomes, trees, _ = played(2, Snapshots(10 * each), replays=40)
    assert all("raise budget" in tree.error for tree in trees)


def test_where_nothing_was_tried_again_the_search_decides() -> None:
    tree = played(1)[1][0]
    assert [path[0].action.call for path in ranked_ends(tree) or ()] == ["risky", "safe"]
    assert ranked_ends(tree, allowed=lambda path: False) == []
    assert ranked_ends(Tree(tree.task, 0, tree.order[0] or tree.root)) is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cvar": 0.1}, "replays"),
        ({"cvar": 0.0, "replays": 4}, "greater"),
        ({"replays": 4, "decision": "visits"}, "visits"),
        ({"replays": 4, "world": "runs/world"}, "world"),
    ],
)
def test_settings_that_try_nothing_again_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        EvaluateConfig(**settings)  # type: ignore[arg-type]


def test_an_environment_in_which_every_replay_ends_alike_is_refused() -> None:
    config = load_config(None, ["environment.name=frozenlake", "evaluate.replays=4", "environment.options={}"])
    with pytest.raises(UserError, match=r"evaluate\.replays.*stochastic"):
        require(config, ["evaluate"])
    slippery = load_config(
        None, ["environment.name=frozenlake", "evaluate.replays=4", "environment.options={slippery=true}"]
    )
    require(slippery, ["evaluate"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('evaluate.modes=["greedy"]', ""),
        ('evaluate.modes=["greedy","mcts"]', "'mcts', .* is stochastic and has snapshot_kind 'replay'"),
    ],
)
def test_a_plan_must_not_foresee_its_own_luck(setting: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "_copies_play_on", lambda self: False)
    config = load_config(None, ["environment.name=frozenlake", "environment.options={slippery=true}", setting])
    with pytest.raises(UserError, match=told) if told else nullcontext():
        require(config, ["evaluate"])


def test_a_worker_that_replays_repeats_its_luck() -> None:
    settings = ["environment.name=frozenlake", "environment.options={slippery=true}", "environment.worker=true"]
    require(load_config(None, settings), ["evaluate"])  # its snapshots are portable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrozenLakeEnv, "snapshot_portable", False)
        for setting in ('evaluate.modes=["mcts"]', "evaluate.replays=4"):
            with pytest.raises(UserError, match="'replay'"):
                require(load_config(None, [*settings, setting]), ["evaluate"])


def test_failing_tools_are_random_outcomes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "_copies_play_on", lambda self: False)
    suite = ["environment.name=frozenlake", 'evaluate.suite=["noise","failing tools"]']
    with pytest.raises(UserError, match="leave failing tools out"):
        require(load_config(None, [*suite, 'evaluate.modes=["mcts"]']), ["evaluate"])
    require(load_config(None, [*suite, 'evaluate.modes=["greedy"]']), ["evaluate"])
