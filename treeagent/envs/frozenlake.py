"""FrozenLake on generated maps, Gymnasium's own game in text: the smallest planning task that RAGEN trains on."""

import hashlib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count as numbers

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.envs.adapters import required
from treeagent.envs.adapters.gymnasium import Game, GymnasiumEnv
from treeagent.envs.base import SnapshotKind, probability
from treeagent.types import Split, Task, UserError

_ACTIONS: Mapping[str, int] = {"left": 0, "down": 1, "right": 2, "up": 3}
_MOVES: Mapping[str, tuple[int, int]] = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_SIGNS = {"S": ".", "F": ".", "H": "O", "G": "G"}
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_MISSES = 5000
"""Maps drawn in vain after which there seem to be no new ones."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FrozenLakeOptions:
    """Settings of ``FrozenLakeEnv``."""

    size: int = Field(default=4, ge=2, le=16)
    """Rows and columns of the map."""
    frozen: float = Field(default=0.8, gt=0, le=1)
    """Share of the squares that are no holes."""
    slippery: bool = False
    """Two of three moves go astray, to either side."""


class FrozenLakeEnv(GymnasiumEnv):
    """FrozenLake of Gymnasium: walk over the ice to the goal and into no hole. Every task is a map of its own, and no
    map is in two splits.

    Raises:
        UserError: Gymnasium is not installed.
    """

    options_type = FrozenLakeOptions
    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, options: FrozenLakeOptions | None = None) -> None:
        self.options = options or FrozenLakeOptions()
        required("gymnasium")
        self._tasks: dict[Split, list[Task]] = {split: [] for split in _SPLITS}
        self._seen: set[str] = set()
        self._seeds = numbers()
        super().__init__(
            self._game,
            name=f"frozenlake{self.options.size}{'s' if self.options.slippery else ''}",
            prompt="Walk from P to G over the ice. O is a hole.",
            render=_rendered,
            actions=_ACTIONS,
            key=lambda game: str(game.unwrapped.s),
            stochastic=self.options.slippery,
        )

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        misses = 0
        while len(self._tasks[split]) < start + count:
            seed = next(self._seeds)
            rows = generate_random_map(self.options.size, self.options.frozen, seed)
            text = "/".join(rows)
            its_split = _SPLITS[hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % len(_SPLITS)]
            misses = 0 if its_split == split and text not in self._seen else misses + 1
            if misses > _MISSES:
                raise UserError(
                    f"{split} tasks {start} to {start + count} are asked for, but there are about "
                    f"{len(self._tasks[split])} maps of size {self.options.size}: raise size"
                )
            if text not in self._seen:
                self._seen.add(text)
                name = f"{self._name}-{its_split}-{len(self._tasks[its_split])}"
                self._tasks[its_split].append(Task(name, self._prompt, its_split, seed, {"map": rows}))
        return self._tasks[split][start : start + count]

    def demonstrator(self, noise: float) -> "FrozenLakeDemonstrator":
        return FrozenLakeDemonstrator(self, noise)

    def _game(self, task: Task) -> Game:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

        rows = task.data.get("map")
        if not isinstance(rows, list):
            raise UserError(f"task {task.id!r} holds no map: take tasks from FrozenLakeEnv.tasks")
        return Lake(desc=rows, is_slippery=self.options.slippery)


class FrozenLakeDemonstrator:
    """Walks the shortest way, as if no move could go astray. Its thought is the way; with probability ``noise`` its
    move is any other.
    """

    def __init__(self, env: FrozenLakeEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        game = self._env.game.unwrapped
        rows = _rows(game)
        way = shortest_way(rows, divmod(int(game.s), len(rows[0]))) or [rng.choice(list(_ACTIONS))]
        others = [name for name in _ACTIONS if name != way[0]]
        return " ".join(way), rng.choice(others) if rng.random() < self._noise else way[0]


def shortest_way(rows: Sequence[str], start: tuple[int, int]) -> list[str]:
    """Moves from ``start`` to the goal around the holes; none where there is no way, or where it is."""
    ways: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = queue.popleft()
        if rows[row][column] == "G":
            return ways[row, column]
        for name, (down, right) in _MOVES.items():
            there = row + down, column + right
            if there in ways or not (0 <= there[0] < len(rows) and 0 <= there[1] < len(rows[0])):
                continue
            if rows[there[0]][there[1]] != "H":
                ways[there] = [*ways[row, column], name]
                queue.append(there)
    return []


def _rows(game: Game) -> list[str]:
    return [b"".join(row).decode() for row in game.unwrapped.desc]


def _rendered(game: Game, observation: object) -> str:
    rows = _rows(game)
    row, column = divmod(int(game.unwrapped.s), len(rows[0]))
    if rows[row][column] in "HG":
        return "you fell into a hole" if rows[row][column] == "H" else "you reached the goal"
    signs = [[_SIGNS[square] for square in each] for each in rows]
    signs[row][column] = "P"
    return "\n".join(map(" ".join, signs))
