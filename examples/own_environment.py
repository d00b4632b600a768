"""An environment of one's own: guess a number with a tool. ``treeagent envs check own_environment:Guess`` checks it."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from treeagent.envs import Env
from treeagent.envs.base import SnapshotKind, StepResult, ToolSpec
from treeagent.types import Split, Task, ToolCall

FIRST: Mapping[Split, int] = {"train": 1, "validation": 2, "test": 3}  # so that no number is in two splits
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


class Guess(Env):
    snapshot_kind: SnapshotKind = "exact"

    def tools(self) -> Sequence[ToolSpec]:
        return [ToolSpec("guess", "Guess the number; the answer says whether it is too low or too high.", NUMBER)]

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        numbers = [FIRST[split] + 3 * index for index in range(33)][start : start + count]
        return [Task(f"guess-{n}", "Guess my number from 1 to 99.", split, n, {"answer": n}) for n in numbers]

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.answer = (options or {"task": self.tasks("train", 1)[0]})["task"].data["answer"]
        self.guesses: list[int] = []
        return "Which number?", {}

    def step(self, action: str | ToolCall) -> StepResult:
        if not isinstance(action, ToolCall) or not isinstance(action.arguments.get("number"), int):
            return "Call guess with a number.", 0.0, False, False, {"tool_error": f"{action!r:.60} is no guess"}
        if self.verify():
            return "The game is over.", 0.0, True, False, {"tool_error": "the game is over"}
        self.guesses.append(int(str(action.arguments["number"])))
        told = "too low" if self.guesses[-1] < self.answer else "too high"
        return "Found." if self.verify() else told, self.verify(), bool(self.verify()), False, {}

    def verify(self) -> float:
        return float(self.guesses[-1:] == [self.answer])

    def snapshot(self) -> object:
        return self.answer, tuple(self.guesses)

    def restore(self, snapshot: Any, *, reseed: int | None = None) -> None:
        self.answer, self.guesses = snapshot[0], list(snapshot[1])

    def demonstrator(self, noise: float) -> "Halving":
        return Halving(self, noise)


class Halving:
    """Halves the interval; with probability ``noise`` it guesses at random. A model from scratch imitates it."""

    def __init__(self, env: Guess, noise: float) -> None:
        self.env, self.noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        low = max((each + 1 for each in self.env.guesses if each < self.env.answer), default=1)
        high = min((each - 1 for each in self.env.guesses if each > self.env.answer), default=99)
        number = rng.randint(1, 99) if rng.random() < self.noise else (low + high) // 2
        return f"{low} to {high}", f'guess {{"number": {number}}}'
