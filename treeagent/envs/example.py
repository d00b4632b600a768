"""Guess a number: a whole environment in 40 lines, and who demonstrates it. ``treeagent envs new`` copies both."""

import random
from collections.abc import Mapping, Sequence
from typing import cast

from treeagent.envs.base import Env, SnapshotKind, StepResult
from treeagent.types import Split, Task, ToolCall, UserError

BUCKET: Mapping[Split, int] = {"train": 0, "validation": 1, "test": 2}


class Example(Env):
    """A number from 1 to 99 is to be guessed; every guess is told whether it is too low or too high."""

    snapshot_kind: SnapshotKind = "exact"

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if start + count > 33:
            raise UserError(
                f"split {split!r} holds 33 tasks, not {start + count}: set warm_start.tasks, collect.tasks, "
                "update.validation_tasks and evaluate.tasks to 33 or fewer"
            )
        # No number is in two splits; what the agent must not read goes into data.
        numbers = [3 * index + BUCKET[split] + 1 for index in range(start, start + count)]
        return [
            Task(f"example-{each}", "Guess my number from 1 to 99.", split, each, {"answer": each}) for each in numbers
        ]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task, self.guesses = (
            cast(Task, (options or {"task": self.tasks("train", 1)[0]})["task"]),
            tuple[int, ...](),
        )
        return "Write a number.", {}

    def step(self, action: str | ToolCall) -> StepResult:
        if not isinstance(action, str) or not action.isdecimal():
            return "write a number", 0.0, False, False, {"tool_error": f"{action!r:.50} is no number"}
        if self.verify():
            return "the game is over", 0.0, True, False, {"tool_error": "the game is over"}
        self.guesses += (int(action),)
        found, number = self.guesses[-1], cast(int, self.task.data["answer"])
        told = "found" if found == number else "too low" if found < number else "too high"
        return told, self.verify(), told == "found", False, {}

    def verify(self) -> float:
        return float(self.guesses[-1:] == (self.task.data["answer"],))

    def snapshot(self) -> object:
        return self.task, self.guesses

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.task, self.guesses = cast(tuple[Task, tuple[int, ...]], snapshot)

    def demonstrator(self, noise: float) -> "Halving":
        return Halving(self, noise)


class Halving:
    """Guesses the middle of what is left, or, with probability ``noise``, anything. Training starts by imitating it."""

    def __init__(self, env: Example, noise: float) -> None:
        self.env, self.noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        number = cast(int, self.env.task.data["answer"])
        low = max((each + 1 for each in self.env.guesses if each < number), default=1)
        high = min((each - 1 for each in self.env.guesses if each > number), default=99)
        guess = rng.randint(1, 99) if rng.random() < self.noise else (low + high) // 2
        return f"{low} to {high}", str(guess)
