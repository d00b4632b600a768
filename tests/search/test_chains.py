"""Whole episodes: chains of best-of-N share only the root, and chains of Tree-GRPO continue each other."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_search import ConstantValue, HashValue, Maze, TablePolicy, Treasure, calls, task
from written_world import InOrder, Written, said

from treeagent.contrib.methods.chains import EntropyExpand, RandomExpand
from treeagent.search.baselines import BestOfN, Chains
from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.limits import Limits
from treeagent.search.node import Edge, Tree, path_return
from treeagent.types import Action, Dynamics, Policy, Proposal, State, Transition, Value

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


def test_the_best_of_n_is_the_chain_of_highest_return() -> None:
    tree = best_of(8, Treasure())
    returns = [path_return(path) for path in ends(tree)]
    assert len(set(returns)) > 1
    assert path_return(best_path(tree)) == max(returns)


def test_where_rewards_are_withheld_the_value_tells_chains_apart() -> None:
    tree = best_of(8, Maze(withheld=True), value=HashValue())
    values = [node.value for _, node in tree.walk() if node.ended]
    assert len(set(values)) > 1
    assert path_return(best_path(tree)) == max(values)


def test_a_truncated_chain_is_worth_what_it_was_paid() -> None:
    tree = best_of(1, Maze(end_share=0.0, limit_share=1.0), value=ConstantValue(0.25), policy=InOrder("a"))
    [edge] = tree.root.edges
    assert edge.child is not None and edge.child.truncated
    assert (edge.value, edge.reward) == (0.0, 0.0)


class Slippery(Treasure):
    """A treasure world that raises at the second step of a path that begins with a."""

    async def step(self, state: State, action: Action) -> Transition:
        if len(state.messages) == 3 and state.messages[1].content == "a":
            raise OSError("the door is stuck")
        return await super().step(state, action)


def test_a_broken_chain_leaves_those_beside_it_whole() -> None:
    tree = best_of(6, Slippery(), leaves=6, value=HashValue())
    broken = [edge for edge in tree.root.edges if edge.action.text == "a"]
    assert broken and tree.error == "OSError: the door is stuck"
    for edge in tree.root.edges:
        assert (edge.visits, edge.value_sum > 0) == ((0, False) if edge in broken else (1, True))
    assert tree.budget.simulations == 6 - len(broken)
    assert tree.budget.environment_steps == 4 * (6 - len(broken)) + len(broken)
    assert all(edge not in best_path(tree) for edge in broken)


def test_a_state_that_cannot_be_read_ends_its_chain() -> None:
    class Short(InOrder):
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            drawn = await super().propose(states, count, seeds)
            return [
                Proposal((), (), "too long") if len(state.messages) == 5 else proposal
                for state, proposal in zip(states, drawn, strict=True)
            ]

    tree = best_of(2, Written({"aa": 0.75}), value=Written({"aa": 0.75}), policy=Short("a"))
    assert not tree.error
    assert [(said(path), node.truncated) for path, node in tree.walk() if len(path) == 2] == [("aa", True)] * 2
    assert [edge.value for edge in tree.root.edges] == [0.0, 0.0]
    assert (tree.budget.environment_steps, tree.budget.proposals, tree.budget.generated_tokens) == (4, 6, 4)


@pytest.mark.parametrize(("chains", "expansions", "rounds"), [(2, 2, 1), (1, 2, 1), (2, 6, 1), (1, 1, 3), (3, 2, 2)])
def test_random_expansion_grows_as_many_chains_as_tree_grpo(chains: int, expansions: int, rounds: int) -> None:
    tree = expanded(Treasure(), chains=chains, expansions=expansions, rounds=rounds)
    count = chains * (rounds * expansions + 1)
    assert tree.budget.simulations == len(ends(tree)) == tree.root.visits == count
    assert all(len(path) == 4 for path in ends(tree))
    # A chain that continues another pays only for its own steps.
    assert tree.budget.environment_steps == tree.budget.proposals == sum(1 for _ in tree.nodes()) - 1 < 4 * count


def test_random_expansion_by_hand() -> None:
    """The visits of an edge count the chains that end below it, and its value sums their returns."""
    tree = expanded(Treasure(), chains=2, expansions=2, rounds=2)
    for path, _ in tree.walk():
        if path:
            below = [chain for chain in ends(tree) if chain[: len(path)] == path]
            assert path[-1].visits == len(below)
            assert path[-1].value_sum == pytest.approx(sum(chain[-1].reward or 0.0 for chain in below))
    for node in tree.nodes():
        assert all(edge.prior == 1 / len(node.edges) for edge in node.edges)


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


def test_each_group_may_branch_from_the_root() -> None:
    """Two chains, a w x y and z a w x, and one branch of each. The first group's most surprising action is its first
    (3 nats), so its branch y z a w starts at the root. In the second group it is the second action."""
    config = SearchConfig(limits=Limits(simulations=4), options={"initial": 2, "expansions": 1})
    policy = Surprising(a=3.0, w=2.0, x=1.0, y=0.5, z=0.2)
    tree = grown(EntropyExpand(policy, Treasure(), config, HashValue()), 5)
    assert [said(path) for path in ends(tree)] == ["awxy", "zawx", "zxyz", "yzaw"]
    assert [edge.group for edge in tree.root.edges] == [0, 1, 0]


class Refusing:
    """A policy whose requests fail at every node where an action was sampled before, except at the root."""

    def __init__(self) -> None:
        self.asked = Counter[int]()
        """How often it was asked at each node but the root, by the ``id`` of the state, which the tree keeps."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        assert self.asked.total() < 200, "the search asks for ever"
        [state] = states
        if calls(state):
            self.asked[id(state)] += 1
        if self.asked[id(state)] > 1:
            return [Proposal(error="down", failed=True)]
        return await TablePolicy(WORDS).propose(states, count, seeds)


@pytest.mark.parametrize("kind", [RandomExpand, EntropyExpand])
def test_a_state_whose_request_failed_is_not_continued_again(kind: type[RandomExpand]) -> None:
    """Each of the three states between the root and the first chain's end fails at most once. Every other chain starts
    at the root."""
    policy = Refusing()
    config = SearchConfig(Limits(simulations=8), options={"initial": 1, "expansions": 1})
    [tree] = asyncio.run(kind(policy, Treasure(), config, HashValue()).run(TASKS[:1], [5]))
    assert max(policy.asked.values()) == 2
    assert (tree.error, tree.budget.simulations, len(tree.root.edges)) == ("", 8, 8)
