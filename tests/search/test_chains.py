"""Whole episodes: chains of best-of-N share only the root, and chains of Tree-GRPO continue each other."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_search import HashValue, TablePolicy, Treasure, task
from written_world import said

from treeagent.contrib.methods.chains import EntropyExpand, RandomExpand
from treeagent.search.baselines import BestOfN, Chains
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Edge, Tree
from treeagent.types import Action, Dynamics, Policy, Proposal, State, Value

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(4)]


def best_of(
    count: int,
    dynamics: Dynamics,
    *,
    seed: int = 5,
    leaves: int = 1,
    value: Value | None = None,
    policy: Policy | None = None,
) -> Tree:
    config = SearchConfig(method="best_of_n", limits=Limits(simulations=count), leaves=leaves)
    return grown(BestOfN(policy or TablePolicy(WORDS), dynamics, config, value), seed)


def expanded(dynamics: Dynamics, *, chains: int, expansions: int, rounds: int, seed: int = 5, leaves: int = 1) -> Tree:
    """A tree with as many chains as Tree-GRPO's formula gives: M (L N + 1)."""
    config = SearchConfig(
        method="random_expand",
        limits=Limits(simulations=chains * (rounds * expansions + 1)),
        options={"initial": chains, "expansions": expansions},
        leaves=leaves,
    )
    return grown(RandomExpand(TablePolicy(WORDS), dynamics, config, HashValue()), seed)


def grown(search: Chains, seed: int) -> Tree:
    [tree] = asyncio.run(search.run(TASKS[:1], [seed]))
    return tree


def ends(tree: Tree) -> list[tuple[Edge, ...]]:
    return [path for path, node in tree.walk() if node.ended]


@pytest.mark.parametrize("leaves", [1, 4, 6])
def test_chains_share_the_root_only(leaves: int) -> None:
    value = HashValue()
    tree = best_of(6, Treasure(), leaves=leaves, value=value)
    assert len(tree.root.edges) == 6  # 6 draws from 4 words: equal draws stay separate
    assert len({edge.action.text for edge in tree.root.edges}) < 6
    assert [edge.prior for edge in tree.root.edges] == [1 / 6] * 6
    assert [len(path) for path in ends(tree)] == [4] * 6
    assert all(len(node.edges) == 1 for path, node in tree.walk() if path and not node.ended)
    for path in ends(tree):
        assert [(edge.visits, edge.value) for edge in path] == [(1, path[-1].reward)] * 4
        assert [edge.prior for edge in path[1:]] == [1.0] * 3
        assert path[-1].child is not None
        assert path[-1].child.value == HashValue.of(path[-1].child.state)
    assert value.calls == {1: [1] * 6, 4: [4, 2], 6: [6]}[leaves]
    budget = replace(tree.budget, seconds=0.0)
    assert (budget.simulations, budget.environment_steps, budget.proposals, budget.estimates) == (6, 24, 24, 6)
    assert budget.generated_tokens == 48


@pytest.mark.parametrize(("chains", "expansions", "rounds"), [(2, 2, 1), (1, 2, 1), (2, 6, 1), (1, 1, 3), (3, 2, 2)])
def test_random_expansion_grows_as_many_chains_as_tree_grpo(chains: int, expansions: int, rounds: int) -> None:
    tree = expanded(Treasure(), chains=chains, expansions=expansions, rounds=rounds)
    count = chains * (rounds * expansions + 1)
    assert tree.budget.simulations == len(ends(tree)) == tree.root.visits == count
    assert all(len(path) == 4 for path in ends(tree))
    # A chain that continues another pays only for its own steps.
    assert tree.budget.environment_steps == tree.budget.proposals == sum(1 for _ in tree.nodes()) - 1 < 4 * count


def test_a_chain_stays_with_the_one_that_it_continues() -> None:
    """Two rounds continue each first chain once, so at most three chains go through its first edge."""
    for seed in range(60):
        tree = expanded(Treasure(), chains=2, expansions=1, rounds=2, seed=seed)
        assert max(edge.visits for edge in tree.root.edges[:2]) <= 3
        assert tree.root.visits == 6


class Surprising:
    """Says a, w, x, y and z in turn. A table gives the surprise of the second token of each, in nats."""

    def __init__(self, **nats: float) -> None:
        self.nats = nats
        self.said = itertools.cycle("awxyz")

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((1,), (self._next(),)) for _ in states]

    def _next(self) -> Action:
        word = next(self.said)
        return Action(word, word, "", (1, 2), (-0.1, -self.nats[word]))


def test_the_most_surprising_actions_are_branched_from() -> None:
    """One chain, a w x y, and two branches per round. The first round branches from x (3 nats) and w (2): a w + z a and
    a + w x y. What remains are a and y of the chain, a of the first branch, and x and y of the second. The second round
    branches from that x (3) and the chain's y (1): a w + z a from the second w, and a w x + w."""
    config = SearchConfig(limits=Limits(simulations=5), options={"initial": 1, "expansions": 2})
    policy = Surprising(a=0.5, w=2.0, x=3.0, y=1.0, z=0.2)
    tree = grown(EntropyExpand(policy, Treasure(), config, HashValue()), 5)
    assert [said(path) for path in ends(tree)] == ["awxy", "awxw", "awza", "awxy", "awza"]
    [first] = tree.root.edges
    assert first.child is not None
    assert [edge.visits for edge in first.child.edges] == [3, 2]
