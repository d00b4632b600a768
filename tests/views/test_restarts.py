"""Views of trees in which the prompt restarts without old observations: by hand, and checked that no token is trained
after another prompt than it was sampled after."""

import random
from collections.abc import Iterator, Sequence

import pytest
from hand_trees import TASK, edge, edges, node, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Tree
from treeagent.types import UserError
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.pairs import PairConfig, preference_pairs
from treeagent.views.policy import PolicyTargetConfig, policy_rows
from treeagent.views.tokens import TokenRow

TRAJECTORY = PairConfig(rule="trajectory")


def restarted_tree() -> Tree:
    """A leads to B, after which the prompt restarts as 60, 61. After it B1 wins and B2 loses. C loses at once.

    Q: A 1/2, C 0; B 1/2; B1 1, B2 0.
    """
    won = edge("B1", (31,), 1, 1.0, node((40,), end="terminated"), 1.0)
    lost = edge("B2", (32, 33), 1, 0.0, node((41,), end="terminated"))
    anew = node((60, 61), won, lost)
    anew.left_out = (1,)
    a = edge("A", (10, 11), 2, 1.0, node((20, 21), edge("B", (30,), 2, 1.0, anew)))
    return Tree(TASK, 0, node((1, 2), a, edge("C", (13,), 1, 0.0, node((23,), end="terminated"))))


def spelt(mask: Sequence[bool]) -> str:
    return "".join("+" if kept else "-" for kept in mask)


def test_imitation_by_hand() -> None:
    before, behind = imitation_rows(restarted_tree(), ImitationConfig())
    assert (before.token_ids, spelt(before.mask)) == ((1, 2, 10, 11, 20, 21, 30), "--++--+")
    assert (before.value_positions, before.value_targets) == ((1, 5), (1.0, 1.0))
    assert (behind.token_ids, spelt(behind.mask)) == ((60, 61, 31, 40), "--+-")
    assert (behind.value_positions, behind.value_targets) == ((1, 3), (1.0, 1.0))


def test_pairs_of_whole_paths_want_one_prompt() -> None:
    tree = restarted_tree()
    with pytest.raises(
        UserError, match="left out on a path of task hand-1, so that no one prompt stands before its act"
    ):
        list(preference_pairs(tree, TRAJECTORY))
    end = node((70, 71), end="terminated")
    end.left_out = (1,)  # nothing is sampled after it
    tree.root.edges[0] = edge("A", (10, 11), 2, 1.0, node((20,), edge("B", (30,), 2, 1.0, end, 1.0)))
    [pair] = preference_pairs(tree, TRAJECTORY)
    assert (pair.context_ids, pair.chosen.token_ids, pair.rejected.token_ids) == ((1, 2), (10, 11, 20, 30), (13,))


def random_restarts(shuffler: random.Random) -> Tree:
    """A random tree in which the prompt may restart at any state but the root. The state's context, whose ids occur
    nowhere else, is then its whole prompt."""
    tree = random_tree(shuffler)
    for each in edges(tree):
        if each.child is not None and shuffler.random() < 0.4:
            each.child.left_out = (1,)
    return tree


trees = st.randoms(use_true_random=False).map(random_restarts)


def rows_of(tree: Tree) -> Iterator[TokenRow | AdvantageRow]:
    """The rows of every view that trains on whole rows of tokens."""
    targets = ImitationConfig(min_return=0.0, paths_per_tree=3)
    yield from imitation_rows(tree, targets)
    yield from imitation_rows(tree, ImitationConfig(min_return=0.0, what="states"))
    yield from advantage_rows(tree, advantages([tree], AdvantageConfig(kind="grpo")))
    yield from advantage_rows(tree, advantages([tree], AdvantageConfig()))


def flat(row: TokenRow | AdvantageRow) -> tuple[tuple[int, ...], list[bool]]:
    if isinstance(row, TokenRow):
        return row.token_ids, [*row.mask]
    return row.prompt_ids + row.completion_ids, [False] * len(row.prompt_ids) + [*row.mask]


@given(trees)
def test_every_trained_token_stands_behind_the_prompt_that_it_was_sampled_behind(tree: Tree) -> None:
    whole = {
        token: tree.prompt_ids(path) + each.action.token_ids[: place + 1]
        for path, here in tree.walk()
        for each in here.edges
        for place, token in enumerate(each.action.token_ids)
    }
    for row in rows_of(tree):
        ids, mask = flat(row)
        for place, (token, kept) in enumerate(zip(ids, mask, strict=True)):
            assert not kept or ids[: place + 1] == whole[token]
    for pair in preference_pairs(tree, PairConfig(rule="all", min_margin=0.05)):
        for side in (pair.chosen, pair.rejected):
            assert pair.context_ids + side.token_ids == whole[side.token_ids[-1]]
    for state in policy_rows(tree, PolicyTargetConfig()):
        for each in state.candidates:
            assert state.prompt_ids + each.token_ids == whole[each.token_ids[-1]]
