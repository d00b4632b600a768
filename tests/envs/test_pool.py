"""Several instances of an environment in parallel grow the trees of one instance in less time."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from faulty_envs import Dice, Stairs, WordsPolicy, stairs_task

from treeagent.envs import EnvDynamics, EnvPool
from treeagent.envs.base import Env, StepResult
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.search.record import to_record
from treeagent.types import Task, ToolCall

MOVES = WordsPolicy("up", "down", "jump")
CLIMBS = [stairs_task(0), stairs_task(1, "raise"), *map(stairs_task, range(2, 5)), stairs_task(0), stairs_task(6)]
"""Tasks to climb. One fails at its second stair, and one is there twice."""


def grow(
    env: Env | EnvPool,
    tasks: Sequence[Task],
    policy: WordsPolicy = MOVES,
    *,
    leaves: int = 2,
    simulations: int = 12,
    limits: Limits | None = None,
) -> list[Tree]:
    config = SearchConfig(limits=limits or Limits(simulations=simulations), candidates=3, leaves=leaves)
    search = Search(policy, EnvDynamics(env, max_steps=4), config)
    return asyncio.run(search.run(tasks, [100 + number for number in range(len(tasks))]))


def told(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Everything that a shard stores of trees, except the times."""
    records = [to_record(tree) for tree in trees]
    for record in records:
        record["budget"].pop("seconds")
        record["spent"].pop("seconds")
    return records


@pytest.mark.parametrize(
    ("make", "tasks", "policy"),
    [
        (Stairs, CLIMBS, MOVES),
        (partial(Stairs, "none"), CLIMBS, MOVES),
        (Dice, Dice().tasks("train", 5), WordsPolicy("roll", "roll again")),
    ],
)
@pytest.mark.parametrize("leaves", [1, 3])
def test_the_trees_are_those_of_one_instance(
    make: Callable[[], Env], tasks: Sequence[Task], policy: WordsPolicy, leaves: int
) -> None:
    serial = told(grow(make(), tasks, policy, leaves=leaves))
    for size in (2, 8):
        with closing(EnvPool(make(), make, size)) as pool:
            assert told(grow(pool, tasks, policy, leaves=leaves)) == serial


class Meeting(Stairs):
    """No step returns before ``many`` steps are under way."""

    meeting = threading.Barrier(4)

    def step(self, action: str | ToolCall) -> StepResult:
        self.meeting.wait(timeout=30)
        return super().step(action)


@pytest.mark.parametrize("kind", ["plain", "none"])
def test_the_steps_of_a_batch_overlap(kind: str) -> None:
    make = partial(Meeting, kind)
    with closing(EnvPool(make(), make, 4)) as pool:
        trees = grow(pool, list(map(stairs_task, range(4))), WordsPolicy("up"), simulations=1, leaves=1)
    assert [(tree.error, tree.budget.environment_steps) for tree in trees] == [("", 1)] * 4


class Watched(Stairs):
    """Records the threads that use it and whether it was closed."""

    made: "list[Watched]"

    def __init__(self, snapshots: str = "none") -> None:
        super().__init__(snapshots)
        self.threads, self.closed, self.lock = {threading.get_ident()}, 0, threading.Lock()
        type(self).made.append(self)

    def reset(self, **given: Any) -> tuple[str, dict[str, object]]:
        self.threads.add(threading.get_ident())
        return super().reset(**given)

    def step(self, action: str | ToolCall) -> StepResult:
        assert self.lock.acquire(blocking=False), "two calls at once"
        self.threads.add(threading.get_ident())
        time.sleep(0.002)
        self.lock.release()
        return super().step(action)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1
        super().close()


def test_an_instance_lives_in_one_thread_and_is_closed_there() -> None:
    Watched.made = []
    tasks = [stairs_task(0), stairs_task(1, "raise"), stairs_task(2, "raise", at="close"), stairs_task(3)]
    front = Watched()
    with closing(EnvPool(front, Watched, 2)) as pool:
        trees = grow(pool, tasks)
    assert [bool(tree.error) for tree in trees] == [False, True, False, False]
    assert [(len(each.threads), each.closed) for each in Watched.made] == [(1, 0), (1, 1), (1, 1)]
    assert len({thread for each in Watched.made for thread in each.threads}) == 3
