"""A safe that opens for one code, an agent that tries it with openai's client, and a model that guesses digits."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from door import Scripted
from openai import OpenAI

from treeagent.config import RunConfig
from treeagent.envs.base import Env, StepResult, task_to_play
from treeagent.generators.base import Generator, Sample
from treeagent.generators.turn import make_grammar
from treeagent.types import Split, Task, ToolCall

CLIENT = OpenAI(api_key="x", max_retries=0)
DIGITS, LENGTH = 2, 5
PRESS: Any = {
    "type": "function",
    "function": {
        "name": "press",
        "description": "Press a digit.",
        "parameters": {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]},
    },
}


class Safe(Env):
    """A wrong digit ends the episode. It counts the steps of all its instances."""

    snapshot_kind = "replay"
    steps = count()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        rng = random.Random(task_to_play(self, seed, options).seed)
        self.code, self.pressed = [rng.randrange(DIGITS) for _ in range(LENGTH)], list[int]()
        return "A safe.", {}

    def step(self, action: str | ToolCall) -> StepResult:
        assert isinstance(action, ToolCall)
        self.pressed.append(int(str(action.arguments["digit"])))
        right = self.pressed == self.code[: len(self.pressed)]
        return "click" if right else "alarm", float(self.pressed == self.code), not right or self.is_open, False, {}

    @property
    def is_open(self) -> bool:
        return self.pressed == self.code

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"{split}-{number}", "Open the safe.", split, number) for number in range(start, start + count)]


@dataclass(frozen=True)
class Guesses:
    """``policy.generator``: presses a digit by the seed of the prompt."""

    def make(self, checkpoint: Path, config: RunConfig, scores: str) -> Generator:
        return Guesser()


class Guesser(Scripted):
    def _say(self, prompt: tuple[int, ...], seed: int) -> Sample:
        text = make_grammar("tools").write("", ToolCall("press", {"digit": random.Random(seed).randrange(DIGITS)}))
        ids = (*self.chat.encode_within(text), self.chat.stop_id)
        self.said[prompt, ids] = (-0.1,) * len(ids)
        return Sample(ids, self.said[prompt, ids])


def agent(base_url: str, world: Env, task: Task, note: str = "") -> None:
    """Knows nothing of treeagent but the ``step`` of its tool."""
    client, (seen, _) = CLIENT.with_options(base_url=base_url), world.reset(seed=task.seed, options={"task": task})
    messages: list[Any] = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": seen + note}]
    done = False
    while not done:
        answer: Any = client.chat.completions.create(model="policy", messages=messages, tools=[PRESS])
        message = answer.choices[0].message
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            seen, _, done, *_ = world.step(ToolCall("press", json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
