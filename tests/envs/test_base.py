"""Forks, the conformance check and ``make_env``, on small environments that each violate one rule."""

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.envs import BUILT_IN, Env, Forkable, ToolSpec, check_env, make_env
from treeagent.envs.base import SnapshotKind, StepResult
from treeagent.envs.dynamics import Mark, ReplayDivergence
from treeagent.envs.shop import ShopEnv
from treeagent.types import Split, Task, ToolCall

TASK = Task("count-0", "reach three", seed=5, data={"answer": "seven"})


class Counter(Env):
    """Say ``up`` or ``down``; three is the goal. It has no snapshots, only replay."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.value = start

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[str, dict[str, object]]:
        self.value = self.start
        return self.show(), {}

    def step(self, action: str | ToolCall) -> StepResult:
        if action not in ("up", "down"):
            return "no such move", 0.0, False, False, {"tool_error": f"{action} is no move"}
        self.value += 1 if action == "up" else -1
        return self.show(), 0.0, self.value == 3, False, {}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [TASK] * count

    def legal_actions(self) -> list[str] | None:
        return ["up", "down"]

    def verify(self) -> float | None:
        return float(self.value == 3)

    def show(self) -> str:
        return f"at {self.value}"


class ExactCounter(Counter):
    snapshot_kind: SnapshotKind = "exact"

    def snapshot(self) -> object:
        return self.value

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, int)
        self.value = snapshot


class HalfDone(ExactCounter):
    """Moves and then raises, if asked to."""

    def step(self, action: str | ToolCall) -> StepResult:
        result = super().step("up" if action == "trip" else action)
        if action == "trip":
            raise OSError("tripped")
        return result


class Sharing(Counter):
    """Its snapshots are its own list."""

    snapshot_kind: SnapshotKind = "exact"

    def __init__(self) -> None:
        super().__init__()
        self.walked = list[str]()

    def step(self, action: str | ToolCall) -> StepResult:
        self.walked.append(str(action))
        return super().step(action)

    def snapshot(self) -> object:
        return self.value, self.walked

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.value, self.walked = cast(tuple[int, list[str]], snapshot)


class Blank(Counter):
    def tools(self) -> Sequence[ToolSpec]:
        return [ToolSpec("go up", "Move.", {"type": "object", "properties": {}})]


class Drifting(Counter):
    """Every reset starts one place higher."""

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[str, dict[str, object]]:
        self.start += 10
        return super().reset(seed=seed)


class Silent(Counter):
    def step(self, action: str | ToolCall) -> StepResult:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {}


class Shared(Counter):
    everyone = 0

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[str, dict[str, object]]:
        Shared.everyone = 0
        return super().reset(seed=seed)

    def step(self, action: str | ToolCall) -> StepResult:
        Shared.everyone += 1
        return super().step(action)

    def show(self) -> str:
        return f"at {self.value} after {Shared.everyone}"


class Telling(Counter):
    def show(self) -> str:
        return f"at {self.value}, not yet seven"


class GivesUpHappily(Counter):
    def tools(self) -> Sequence[ToolSpec]:
        return [ToolSpec("submit", "End the episode.", {"type": "object", "properties": {}})]

    def step(self, action: str | ToolCall) -> StepResult:
        if isinstance(action, ToolCall) and action.name == "submit":
            self.value = 3
            return "submitted", 0.0, True, False, {}
        return super().step(action)


class Slippery(ExactCounter):
    """Moves one or two, by its own random generator, which a snapshot copies."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[str, dict[str, object]]:
        self.rng = random.Random(seed)
        return super().reset(seed=seed)

    def step(self, action: str | ToolCall) -> StepResult:
        self.value += self.rng.randrange(1000)
        return super().step(action)

    def snapshot(self) -> object:
        return self.value, self.rng.getstate()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        self.value, state = snapshot
        self.rng.setstate(state)
        if reseed is not None:
            self.rng.seed(reseed)


@pytest.mark.parametrize("make", [Counter, ExactCounter, Slippery])
def test_a_sound_environment_passes(make: Callable[[], Counter]) -> None:
    report = check_env(make(), TASK, other=make())
    assert report.passed, report.violations
    assert report.branches == report.equal_branches > 10
    assert not report.skipped


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Sharing, "the snapshot changes when the environment goes on: return a copy"),
        (Blank, "the name of the tool 'go up' holds blanks"),
        (Drifting, "different first observations"),
        (Silent, 'sets no info["tool_error"]'),
        (Shared, "they share state"),
        (Telling, "the answer 'seven' stands in"),
        (GivesUpHappily, "an episode of nothing but"),
    ],
)
def test_each_broken_rule_is_named(make: Callable[[], Counter], sentence: str) -> None:
    report = check_env(make(), TASK, other=make())
    assert not report.passed
    assert any(sentence in violation for violation in report.violations), report.violations


def test_an_end_that_is_no_success_is_told_where_only_successes_end() -> None:
    class Pit(Counter):
        only_success_ends = True

        def step(self, action: str | ToolCall) -> StepResult:
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated or self.value < 0, truncated, info

    [violation] = check_env(Pit(), TASK).violations
    assert "only_success_ends" in violation


def test_a_listed_action_that_a_step_refuses_is_named() -> None:
    class Boastful(ExactCounter):
        def legal_actions(self) -> list[str] | None:
            return ["up", "down", *(["fly"] if self.value else [])]

    [violation] = check_env(Boastful(), TASK).violations
    assert "'fly'" in violation and "legal_actions" in violation


@pytest.mark.parametrize(("make", "replayed"), [(Counter, 2), (ExactCounter, 0)])
def test_goto_leads_back(make: Callable[[], Counter], replayed: int) -> None:
    fork = Forkable(make())
    fork.reset(TASK)
    fork.step("up")
    fork.step("up")
    mark = fork.mark()
    assert fork.step("up")[2]
    fork.goto(mark)
    assert fork.mark() == mark
    assert fork.step("down")[0] == "at 1"
    assert fork.replayed_steps == replayed


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["up", "down"])), max_size=60))
def test_every_way_back_leads_to_the_same_places(moves: list[tuple[int, str]]) -> None:
    """Each move goes to an earlier mark and then takes a step, by snapshots and by replays."""
    for fork in (Forkable(ExactCounter()), Forkable(Counter())):
        fork.reset(TASK)
        marks, expected = [fork.mark()], [0]
        for choice, action in moves:
            fork.goto(marks[choice % len(marks)])
            expected.append(expected[choice % len(marks)] + (1 if action == "up" else -1))
            assert fork.step(action)[0] == f"at {expected[-1]}"
            marks.append(fork.mark())


def test_a_diverging_replay_is_named() -> None:
    fork = Forkable(Drifting())
    fork.reset(TASK)
    fork.step("up")
    mark = fork.mark()
    fork.step("up")
    with pytest.raises(ReplayDivergence, match=r"step 0 \(reset\)"):
        fork.goto(mark)


def test_after_an_error_the_way_back_starts_afresh() -> None:
    fork = Forkable(HalfDone())
    fork.reset(TASK)
    fork.step("up")
    mark = fork.mark()
    with pytest.raises(OSError, match="tripped"):
        fork.step("trip")
    with pytest.raises(ValueError, match="call reset"):
        fork.step("up")
    fork.goto(mark)
    assert fork.step("up")[0] == "at 2"


def rolled(fork: Forkable, plan: Sequence[tuple[int, int]]) -> dict[int, list[str]]:
    """The observations of each tree under a plan of (tree, place to go to). Place 0 is the root, the others are
    numbered as they are made."""
    marks, read = dict[int, list[Mark]](), dict[int, list[str]]()
    for tree, place in plan:
        if tree not in marks:
            fork.reset(Task(f"tree-{tree}", "roll", seed=tree))
            marks[tree], read[tree] = [fork.mark()], []
        fork.goto(marks[tree][place])
        read[tree].append(fork.step("up")[0])
        marks[tree].append(fork.mark())
    return read


def test_make_env_builds_built_in_and_own_classes() -> None:
    shop = make_env("shop", {"difficulty": 1})
    assert isinstance(shop, ShopEnv)
    assert shop.options.difficulty == 1
    assert type(make_env(BUILT_IN["shop"])) is ShopEnv
    own = make_env(f"{__name__}:Counter", {"start": 2})
    assert own.reset()[0] == "at 2"
