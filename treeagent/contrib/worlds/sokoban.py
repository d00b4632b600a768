"""Sokoban on generated rooms, drawn as text like in RAGEN: planning with irreversible mistakes."""

import functools
import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count as numbers
from typing import NamedTuple

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import CommandEnv, DrawnTasks
from treeagent.envs.base import ToolSpec, probability, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, Task, ToolCall, UserError

Square = tuple[int, int]
"""Row and column."""

_MOVES: Mapping[str, Square] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_ACT = text_tool("act", "Move the player: up, down, left or right.", "move")
_PROMPT = (
    "Push every box X onto a target O. P is you, S you on a target, √ a box on a target, # a wall. "
    "You cannot pull, nor push two boxes at once."
)
_STATES_PER_BOX = 250
"""Positions per box that are explored backwards from the solved room; the task starts in one of them."""
_PATIENCE = 30_000
"""Positions that the solver expands before it gives up."""
_WALLS = 0.15
"""Probability that an inner square is a wall."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SokobanOptions:
    """Settings of ``SokobanEnv``."""

    size: int = Field(default=6, ge=5, le=12)
    """Rows and columns of the room, including the walls around it."""
    boxes: int = Field(default=1, ge=1, le=4)


@dataclass(frozen=True)
class Rows:
    """What a task holds: its room as ``draw_position`` draws it, without spaces."""

    room: list[str]


class Room(NamedTuple):
    """The fixed part of a position: the room's size, its floor and its targets."""

    size: int
    floor: frozenset[Square]
    targets: frozenset[Square]


class Place(NamedTuple):
    """A position: the room, the player and the boxes. This and ``Room`` are tuples, which hash fast in the solver."""

    room: Room
    player: Square
    boxes: frozenset[Square]

    @property
    def done(self) -> bool:
        return self.boxes == self.room.targets


class SokobanEnv(CommandEnv[Rows, Place]):
    """Sokoban: push every box onto a target. Rooms are generated backwards from a solved room, so each can be solved.
    An action is a move, or a call of ``act``. A box that is stuck does not end the episode."""

    options_type = SokobanOptions
    key_type = Rows
    only_success_ends = True

    def __init__(self, options: SokobanOptions | None = None) -> None:
        self.options = options or SokobanOptions()
        self._drawn = DrawnTasks(
            f"sokoban{self.options.size}-{self.options.boxes}",
            _PROMPT,
            "room",
            lambda seed: draw_room(self.options, random.Random(f"sokoban {seed}")),
        )

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self._at = task, _start(task, self.key_of(task).room)
        return draw_position(self.visit), {}

    def act(self, call: ToolCall) -> str:
        move = str(call.arguments["move"]).strip().lower()
        if move not in _MOVES:
            raise CallRefused(f"no such move, use: {', '.join(_MOVES)}")
        self.visit = next_place(self.visit, move)
        return draw_position(self.visit)

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        return [] if self.visit.done else list(_MOVES)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._drawn.tasks(split, count, start)

    def verdict(self) -> float | None:
        return 1.0 if self.visit.done else None

    def state_key(self) -> str:
        return f"{self.task.id} {self.visit.player} {sorted(self.visit.boxes)}"

    def demonstrator(self, noise: float) -> "SokobanDemonstrator":
        return SokobanDemonstrator(self, noise)


class SokobanDemonstrator:
    """Plays a shortest solution, which is its thought. With probability ``noise`` it makes another move. If no solution
    is found, it moves at random."""

    def __init__(self, env: SokobanEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        moves_left = shortest_way(self._env.visit)
        if not moves_left:
            return "stuck", rng.choice(list(_MOVES))
        others = [move for move in _MOVES if move != moves_left[0]]
        return " ".join(moves_left), rng.choice(others) if rng.random() < self._noise else moves_left[0]


def next_place(place: Place, move: str) -> Place:
    """Return the position after one move; the same position if a wall or a second box is in the way."""
    room, boxes = place.room, place.boxes
    square = _neighbour(place.player, move)
    if square not in room.floor:
        return place
    if square in boxes:
        behind = _neighbour(square, move)
        if behind not in room.floor or behind in boxes:
            return place
        boxes = boxes - {square} | {behind}
    return Place(room, square, boxes)


def draw_position(place: Place) -> str:
    """Draw a position as text: one line per row, with spaces between the squares."""
    room = place.room
    signs = {
        **dict.fromkeys(room.floor, "_"),
        **dict.fromkeys(room.targets, "O"),
        **{box: "√" if box in room.targets else "X" for box in place.boxes},
        place.player: "S" if place.player in room.targets else "P",
    }
    return "\n".join(" ".join(signs.get((row, column), "#") for column in range(room.size)) for row in range(room.size))


def draw_room(options: SokobanOptions, rng: random.Random) -> list[str]:
    """Return the rows of a random solvable room in which no box is on a target."""
    inside = [(row, column) for row in range(1, options.size - 1) for column in range(1, options.size - 1)]
    while True:
        floor = _largest_part(frozenset(square for square in inside if rng.random() >= _WALLS))
        if len(floor) < 2 * options.boxes + 1:
            continue
        player, *targets = rng.sample(sorted(floor), 1 + options.boxes)
        end = frozenset(targets)
        found = _play_backwards(Place(Room(options.size, floor, end), player, end), rng)
        places = [place for place in found if not place.boxes & end]
        if places:
            return draw_position(rng.choice(places)).replace(" ", "").split("\n")


@functools.lru_cache(maxsize=4096)
def shortest_way(place: Place) -> tuple[str, ...] | None:
    """A solution with the fewest moves by A*; ``None`` if none is found within ``_PATIENCE`` expansions. The heuristic
    is the sum over all boxes of the pushes to the nearest target, ignoring the other boxes."""
    pushes = _pushes_to_go(place.room)
    ways: dict[Place, tuple[str, ...]] = {place: ()}
    order = numbers()
    queue = [(0, next(order), place)]
    for _ in range(_PATIENCE):
        if not queue:
            return None
        _, _, current = heapq.heappop(queue)
        if current.done:
            return ways[current]
        for move in _MOVES:
            neighbour, moves = next_place(current, move), (*ways[current], move)
            shorter = neighbour not in ways or len(moves) < len(ways[neighbour])
            if shorter and neighbour.boxes <= pushes.keys():
                ways[neighbour] = moves
                bound = len(moves) + sum(pushes[box] for box in neighbour.boxes)
                heapq.heappush(queue, (bound, next(order), neighbour))
    return None


@functools.lru_cache(maxsize=256)
def _pushes_to_go(room: Room) -> Mapping[Square, int]:
    """Return, for each square from which a single box can be pushed to a target, the fewest pushes needed."""
    pushes = dict.fromkeys(room.targets, 0)
    queue = list(pushes)
    for square in queue:
        for move in _MOVES:
            before = _neighbour(square, move)
            if before in room.floor and _neighbour(before, move) in room.floor and before not in pushes:
                pushes[before] = pushes[square] + 1
                queue.append(before)
    return pushes


def _play_backwards(end: Place, rng: random.Random) -> list[Place]:
    """Return positions from which ``end`` can be reached, explored backwards from it by moves and pulls in random
    order."""
    found = {end: None}
    frontier = [end]
    while frontier and len(found) < _STATES_PER_BOX * len(end.boxes):
        number = rng.randrange(len(frontier))
        frontier[number], frontier[-1] = frontier[-1], frontier[number]
        new = [each for each in _reverse_moves(frontier.pop()) if each not in found]
        found.update(dict.fromkeys(new))
        frontier += new
    return list(found)


def _reverse_moves(place: Place) -> Iterator[Place]:
    room, player, boxes = place
    for move in _MOVES:
        back, ahead = _neighbour(player, move), _neighbour(player, move, -1)
        if back in room.floor and back not in boxes:
            yield Place(room, back, boxes)
            if ahead in boxes:
                yield Place(room, back, boxes - {ahead} | {player})


def _largest_part(floor: frozenset[Square]) -> frozenset[Square]:
    left, largest = set(floor), frozenset[Square]()
    while left:
        part, edge = set[Square](), {min(left)}
        while edge:
            part |= edge
            left -= edge
            edge = {_neighbour(square, move) for square in edge for move in _MOVES} & left
        largest = max(largest, frozenset(part), key=len)
    return largest


def _neighbour(square: Square, move: str, times: int = 1) -> Square:
    down, right = _MOVES[move]
    return square[0] + times * down, square[1] + times * right


def _start(task: Task, lines: Sequence[str]) -> Place:
    squares = {(row, column): sign for row, line in enumerate(lines) for column, sign in enumerate(line)}
    floor, targets, boxes, players = (
        frozenset(square for square, sign in squares.items() if sign in signs)
        for signs in ("_OSPX√", "OS√", "X√", "PS")
    )
    if len(players) != 1 or not 0 < len(boxes) == len(targets) or any(len(line) != len(lines) for line in lines):
        raise UserError(f"task {task.id!r} holds no room: take tasks from SokobanEnv.tasks")
    return Place(Room(len(lines), floor, targets), min(players), boxes)
