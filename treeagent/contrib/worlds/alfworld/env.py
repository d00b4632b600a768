"""The environment of ALFWorld's games."""

import functools
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from treeagent.contrib.worlds import CommandEnv, required
from treeagent.contrib.worlds.alfworld.game import Game
from treeagent.contrib.worlds.alfworld.games import (
    STATIONS,
    AlfworldOptions,
    GameSpec,
    game_data,
    generated_task,
    official_games,
)
from treeagent.envs.base import ToolSpec, probability, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, Task, ToolCall, UserError

LOADED = 128
"""Games kept in memory, about 1 MB each. A batch uses all of its games at every step; loading one takes 0.2 s."""
_ACT = text_tool("act", "Do something, such as: go to fridge 1.", "command")


class AlfworldEnv(CommandEnv[GameSpec, tuple[str, ...]]):
    """ALFWorld (Shridhar et al. 2021): household tasks in text. By default, games are generated from ALFWorld's floor
    plans with its rules and texts; scores on them are not ALFWorld scores, which ``info["generated"]`` says at a reset.
    Actions are admissible commands, or calls of ``act``; the visit is the sequence of those that had an effect."""

    extra = "alfworld"
    options_type = AlfworldOptions
    key_type = GameSpec
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
    def game(self) -> Game:
        return self._loaded(self.key if self._folder is None else str(self.task.data.get("game")))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self._at = task_to_play(self, seed, options), ()
        return self._shown(f"{self.game.objective}\n{self.game.opening}"), {"generated": self._folder is None}

    def act(self, call: ToolCall) -> str:
        before = self.visit
        text, self.visit = self.game.play(before, str(call.arguments["command"]))
        if self.visit == before:
            raise CallRefused(text)
        return self._shown(text)

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        return self.game.commands(self.visit)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._folder is None:
            return [generated_task(self.options, split, index) for index in range(start, start + count)]
        known = self._official(self._folder, split)
        if start + count > len(known):
            raise UserError(f"{self._folder} has {len(known)} {split} games, not {start + count}: ask for fewer")
        return known[start : start + count]

    def verdict(self) -> float | None:
        return 1.0 if self.game.at(self.visit).won else None

    def state_key(self) -> str:
        return f"{self.task.id} {self.game.key(self.visit)}"

    def demonstrator(self, noise: float) -> "AlfworldDemonstrator | None":
        return AlfworldDemonstrator(self, noise) if self._folder is None else None

    def close(self) -> None:
        self._loaded.cache_clear()

    def _shown(self, text: str) -> str:
        commands = self.legal_actions() if self.options.show_commands else []
        return f"{text}\nCommands: {'; '.join(commands)}" if commands else text


class AlfworldDemonstrator:
    """Looks into one receptacle after another until it finds the target, processes it as the task asks, and puts it
    into the goal. It returns only to objects that it has seen. With probability ``noise`` it gives another admissible
    command, and continues from the state that this leads to. Its thoughts are always correct."""

    def __init__(self, env: AlfworldEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        game, history = self._env.game, self._env.visit
        commands = game.commands(history)
        thought, meant = _meant(self._env.key, game, history, commands)
        others = [command for command in commands if command != meant]
        return thought, rng.choice(others) if others and rng.random() < self._noise else meant


def _meant(spec: GameSpec, game: Game, history: tuple[str, ...], commands: Sequence[str]) -> tuple[str, str]:
    target, goal, held = spec.target.lower(), spec.goal.lower(), _held_object(history)
    if not held:
        in_place: set[str] = set()
        if spec.kind == "pick_two_obj_and_place":
            in_place = {name for name, where in game.objects(history) if where.startswith(f"{goal} ")}
        takes = [each for each in commands if each.removeprefix("take ").split(" from ")[0] not in in_place]
        take = _first_command(takes, f"take {target} ")
        return f"find {target}", take or _seek(game, history, target, commands, in_place)
    if not held.startswith(f"{target} "):
        return f"leave {held}", _first_command(commands, "move ", "go to ")
    if spec.kind == "look_at_obj_in_light":
        return f"use {goal}", _first_command(commands, f"use {goal} ") or _seek(game, history, goal, commands)
    verb, station = STATIONS.get(spec.kind, ("", ""))
    if verb and not any(command.startswith(f"{verb} {held} ") for command in history):
        return f"{verb} {target}", _first_command(commands, f"{verb} {held} ", f"go to {station.lower()} ", "")
    return f"put {target} in {goal}", _first_command(
        commands, f"move {held} to {goal} ", f"open {goal} ", f"go to {goal} "
    )


def _seek(
    game: Game, history: tuple[str, ...], kind: str, commands: Sequence[str], in_place: Collection[str] = ()
) -> str:
    """Return a command that leads to an object of a kind: to a receptacle where one was seen, or else to one that has
    not been looked into yet."""
    looked = game.at(history).inspected
    seen = tuple(
        f" {where}"
        for name, where in game.objects(history)
        if name.startswith(f"{kind} ") and name not in in_place and where in looked
    )
    opens = [command for command in commands if command.startswith("open ")]
    ahead = [command for command in commands if command.startswith("go to ")]
    known = [command for command in opens + ahead if command.endswith(seen)]
    new = [each for each in opens + ahead if each.removeprefix("go to ").removeprefix("open ") not in looked]
    return (known or new or ahead or list(commands))[0]


def _first_command(commands: Sequence[str], *starts: str) -> str:
    """Return the first command that has one of the prefixes ``starts``, trying these in order; empty if there is
    none."""
    found = (command for start in starts for command in commands if command.startswith(start))
    return next(found, "")


def _held_object(history: Sequence[str]) -> str:
    last = next((command for command in reversed(history) if command.startswith(("take ", "move "))), "")
    return last.removeprefix("take ").split(" from ")[0] if last.startswith("take ") else ""
