"""Sokoban: its rules on rooms played by hand, its solver against exhaustive search, and the contract."""

from collections import deque

import pytest

from treeagent.contrib.worlds.sokoban import Place, SokobanEnv, SokobanOptions, next_place, shortest_way
from treeagent.envs import check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import Task

MOVES = ("up", "down", "left", "right")


def begun(rows: list[str], **options: object) -> SokobanEnv:
    env = SokobanEnv(SokobanOptions(**options))  # type: ignore[arg-type]
    env.reset(options={"task": Task("room", "push", data={"room": rows})})
    return env


def fewest_moves(place: Place) -> int | None:
    """The least number of moves to solve a room, by breadth-first search without a bound."""
    depths, queue = {place: 0}, deque([place])
    while queue:
        here = queue.popleft()
        if here.done:
            return depths[here]
        for there in (next_place(here, move) for move in MOVES):
            if there not in depths:
                depths[there] = depths[here] + 1
                queue.append(there)
    return None


@pytest.mark.parametrize("options", [{"size": 8, "boxes": 2}, {}])
def test_check_env_finds_nothing(options: dict[str, object]) -> None:
    env, other = make_env("sokoban", options), make_env("sokoban", options)
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 2
        assert not report.skipped
    assert check_tasks(env, 8) == []


def test_the_solver_finds_the_fewest_moves() -> None:
    for options in ({}, {"boxes": 2}, {"size": 5}):
        env = SokobanEnv(SokobanOptions(**options))
        for task in env.tasks("train", 12):
            env.reset(options={"task": task})
            for move in ("left", "up", "right"):
                place = env.visit
                way = shortest_way(place)
                assert (None if way is None else len(way)) == fewest_moves(place)
                if way is not None:
                    for each in way:
                        place = next_place(place, each)
                    assert place.done
                env.step(move)
