"""Search plays tic-tac-toe against a perfect opponent. Seeds are fixed, and the margins are far from the measured
values."""

import asyncio
import functools
from collections.abc import Sequence

import numpy as np
import pytest
from toy_search import ConstantValue, Revisiting, RevisitingGumbel, act, after, begin

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.gumbel import best_root_edge
from treeagent.types import Action, Proposal, State, Task, Transition

EMPTY, OURS, THEIRS = ".", "x", "o"
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def moves(cells: str) -> list[int]:
    return [place for place in range(9) if cells[place] == EMPTY]


def put(cells: str, move: int, stone: str) -> str:
    return cells[:move] + stone + cells[move + 1 :]


def outcome(cells: str) -> float | None:
    """Our result: 1 for a win, 0.5 for a draw; None while the game goes on."""
    for line in LINES:
        if (stones := {cells[place] for place in line}) in ({OURS}, {THEIRS}):
            return float(stones == {OURS})
    return None if moves(cells) else 0.5


def answered(cells: str, move: int) -> str:
    """The position after our move and the first of the opponent's best answers."""
    cells = put(cells, move, OURS)
    if outcome(cells) is not None:
        return cells
    return min((put(cells, answer, THEIRS) for answer in moves(cells)), key=solved)


@functools.cache
def solved(cells: str) -> float:
    """Our value of a position in which we are to move or which is over."""
    result = outcome(cells)
    return max(move_values(cells).values()) if result is None else result


def move_values(cells: str) -> dict[int, float]:
    return {move: solved(answered(cells, move)) for move in moves(cells)}


class Game:
    """A position as a task. The dynamics answers with the opponent's best move; the policy proposes every move."""

    async def reset(self, task: Task) -> State:
        return begin(task, task.id)

    async def step(self, state: State, action: Action) -> Transition:
        cells = answered(state.messages[-1].content, int(str(action.call)))
        result = outcome(cells)
        return Transition(after(state, action, cells), result or 0.0, terminated=result is not None)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        every = [moves(state.messages[-1].content) for state in states]
        return [Proposal((), tuple(act(str(move), 0.0) for move in each)) for each in every]


def positions(count: int) -> list[str]:
    """Positions after one stone of each side, ours to move, in which moves differ in value."""
    rng, found = np.random.default_rng(0), dict[str, None]()
    while len(found) < count:
        ours, theirs = rng.choice(9, size=2, replace=False)
        cells = put(put(EMPTY * 9, int(ours), OURS), int(theirs), THEIRS)
        if len(set(move_values(cells).values())) > 1:
            found[cells] = None
    return list(found)


def optimal_rate(cells: Sequence[str], method: str, simulations: int) -> float:
    """Share of positions in which a best move is chosen. There is no value function; only ends have a value."""
    kind, config = {"mcts": Revisiting, "gumbel": RevisitingGumbel}[method], SearchConfig(Limits(simulations))
    search = kind(Game(), Game(), config, ConstantValue(0.5), noise=False)
    trees = asyncio.run(search.run([Task(each, "") for each in cells], range(len(cells))))
    best = 0
    for tree, each in zip(trees, cells, strict=True):
        chosen = best_path(tree, "visits")[0] if method == "mcts" else best_root_edge(tree, noise=False)
        best += move_values(each)[int(chosen.action.text)] == solved(each)
    return best / len(cells)


@pytest.mark.parametrize("method", ["mcts", "gumbel"])
def test_tic_tac_toe_is_solved(method: str) -> None:
    """A random move is right in about half of the positions."""
    few, some, many = (optimal_rate(positions(40), method, count) for count in (8, 32, 128))
    assert few < 0.75 <= some
    assert some <= many >= 0.93
