"""Board games against a perfect opponent."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from toy_search import act, after, begin

from treeagent.types import Action, Proposal, State, Task, Transition

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
