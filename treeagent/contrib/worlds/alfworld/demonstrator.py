"""A scripted player of generated games. Its noise affects the commands only; its thoughts are always correct."""

import random
from collections.abc import Callable, Collection, Sequence

from treeagent.contrib.worlds.alfworld.game import Game
from treeagent.contrib.worlds.alfworld.games import STATIONS, GameSpec
from treeagent.envs.base import probability


class AlfworldDemonstrator:
    """Looks into one receptacle after another until it finds the target, processes it as the task asks, and puts it
    into the goal. It returns only to objects that it has seen.

    With probability ``noise`` it gives another admissible command, and continues from the state that this leads to.

    Args:
        position: returns the current spec, the game, and the commands so far that had an effect.
    """

    def __init__(self, position: Callable[[], tuple[GameSpec, Game, tuple[str, ...]]], noise: float) -> None:
        self._position, self._noise = position, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        spec, game, history = self._position()
        commands = game.commands(history)
        thought, meant = _meant(spec, game, history, commands)
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
