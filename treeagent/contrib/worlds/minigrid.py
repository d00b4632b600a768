"""MiniGrid and BabyAI as text: descriptions of what the agent sees, as in BabyAI-Text (Carta et al. 2023)."""

import pickle
import random
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.adapters.gymnasium import Game, GymnasiumEnv
from treeagent.envs.base import Demonstrator, SnapshotKind, probability

_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""Names of the actions, in the order of MiniGrid's numbers."""
_HARMLESS = (0, 1, 2)
"""Erroneous actions from which BabyAI's bot can recover. It cannot recover from the opening of a box, for example."""
_FAILING = re.compile(r"Debug|Lava|DistShift|Dynamic-Obstacles|WFC|MiniGrid-(Fetch|GoTo|Memory|PutNear|RedBlueDoors)")
"""Levels in which a failure can end the episode: by lava, a collision, or a wrong object or door. In all others only a
success ends it."""
_UNSEEN = ("unseen", "empty", "floor", "wall")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MiniGridOptions:
    """Settings of ``MiniGridEnv``."""

    level: str = "BabyAI-GoToLocal-v0"
    """The id of a level that MiniGrid registers."""


class MiniGridEnv(GymnasiumEnv):
    """A level of MiniGrid or BabyAI: find, fetch and open things in a world of rooms, with a view of seven squares."""

    extra = "minigrid"
    options_type = MiniGridOptions
    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, options: MiniGridOptions | None = None) -> None:
        self.options = options or MiniGridOptions()
        required("minigrid")
        self.only_success_ends = _FAILING.search(self.options.level) is None
        super().__init__(
            self.options.level,
            name=self.options.level.removesuffix("-v0"),
            prompt="Do what the mission asks for.",
            render=_rendered,
            actions={name: number for number, name in enumerate(_ACTIONS)},
            success=lambda _, reward: reward > 0,
            key=_key,
        )

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return BabyAIDemonstrator(self, noise) if self.options.level.startswith("BabyAI-") else None


class BabyAIDemonstrator:
    """BabyAI's bot, which knows only what the agent has seen. With probability ``noise`` it makes another turn or
    step forward."""

    def __init__(self, env: MiniGridEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)
        self._followed: tuple[Game, int] | None = None
        self._bot: Any = None
        self._last = 0

    def act(self, rng: random.Random) -> tuple[str, str]:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        game = self._env.game
        steps = int(game.unwrapped.step_count)
        followed = self._followed == (game, steps - 1)
        if not followed:  # the game was led elsewhere: start a new bot, which knows only the current view
            self._bot = BabyAIBot(game)
        action = int(self._bot.replan(self._last if followed else None))
        if rng.random() < self._noise:
            action = rng.choice([other for other in _HARMLESS if other != action])
        self._followed, self._last = (game, steps), action
        return "", _ACTIONS[action]


def _rendered(game: Game, observation: Mapping[str, Any]) -> str:
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    image = observation["image"].tolist()
    middle, last = len(image) // 2, len(image[0]) - 1
    seen = list[str]()
    for column, squares in enumerate(image):
        for row, (kind, colour, state) in enumerate(squares):
            name = IDX_TO_OBJECT[kind]
            if name in _UNSEEN or (column, row) == (middle, last):
                continue
            ahead, right = last - row, column - middle
            words = [states[state]] if name == "door" else []
            words += [IDX_TO_COLOR[colour], name]
            words += [f"{ahead} ahead"] if ahead else []
            words += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
            seen.append(" ".join(words))
    wall = next((last - row for row in range(last - 1, -1, -1) if IDX_TO_OBJECT[image[middle][row][0]] == "wall"), None)
    if wall is not None:
        seen.append(f"wall {wall} ahead")
    held = game.unwrapped.carrying
    lines = [f"mission: {observation['mission']}", f"you see: {', '.join(seen) or 'nothing'}"]
    return "\n".join((*lines, f"you carry: {held.color} {held.type}") if held is not None else lines)


def _key(game: Game) -> str:
    """A digest of the pickled game without the steps used, on which only the limit of steps depends."""
    copied: Game = pickle.loads(pickle.dumps(game))
    copied.unwrapped.step_count = 0
    return blake2b(pickle.dumps(copied), digest_size=16).hexdigest()
