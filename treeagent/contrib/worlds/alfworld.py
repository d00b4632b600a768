"""ALFWorld (Shridhar et al. 2021): household tasks in text, in the games that the package downloads."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds import CommandEnv, required, some
from treeagent.contrib.worlds.tasksets import Gold
from treeagent.envs.base import SnapshotKind, ToolSpec, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, Task, ToolCall, UserError

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
"""ALFWorld's names of the kinds of tasks."""
_FOLDERS: Mapping[Split, Sequence[str]] = {
    "train": ("train",),
    "validation": ("valid_seen", "valid_train"),
    "test": ("valid_unseen",),
}
"""ALFWorld's own splits; the games in unseen rooms are the test split."""
_ACT = text_tool("act", "Do something, such as: go to fridge 1.", "command")
_ASKED = re.compile(r'Your task is to: [^"]*')


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AlfworldOptions:
    """Settings of ``AlfworldEnv``."""

    games: str = "~/.cache/alfworld/json_2.1.1"
    """Folder of the games, which ``alfworld-download`` fills."""
    kinds: tuple[Kind, ...] = Field(default=get_args(Kind), min_length=1)
    """Kinds of tasks."""
    show_commands: bool = True
    """List the admissible commands below each observation."""


@dataclass(frozen=True)
class Game:
    """What a task holds: the file of its game, in the folder of games."""

    game: str


class AlfworldEnv(CommandEnv[Game, None]):
    """ALFWorld's games. Actions are admissible commands, or calls of ``act``. Search returns to an earlier state by a
    replay. The package lists things in an order that differs between processes, unless PYTHONHASHSEED is set."""

    extra = "alfworld"
    options_type = AlfworldOptions
    key_type = Game
    snapshot_kind: SnapshotKind = "replay"
    only_success_ends = True

    def __init__(self, options: AlfworldOptions | None = None) -> None:
        self.options = options or AlfworldOptions()
        self._package = required("alfworld.agents.environment.alfred_tw_env", "alfworld")
        self._folder = Path(self.options.games).expanduser()
        if next(self._folder.glob("*/**/game.tw-pddl"), None) is None:
            raise UserError(f"environment.options.games {self._folder} holds no games: run alfworld-download")
        self._loaded = functools.lru_cache(maxsize=1)(self._load)
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self._state = self._loaded(self.key_of(task).game).reset()
        self._at = task, None
        return self._shown(), {}

    def act(self, call: ToolCall) -> str:
        command = self._commands().get(" ".join(str(call.arguments["command"]).split()))
        if command is None:
            raise CallRefused("Nothing happens.")
        self._state = self._loaded(self.key.game).step(command)[0]
        return self._shown()

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        return sorted(self._commands())

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return some(_games(self._folder, split, self.options.kinds), split, count, start, str(self._folder))

    def verdict(self) -> float | None:
        return 1.0 if self._state["won"] else None

    def state_key(self) -> str:
        facts = "\n".join(sorted(map(str, self._state["_facts"])))
        return f"{self.task.id} {blake2b(facts.encode(), digest_size=16).hexdigest()}"

    def plan(self) -> list[str]:
        """Commands that lead to the goal, by ALFWorld's own planner, which knows where everything is; all that are
        possible if it finds no way."""
        game = self._loaded(self.key.game).unwrapped
        found = game._pddl_state.replan(game._entity_infos)
        return [" ".join(each.split()) for each in found] or self.legal_actions()

    def demonstrator(self, noise: float) -> Gold:
        return Gold(self.plan, self.legal_actions, noise)

    def _load(self, name: str) -> Any:
        """The package's game of a file. It is never closed: another library of the planner could not be loaded then."""
        from textworld.envs.pddl.pddl import PddlEnv

        game = self._package.AlfredDemangler(PddlEnv())
        game.load(json.loads((self._folder / name).read_text(encoding="utf-8")))
        return game

    def _commands(self) -> dict[str, str]:
        """The package's commands by their plain texts."""
        if self._state["won"]:
            return {}
        return {" ".join(each.split()): each for each in self._state["admissible_commands"]}

    def _shown(self) -> str:
        text = str(self._state["feedback"]).removeprefix("-= Welcome to TextWorld, ALFRED! =-").strip()
        commands = self.legal_actions() if self.options.show_commands else []
        return f"{text}\nCommands: {'; '.join(commands)}" if commands else text


@functools.cache
def _games(folder: Path, split: Split, kinds: tuple[Kind, ...]) -> Sequence[Task]:
    """The games of a split, selected as ALFWorld does: solvable, with no sliced objects and no movable receptacles."""
    paths = sorted(path for name in _FOLDERS[split] for path in (folder / name).rglob("game.tw-pddl"))
    tasks = []
    for path in paths:
        name = str(path.relative_to(folder))
        if "movable" in name or "Sliced" in name or not any(f"/{kind}" in name for kind in kinds):
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("solvable"):
            request = _ASKED.search(data["grammar"])
            prompt = request.group() if request else "Do what is asked for."
            tasks.append(Task(f"alfworld-{path.parent.relative_to(folder)}", prompt, split, data={"game": name}))
    return tasks
