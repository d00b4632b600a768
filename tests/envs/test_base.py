"""Forks, the conformance check and ``make_env``, on small environments that each break one rule."""

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from treeagent.envs import BUILT_IN, Env, Forkable, ReplayDivergence, ToolSpec, check_env, make_env
from treeagent.envs.base import SnapshotKind, StepResult
from treeagent.envs.shop import ShopEnv
from treeagent.types import Split, Task, ToolCall

TASK = Task("count-0", "reach three", seed=5, data={"answer": "seven"})


class Counter(Env):
    """Say ``up`` or ``down``; three is the goal. Replay only."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.value = start

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
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


class Forgetful(ExactCounter):
    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.value = 0


class Drifting(Counter):
    """Every reset starts one higher."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.start += 10
        return super().reset(seed=seed, options=options)


class DriftingLater(Drifting):
    def show(self) -> str:
        return "start" if self.value == self.start else f"at {self.value}"


class Raising(Counter):
    def step(self, action: str | ToolCall) -> StepResult:
        if action not in ("up", "down"):
            raise KeyError(action)
        return super().step(action)


class Silent(Counter):
    def step(self, action: str | ToolCall) -> StepResult:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {}


class Shared(Counter):
    everyone = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        Shared.everyone = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        Shared.everyone += 1
        return super().step(action)

    def show(self) -> str:
        return f"at {self.value} after {Shared.everyone}"


class GlobalRandom(Counter):
    def step(self, action: str | ToolCall) -> StepResult:
        random.random()
        return super().step(action)


class Telling(Counter):
    def show(self) -> str:
        return f"at {self.value}, not yet seven"


class Generous(Counter):
    def verify(self) -> float | None:
        return 1.0


class GivesUpHappily(Counter):
    def tools(self) -> Sequence[ToolSpec]:
        return [ToolSpec("submit", "End the episode.", {"type": "object", "properties": {}})]

    def step(self, action: str | ToolCall) -> StepResult:
        if isinstance(action, ToolCall) and action.name == "submit":
            self.value = 3
            return "submitted", 0.0, True, False, {}
        return super().step(action)


class Slippery(ExactCounter):
    """Moves one or two, by its own generator, which a snapshot copies."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.rng = random.Random(seed)
        return super().reset(seed=seed, options=options)

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


def test_the_shop_passes() -> None:
    env = ShopEnv()
    for task in env.tasks("test", 3):
        report = check_env(env, task, other=ShopEnv(), branches=40)
        assert report.passed, report.violations
        assert report.branches == report.equal_branches > 20


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Forgetful, "from a restored snapshot differ"),
        (Drifting, "different first observations"),
        (DriftingLater, "differ when replayed from reset"),
        (Raising, "raises KeyError"),
        (Silent, 'sets no info["tool_error"]'),
        (Shared, "they share state"),
        (GlobalRandom, "global random state"),
        (Telling, "the answer 'seven' stands in"),
        (Generous, "without any action a success"),
        (GivesUpHappily, "an episode of nothing but"),
    ],
)
def test_each_broken_rule_is_named(make: Callable[[], Counter], sentence: str) -> None:
    report = check_env(make(), TASK, other=make())
    assert not report.passed
    assert any(sentence in violation for violation in report.violations), report.violations


def test_what_cannot_be_checked_is_said() -> None:
    class Mute(Counter):
        def legal_actions(self) -> list[str] | None:
            return None

    report = check_env(Mute(), TASK)
    assert report.branches == 0
    assert len(report.skipped) == 2


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


def test_going_where_one_stands_costs_no_replay() -> None:
    fork = Forkable(Counter())
    fork.reset(TASK)
    fork.step("up")
    fork.goto(fork.mark())
    assert fork.replayed_steps == 0


def test_a_diverging_replay_names_the_step() -> None:
    fork = Forkable(DriftingLater())
    fork.reset(TASK)
    fork.step("up")
    mark = fork.mark()
    fork.step("up")
    with pytest.raises(ReplayDivergence, match=r"step 1 \(action 'up'\)"):
        fork.goto(mark)


def test_an_environment_without_forks_says_so() -> None:
    class OneWay(Counter):
        snapshot_kind: SnapshotKind = "none"

    fork = Forkable(OneWay())
    with pytest.raises(ValueError, match="call reset"):
        fork.mark()
    fork.reset(TASK)
    root = fork.mark()
    fork.step("up")
    mark = fork.mark()
    fork.goto(root)
    with pytest.raises(ValueError, match="world model"):
        fork.goto(mark)


def test_a_stochastic_environment_is_reseeded_by_default() -> None:
    fork = Forkable(Slippery())
    fork.reset(TASK)
    mark = fork.mark()
    fresh, fixed = set[str](), set[str]()
    for _ in range(8):
        fork.goto(mark)
        fresh.add(fork.step("up")[0])
        fork.goto(mark, reseed=1)
        fixed.add(fork.step("up")[0])
    assert len(fresh) > 1
    assert len(fixed) == 1


def test_make_env_builds_built_in_and_own_classes() -> None:
    shop = make_env("shop", {"difficulty": 1})
    assert isinstance(shop, ShopEnv)
    assert shop.options.difficulty == 1
    assert type(make_env(BUILT_IN["shop"])) is ShopEnv
    own = make_env(f"{__name__}:Counter", {"start": 2})
    assert own.reset()[0] == "at 2"


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("shopp", {}, "unknown environment 'shopp'"),
        ("shop", {"products": 7}, "products=7"),
        ("shop", {"colour": 1}, "colour=1.*it knows.*difficulty"),
        ("nowhere:Env", {}, "'nowhere:Env' cannot be imported"),
        (f"{__name__}:Missing", {}, "cannot be imported"),
        (f"{__name__}:Counter", {"stop": 1}, "refuses options"),
    ],
)
def test_make_env_refuses_in_one_sentence(name: str, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        make_env(name, options)
    assert "\n" not in str(caught.value)
