"""The environment of ALFWorld's games."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.alfworld.demonstrator import AlfworldDemonstrator
from treeagent.contrib.worlds.alfworld.game import Game
from treeagent.contrib.worlds.alfworld.games import AlfworldOptions, game_data, generated_task, official_games, spec_of
from treeagent.envs.base import StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.visit import VisitEnv
from treeagent.types import Split, Task, ToolCall, UserError

LOADED = 128
"""Games kept in memory, about 1 MB each. A batch uses all of its games at every step; loading one takes 0.2 s."""
_ACT = text_tool("act", "Do something, such as: go to fridge 1.", "command")


class AlfworldEnv(VisitEnv[tuple[str, ...]]):
    """ALFWorld (Shridhar et al. 2021): household tasks in text. By default, games are generated from ALFWorld's floor
    plans with its rules and texts; scores on them are not ALFWorld scores, which ``info["generated"]`` says at a reset.
    Actions are admissible commands, or calls of ``act``; the visit is the sequence of those that had an effect."""

    extra = "alfworld"
    options_type = AlfworldOptions
    only_success_ends = True

    def __init__(self, options: AlfworldOptions | None = None) -> None:
        self.options = options or AlfworldOptions()
        required("alfworld")
        self._folder = None if self.options.games is None else Path(self.options.games).expanduser()
        if self._folder is not None and next(self._folder.glob("*/**/game.tw-pddl"), None) is None:
            raise UserError(
                f"{self._folder} has no game.tw-pddl in train, valid_seen or valid_unseen: see alfworld-download"
            )
        self._official = functools.cache(official_games)
        self._loaded = functools.lru_cache(LOADED)(lambda source: Game(game_data(source)))

    @property
    def _game(self) -> Game:
        return self._loaded(spec_of(self.task) if self._folder is None else str(self.task.data.get("game")))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self._at = task_to_play(self, seed, options), ()
        return self._shown(f"{self._game.objective}\n{self._game.opening}"), {"generated": self._folder is None}

    def step(self, action: str | ToolCall) -> StepResult:
        over = self.verify() == 1.0
        request = action if isinstance(action, ToolCall) else ToolCall(_ACT.name, {"command": action})
        call = "the task is done already" if over else read_call(request, (_ACT,))
        if isinstance(call, str):
            return call, 0.0, over, False, {"tool_error": call}
        before = self.visit
        text, history = self._game.play(before, str(call.arguments["command"]))
        if history == before:
            return text, 0.0, False, False, {"tool_error": text}
        self.visit = history
        reward = self.verify()
        return self._shown(text), reward, reward == 1.0, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        return self._game.commands(self.visit)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._folder is None:
            return [generated_task(self.options, split, index) for index in range(start, start + count)]
        known = self._official(self._folder, split)
        if start + count > len(known):
            raise UserError(f"{self._folder} has {len(known)} {split} games, not {start + count}: ask for fewer")
        return known[start : start + count]

    def verify(self) -> float:
        return float(self._game.at(self.visit).won)

    def state_key(self) -> str:
        return f"{self.task.id} {self._game.key(self.visit)}"

    def demonstrator(self, noise: float) -> AlfworldDemonstrator | None:
        if self._folder is not None:
            return None
        return AlfworldDemonstrator(lambda: (spec_of(self.task), self._game, self.visit), noise)

    def close(self) -> None:
        self._loaded.cache_clear()

    def _shown(self, text: str) -> str:
        commands = self.legal_actions() if self.options.show_commands else []
        return f"{text}\nCommands: {'; '.join(commands)}" if commands else text
