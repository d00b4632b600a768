"""The text games of TextWorldExpress (Jansen and Côté 2023), which a Java process plays."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import dropwhile, takewhile
from operator import eq
from threading import Lock
from typing import Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict

from treeagent.contrib.worlds.tasksets import TaskSetEnv, package
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, ToolCall, UserError

_SPLITS: Mapping[str, Split] = {"train": "train", "dev": "validation", "test": "test"}
_SAFE = ("coin", "mapreader", "twc")
"""Games that cannot be lost."""
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east", "open": "close", "close": "open"}
Game = Literal["arithmetic", "coin", "cookingworld", "mapreader", "simonsays", "sorting", "twc"]
"""Peckingorder is left out, because its own solution loses in 2 of 100 tasks."""
Commands = tuple[str, ...]
"""The state of an episode: the commands that lead to it, without those that had no effect or were taken back."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TextWorldExpressOptions:
    """Settings of ``TextWorldExpressEnv``."""

    game: Game = "coin"
    """One of the package's games."""
    params: str = ""
    """The game's own settings, such as numLocations=5,includeDoors=0."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the game tells after a command: the task, a text, what tells states apart, 1 or 0 at the end."""

    task: str
    text: str
    state: tuple[str, str, float, Commands]
    """The room (the text, where a game has none), the inventory, the score, and the valid commands."""
    outcome: float | None


class TextWorldExpressEnv(TaskSetEnv[Commands]):
    """TextWorldExpress's games; its folds are the splits. Actions are the game's valid commands, or calls of ``act``.
    The reward is 1 for winning and 0 otherwise. Snapshots are commands, which are replayed where no cache has them."""

    extra = "textworld-express"
    options_type = TextWorldExpressOptions
    visit_type = tuple
    specs = (text_tool("act", "Do something in the game, such as: move north.", "command"),)
    idle = "look around"

    def __init__(self, options: TextWorldExpressOptions | None = None) -> None:
        self.options = options or TextWorldExpressOptions()
        self.name = f"textworld_express-{self.options.game}"
        self.only_success_ends = self.options.game in _SAFE
        self._play = play(self.options.game, self.options.params)
        self.items = self._play.items

    def prompt(self, item: str) -> str:
        return self._play.scene(item, ()).task

    def start(self, item: str) -> tuple[Commands, str]:
        return (), self._play.scene(item, ()).text

    def legal_actions(self) -> list[str]:
        return [] if self.verdict() is not None else list(self._scene().state[-1])

    def read(self, action: str | ToolCall) -> ToolCall:
        return super().read(action if isinstance(action, ToolCall) else ToolCall("act", {"command": action}))

    def act(self, call: ToolCall) -> str:
        command = str(call.arguments["command"])
        if command not in self.legal_actions():
            raise CallRefused("that is not possible here")
        text = self._play.scene(self.key.item, (*self.visit, command)).text
        self.visit = self._play.after(self.key.item, self.visit, command)
        return text

    def verdict(self) -> float | None:
        return self._scene().outcome

    def state_key(self) -> str:
        return f"{self.task.id} {self.visit}"

    def plan(self) -> Sequence[str]:
        """The way back to the solution, as far as commands can be taken back, and the rest of the solution."""
        gold, done, legal = self._play.gold(self.key.item), self.visit, self.legal_actions()
        same = sum(takewhile(bool, map(eq, gold, done)))
        plan = [*filter(None, map(_undoing, reversed(done[same:]))), *gold[same:]]
        return list(dropwhile(lambda command: command not in legal, plan)) or [self.idle]

    def slips(self) -> Sequence[str]:
        return self.legal_actions()

    def _scene(self) -> Scene:
        return self._play.scene(self.key.item, self.visit)


class Play:
    """A game with settings in a Java process of about 100 MB, which the environments of a process share."""

    def __init__(self, game: str, params: str) -> None:
        if shutil.which("java") is None:
            raise UserError("textworld_express needs Java: apt-get install default-jre-headless")
        made = package("textworld_express", "textworld-express", "1.1", "'treeagent[textworld-express]'")
        self._java: Any = made.TextWorldExpressEnv(envStepLimit=10**9)  # limits are the run's own
        try:
            self._java.load(game, params)
        except ValueError as error:
            raise UserError(f"environment.options.params {params!r} is refused by {game} ({error})") from error
        seeds = (self._java.getValidSeedsTrain(), self._java.getValidSeedsDev(), self._java.getValidSeedsTest())
        self.items = {
            f"{fold}-{seed}": _SPLITS[fold] for fold, each in zip(_SPLITS, seeds, strict=True) for seed in each
        }
        self._lock, self._at = Lock(), tuple[object, ...]()
        self.scene, self.gold = lru_cache(2**14)(self._scene), cache(self._gold)

    def after(self, item: str, done: Commands, command: str) -> Commands:
        """The commands that lead to where a further command leads."""
        state = self.scene(item, (*done, command)).state
        if done and command == _undoing(done[-1]) and state == self.scene(item, done[:-1]).state:
            return done[:-1]
        new = command.startswith("read ") and command not in done[-1:]  # what was read counts as a part of the state
        return (*done, command) if new or state != self.scene(item, done).state else done

    def _scene(self, item: str, commands: Commands) -> Scene:
        with self._lock:
            if not commands or self._at != (item, commands[:-1]):
                found = self._reset(item)
                for command in commands[:-1]:
                    self._java.step(command)
            if commands:
                found = self._java.step(commands[-1])[3]
            self._at = item, commands
        outcome = 1.0 if found["tasksuccess"] else 0.0 if found["taskfailure"] else None
        text, valid = str(found["observation"]).strip(), tuple(sorted(map(str, found["validActions"])))
        state = str(found["look"]) or text, str(found["inventory"]), float(found["score"]), valid
        return Scene(str(found["taskDescription"]), text, state, outcome)

    def _gold(self, item: str) -> Commands:
        """The game's solution, which it seeks at random, without commands that it can do without."""
        with self._lock:
            self._reset(item, gold=True)
            found = list(map(str, self._java.getGoldActionSequence()))
        path, at = self._walked(item, found), 0
        while at < len(path):
            less = self._walked(item, path[:at] + path[at + 1 :])
            needed = path[at].startswith("read ") or self.scene(item, less).outcome != 1.0
            path, at = (path, at + 1) if needed else (less, max(at - 1, 0))
        return path

    def _walked(self, item: str, commands: Iterable[str]) -> Commands:
        return reduce(lambda done, command: self.after(item, done, command), commands, Commands())

    def _reset(self, item: str, gold: bool = False) -> Any:
        fold, _, seed = item.partition("-")
        self._at = ()
        return self._java.reset(seed=int(seed), gameFold=fold, generateGoldPath=gold)[1]


play = cache(Play)


def _undoing(command: str) -> str:
    """The command that takes a move or an opening back; empty for others."""
    first, *rest = command.split()
    if first == "move":
        return " ".join([first, *(_BACK.get(word, word) for word in rest)])
    return " ".join([_BACK[first], *rest]) if first in ("open", "close") else ""
