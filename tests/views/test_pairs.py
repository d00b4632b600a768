from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest
from hand_trees import TASK, edge, hand_tree, leaf_paths, node, random_group, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Edge, Tree, path_return, reaches
from treeagent.types import Task, UserError
from treeagent.views.pairs import Continuation, PairConfig, PreferencePair, preference_pairs

ALL = PairConfig(rule="all")
TRAJECTORY = PairConfig(rule="trajectory")
randoms = st.randoms(use_true_random=False)
trees = randoms.map(random_tree)


def names(tree: Tree, config: PairConfig) -> list[str]:
    return [f"{pair.chosen.text}>{pair.rejected.text}" for pair in preference_pairs(tree, config)]


def alone(each: Edge) -> Continuation:
    action = each.action
    return Continuation(action.text, action.token_ids, (True,) * len(action.token_ids), action.logprobs)


def test_pairs_by_hand() -> None:
    """ΔQ: A-C 3/4, A-B 1/2, B-C 1/4; below A: A1-A2 1/2."""
    tree = hand_tree()
    assert names(tree, ALL) == ["A>C", "A>B", "B>C", "A1>A2"]
    assert names(tree, PairConfig()) == ["A>C", "A1>A2"]
    assert names(tree, replace(ALL, min_margin=0.25)) == ["A>C", "A>B", "B>C", "A1>A2"]
    assert names(tree, replace(ALL, min_margin=0.26)) == ["A>C", "A>B", "A1>A2"]


@pytest.mark.parametrize("rule", ["best_vs_worst", "all", "trajectory"])
def test_a_margin_of_exactly_the_least_forms_a_pair(rule: Literal["best_vs_worst", "all", "trajectory"]) -> None:
    """1 - 0.8 and 0.6 - 0.4 are a little below 0.2 in floating point."""
    for high, low in ((1.0, 0.8), (0.6, 0.4), (0.4, 0.2)):
        better, worse = (
            edge(name, (token,), 1, reward, node((token + 10,), end="terminated"), reward)
            for name, token, reward in (("A", 10, high), ("B", 11, low))
        )
        tree = Tree(TASK, 0, node((0,), better, worse))
        assert names(tree, PairConfig(rule=rule, min_margin=0.2)) == ["A>B"]


def test_two_ways_to_make_one_call_form_no_pair() -> None:
    """Chains keep them as separate edges: A and B differ in their thoughts only."""
    tree = hand_tree()
    tree.root.edges = [replace(each, action=replace(each.action, call="go")) for each in tree.root.edges[:2]]
    assert names(tree, ALL) == ["A1>A2"]
    tree.root.edges[1].action = replace(tree.root.edges[1].action, call="stay")
    assert names(tree, ALL) == ["A>B", "A1>A2"]


def test_imagined_actions_that_were_not_replayed_are_never_chosen() -> None:
    """A was replayed, B and C were not. Only imagination says that B is worth more than C."""
    tree = hand_tree()
    for sibling in tree.root.edges[1:3]:
        assert sibling.child is not None
        sibling.child.origin = "imagined"
    assert names(tree, ALL) == ["A>C", "A>B", "A1>A2"]
    tree.root.origin = "imagined"  # nothing in the tree was replayed
    assert names(tree, ALL) == ["A>C", "A>B", "B>C", "A1>A2"]


def test_a_refused_call_is_never_chosen() -> None:
    """B was refused, so its Q of 1/4 is V alone. It may be rejected, but not chosen."""
    tree = hand_tree()
    refused = tree.root.edges[1].child
    assert refused is not None
    refused.invalid, refused.edges = True, []
    assert names(tree, ALL) == ["A>C", "A>B", "A1>A2"]
    tree.root.edges[1].value_sum = 2.0  # Q = 1, the highest
    assert names(tree, ALL) == ["A>C", "A1>A2"]
    assert names(tree, PairConfig()) == ["A>C", "A1>A2"]


def test_a_refused_call_on_the_better_path_carries_no_loss() -> None:
    """The first calls of both the winner and the loser were refused. Only the loser's may be made less likely."""
    win = edge("W", (4,), 1, 1.0, node((5,), end="terminated"), 1.0)
    lose = edge("L", (8,), 1, 0.0, node((9,), end="terminated"))
    tree = Tree(
        TASK, 0, node((1,), edge("a", (2,), 1, 1.0, node((3,), win)), edge("b", (6,), 1, 0.0, node((7,), lose)))
    )
    for each in tree.root.edges:
        assert each.child is not None
        each.child.invalid = True
    [pair] = preference_pairs(tree, TRAJECTORY)
    assert (pair.chosen.token_ids, pair.chosen.mask) == ((2, 3, 4), (False, False, True))
    assert (pair.rejected.token_ids, pair.rejected.mask) == ((6, 7, 8), (True, False, True))
    assert pair.chosen.logprob == pytest.approx(-0.04)


@given(trees, st.sampled_from([0.05, 0.2, 0.5]))
def test_best_vs_worst_is_the_widest_of_all_pairs(tree: Tree, min_margin: float) -> None:
    config = replace(ALL, min_margin=min_margin)
    every = list(preference_pairs(tree, config))
    extreme = list(preference_pairs(tree, replace(config, rule="best_vs_worst")))
    widest: dict[tuple[int, ...], float] = {}
    for pair in every:
        widest[pair.context_ids] = max(widest.get(pair.context_ids, 0.0), pair.margin)
    assert {pair.context_ids: pair.margin for pair in extreme} == widest and len(extreme) == len(widest)

    # Computed the slow way: every ordered pair of siblings.
    expected = Counter(
        (one.action.text, two.action.text, tree.prompt_ids(path))
        for path, here in tree.walk()
        for one in here.edges
        for two in here.edges
        if min(one.visits, two.visits) and reaches(one.value - two.value, min_margin)
    )
    assert Counter((pair.chosen.text, pair.rejected.text, pair.context_ids) for pair in every) == expected


def test_a_trajectory_pair_by_hand() -> None:
    """Ends: the win through A (1), the limit through B (1/2), the loss C (0). A2 is open."""
    tree = hand_tree()
    [pair] = preference_pairs(tree, TRAJECTORY)
    won = Continuation("A\nA1", (10, 11, 20, 21, 30), (True, True, False, False, True), (-0.1, -0.11, 0.0, 0.0, -0.3))
    assert pair == PreferencePair("hand-1", (1, 2), won, alone(tree.root.edges[2]), 1.0)
    assert pair.chosen.logprob == pytest.approx(-0.51)
    assert len(list(preference_pairs(tree, replace(TRAJECTORY, min_margin=1.0)))) == 1
    assert list(preference_pairs(tree, replace(TRAJECTORY, min_margin=1.01))) == []


def test_a_trajectory_pair_crosses_trees_of_a_task_and_of_one_prompt() -> None:
    def ends(prompt: int, *rewards: float) -> Tree:
        end = [
            edge(f"{prompt}-{reward}", (10 * prompt + place,), 1, reward, node((9,), end="terminated"), reward)
            for place, reward in enumerate(rewards)
        ]
        return Tree(Task("hand-1", "do it"), 0, node((prompt,), *end))

    high, low, other = ends(1, 0.9, 0.8), ends(1, 0.5, 0.4), ends(2, 0.7, 0.0)
    [pair] = preference_pairs([low, other, high], TRAJECTORY)
    assert (pair.chosen.text, pair.rejected.text, pair.context_ids) == ("1-0.9", "1-0.4", (1,))
    assert pair.margin == pytest.approx(0.5)
    assert low.root.edges[1].child is not None
    low.root.edges[1].child.origin = "imagined"
    assert [pair.origin for pair in preference_pairs([low, high], TRAJECTORY)] == ["imagined"]
    assert list(preference_pairs([high], TRAJECTORY)) == []  # they are only 0.1 apart
    assert list(preference_pairs([], TRAJECTORY)) == []


def test_transcripts_hold_no_log_probabilities_and_make_no_pair() -> None:
    """A good and a bad transcript of one task. DPO would take log μ of each as 0."""
    good, bad = (
        Tree(TASK, 0, node((1,), edge(f"a{number}", (number,), 1, reward, node((9,), end="terminated"), reward)))
        for number, reward in ((2, 1.0), (3, 0.0))
    )
    for tree in (good, bad):
        tree.root.edges[0].action = replace(tree.root.edges[0].action, logprobs=())
    with pytest.raises(UserError, match="imported"):
        list(preference_pairs([good, bad], TRAJECTORY))


@given(randoms.map(random_group))
def test_trajectory_pairs_hold_the_extreme_ends_and_train_no_observation(group: list[Tree]) -> None:
    ended = [path_return(path) for tree in group for path, here in tree.walk() if path and here.ended]
    pairs = list(preference_pairs(group, TRAJECTORY))
    assert len(pairs) == (bool(ended) and max(ended) - min(ended) >= TRAJECTORY.min_margin)
    paths = {tree.prompt_ids(path): path for tree in group for path in leaf_paths(tree)}
    for pair in pairs:
        assert pair.margin == max(ended) - min(ended)
        for side, total in ((pair.chosen, max(ended)), (pair.rejected, min(ended))):
            whole = pair.context_ids + side.token_ids
            followed = [path for ids, path in paths.items() if ids[: len(whole)] == whole]
            assert any(path_return(path) == total for path in followed)
            said = [token for each in followed[0] for token in each.action.token_ids]
            assert [token for token, kept in zip(side.token_ids, side.mask, strict=True) if kept] == said
            assert side.mask[-1]
            assert side.logprob == pytest.approx(-sum(said) / 100)
