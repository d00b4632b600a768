"""An environment that returns and raises forbidden things, selected by the name of its task."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from treeagent.envs import Demonstrator, Env
from treeagent.envs.base import SnapshotKind, StepResult
from treeagent.types import Split, Task, ToolCall

HALF = "\ud800"
HUGE = 10**400
HOSTILE = f"{__name__}:Hostile"


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def gives(value: object) -> Callable[[], Any]:
    return lambda: value


ANSWERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "observation with half a pair": ("step", gives((HALF, 0.0, False, False, {}))),
    "reward beyond a float": ("step", gives(("here", HUGE, False, False, {}))),
    "info of another type": ("step", gives(("here", 0.0, False, False, {"a set"}))),
    "opening with half a pair": ("reset", gives((HALF, {}))),
    "verdict beyond a float": ("verify", gives(HUGE)),
    "key with half a pair": ("state_key", gives(HALF)),
    "exception with half a pair": ("step", raises(RuntimeError(HALF))),
    "exception with half a pair at reset": ("reset", raises(RuntimeError(HALF))),
    "exit at reset": ("reset", raises(SystemExit(0))),
    "exit at step": ("step", raises(SystemExit("done"))),
    "exit at restore": ("restore", raises(SystemExit(0))),
    "generator exit at step": ("step", raises(GeneratorExit())),
    "cancellation at step": ("step", raises(asyncio.CancelledError())),
}
"""For each attack, the method that it uses, and what it does."""


def cyclic() -> dict[str, object]:
    data: dict[str, object] = {}
    data["self"] = data
    return data


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


TASKS: dict[str, Task] = {
    "id with half a pair": Task(HALF, "walk"),
    "prompt with half a pair": Task("bad", f"walk {HALF}"),
    "seed beyond 64 bits": Task("bad", "walk", seed=2**64),
    "half a pair in the data": Task("bad", "walk", data={"answer": HALF}),
    "bytes": Task("bad", "walk", data={"answer": b"x"}),
    "a set": Task("bad", "walk", data={"answer": {1}}),
    "a key that is no text": Task("bad", "walk", data=cast(dict[str, object], {1: 2})),
    "what cannot be copied": Task("bad", "walk", data={"answer": (one for one in (1,))}),
    "a cycle": Task("bad", "walk", data=cyclic()),
    "deeper data than Python's stack": Task("bad", "walk", data={"answer": deep(100_000)}),
}


class Hostile(Env):
    """``on`` continues and ``end`` ends with success. A task named after an attack of ``ANSWERS`` makes that attack."""

    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, bad: str = "") -> None:
        self.attack, self.steps, self.bad = "", 0, bad

    def strike(self, method: str, sound: object) -> Any:
        at, attack = ANSWERS.get(self.attack, ("", gives(None)))
        return attack() if at == method else sound

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.attack, self.steps = cast(Task, (options or {})["task"]).id, 0
        return cast(tuple[str, dict[str, object]], self.strike("reset", ("begin", {})))

    def step(self, action: str | ToolCall) -> StepResult:
        self.steps += 1
        return cast(StepResult, self.strike("step", (f"step {self.steps}", 0.0, action == "end", False, {})))

    def verify(self) -> float | None:
        return cast(float, self.strike("verify", 1.0) if self.steps else 1.0)

    def state_key(self) -> str:
        return cast(str, self.strike("state_key", str(self.steps)))

    def snapshot(self) -> object:
        return self.strike("snapshot", (self.attack, self.steps))

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.attack, self.steps = cast(tuple[str, int], snapshot)
        self.strike("restore", None)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        middle = TASKS.get(self.bad, Task(self.bad, "walk"))
        return (Task("first", "walk"), middle, Task("last", "walk"))[start : start + count]

    def demonstrator(self, noise: float) -> Demonstrator:
        return Player(self)


class Player:
    def __init__(self, env: Hostile) -> None:
        self.env = env

    def act(self, rng: random.Random) -> tuple[str, str]:
        return "", "end"
