"""Environments whose methods are coroutines."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, cast

import pytest
from faulty_envs import Climber, Stairs, WordsPolicy, stairs_task
from test_pool import CLIMBS, MOVES, grow, told

from treeagent.envs import AsyncEnv, EnvPool, StepResult, WaitingEnv, WorkerEnv, check_env, make_env
from treeagent.envs.base import Demonstrator, SnapshotKind
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError

NAME = f"{__name__}:Lift"


class Lift(AsyncEnv):
    """``Stairs`` as coroutines. The task of fault ``hang`` waits at its second floor."""

    snapshot_kind: SnapshotKind = "exact"
    open: ClassVar[int] = 0
    cancelled: ClassVar[int] = 0

    def __init__(self, snapshots: str = "plain") -> None:
        self.stairs, self.loop = Stairs(snapshots), asyncio.get_running_loop()
        self.snapshot_kind = self.stairs.snapshot_kind
        Lift.open += 1

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        assert asyncio.get_running_loop() is self.loop
        return self.stairs.reset(seed=seed, options=options or {"task": stairs_task(seed or 0)})

    async def step(self, action: str | ToolCall) -> StepResult:
        try:
            await asyncio.sleep(1000 if self.stairs.task.data["fault"] == "hang" and self.stairs.level else 0.001)
        except asyncio.CancelledError:
            Lift.cancelled += 1
            raise
        return self.stairs.step(action)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        first = 30 * SPLITS.index(split) + start
        return self.stairs.tasks(split, count, first)

    async def verify(self) -> float | None:
        return self.stairs.verify()

    async def snapshot(self) -> object:
        await asyncio.sleep(0)
        return self.stairs.snapshot()

    async def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.stairs.restore(snapshot, reseed=reseed)

    async def state_key(self) -> str | None:
        return self.stairs.state_key()

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return Climber(noise)

    async def close(self) -> None:
        await asyncio.sleep(0)
        Lift.open -= 1


class HalfLift(Stairs):
    """Only its step is a coroutine."""

    async def step(self, action: str | ToolCall) -> StepResult:  # type: ignore[override]
        return super().step(action)


async def built(snapshots: str = "plain") -> Lift:
    await asyncio.sleep(0)
    return Lift(snapshots)


@pytest.mark.parametrize("factory", ["Lift", "built"])
@pytest.mark.parametrize("kind", ["plain", "none"])
def test_coroutines_grow_the_trees_of_the_same_environment_without(factory: str, kind: str) -> None:
    Lift.open = 0
    serial = told(grow(Stairs(kind), CLIMBS, MOVES))
    make = partial(make_env, f"{__name__}:{factory}", {"snapshots": kind})
    front = make()
    assert isinstance(front, WaitingEnv)
    assert told(grow(front, CLIMBS, MOVES)) == serial
    for size in (2, 8):
        with EnvPool(front, make, size) as pool:
            assert told(grow(pool, CLIMBS, MOVES)) == serial
    front.close()
    assert Lift.open == 0


def test_an_env_whose_step_alone_is_a_coroutine_is_refused() -> None:
    with pytest.raises(UserError, match="AsyncEnv"):
        make_env(f"{__name__}:HalfLift").close()


def test_a_coroutine_that_is_given_up_is_cancelled() -> None:
    Lift.open = Lift.cancelled = 0
    make = partial(make_env, NAME)
    front = make()
    with EnvPool(front, make, 2) as pool:
        trees = grow(
            pool, [stairs_task(0), stairs_task(1, "hang"), stairs_task(2)], WordsPolicy("up"), step_seconds=0.3
        )
    assert [tree.error for tree in trees] == ["", "TimeoutError", ""]
    assert (Lift.cancelled, Lift.open) == (1, 1)
    front.close()


@pytest.mark.parametrize("ending", [asyncio.CancelledError, SystemExit])
def test_an_environment_that_would_end_the_process_costs_its_tree(ending: type[BaseException]) -> None:
    class Quitting(Lift):
        async def step(self, action: str | ToolCall) -> StepResult:
            raise ending

    trees = grow(WaitingEnv(Quitting), [stairs_task(0)])
    assert trees[0].error.startswith("EnvBroken") and ending.__name__ in trees[0].error
    assert not grow(WaitingEnv(Lift), [stairs_task(0)])[0].error  # it shares the loop


def test_it_passes_the_check_and_runs_in_a_process_of_its_own() -> None:
    env, other = make_env(NAME), make_env(NAME)
    calls = cast(list[str | ToolCall], ["up", "down", "jump"])
    report = check_env(env, env.tasks("train", 1)[0], other=other, actions=calls, branches=4, depth=3)
    assert report.passed, report.violations
    worker = WorkerEnv(NAME)
    assert worker.snapshot_kind == "exact"
    assert worker.reset(options={"task": stairs_task(3)})[0] == "stair 0"
    assert worker.step("up")[0] == "stair 1"
    for each in (env, other, worker):
        each.close()
