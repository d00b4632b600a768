import random
from dataclasses import replace
from typing import Literal, get_args

import pytest
from hand_trees import TASK, edge, hand_tree, node, random_tree, shuffle_siblings
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Tree, path_return
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.tokens import TokenRow
from treeagent.views.values import ValueTargetConfig, state_outcome, value_rows

Kind = Literal["best", "lambda"]
randoms = st.randoms(use_true_random=False)
trees = randoms.map(random_tree)


def test_imitation_by_hand() -> None:
    [row] = imitation_rows(hand_tree(), ImitationConfig())
    ids = (1, 2, 10, 11, 20, 21, 30, 40)
    mask = (False, False, True, True, False, False, True, False)
    assert row == TokenRow("hand-1", ids, mask, (1, 5, 7), (1.0, 1.0, 1.0))
    both = list(imitation_rows(hand_tree(), ImitationConfig(min_return=0.0, paths_per_tree=2)))
    assert [each.token_ids for each in both] == [ids, (1, 2, 13, 23)]
    assert list(imitation_rows(hand_tree(), ImitationConfig(min_return=1.1))) == []


def test_imitation_prefers_the_likelier_of_equal_paths() -> None:
    """The wins have log-probabilities -0.06, -0.08 and -0.11. A limit with a high value is not a finished path."""
    slow = edge("slow", (2,), 1, 1.0, node((3,), edge("then", (4,), 1, 1.0, node((5,), end="terminated"), 1.0)))
    rare = edge("rare", (11,), 1, 1.0, node((12,), end="terminated"), 1.0)
    other = edge("other", (8,), 1, 1.0, node((9,), end="terminated"), 1.0)
    limit = edge("limit", (1,), 1, 2.0, node((10,), value=2.0))
    tree = Tree(TASK, 0, node((1,), slow, rare, other, limit))
    best = list(imitation_rows(tree, ImitationConfig(paths_per_tree=3)))
    assert [row.token_ids for row in best] == [(1, 2, 3, 4, 5), (1, 8, 9), (1, 11, 12)]


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_imitated_states_are_worth_the_outcome_known_from_there(discount: float) -> None:
    """The path pays 0.25 on the way and then 0.75: a success, however much its end is discounted."""
    last = edge("b", (4,), 1, 0.75, node((5,), end="terminated"), 0.75)
    tree = Tree(TASK, 0, node((1,), edge("a", (2,), 1, 1.0, node((3,), last), 0.25)), discount=discount)
    [row] = imitation_rows(tree, ImitationConfig())
    assert row.value_positions == (0, 2, 4)
    assert row.value_targets == (0.25 + discount * 0.75, 1.0, 1.0)
    assert row.value_targets[:2] == pytest.approx(next(iter(value_rows(tree, ValueTargetConfig()))).value_targets[:2])


def test_imitation_of_states_by_hand() -> None:
    """From the root, the likeliest win is imitated. After the slip, from which it does not start, the likeliest way
    back is."""
    back = node((5,), edge("back", (6,), 1, 1.0, node((7,), end="terminated"), 1.0))
    far = node((8,), edge("on", (9,), 1, 1.0, node((10,), end="terminated"), 1.0))
    lost = edge("lose", (14,), 1, 0.0, node((12,), end="terminated"), 0.0)
    slip = node((3,), edge("err", (4,), 1, 1.0, back), edge("walk", (13,), 1, 1.0, far), lost)
    win = edge("win", (11,), 1, 1.0, node((15,), end="terminated"), 1.0)
    tree = Tree(TASK, 0, node((1,), edge("slip", (2,), 3, 1.0, slip), win))
    rows = list(imitation_rows(tree, ImitationConfig(what="states")))
    assert [row.token_ids for row in rows] == [(1, 11, 15), (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 13, 8, 9, 10)]
    assert [row.mask for row in rows] == [
        (False, True, False),
        (False, False, False, True, False, True, False),
        (False, False, False, False, False, True, False),  # only after "walk"; "err" is likelier and as good
    ]
    assert [row.value_positions for row in rows] == [(0, 2), (2, 4, 6), (4, 6)]


def test_paths_that_make_the_same_calls_are_imitated_once() -> None:
    """Four chains win by two different paths. Of each path the likelier wording is imitated, and the loss is not."""
    wins = [
        edge(name, (number,), 1, 1.0, node((20 + number,), end="terminated"), 1.0) for number, name in enumerate("abab")
    ]
    tree = Tree(TASK, 0, node((1,), *wins, edge("c", (9,), 1, 0.0, node((30,), end="terminated"))))
    rows = list(imitation_rows(tree, ImitationConfig(paths_per_tree=1000)))
    assert [row.token_ids for row in rows] == [(1, 0, 20), (1, 1, 21)]


@pytest.mark.parametrize("what", ["paths", "states"])
def test_refused_calls_of_an_imitated_path_carry_no_loss(what: Literal["paths", "states"]) -> None:
    """A chain wins after a refused call, and only what follows the call is imitated. A longer, less likely win with the
    same return comes first if it has no refused call. An end reached by a refused call is no example."""
    win = edge("win", (4,), 1, 1.0, node((5,), end="terminated"), 1.0)
    refused = edge("jump", (2,), 1, 1.0, node((3,), win))
    refused_end = edge("fall", (12,), 1, 1.0, node((13,), end="terminated"), 1.0)
    for each in (refused, refused_end):
        assert each.child is not None
        each.child.invalid = True
    tree = Tree(TASK, 0, node((1,), refused, refused_end))
    config = ImitationConfig(what=what, paths_per_tree=9)
    [row] = imitation_rows(tree, config)
    assert (row.token_ids, row.mask) == ((1, 2, 3, 4, 5), (False, False, False, True, False))
    assert row.value_positions == (0, 2, 4)
    last = edge("there", (10,), 1, 1.0, node((11,), end="terminated"), 1.0)
    slow = edge("slow", (6,), 1, 1.0, node((7,), edge("way", (8,), 1, 1.0, node((9,), last))))
    tree.root.edges.append(slow)
    [first, *_] = imitation_rows(tree, config)
    assert first.token_ids == (1, 6, 7, 8, 9, 10, 11)


@given(trees, st.sampled_from([0.0, 0.5, 1.0]))
def test_states_are_imitated_once_each_by_the_best_way_on(tree: Tree, least: float) -> None:
    rows = list(imitation_rows(tree, ImitationConfig(what="states", min_return=least)))
    best: dict[tuple[int, ...], float] = {}
    for path, here in tree.walk():
        if path and here.terminated and path_return(path) >= least:
            for length in range(len(path)):
                prompt = tree.prompt_ids(path[:length])
                best[prompt] = max(best.get(prompt, least), path_return(path))
    taught = [
        (row.token_ids[: position + 1], target)
        for row in rows
        for position, target in zip(row.value_positions[:-1], row.value_targets, strict=False)
    ]
    assert len(taught) == len(best) and dict(taught) == pytest.approx(best)
    for row in rows:
        said = [place for place, kept in enumerate(row.mask) if kept]
        assert min(said) == row.value_positions[0] + 1


@pytest.mark.parametrize(
    ("config", "root", "a", "b"),
    [
        (ValueTargetConfig(target="best"), 1.0, 1.0, 0.5),
        (ValueTargetConfig(target="lambda", lambda_=0.0), 4 / 7, 2 / 3, 0.5),
        (ValueTargetConfig(target="lambda", lambda_=0.5), 23 / 42, 2 / 3, 0.5),
        (ValueTargetConfig(target="lambda", lambda_=1.0), 11 / 21, 2 / 3, 0.5),
    ],
)
def test_value_targets_by_hand(config: ValueTargetConfig, root: float, a: float, b: float) -> None:
    """Nothing follows the open state and the limit, so their own estimates give no targets.

    V after A is 1, after B 0. G(A) = 1 - λ + λ 2/3 and G(B) = λ / 2; they have 4 and 2 of 7 visits.
    """
    through_a, through_b, through_c = value_rows(hand_tree(), config)
    assert through_a.token_ids == (1, 2, 10, 11, 20, 21, 30, 40)
    assert through_a.value_positions == (1, 5, 7)
    assert through_a.value_targets == pytest.approx((root, a, 1.0))
    assert through_b.token_ids[: through_b.value_positions[0] + 1] == (1, 2, 12, 22)
    assert through_b.value_targets == pytest.approx((b,))
    assert (through_c.token_ids, through_c.value_positions, through_c.value_targets) == ((1, 2, 13, 23), (3,), (0.0,))
    assert not any(any(row.mask) for row in (through_a, through_b, through_c))


def test_thoughts_are_not_discounted() -> None:
    """The thought and the action after it are one step with γ = 1/2: a reward of 1 is worth 1, and a later V of 1 is
    worth 1/2."""
    action = edge("act", (3,), 1, 1.0, node((4,), value=1.0))
    thought = edge("think", (2,), 1, 0.5, node((), action, value=0.25))
    thought.action = replace(thought.action, call="")
    root = node((1,), thought)
    assert state_outcome(root, [], ValueTargetConfig(), 0.5) == 0.5
    assert state_outcome(root, [], ValueTargetConfig(target="lambda", lambda_=1.0), 0.5) == 0.5
    assert state_outcome(root, [], ValueTargetConfig(target="lambda", lambda_=0.0), 0.5) == 0.25


@given(trees, st.sampled_from(get_args(Kind)), randoms)
def test_every_known_state_is_told_once_whatever_the_order_of_siblings(
    tree: Tree, kind: Kind, shuffler: random.Random
) -> None:
    config = ValueTargetConfig(target=kind)
    expected = {}
    for path, here in tree.walk():
        target = state_outcome(here, path, config)
        if target is not None:
            expected[tree.prompt_ids(path)[-1]] = target
    shuffle_siblings(tree, shuffler)
    rows = list(value_rows(tree, config))
    told = [
        (row.token_ids[place], target)
        for row in rows
        for place, target in zip(row.value_positions, row.value_targets, strict=True)
    ]
    assert len(told) == len(expected)
    assert dict(told) == pytest.approx(expected)
    assert all(row.value_targets for row in rows)
