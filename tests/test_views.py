"""Pairs, advantages and targets: by hand on one tree, and what holds of any tree."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hand_trees import TASK, edge, edges, hand_tree, node, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.advantages import AdvantageConfig, AdvantageRow, advantage_rows, q_advantages
from treeagent.pairs import PairConfig, PreferencePair, preference_pairs
from treeagent.search.node import Edge, Tree, path_return
from treeagent.targets import TargetConfig, TokenRow, imitation_rows, path_row, state_return, value_rows

ALL = PairConfig(rule="all", max_per_node=99)
trees = st.randoms(use_true_random=False).map(random_tree)


def criticised_tree(shuffler: random.Random) -> Tree:
    """A critic has scored the candidates of most nodes, in steps of 1/10."""
    tree = random_tree(shuffler)
    for here in tree.nodes():
        if shuffler.random() < 0.8:
            for each in here.edges:
                each.critic = shuffler.randint(0, 10) / 10
    return tree


criticised_trees = st.randoms(use_true_random=False).map(criticised_tree)


def names(tree: Tree, config: PairConfig) -> list[str]:
    return [f"{pair.chosen.text}>{pair.rejected.text}" for pair in preference_pairs(tree, config)]


def by_name(tree: Tree, config: AdvantageConfig) -> dict[str, float]:
    scored = q_advantages(tree, config)
    return {each.action.text: scored[id(each)] for each in edges(tree) if id(each) in scored}


def test_pairs_by_hand() -> None:
    """ΔQ: A-C 3/4, A-B 1/2, B-C 1/4; below A: A1-A2 1/2."""
    tree = hand_tree()
    assert names(tree, ALL) == ["A>C", "A>B", "B>C", "A1>A2"]
    assert names(tree, PairConfig()) == ["A>C", "A1>A2"]
    assert names(tree, replace(ALL, min_margin=0.25)) == ["A>C", "A>B", "B>C", "A1>A2"]
    assert names(tree, replace(ALL, min_margin=0.26)) == ["A>C", "A>B", "A1>A2"]
    assert names(tree, replace(ALL, min_visits=2)) == ["A>B"]
    assert names(tree, PairConfig(min_visits=2)) == ["A>B"]
    assert names(tree, replace(ALL, max_per_node=2)) == ["A>C", "A>B", "A1>A2"]
    assert names(tree, replace(ALL, max_per_node=1)) == ["A>C", "A1>A2"]
    assert names(tree, replace(ALL, min_visits=5)) == []


def test_a_pair_carries_its_prompt_and_both_actions() -> None:
    tree = hand_tree()
    a = tree.root.edges[0]
    assert a.child is not None
    a.child.origin = "imagined"
    first, second = preference_pairs(tree, PairConfig())
    assert first == PreferencePair("hand-1", (1, 2), a.action, tree.root.edges[2].action, 0.75)
    won, open_ = a.child.edges
    context = (1, 2, 10, 11, 20, 21)
    assert second == PreferencePair("hand-1", context, won.action, open_.action, 0.5, origin="imagined")


def test_smoothing_by_visits() -> None:
    """N_l / (N_w + N_l): 1/5, 2/6, 1/3, and 2/3 cut to a half."""
    pairs = list(preference_pairs(hand_tree(), replace(ALL, smoothing="visits")))
    assert [pair.smoothing for pair in pairs] == pytest.approx([1 / 5, 1 / 3, 1 / 3, 1 / 2])
    assert {pair.smoothing for pair in preference_pairs(hand_tree(), ALL)} == {0.0}


def test_pairs_of_mixed_values_by_hand() -> None:
    """Half of the critic's word: A 3/8, B 5/8, C 1/4; nobody was asked below A, and D was not tried."""
    tree = hand_tree()
    for each, score in zip(tree.root.edges, (0.0, 1.0, 0.5, 1.0), strict=True):
        each.critic = score
    half = replace(ALL, critic_weight=0.5)
    assert names(tree, half) == ["B>C", "B>A", "A1>A2"]
    assert [pair.margin for pair in preference_pairs(tree, half)] == [0.375, 0.25, 0.5]
    assert names(tree, replace(half, min_margin=0.1)) == ["B>C", "B>A", "A>C", "A1>A2"]
    assert names(tree, replace(half, rule="best_vs_worst")) == ["B>C", "A1>A2"]
    assert names(tree, replace(ALL, critic_weight=1.0)) == ["B>A", "B>C", "C>A", "A1>A2"]
    assert names(tree, ALL) == names(hand_tree(), ALL)


@given(
    criticised_trees,
    st.integers(1, 3),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_best_vs_worst_is_the_widest_of_all_pairs(
    tree: Tree, min_visits: int, min_margin: float, critic_weight: float
) -> None:
    config = replace(ALL, min_visits=min_visits, min_margin=min_margin, critic_weight=critic_weight)
    every = list(preference_pairs(tree, config))
    widest = list(preference_pairs(tree, replace(config, max_per_node=1)))
    extreme = list(preference_pairs(tree, replace(config, rule="best_vs_worst")))
    assert [(pair.context_ids, pair.margin) for pair in extreme] == [(pair.context_ids, pair.margin) for pair in widest]

    def q(each: Edge) -> float:
        if each.critic is None:
            return each.value
        return (1 - critic_weight) * each.value + critic_weight * each.critic

    # Computed the slow way: every ordered couple of siblings.
    expected = Counter(
        (one.action.text, two.action.text, tree.prompt_ids(path))
        for path, here in tree.walk()
        for one in here.edges
        for two in here.edges
        if min(one.visits, two.visits) >= min_visits and q(one) - q(two) >= min_margin
    )
    assert Counter((pair.chosen.text, pair.rejected.text, pair.context_ids) for pair in every) == expected


def test_advantages_by_hand() -> None:
    """Baseline at the root 3.5 / 7 = 1/2, below A 2 / 3; B1 has no sibling."""
    scored = by_name(hand_tree(), AdvantageConfig())
    assert scored == pytest.approx({"A": 1 / 4, "B": -1 / 4, "C": -1 / 2, "A1": 1 / 3, "A2": -1 / 6})
    often = by_name(hand_tree(), AdvantageConfig(min_visits=2))
    assert often == pytest.approx({"A": 1 / 6, "B": -1 / 3})  # baseline 3.5 / 6
    assert by_name(hand_tree(), AdvantageConfig(min_siblings=3)).keys() == {"A", "B", "C"}
    assert by_name(hand_tree(), AdvantageConfig(min_siblings=4)) == {}


def test_siblings_of_equal_value_get_no_advantage() -> None:
    """Also where (0.1 + 0.1 + 0.1) / 3 is not 0.1 in binary."""
    assert (0.1 + 0.1 + 0.1) / 3 != 0.1
    tried = [edge(name, (place,), 1, 0.1, node((9,))) for place, name in enumerate("abc")]
    tree = Tree(TASK, 0, node((1,), *tried))
    assert q_advantages(tree, AdvantageConfig()) == {}
    assert list(advantage_rows(tree, q_advantages(tree, AdvantageConfig()))) == []


@given(trees, st.integers(1, 3), st.integers(2, 3))
def test_advantages_weighted_by_visits_sum_to_zero(tree: Tree, min_visits: int, min_siblings: int) -> None:
    scored = q_advantages(tree, AdvantageConfig(min_visits, min_siblings))
    for here in tree.nodes():
        tried = [each for each in here.edges if each.visits >= min_visits]
        assert sum(each.visits * scored.get(id(each), 0.0) for each in tried) == pytest.approx(0.0, abs=1e-9)
        if len(tried) < min_siblings or len({round(each.value, 6) for each in tried}) == 1:
            assert not any(id(each) in scored for each in here.edges)


@given(criticised_trees, st.integers(1, 3))
def test_pairs_and_advantages_agree(tree: Tree, min_visits: int) -> None:
    advantages = {}
    scored = q_advantages(tree, AdvantageConfig(min_visits))
    for each in edges(tree):
        advantages[id(each.action)] = scored.get(id(each), 0.0)
    for pair in preference_pairs(tree, replace(ALL, min_visits=min_visits, min_margin=0.05)):
        assert advantages[id(pair.chosen)] - advantages[id(pair.rejected)] == pytest.approx(pair.margin)
    for pair in preference_pairs(tree, PairConfig(min_visits, min_margin=0.05)):
        assert advantages[id(pair.chosen)] > 0 > advantages[id(pair.rejected)]


def test_advantage_rows_by_hand() -> None:
    tree = hand_tree()
    scored = q_advantages(tree, AdvantageConfig())
    third, sixth = 1 / 3, -1 / 6
    expected = [
        ((10, 11, 20, 21, 30), "++--+", (0.25, 0.25, 0.0, 0.0, third), (-0.1, -0.11, 0.0, 0.0, -0.3)),
        ((10, 11, 20, 21, 31, 32), "----++", (0.0, 0.0, 0.0, 0.0, sixth, sixth), (0.0, 0.0, 0.0, 0.0, -0.31, -0.32)),
        ((12,), "+", (-0.25,), (-0.12,)),
        ((13,), "+", (-0.5,), (-0.13,)),
    ]
    rows = list(advantage_rows(tree, scored))
    assert len(rows) == len(expected)
    for row, (ids, mask, advantages, logprobs) in zip(rows, expected, strict=True):
        assert (row.task_id, row.prompt_ids, row.completion_ids) == ("hand-1", (1, 2), ids)
        assert "".join("+" if kept else "-" for kept in row.mask) == mask
        assert row.advantages == pytest.approx(advantages)
        assert row.logprobs == pytest.approx(logprobs)


def trained(row: AdvantageRow) -> list[int]:
    return [token for token, kept in zip(row.completion_ids, row.mask, strict=True) if kept]


@given(trees, st.integers(1, 2))
def test_every_scored_token_is_trained_once_and_no_observation_ever(tree: Tree, min_visits: int) -> None:
    scored = q_advantages(tree, AdvantageConfig(min_visits))
    rows = list(advantage_rows(tree, scored))
    expected = Counter(token for each in edges(tree) if id(each) in scored for token in each.action.token_ids)
    assert Counter(token for row in rows for token in trained(row)) == expected
    owners = {token: each for each in edges(tree) for token in each.action.token_ids}
    paths = [tree.prompt_ids(path) for path, _ in tree.walk()]
    for row in rows:
        assert trained(row)
        assert row.mask[-1]  # nothing is read in vain
        whole = row.prompt_ids + row.completion_ids
        assert any(path[: len(whole)] == whole for path in paths)
        columns = zip(row.completion_ids, row.mask, row.advantages, row.logprobs, strict=True)
        for token, kept, advantage, logprob in columns:
            assert advantage == (scored[id(owners[token])] if kept else 0.0)
            assert logprob == (-token / 100 if kept else 0.0)


def test_imitation_by_hand() -> None:
    [row] = imitation_rows(hand_tree(), TargetConfig())
    ids = (1, 2, 10, 11, 20, 21, 30, 40)
    mask = (False, False, True, True, False, False, True, False)
    assert row == TokenRow("hand-1", ids, mask, (1, 5, 7), (1.0, 1.0, 1.0))
    both = list(imitation_rows(hand_tree(), TargetConfig(min_return=0.0, paths_per_tree=2)))
    assert [each.token_ids for each in both] == [ids, (1, 2, 13, 23)]
    assert list(imitation_rows(hand_tree(), TargetConfig(min_return=1.1))) == []


def test_imitation_prefers_the_shorter_of_equal_paths() -> None:
    """A win of two steps, one of one step, another of one step; a limit of high value is no finished path."""
    slow = edge("slow", (2,), 1, 1.0, node((3,), edge("then", (4,), 1, 1.0, node((5,), end="terminated"), 1.0)))
    quick = edge("quick", (6,), 1, 1.0, node((7,), end="terminated"), 1.0)
    other = edge("other", (8,), 1, 1.0, node((9,), end="terminated"), 1.0)
    limit = edge("limit", (10,), 1, 2.0, node((11,), value=2.0, end="truncated"))
    tree = Tree(TASK, 0, node((1,), slow, quick, other, limit))
    best = list(imitation_rows(tree, TargetConfig(paths_per_tree=3)))
    assert [row.token_ids for row in best] == [(1, 6, 7), (1, 8, 9), (1, 2, 3, 4, 5)]


@given(trees, st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 3))
def test_imitated_paths_are_the_best_finished_ones(tree: Tree, least: float, count: int) -> None:
    rows = list(imitation_rows(tree, TargetConfig(min_return=least, paths_per_tree=count)))
    finished = [path for path, here in tree.walk() if path and here.terminated and path_return(path) >= least]
    assert len(rows) == min(count, len(finished))
    ranks = sorted((-path_return(path), len(path)) for path in finished)
    by_tokens = {tree.prompt_ids(path): (-path_return(path), len(path)) for path in finished}
    assert [by_tokens[row.token_ids] for row in rows] == ranks[: len(rows)]
    said = {token for each in edges(tree) for token in each.action.token_ids}
    for row in rows:
        assert {token for token, kept in zip(row.token_ids, row.mask, strict=True) if kept} == said & {*row.token_ids}
        assert set(row.value_targets) == {-by_tokens[row.token_ids][0]}


@pytest.mark.parametrize(("kind", "root", "a", "b"), [("mean", 3.5 / 7, 2 / 3, 0.5), ("best", 1.0, 1.0, 0.5)])
def test_value_targets_by_hand(kind: str, root: float, a: float, b: float) -> None:
    """The open state and the limit have nothing below: their own estimates teach nothing."""
    config = TargetConfig(value="mean" if kind == "mean" else "best")
    through_a, through_b, through_c = value_rows(hand_tree(), config)
    assert through_a.token_ids == (1, 2, 10, 11, 20, 21, 30, 40)
    assert through_a.value_positions == (1, 5, 7)
    assert through_a.value_targets == pytest.approx((root, a, 1.0))
    assert through_b.token_ids[: through_b.value_positions[0] + 1] == (1, 2, 12, 22)
    assert through_b.value_targets == pytest.approx((b,))
    assert (through_c.token_ids, through_c.value_positions, through_c.value_targets) == ((1, 2, 13, 23), (3,), (0.0,))
    assert not any(any(row.mask) for row in (through_a, through_b, through_c))


def test_best_returns_add_the_rewards_on_the_way() -> None:
    """Reward 0.25 on the way, then 0.5 at an end or V = 0.6 at a limit, or a withheld end judged 0.1."""
    ends = edge("x", (4,), 1, 0.5, node((5,), value=0.9, end="terminated"), 0.5)
    limit = edge("y", (6,), 1, 0.6, node((7,), value=0.6, end="truncated"))
    withheld = edge("z", (8,), 1, 0.1, node((9,), value=0.1, end="terminated"), None)
    tree = Tree(TASK, 0, node((1,), edge("a", (2,), 4, 1.0, node((3,), ends, limit, withheld), 0.25)))
    first = tree.root.edges[0].child
    assert first is not None
    assert state_return(tree.root, None, "best") == pytest.approx(0.85)
    assert state_return(first, tree.root.edges[0], "best") == pytest.approx(0.6)
    assert state_return(tree.root, None, "mean") == pytest.approx(0.25)
    assert state_return(first, tree.root.edges[0], "mean") == pytest.approx(0.4)
    told = [target for row in value_rows(tree, TargetConfig()) for target in row.value_targets]
    assert told == pytest.approx([0.85, 0.6, 0.5])  # nothing is known of the limit and of the withheld end


@given(trees, st.sampled_from(["mean", "best"]))
def test_every_known_state_is_told_once(tree: Tree, kind: str) -> None:
    config = TargetConfig(value="mean" if kind == "mean" else "best")
    rows = list(value_rows(tree, config))
    told = [
        (row.token_ids[place], target)
        for row in rows
        for place, target in zip(row.value_positions, row.value_targets, strict=True)
    ]
    expected = []
    for path, here in tree.walk():
        target = state_return(here, path[-1] if path else None, config.value)
        if target is not None:
            expected.append((tree.prompt_ids(path)[-1], target))
    assert sorted(told) == sorted(expected)
    assert all(row.value_targets for row in rows)


@given(trees)
def test_path_rows_spell_the_tree(tree: Tree) -> None:
    for path, _ in tree.walk():
        row = path_row(tree, path, [0.5] * (len(path) + 1))
        assert row.token_ids == tree.prompt_ids(path)
        assert row.value_positions == tuple(len(tree.prompt_ids(path[:depth])) - 1 for depth in range(len(path) + 1))
        assert sum(row.mask) == sum(len(each.action.token_ids) for each in path)
        assert not any(path_row(tree, path, imitate=False).mask)


def test_the_random_trees_have_what_the_properties_speak_of() -> None:
    made = [random_tree(random.Random(seed)) for seed in range(200)]
    for kind in ("terminated", "truncated"):
        assert sum(getattr(here, kind) for tree in made for here in tree.nodes()) > 50
    assert sum(len(list(preference_pairs(tree, ALL))) for tree in made) > 100
    assert sum(len(list(advantage_rows(tree, q_advantages(tree, AdvantageConfig())))) for tree in made) > 100
    assert sum(len(list(imitation_rows(tree, TargetConfig()))) for tree in made) > 20
    for tree in made:
        tokens = [*tree.root.context_ids]
        for each in edges(tree):
            tokens += [*each.action.token_ids, *(each.child.context_ids if each.child else ())]
        assert len(tokens) == len(set(tokens))
