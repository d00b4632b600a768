"""The signal of V(s), by hand and against pairwise definitions."""

import random
from typing import Any

import pytest
from hand_trees import TASK, edge, node

from treeagent.search.node import Tree
from treeagent.views.signal import (
    ValueSignal,
    auc,
    value_signal,
)


def tree_of_four() -> Tree:
    """Below the root, A (V 0.8) leads to a win, B (0.8) and C (0.2) lead to losses, and D to nothing finished. V at the
    ends: the win has 0.9 and the loss beside it 0.3; B's loss has 0.6, C's loss 0.5, and C's end at the task's own
    limit 0.4."""
    won = edge("A1", (1,), 1, 1.0, node((1,), value=0.9, end="terminated"), 1.0)
    lost = edge("A2", (2,), 1, 0.0, node((2,), value=0.3, end="terminated"))
    a = edge("A", (3,), 2, 1.0, node((3,), won, lost, value=0.8))
    b = edge(
        "B", (4,), 1, 0.0, node((4,), edge("B1", (5,), 1, 0.0, node((5,), value=0.6, end="terminated")), value=0.8)
    )
    cut = node((6,), value=0.4)
    cut.truncated = True
    losses = (edge("C1", (7,), 1, 0.0, node((7,), value=0.5, end="terminated")), edge("C2", (8,), 1, 0.0, cut))
    c = edge("C", (9,), 2, 0.0, node((9,), *losses, value=0.2))
    d = edge("D", (10,), 1, 1.0, node((10,), value=1.0))
    return Tree(TASK, 0, node((11,), a, b, c, d, value=0.5))


def near(value: float) -> Any:
    return pytest.approx(value)


def test_the_signal_of_a_tree_by_hand() -> None:
    # Depth 1: V 0.8 against 0.8 and 0.2, so AUC is (0.5 + 1) / 2, and the means differ by 0.3. Variances: 0 and 0.09.
    assert value_signal([tree_of_four()]) == [
        ValueSignal(0, 1, 1, None, None, None, 0),
        ValueSignal(1, 3, 1, 0.75, near(0.3 / (0.09 / 2) ** 0.5), 0.75, 2),
        # The root's 0.5 counts among the good ones: means 0.65 and 0.5, variances 0.0225 and 0.09.
        ValueSignal("all", 4, 2, 0.625, near(0.15 / (0.1125 / 2) ** 0.5), 0.75, 2),
        # 0.9 against 0.3, 0.6 and 0.5. Among siblings, only the win and the loss below A differ.
        ValueSignal("ends", 4, 1, 1.0, near((0.9 - 1.4 / 3) / (0.14 / 9 / 2) ** 0.5), 1.0, 1),
    ]


def test_the_area_by_ranks_is_the_share_of_pairs() -> None:
    luck = random.Random(0)
    for _ in range(50):
        good, bad = ([luck.randint(0, 5) / 5 for _ in range(luck.randint(1, 9))] for _ in range(2))
        pairs = [1.0 if one > other else 0.5 if one == other else 0.0 for one in good for other in bad]
        assert auc(good, bad) == pytest.approx(sum(pairs) / len(pairs))
        assert auc(bad, good) == pytest.approx(1 - sum(pairs) / len(pairs))
