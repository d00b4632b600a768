"""Measure task sets: ``python tests/contrib/worlds/measure_tasksets.py bfcl '{"category": "base"}'``.

Prints one row: tasks, solved by the set's own solution, solved by an idle agent, random branches that equal their
replays, milliseconds of a step and of a branch (snapshot and restore), kB of a pickled state.
"""

import json
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from treeagent.contrib.worlds.sandbox import SandboxEnv
from treeagent.contrib.worlds.swe import SweEnv
from treeagent.contrib.worlds.tasksets import TaskSetEnv
from treeagent.envs.base import StepResult
from treeagent.envs.calls import as_call
from treeagent.envs.make import make_env
from treeagent.types import SPLITS, Task

_LONGEST, _BRANCHES = 100, 100


def every_task(env: TaskSetEnv[Any] | SandboxEnv | SweEnv) -> list[Task]:
    """All tasks of a set, split by split; the first of those that are drawn, or of more than 200 in a split."""
    counts = (
        list(env.items.values()) if isinstance(env, TaskSetEnv) else [*SPLITS] * (70 if isinstance(env, SweEnv) else 20)
    )
    return [task for split in SPLITS for task in env.tasks(split, min(counts.count(split), 200))]


def verdict(env: TaskSetEnv[Any] | SandboxEnv | SweEnv, task: Task, act: Callable[[], str]) -> float:
    """Play a task and return its verdict."""
    env.reset(options={"task": task})
    for _ in range(_LONGEST):
        if env.step(as_call(act(), env.tools()))[2]:
            break
    return env.verify()


def measure(name: str, options: dict[str, object]) -> dict[str, object]:
    """One row of the table."""
    env, other = (make_env(name, options) for _ in range(2))
    assert isinstance(env, TaskSetEnv | SandboxEnv | SweEnv)
    tasks, rng, equal = every_task(env), random.Random(0), 0
    steps, branches, sizes = list[float](), list[float](), list[float]()
    gold = sum(verdict(env, task, lambda: env.demonstrator(0.0).act(rng)[1]) == 1 for task in tasks)
    idle = sum(verdict(env, task, lambda: env.idle) == 1 for task in tasks)

    def walk(calls: Sequence[str] = (), least: int = 1) -> tuple[list[str], list[StepResult]]:
        made, results = list[str](), list[StepResult]()
        while len(made) < (len(calls) or rng.randint(least, 8)) and not (results and results[-1][2]):
            made.append(calls[len(made)] if calls else env.demonstrator(0.5).act(rng)[1])
            call, begun = as_call(made[-1], env.tools()), perf_counter()
            results.append(env.step(call))
            steps.append(perf_counter() - begun)
        return made, results

    while len(sizes) < _BRANCHES:
        task = rng.choice(tasks)
        env.reset(options={"task": task})
        before, results = walk(least=0)
        if results and results[-1][2]:
            continue  # nothing branches off the end
        begun = perf_counter()
        snapshot = env.snapshot()
        taken = perf_counter() - begun
        stored = pickle.dumps(snapshot)
        tail, expected = walk()
        env.reset(options={"task": tasks[0]})
        begun = perf_counter()
        env.restore(snapshot)
        branches.append(taken + perf_counter() - begun)
        branched = walk(tail)[1] == expected and pickle.dumps(snapshot) == stored
        other.restore(pickle.loads(stored))
        moved = [other.step(as_call(call, env.tools())) for call in tail] == expected
        env.reset(options={"task": task})
        equal += branched and moved and walk([*before, *tail])[1][len(before) :] == expected
        sizes.append(len(stored))
    return {
        "tasks": len(tasks),
        "solution": gold,
        "idle": idle,
        "equal branches": f"{equal}/{_BRANCHES}",
        "step ms": round(1000 * median(steps), 2),
        "branch ms": round(1000 * median(branches), 3),
        "kB": round(median(sizes) / 1000, 1),
    }


if __name__ == "__main__":
    print(*sys.argv[1:], json.dumps(measure(sys.argv[1], json.loads(sys.argv[2] if sys.argv[2:] else "{}"))))
