"""A player with TextWorld's own solution at hand and a noise dial: its thoughts are true, only its commands err."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeagent.types import Refused

if TYPE_CHECKING:
    from treeagent.envs.textworld.env import TextWorldEnv

_READ = "examine cookbook"
_ON_THE_WAY = ("go", "open", "close", "unlock", "lock", "take", "drop", "insert", "put")
"""Verbs that lead up to what a recipe asks for."""


class TextWorldDemonstrator:
    """Reads the cookbook where there is one, then does what TextWorld says will win. That is worked out anew after
    every command, so the player recovers from its own errors.

    A thought names the next thing to be achieved, as far as the player has read, whether or not the command then errs.
    At each decision it errs with probability ``noise``: any other admissible command. Where TextWorld knows of no way
    to win, every command is drawn.
    """

    def __init__(self, env: "TextWorldEnv", noise: float) -> None:
        if not 0.0 <= noise <= 1.0:
            raise Refused(f"noise is {noise}: give a probability between 0 and 1")
        self._env = env
        self._noise = noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        commands, solution = self._env.legal_actions(), self._env.solution()
        if not solution:
            return "", rng.choice(commands or ["look"])
        if self._env.options.kind == "cooking" and "examining the cookbook" not in self._env.done():
            at_hand = _READ in commands or "drop cookbook" in commands
            goal, meant = _READ, _READ if at_hand else solution[0]
        else:
            goal, meant = _goal(solution), solution[0]
        others = [command for command in commands if command != meant]
        return goal, rng.choice(others) if others and rng.random() < self._noise else meant


def _goal(solution: Sequence[str]) -> str:
    """The first command that is an end in itself. Where something lies is not said: the player may not know."""
    ends = (command for command in solution if not command.startswith(_ON_THE_WAY))
    return next(ends, solution[-1].partition(" from ")[0])
