"""The environment of TextWorld's games."""

import functools
import random
from collections.abc import Mapping, Sequence

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.textworld.games import (
    PROMPTS,
    TextWorldOptions,
    cache_folder,
    compiled_folder,
    contained,
    spec_of,
    task_of,
)
from treeagent.contrib.worlds.textworld.story import Position, Story
from treeagent.envs.base import StepResult, ToolSpec, probability, task_to_play
from treeagent.envs.calls import read_call
from treeagent.envs.visit import VisitEnv
from treeagent.types import Split, Task, ToolCall

LOADED = 128
"""Games kept in memory, 2 to 5 MB each. Loading another one takes about 30 ms."""
_COMMAND = {"type": "string", "description": "An imperative sentence, such as: take knife from counter"}
_ACT = ToolSpec(
    "act",
    "Do something in the game.",
    {"type": "object", "properties": {"command": _COMMAND}, "required": ["command"], "additionalProperties": False},
)


class TextWorldEnv(VisitEnv[Position]):
    """Text adventures of TextWorld (Côté et al. 2018): any number of generated games, compiled and cached at first use.
    Actions are commands in plain English, or calls of ``act``. The reward is 1 for winning and 0 otherwise.
    ``info["components"]["progress"]`` is TextWorld's intermediate reward, which uses information that the player cannot
    see: 1 if the command led closer to winning, -1 if it led away, otherwise 0."""

    extra = "textworld"
    options_type = TextWorldOptions

    def __init__(self, options: TextWorldOptions | None = None) -> None:
        self.options = options or TextWorldOptions()
        with contained():
            required("textworld")
        self.only_success_ends = self.options.kind == "coin_collector"  # a meal can be spoilt
        cache = cache_folder(self.options.cache)
        self._loaded = functools.lru_cache(LOADED)(lambda spec: Story(compiled_folder(spec, cache)))

    @property
    def story(self) -> Story:
        """The current game. For demonstrators only."""
        return self._loaded(spec_of(self.task))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        spec = spec_of(task)
        story = self._loaded(spec)
        self._at = task, story.start
        return self._shown(f"{PROMPTS[spec.kind]}\n{story.opening}"), {}

    def step(self, action: str | ToolCall) -> StepResult:
        story, before = self.story, self.visit
        call = read_call(action if isinstance(action, ToolCall) else ToolCall("act", {"command": action}), (_ACT,))
        text, after = (call, before) if isinstance(call, str) else story.play(before, str(call.arguments["command"]))
        if after == before:
            return text, 0.0, before.outcome != "", False, {"tool_error": text}
        self.visit = after
        progress = _progress(story, before, after)
        return self._shown(text), self.verify(), after.outcome != "", False, {"components": {"progress": progress}}

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        position = self.visit
        return [] if position.outcome else list(self.story.tracked(position).commands)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [task_of(self.options, split, index) for index in range(start, start + count)]

    def verify(self) -> float:
        return float(self.visit.outcome == "won")

    def state_key(self) -> str:
        return f"{self.task.id} {self.story.key(self.visit)}"

    def demonstrator(self, noise: float) -> "TextWorldDemonstrator":
        return TextWorldDemonstrator(self, noise)

    def solution(self) -> tuple[str, ...] | None:
        """Return commands that win from here; ``None`` if TextWorld knows of none. For demonstrators only."""
        position = self.visit
        return None if position.outcome else self.story.tracked(position).policy

    def close(self) -> None:
        self._loaded.cache_clear()

    def _shown(self, text: str) -> str:
        commands = self.legal_actions() if self.options.show_commands else []
        return f"{text}\nCommands: {'; '.join(commands)}" if commands else text


def _progress(story: Story, before: Position, after: Position) -> int:
    """Return TextWorld's intermediate reward: 1 if the solution became shorter or the game is won, -1 if the solution
    became longer or was lost, otherwise 0."""
    if after.outcome:
        return 1 if after.outcome == "won" else -1
    was, now = story.tracked(before).policy, story.tracked(after).policy
    if was is None or now is None:
        return 0 if was is None else -1
    return (len(was) > len(now)) - (len(was) < len(now))


_READ = "examine cookbook"
_ON_THE_WAY = ("go", "open", "close", "unlock", "lock", "take", "drop", "insert", "put")
"""Verbs of preparatory commands, which are not goals themselves."""


class TextWorldDemonstrator:
    """Reads the cookbook if there is one, then follows TextWorld's solution from the current state. A thought names the
    next goal. With probability ``noise``, the command is another admissible one."""

    def __init__(self, env: TextWorldEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        commands, solution = self._env.legal_actions(), self._env.solution()
        if not solution:
            return "", rng.choice(commands or ["look"])
        if self._env.options.kind == "cooking" and "examining the cookbook" not in self._env.visit.actions:
            at_hand = _READ in commands or "drop cookbook" in commands
            goal, meant = _READ, _READ if at_hand else solution[0]
        else:
            goal, meant = _goal(solution), solution[0]
        others = [command for command in commands if command != meant]
        return goal, rng.choice(others) if others and rng.random() < self._noise else meant


def _goal(solution: Sequence[str]) -> str:
    """Return the first command of the solution that is a goal in itself. The location of a thing is cut off, because
    the player may not know it."""
    ends = (command for command in solution if not command.startswith(_ON_THE_WAY))
    return next(ends, solution[-1].partition(" from ")[0])
