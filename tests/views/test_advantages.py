import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Literal, get_args

import pytest
from hand_trees import TASK, edge, edges, hand_tree, leaf_paths, node, random_group, random_tree, shuffle_siblings
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Edge, Tree, path_return
from treeagent.types import UserError
from treeagent.views.advantages import (
    AdvantageConfig,
    AdvantageRow,
    advantage_rows,
    advantages,
)
from treeagent.views.advantages.common import Scale

Kind = Literal["q", "tree_grpo", "treerl", "gigpo", "grpo", "rloo", "gae"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COMPARING: tuple[Kind, ...] = ("q", "tree_grpo", "treerl", "gigpo", "grpo", "rloo")
randoms = st.randoms(use_true_random=False)
groups = randoms.map(random_group)
trees = randoms.map(random_tree)


def of(kind: Kind, scale: Scale = "std") -> AdvantageConfig:
    return AdvantageConfig(kind, {"scale": scale} if kind == "grpo" else {})


def by_name(trees: Tree | Sequence[Tree], config: AdvantageConfig) -> dict[str, float]:
    group = [trees] if isinstance(trees, Tree) else trees
    scored = advantages(group, config)
    return {each.action.text: scored[id(each)] for tree in group for each in edges(tree) if id(each) in scored}


def ends(*named: tuple[str, float]) -> Tree:
    """A tree of actions that end at once with these rewards."""
    return Tree(TASK, 0, node((1,), *(end_of(name, reward) for name, reward in named)))


def end_of(name: str, reward: float) -> Edge:
    return edge(name, (50,), 1, reward, node((60,), end="terminated"), reward)


def test_q_minus_sibling_mean_by_hand() -> None:
    """The baseline at the root is (3/4 + 1/4 + 0) / 3 = 1/3, below A it is 3/4. B1 has no sibling."""
    scored = by_name(hand_tree(), AdvantageConfig())
    assert scored == pytest.approx({"A": 5 / 12, "B": -1 / 12, "C": -1 / 3, "A1": 1 / 4, "A2": -1 / 4})
    often = by_name(hand_tree(), AdvantageConfig(options={"min_visits": 2}))
    assert often == pytest.approx({"A": 1 / 4, "B": -1 / 4})  # the baseline is 1/2


@pytest.mark.parametrize("kind", COMPARING)
def test_imagined_actions_that_were_not_replayed_get_no_positive_advantage(kind: Kind) -> None:
    """Three ends are worth 1, 0.8 and 0.2, and only the first was replayed. Only imagination says that the second is
    better than the mean."""
    tree = ends(("A", 1.0), ("B", 0.8), ("C", 0.2))
    taken_at_its_word = by_name(tree, of(kind))
    for sibling in tree.root.edges[1:]:
        assert sibling.child is not None
        sibling.child.origin = "imagined"
    found = by_name(tree, of(kind))
    assert taken_at_its_word["B"] > 0 and found == {name: taken_at_its_word[name] for name in "AC"}


@pytest.mark.parametrize("kind", KINDS)
def test_refused_calls_get_no_positive_advantage(kind: Kind) -> None:
    """Three chains: the first wins after a refused call, and the second loses after one."""
    won = edge("won", (3,), 1, 1.0, node((60,), end="terminated"), 1.0)
    lost = edge("lost", (4,), 1, 0.0, node((61,), end="terminated"))
    refused = edge("refused", (5,), 1, 1.0, node((62,), won, value=0.6))
    again = edge("again", (6,), 1, 0.0, node((63,), lost, value=0.4))
    tree = Tree(TASK, 0, node((1,), refused, again, end_of("plain", 1.0), value=0.5))
    taken = by_name(tree, of(kind))
    for each in (refused, again):
        assert each.child is not None
        each.child.invalid = True
    found = by_name(tree, of(kind))
    assert taken["refused"] > 0 > taken["again"]
    assert found == {name: each for name, each in taken.items() if name != "refused"}


def test_outcomes_by_hand() -> None:
    """Returns: A1 1, A2 and B1 1/2 by their estimates, C 0. Mean 1/2, standard deviation sqrt(1/6). A leads to A1 and
    A2."""
    z = sqrt(1.5)
    assert by_name(hand_tree(), of("grpo")) == pytest.approx({"A": z / 2, "A1": z, "C": -z})
    undivided = of("grpo", "none")
    assert by_name(hand_tree(), undivided) == pytest.approx({"A": 1 / 4, "A1": 1 / 2, "C": -1 / 2})
    assert by_name(hand_tree(), of("rloo")) == pytest.approx({"A": 1 / 3, "A1": 2 / 3, "C": -2 / 3})
    assert by_name(hand_tree(), of("tree_grpo")) == pytest.approx({"A": z, "A1": 2 * z, "C": -2 * z})


def test_outcomes_within_and_across_trees_by_hand() -> None:
    """A second tree adds two returns of 1: mean 2/3, standard deviation sqrt(1/6) again. Within that tree both are
    equal."""
    group, s = [hand_tree(), ends(("X", 1.0), ("Y", 1.0))], sqrt(6)
    both = {"A": s / 3, "A1": 5 * s / 6, "A2": -s / 6, "B": -s / 6, "B1": -s / 6, "C": -7 * s / 6, "X": s / 3}
    assert by_name(group, of("tree_grpo")) == pytest.approx(both | {"Y": s / 3})
    across = {"A": s / 12, "A1": s / 3, "A2": -s / 6, "B": -s / 6, "B1": -s / 6, "C": -2 * s / 3, "X": s / 3}
    assert by_name(group, of("grpo")) == pytest.approx(across | {"Y": s / 3})


def test_tree_grpo_compares_within_the_groups_of_one_tree_by_hand() -> None:
    """Group 0 has returns 1 and 0, with standard deviation 1/√2; group 1 has 1 and 1. All four have mean 3/4 and
    standard deviation 1/2."""
    tree = ends(("A", 1.0), ("C", 1.0), ("B", 0.0), ("D", 1.0))
    for each, group in zip(tree.root.edges, (0, 1, 0, 1), strict=True):
        each.group = group
    intra = sqrt(1 / 2)
    expected = {"A": 1 / 2 + intra, "B": -3 / 2 - intra, "C": 1 / 2, "D": 1 / 2}
    assert by_name(tree, of("tree_grpo")) == pytest.approx(expected)


def test_treerl_by_hand() -> None:
    """Mean returns of the leaves below: A 3/4 from two leaves, A1 1, A2, B and B1 1/2, C 0. The root has 1/2, or 2/3
    with two more wins."""
    alone = {"A": 1 / 2 / sqrt(2), "A1": 3 / 4, "A2": -1 / 4, "C": -1.0}
    assert by_name(hand_tree(), of("treerl")) == pytest.approx(alone)
    joined = {"A": 1 / 6 / sqrt(2), "A1": 7 / 12, "A2": -5 / 12, "B": -1 / 3, "B1": -1 / 6, "C": -4 / 3}
    group = [hand_tree(), ends(("X", 1.0), ("Y", 1.0))]
    assert by_name(group, of("treerl")) == pytest.approx(joined | {"X": 2 / 3, "Y": 2 / 3})


def test_gigpo_by_hand() -> None:
    """Without keys each state is its own anchor. With equal keys, the states after A and B are one anchor with returns
    1, 1/2, 1/2."""
    tree, z = hand_tree(), sqrt(1.5)
    apart = {"A": z, "A1": z + sqrt(0.5), "A2": -sqrt(0.5), "C": -2 * z}
    assert by_name(tree, of("gigpo")) == pytest.approx(apart)
    for each in tree.root.edges[:2]:
        assert each.child is not None
        each.child.state = replace(each.child.state, key="here")
    merged = {"A": z, "A1": z + 2 / sqrt(3), "A2": -1 / sqrt(3), "B1": -1 / sqrt(3), "C": -2 * z}
    assert by_name(tree, of("gigpo")) == pytest.approx(merged)


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (0.0, {"A": 1 / 2, "A2": -1 / 2, "B": -1 / 2, "B1": 1 / 2, "C": -1 / 2}),
        (0.5, {"A": 3 / 8, "A2": -1 / 2, "B": -1 / 4, "B1": 1 / 2, "C": -1 / 2}),
        (1.0, {"A": 1 / 4, "A2": -1 / 2, "B1": 1 / 2, "C": -1 / 2}),
    ],
)
def test_gae_by_hand(lambda_: float, expected: dict[str, float]) -> None:
    """δ: A 1/2, A1 0, A2 -1/2, B -1/2, B1 1/2, C -1/2. A gets the mean of 1/2 + λ 0 and 1/2 - λ / 2."""
    assert by_name(hand_tree(), AdvantageConfig("gae", {"lambda_": lambda_})) == pytest.approx(expected)


@given(trees, st.sampled_from([0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
def test_gae_equals_a_slow_computation(tree: Tree, discount: float, lambda_: float) -> None:
    """λ = 1 gives the return minus V(s). λ = 0 gives the reward of one step plus the discounted next V, minus V(s)."""
    tree.discount = discount
    scored = advantages([tree], AdvantageConfig("gae", {"lambda_": lambda_}))
    foreseen: dict[int, list[float]] = {}
    for path in leaf_paths(tree):
        states = [tree.root, *(each.child for each in path)]
        for place, each in enumerate(path):
            state, after = states[place], states[place + 1]
            assert state is not None and after is not None
            errors = []
            for step, here, there in zip(path[place:], states[place:], states[place + 1 :], strict=False):
                assert here is not None and there is not None
                follows = 0.0 if there.terminated else there.value
                errors.append((step.reward or 0.0) + discount * follows - here.value)
            told = sum((discount * lambda_) ** later * error for later, error in enumerate(errors))
            if lambda_ == 1.0:
                assert told == pytest.approx(path_return(path[place:], discount) - state.value)
            foreseen.setdefault(id(each), []).append(told)
    for owner, told_ in foreseen.items():
        assert scored.get(owner, 0.0) == pytest.approx(sum(told_) / len(told_), abs=2e-9)


@given(trees, st.integers(1, 3))
def test_advantages_of_siblings_sum_to_zero(tree: Tree, min_visits: int) -> None:
    scored = advantages([tree], AdvantageConfig(options={"min_visits": min_visits}))
    for here in tree.nodes():
        tried = [each for each in here.edges if each.visits >= min_visits]
        assert sum(scored.get(id(each), 0.0) for each in tried) == pytest.approx(0.0, abs=1e-7)
        if len(tried) < 2 or len({round(each.value, 6) for each in tried}) == 1:
            assert not any(id(each) in scored for each in here.edges)


@given(groups, st.sampled_from(["grpo", "rloo", "tree_grpo"]), st.sampled_from(["std", "none"]))
def test_outcomes_sum_to_zero_over_trajectories_and_are_averaged_over_the_leaves_of_an_edge(
    group: list[Tree], kind: Kind, scale: Scale
) -> None:
    scored = advantages(group, of(kind, scale))
    paths = [path for tree in group for path in leaf_paths(tree)]
    last = {id(path[-1]): scored.get(id(path[-1]), 0.0) for path in paths}
    assert sum(last.values()) == pytest.approx(0.0, abs=1e-6)
    for each in (each for tree in group for each in edges(tree) if each.child is not None):
        below = [last[id(path[-1])] for path in paths if any(step is each for step in path)]
        assert scored.get(id(each), 0.0) == pytest.approx(sum(below) / len(below), abs=1e-8)


@given(groups)
def test_treerl_equals_a_slow_computation(group: list[Tree]) -> None:
    scored = advantages(group, of("treerl"))
    every = [path for tree in group for path in leaf_paths(tree)]

    def below(edge: Edge | None) -> list[float]:
        return [path_return(path) for path in every if edge is None or any(step is edge for step in path)]

    for path in every:
        for above, each in zip([None, *path], path, strict=False):
            root, parent, here = (sum(found) / len(found) for found in (below(None), below(above), below(each)))
            expected = (here - root + here - parent) / sqrt(len(below(each)))
            assert scored.get(id(each), 0.0) == pytest.approx(expected, abs=1e-8)


@given(groups, randoms, st.sampled_from(KINDS))
def test_the_order_of_siblings_changes_nothing(group: list[Tree], shuffler: random.Random, kind: Kind) -> None:
    before = advantages(group, of(kind))
    for tree in group:
        shuffle_siblings(tree, shuffler)
    after = advantages(group[::-1], of(kind))
    for each in before.keys() | after.keys():
        assert after.get(each, 0.0) == pytest.approx(before.get(each, 0.0), abs=1e-8)


def test_advantage_rows_by_hand() -> None:
    tree = hand_tree()
    scored = advantages([tree], AdvantageConfig())
    a = 5 / 12
    expected = [
        ((10, 11, 20, 21, 30), "++--+", (a, a, 0.0, 0.0, 0.25), (-0.1, -0.11, 0.0, 0.0, -0.3)),
        ((10, 11, 20, 21, 31, 32), "----++", (0.0, 0.0, 0.0, 0.0, -0.25, -0.25), (0.0, 0.0, 0.0, 0.0, -0.31, -0.32)),
        ((12,), "+", (-1 / 12,), (-0.12,)),
        ((13,), "+", (-1 / 3,), (-0.13,)),
    ]
    rows = list(advantage_rows(tree, scored))
    assert len(rows) == len(expected)
    for row, (ids, mask, told, logprobs) in zip(rows, expected, strict=True):
        assert (row.task_id, row.prompt_ids, row.completion_ids) == ("hand-1", (1, 2), ids)
        assert "".join("+" if kept else "-" for kept in row.mask) == mask
        assert row.advantages == pytest.approx(told)
        assert row.logprobs == pytest.approx(logprobs)


def trained(row: AdvantageRow) -> list[int]:
    return [token for token, kept in zip(row.completion_ids, row.mask, strict=True) if kept]


@given(groups, st.sampled_from(KINDS))
def test_every_scored_token_is_trained_once_and_no_observation_ever(group: list[Tree], kind: Kind) -> None:
    scored = advantages(group, AdvantageConfig(kind=kind))
    rows = [row for tree in group for row in advantage_rows(tree, scored)]
    every = [each for tree in group for each in edges(tree)]
    expected = Counter(token for each in every if id(each) in scored for token in each.action.token_ids)
    assert Counter(token for row in rows for token in trained(row)) == expected
    owners = {token: each for each in every for token in each.action.token_ids}
    paths = [tree.prompt_ids(path) for tree in group for path, _ in tree.walk()]
    for row in rows:
        assert trained(row)
        assert row.mask[-1]  # a row ends with a trained token
        whole = row.prompt_ids + row.completion_ids
        assert any(path[: len(whole)] == whole for path in paths)
        columns = zip(row.completion_ids, row.mask, row.advantages, row.logprobs, strict=True)
        for token, kept, advantage, logprob in columns:
            assert advantage == (scored[id(owners[token])] if kept else 0.0)
            assert logprob == (-token / 100 if kept else 0.0)


def visits(trees: Sequence[Tree], scale: float = 1.0) -> dict[int, float]:
    """A kind of one's own: the number of visits."""
    return {id(each): scale * each.visits for tree in trees for each in edges(tree)}


def test_a_kind_may_be_a_function_of_ones_own() -> None:
    scored = by_name(hand_tree(), AdvantageConfig(f"{__name__}:visits", {"scale": 2.0}))
    assert scored["A"] == 2.0 * hand_tree().root.edges[0].visits
    with pytest.raises(UserError, match="scales"):
        advantages([hand_tree()], AdvantageConfig(f"{__name__}:visits", {"scales": 2.0}))
    with pytest.raises(ValueError, match="tree_grpo"):
        AdvantageConfig("best")
