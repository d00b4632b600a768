"""Gymnasium's FrozenLake on generated maps, as text: the smallest planning task that RAGEN trains on."""

import random
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import DrawnTasks, required
from treeagent.contrib.worlds.adapters.gymnasium import Game, GymnasiumEnv
from treeagent.envs.base import SnapshotKind, probability
from treeagent.types import Split, Task

_ACTIONS: Mapping[str, int] = {"left": 0, "down": 1, "right": 2, "up": 3}
_SIGNS = {"S": ".", "F": ".", "H": "O", "G": "G"}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FrozenLakeOptions:
    """Settings of ``FrozenLakeEnv``."""

    size: int = Field(default=4, ge=2, le=16)
    """Rows and columns of the map."""
    slippery: bool = False
    """Whether a move can slip: it goes in the intended direction, to its left or to its right with probability 1/3
    each."""


class FrozenLakeEnv(GymnasiumEnv):
    """Gymnasium's FrozenLake: cross the ice to the goal without falling into a hole. Each task is a different map, and
    no map is in two splits."""

    extra = "gymnasium"
    options_type = FrozenLakeOptions
    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, options: FrozenLakeOptions | None = None) -> None:
        self.options = options or FrozenLakeOptions()
        required("gymnasium")
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        size = self.options.size
        name = f"frozenlake{size}{'s' if self.options.slippery else ''}"
        prompt = "Walk from P to G over the ice. O is a hole."
        self._drawn = DrawnTasks(name, lambda _: prompt, "map", lambda seed: generate_random_map(size, seed=seed))
        super().__init__(
            self._game,
            name=name,
            prompt=prompt,
            render=_rendered,
            actions=_ACTIONS,
            success=lambda _, reward: reward > 0,
            key=lambda game: str(game.unwrapped.s),
            stochastic=self.options.slippery,
        )

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._drawn.tasks(split, count, start)

    def demonstrator(self, noise: float) -> "FrozenLakeDemonstrator":
        return FrozenLakeDemonstrator(self, noise)

    def _game(self, task: Task) -> Game:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

        return Lake(desc=cast(list[str], task.data["map"]), is_slippery=self.options.slippery)


class FrozenLakeDemonstrator:
    """Takes the shortest path, as if no move could slip. Its thought is the path. With probability ``noise`` it makes
    any other move.
    """

    def __init__(self, env: FrozenLakeEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        moves = shortest_way(self._env.game) or [rng.choice(list(_ACTIONS))]
        others = [name for name in _ACTIONS if name != moves[0]]
        return " ".join(moves), rng.choice(others) if rng.random() < self._noise else moves[0]


def shortest_way(game: Game) -> list[str]:
    """Return the moves of a shortest path to the goal around the holes; empty if there is none or the game is over."""
    lake = game.unwrapped
    ways: dict[int, list[str]] = {int(lake.s): []}
    queue = list(ways)
    for square in queue:
        for name, action in _ACTIONS.items():
            outcomes = lake.P[square][action]
            _, neighbour, reward, over = outcomes[len(outcomes) // 2]  # the intended one; the slips are on either side
            if reward:
                return [*ways[square], name]
            if not over and neighbour not in ways:
                ways[neighbour] = [*ways[square], name]
                queue.append(neighbour)
    return []


def _rendered(game: Game, observation: object) -> str:
    rows = [b"".join(row).decode() for row in game.unwrapped.desc]
    row, column = divmod(int(game.unwrapped.s), len(rows[0]))
    if rows[row][column] in "HG":
        return "you fell into a hole" if rows[row][column] == "H" else "you reached the goal"
    signs = [[_SIGNS[square] for square in each] for each in rows]
    signs[row][column] = "P"
    return "\n".join(map(" ".join, signs))
