"""The search's policy over the candidates of a state: targets by hand, and which candidates and states have none."""

import math
import random
from dataclasses import replace

import pytest
from hand_trees import edges, hand_tree, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Node, Tree
from treeagent.views.policy import PolicyRow, PolicyTargetConfig, policy_rows

VISITS = PolicyTargetConfig(kind="visits")
IMPROVED = PolicyTargetConfig(kind="improved")
FOUND = PolicyTargetConfig(kind="found")
WEIGHTED = PolicyTargetConfig(kind="weighted")


def rows(tree: Tree, config: PolicyTargetConfig = VISITS) -> list[PolicyRow]:
    return list(policy_rows(tree, config))


def targets(row: PolicyRow) -> list[float]:
    return [each.target for each in row.candidates]


def test_visits_by_hand() -> None:
    """At the root A, B and C have 4, 2 and 1 visits and D none. After A, A1 has 1 and A2 has 2. B leads to no good
    end."""
    root, behind = rows(hand_tree())
    assert (root.task_id, root.prompt_ids, root.origin) == ("hand-1", (1, 2), "real")
    assert [each.token_ids for each in root.candidates] == [(10, 11), (12,), (13,), (14,)]
    assert [each.logprobs for each in root.candidates] == [(-0.1, -0.11), (-0.12,), (-0.13,), (-0.14,)]
    assert targets(root) == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0])
    assert behind.prompt_ids == (1, 2, 10, 11, 20, 21)
    assert targets(behind) == pytest.approx([1 / 3, 2 / 3])


def test_the_improved_policy_by_hand() -> None:
    """Priors are equal. Q is 3/4, 1/4 and 0; D gets v_mix = (1/2 + 7 * 1/3) / 8 = 17/48. Rescaled to [0, 1] they are 1,
    1/3, 0 and 17/36, times (50 + 4) / 10. After A, Q is 1 and 1/2: 1 and 0 times (50 + 2) / 10."""
    root, behind = rows(hand_tree(), IMPROVED)
    weights = [math.exp(5.4 * q) for q in (1, 1 / 3, 0, 17 / 36)]
    assert targets(root) == pytest.approx([weight / sum(weights) for weight in weights])
    assert targets(behind) == pytest.approx([1 / (1 + math.exp(-5.2)), 1 / (1 + math.exp(5.2))])


def test_what_was_found_by_hand() -> None:
    """Below A a success was found, below C only a failure, below B and A2 no end; D was not tried."""
    root, behind = rows(hand_tree(), FOUND)
    assert (targets(root), targets(behind)) == ([1, 0, 0, 0], [1, 0])
    tree = hand_tree()
    b, c = tree.root.edges[1:3]
    c.reward, b.prior = 1.0, 0.5
    assert b.child is not None
    b.child.invalid = True
    root, _ = rows(tree, FOUND)  # A and C are good and have equal priors; the call of B is refused
    assert targets(root) == pytest.approx([1 / 2, 0, 1 / 2, 0])


def test_values_weight_the_tried_actions_by_hand() -> None:
    """Q of A, B and C is 3/4, 1/4 and 0, and D was not tried; after A, Q is 1 and 1/2."""
    root, behind = rows(hand_tree(), WEIGHTED)
    weights = [1, math.exp(-5), math.exp(-7.5), 0]
    assert targets(root) == pytest.approx([weight / sum(weights) for weight in weights])
    assert targets(behind) == pytest.approx([1 / (1 + math.exp(-5)), 1 / (1 + math.exp(5))])


@pytest.mark.parametrize("config", [VISITS, IMPROVED])
def test_malformed_and_refused_calls_are_not_learned(config: PolicyTargetConfig) -> None:
    tree = hand_tree()
    a, b, *_ = tree.root.edges
    before = targets(rows(tree, config)[0])
    assert a.child is not None
    a.child.invalid = True
    b.action = replace(b.action, error="no call")
    after = targets(rows(tree, config)[0])
    assert after[:2] == [0, 0]
    assert after[2:] == pytest.approx([share / sum(before[2:]) for share in before[2:]])


def test_only_replayed_successes_are_learned_in_an_imagined_tree() -> None:
    """The root is real, so the imagined state after A was not replayed."""
    tree = hand_tree()
    a = tree.root.edges[0]
    assert a.child is not None
    a.child.origin = "imagined"
    root, _ = rows(tree)
    assert targets(root) == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert root.origin == "imagined"


@given(st.randoms(use_true_random=False), st.sampled_from([VISITS, IMPROVED, FOUND, WEIGHTED]))
def test_targets_are_distributions_at_every_state_from_which_a_success_was_found(
    shuffler: random.Random, config: PolicyTargetConfig
) -> None:
    tree = random_tree(shuffler)
    found = rows(tree, config)

    def succeeds(here: Node) -> bool:
        below = [(each, each.child) for each in here.edges if each.child is not None]
        return any((each.reward == 1 and child.terminated) or succeeds(child) for each, child in below)

    chosen = [here for here in tree.nodes() if succeeds(here)]
    assert len(found) == len(chosen)
    for row, here in zip(found, chosen, strict=True):
        assert sum(targets(row)) == pytest.approx(1)
        assert all(0 <= target <= 1 for target in targets(row))
        assert [each.token_ids for each in row.candidates] == [each.action.token_ids for each in here.edges]
    assert len({each.action.token_ids for each in edges(tree)}) == len(edges(tree))
