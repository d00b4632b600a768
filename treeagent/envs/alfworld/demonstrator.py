"""A housekeeper who looks around and has a noise dial: its thoughts are true, only its commands err."""

import random
from collections.abc import Collection, Sequence
from typing import Protocol

from treeagent.envs.alfworld.games import STATIONS, GameSpec
from treeagent.envs.base import probability


class Household(Protocol):
    """What the demonstrator reads from the environment, ``AlfworldEnv``, which documents it."""

    @property
    def spec(self) -> GameSpec: ...
    @property
    def did(self) -> Sequence[str]: ...
    @property
    def looked(self) -> Sequence[str]: ...
    def objects(self) -> Sequence[tuple[str, str]]: ...
    def legal_actions(self) -> Sequence[str]: ...


class AlfworldDemonstrator:
    """Looks into one receptacle after the other until it sees what is asked for, does with it what is asked for and
    brings it where it belongs. It goes back only to what it has seen.

    With probability ``noise`` it gives any other admissible command, and goes on from where that led.
    """

    def __init__(self, env: Household, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        commands = self._env.legal_actions()
        thought, meant = self._meant(commands)
        others = [command for command in commands if command != meant]
        return thought, rng.choice(others) if others and rng.random() < self._noise else meant

    def _meant(self, commands: Sequence[str]) -> tuple[str, str]:
        spec, did = self._env.spec, self._env.did
        target, goal, held = spec.target.lower(), spec.goal.lower(), _held(did)
        if not held:
            return f"find {target}", self._fetch(target, goal, commands)
        if not held.startswith(f"{target} "):
            return f"leave {held}", _first(commands, "move ", "go to ")
        if spec.kind == "look_at_obj_in_light":
            return f"use {goal}", _first(commands, f"use {goal} ") or self._seek(goal, commands, ())
        verb, station = STATIONS.get(spec.kind, ("", ""))
        if verb and not any(command.startswith(f"{verb} {held} ") for command in did):
            return f"{verb} {target}", _first(commands, f"{verb} {held} ", f"go to {station.lower()} ", "")
        return f"put {target} in {goal}", _first(commands, f"move {held} to {goal} ", f"open {goal} ", f"go to {goal} ")

    def _fetch(self, target: str, goal: str, commands: Sequence[str]) -> str:
        done: set[str] = set()
        if self._env.spec.kind == "pick_two_obj_and_place":
            done = {name for name, where in self._env.objects() if where.startswith(f"{goal} ")}
        takes = [command for command in commands if command.removeprefix("take ").split(" from ")[0] not in done]
        return _first(takes, f"take {target} ") or self._seek(target, commands, done)

    def _seek(self, kind: str, commands: Sequence[str], done: Collection[str]) -> str:
        """Go towards an object of a kind: to where one was seen, else to a place that was not looked at yet."""
        looked = self._env.looked
        seen = [
            where
            for name, where in self._env.objects()
            if name.startswith(f"{kind} ") and name not in done and where in looked
        ]
        opens = [command for command in commands if command.startswith("open ")]
        ahead = [command for command in commands if command.startswith("go to ")]
        known = [command for command in opens + ahead if command.endswith(tuple(f" {where}" for where in seen))]
        new = [
            command for command in opens + ahead if command.removeprefix("go to ").removeprefix("open ") not in looked
        ]
        return (known or new or ahead or list(commands))[0]


def _first(commands: Sequence[str], *starts: str) -> str:
    """The first command with the first of the starts that any has, or nothing."""
    found = (command for start in starts for command in commands if command.startswith(start))
    return next(found, "")


def _held(did: Sequence[str]) -> str:
    last = next((command for command in reversed(did) if command.startswith(("take ", "move "))), "")
    return last.removeprefix("take ").split(" from ")[0] if last.startswith("take ") else ""
