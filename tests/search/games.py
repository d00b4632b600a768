"""Games with known solutions: board games against a perfect opponent, and random trees with known values."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from toy_search import act, after, begin

from treeagent.types import Action, Estimate, Proposal, State, Task, Transition

EMPTY, OURS, THEIRS = ".", "x", "o"
WIN, DRAW, LOSS = 1.0, 0.5, 0.0


@dataclass(frozen=True)
class Board:
    """A game of ``row`` stones in a row on a board of ``width`` by ``height``. If ``falls``, stones fall to the bottom
    of their column."""

    width: int
    height: int
    row: int
    falls: bool

    def moves(self, cells: str) -> list[int]:
        """The legal moves: places (top left is 0), or columns if stones fall."""
        return [place for place in range(self.width if self.falls else len(cells)) if cells[place] == EMPTY]

    def put(self, cells: str, move: int, stone: str) -> str:
        if self.falls:
            move = max(place for place in range(move, len(cells), self.width) if cells[place] == EMPTY)
        return cells[:move] + stone + cells[move + 1 :]

    @functools.cached_property
    def lines(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple((y + dy * step) * self.width + x + dx * step for step in range(self.row))
            for y in range(self.height)
            for x in range(self.width)
            for dx, dy in ((1, 0), (0, 1), (1, 1), (-1, 1))
            if 0 <= x + dx * (self.row - 1) < self.width and y + dy * (self.row - 1) < self.height
        )

    def outcome(self, cells: str) -> float | None:
        """Our result; None while the game goes on."""
        for line in self.lines:
            stones = {cells[place] for place in line}
            if len(stones) == 1 and stones != {EMPTY}:
                return WIN if stones == {OURS} else LOSS
        return None if self.moves(cells) else DRAW

    def answered(self, cells: str, move: int) -> str:
        """The position after our move and the first of the opponent's best answers."""
        cells = self.put(cells, move, OURS)
        if self.outcome(cells) is not None:
            return cells
        return min((self.put(cells, answer, THEIRS) for answer in self.moves(cells)), key=self.value)

    @functools.cache  # noqa: B019  one board lives as long as its module
    def value(self, cells: str) -> float:
        """Our value of a position in which we are to move or which is over."""
        outcome = self.outcome(cells)
        return max(self.move_values(cells).values()) if outcome is None else outcome

    def move_values(self, cells: str) -> dict[int, float]:
        return {move: self.value(self.answered(cells, move)) for move in self.moves(cells)}


TIC_TAC_TOE = Board(3, 3, 3, falls=False)


def positions(board: Board, stones: int, count: int, seed: int) -> Iterator[str]:
    """Random positions with ``stones`` stones of each side, ours to move, in which moves differ in value."""
    rng = np.random.default_rng(seed)
    found: set[str] = set()
    while len(found) < count:
        cells = EMPTY * (board.width * board.height)
        for place in range(2 * stones):
            if board.outcome(cells) is None:
                cells = board.put(cells, int(rng.choice(board.moves(cells))), OURS if place % 2 == 0 else THEIRS)
        if board.outcome(cells) is None and cells not in found and len(set(board.move_values(cells).values())) > 1:
            found.add(cells)
            yield cells


@dataclass(frozen=True)
class Game:
    """A position of a board as a task. The dynamics answers with the opponent's best move."""

    board: Board

    async def reset(self, task: Task) -> State:
        return begin(task, task.id)

    async def step(self, state: State, action: Action) -> Transition:
        cells = self.board.answered(state.messages[-1].content, int(str(action.call)))
        outcome = self.board.outcome(cells)
        return Transition(after(state, action, cells), outcome or 0.0, terminated=outcome is not None)


@dataclass(frozen=True)
class Moves:
    """Proposes every move. With ``skill`` 0 all are equally likely; a higher value prefers better moves."""

    board: Board
    skill: float = 0.0

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._actions(state.messages[-1].content))) for state in states]

    def _actions(self, cells: str) -> Iterator[Action]:
        for move, value in self.board.move_values(cells).items():
            yield act(str(move), self.skill * value)


@dataclass(frozen=True)
class KnownTree:
    """A tree with ``actions`` actions at each of ``depth`` steps. Every edge has a merit in [-1, 1]; the return of a
    path is the mean merit of its edges, paid at its end. Policy logits and values are the truth plus noise.

    It is dynamics, policy and value function in one. The last message of a state is the state's index within its depth.
    """

    seed: int
    actions: int = 4
    depth: int = 5
    skill: float = 5.0
    """Prior ∝ exp(skill * Q + noise)."""
    prior_noise: float = 1.0
    value_noise: float = 0.2
    """Standard deviation of the noise in V; ``prior_noise`` is that of the logits."""
    returns: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])
    """For each depth, the best return below each state."""
    logits: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])
    estimates: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        sums = [np.zeros(1)]
        for depth in range(1, self.depth + 1):
            sums.append(np.repeat(sums[-1], self.actions) + rng.uniform(-1, 1, self.actions**depth) / self.depth)
        best = sums[-1]
        self.returns.append(best)
        while len(best) > 1:
            best = best.reshape(-1, self.actions).max(axis=1)
            self.returns.insert(0, best)
        for best in self.returns:
            self.logits.append(self.skill * best + rng.normal(0, self.prior_noise, len(best)))
            self.estimates.append(best + rng.normal(0, self.value_noise, len(best)))

    @property
    def best_action(self) -> int:
        return int(self.returns[1].argmax())

    async def reset(self, task: Task) -> State:
        return begin(task, "0 0")

    async def step(self, state: State, action: Action) -> Transition:
        depth, place = _place(state)
        depth, place = depth + 1, place * self.actions + int(str(action.call))
        ends = depth == self.depth
        reward = float(self.returns[depth][place]) if ends else 0.0
        return Transition(after(state, action, f"{depth} {place}"), reward, terminated=ends)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._drawn(*_place(state)))) for state in states]

    def _drawn(self, depth: int, place: int) -> Iterator[Action]:
        for number in range(self.actions):
            yield act(str(number), float(self.logits[depth + 1][place * self.actions + number]))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        places = [_place(state) for state in states]
        return [Estimate(float(self.estimates[depth][place])) for depth, place in places]


def _place(state: State) -> tuple[int, int]:
    depth, place = state.messages[-1].content.split()
    return int(depth), int(place)
