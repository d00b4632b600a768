"""Pairs and advantages of the same trees agree: what pairs prefer, advantages must not punish."""

from itertools import compress
from typing import Any, Literal

import pytest
from hand_trees import chain_group, edges, leaf_paths, random_group, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Edge, Tree
from treeagent.views.advantages import (
    AdvantageConfig,
    advantages,
)
from treeagent.views.pairs import PairConfig, preference_pairs

ALL = PairConfig(rule="all", min_margin=0.05)
WIDEST = PairConfig(min_margin=0.05)
TRAJECTORY = PairConfig(rule="trajectory", min_margin=0.05)
randoms = st.randoms(use_true_random=False)


def by_tokens(trees: list[Tree], scored: dict[int, float]) -> dict[tuple[int, ...], float]:
    """Advantages by token ids, which identify the edges of a group."""
    return {each.action.token_ids: scored.get(id(each), 0.0) for tree in trees for each in edges(tree)}


@given(randoms.map(random_tree))
def test_search_values_differ_by_the_margin_of_a_pair(tree: Tree) -> None:
    scored = by_tokens([tree], advantages([tree], AdvantageConfig()))
    for pair in preference_pairs(tree, ALL):
        assert scored[pair.chosen.token_ids] - scored[pair.rejected.token_ids] == pytest.approx(pair.margin)


@given(
    randoms.map(chain_group),
    st.sampled_from(["grpo", "rloo", "tree_grpo", "gigpo", "gae"]),
    st.sampled_from(["std", "none"]),
)
def test_where_visits_count_trajectories_the_preferred_sibling_has_the_higher_advantage(
    group: list[Tree], kind: Literal["grpo", "rloo", "tree_grpo", "gigpo", "gae"], scale: Literal["std", "none"]
) -> None:
    """Here Q is the mean return of the leaves below, and each of these advantages grows with it among siblings. The
    sign may differ: below a good action both siblings may be better than the task's other trajectories."""
    options: dict[str, dict[str, Any]] = {"grpo": {"scale": scale}, "gae": {"lambda_": 1.0}}
    config = AdvantageConfig(kind, options.get(kind, {}))
    scored = by_tokens(group, advantages(group, config))
    for pair in preference_pairs(group, ALL):
        assert scored[pair.chosen.token_ids] > scored[pair.rejected.token_ids]


@given(randoms.map(chain_group))
def test_at_the_root_outcomes_raise_the_best_action_and_lower_the_worst(group: list[Tree]) -> None:
    for tree in group:
        for kind in ("grpo", "rloo", "tree_grpo", "gigpo", "treerl"):
            scored = by_tokens([tree], advantages([tree], AdvantageConfig(kind=kind)))
            for pair in preference_pairs(tree, WIDEST):
                if pair.context_ids == tree.root.context_ids:
                    assert scored[pair.chosen.token_ids] > 0 > scored[pair.rejected.token_ids]


@given(randoms.map(random_group), st.sampled_from(["grpo", "rloo"]))
def test_the_better_trajectory_of_a_pair_has_the_higher_outcome_advantage(
    group: list[Tree], kind: Literal["grpo", "rloo"]
) -> None:
    scored = by_tokens(group, advantages(group, AdvantageConfig(kind=kind)))
    last = {said(path): path[-1].action.token_ids for tree in group for path in leaf_paths(tree)}
    for pair in preference_pairs(group, TRAJECTORY):
        chosen, rejected = (last[tuple(compress(side.token_ids, side.mask))] for side in (pair.chosen, pair.rejected))
        assert scored[chosen] > scored[rejected]


def said(path: tuple[Edge, ...]) -> tuple[int, ...]:
    return tuple(token for each in path for token in each.action.token_ids)
