"""From your own environment to a trained agent: an environment in 40 lines, its demonstrator, and the training.

    python examples/own_environment.py

``treeagent envs new own_environment`` writes the first part of this file.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import treeagent
from treeagent.envs import Env, StepResult, ToolSpec, read_call, task_to_play
from treeagent.pipeline.outcomes import Row
from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.types import Split, Task, ToolCall, UserError

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
GUESS = ToolSpec("guess", "Guess the number.", NUMBER)
REMAINDER: Mapping[Split, int] = {"train": 0, "validation": 1, "test": 2}


class OwnEnvironment(Env):
    """The agent guesses a number from 1 to 99. It reads after each guess whether that was too low or too high."""

    only_success_ends = True  # there is no way to lose

    def tools(self) -> Sequence[ToolSpec]:
        return (GUESS,)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if start + count > 33:
            raise UserError(f"split {split!r} holds 33 tasks, not {start + count}: ask for fewer tasks")
        # Each split has its own remainder modulo 3. The answer goes into data, which the agent does not see.
        numbers = [3 * index + REMAINDER[split] + 1 for index in range(start, start + count)]
        return [Task(f"own_environment-{n}", "Guess my number from 1 to 99.", split, n, {"answer": n}) for n in numbers]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task = task_to_play(self, seed, options)
        self.guesses: list[int] = []
        return "Make a guess.", {}

    def step(self, action: str | ToolCall) -> StepResult:
        call = "the game is over" if self.verify() else read_call(action, self.tools())
        if isinstance(call, str):  # a message that says why the call is refused
            return call, 0.0, self.verify() == 1, False, {"tool_error": call}
        guess = int(str(call.arguments["number"]))
        self.guesses.append(guess)
        answer = self.answer()
        said = "found" if guess == answer else "too low" if guess < answer else "too high"
        return said, self.verify(), said == "found", False, {}

    def verify(self) -> float:
        return float(self.guesses[-1:] == [self.answer()])

    def answer(self) -> int:
        return int(str(self.task.data["answer"]))

    def demonstrator(self, noise: float) -> "Halving":
        return Halving(self, noise)


class Halving:
    """Guesses the middle of the remaining numbers; with probability ``noise``, any number from 1 to 99."""

    def __init__(self, env: OwnEnvironment, noise: float) -> None:
        self.env, self.noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        answer = self.env.answer()
        low = max((guess + 1 for guess in self.env.guesses if guess < answer), default=1)
        high = min((guess - 1 for guess in self.env.guesses if guess > answer), default=99)
        guess = rng.randint(1, 99) if rng.random() < self.noise else (low + high) // 2
        return f"{low} to {high}", f"guess[{guess}]"


def main(out: Path, overrides: Sequence[str] = (), progress: Progress | None = None) -> list[Row]:
    """Imitate the demonstrator, search, learn from the trees, and compare the policies on test tasks.

    The recipe trains a small model from scratch, in minutes on a CPU. To use a pretrained model, pass
    ``policy.model=...``.

    Returns:
        the rows of ``out``/results.json: one for each policy and evaluation mode.
    """
    config = treeagent.load_config("own", ["environment.name=own_environment:OwnEnvironment", *overrides])
    return treeagent.quickstart(config, out, progress=progress or RichProgress())


if __name__ == "__main__":
    for row in main(Path("runs/own_environment"), sys.argv[1:]):
        print(row["policy"], row["mode"], row["success"])
