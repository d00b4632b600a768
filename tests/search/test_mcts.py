"""Properties of every grown tree, independence of the trees in a batch, and errors that stop a search."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tangle import WORDS as TANGLED
from tangle import PlaceValue, Tangle, configs, search, seeds, worlds
from toy_search import (
    AllPolicy,
    ConstantValue,
    Corridor,
    HashValue,
    Maze,
    Revisiting,
    RevisitingGumbel,
    TablePolicy,
    Treasure,
    act,
    begin,
    digest,
    grow,
    share,
    task,
)

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Proposal, State, Task, Transition

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(8)]


def tried(node: Node) -> list[tuple[str, Node]]:
    return [(edge.action.text, edge.child) for edge in node.edges if edge.child is not None]


def child(tree: Tree, *words: str) -> Node:
    node = tree.root
    for word in words:
        node = dict(tried(node))[word]
    return node


@given(configs, worlds, seeds, st.booleans())
def test_statistics_add_up(config: SearchConfig, world: Tangle, seed: int, skips: bool) -> None:
    """The root's visits are the simulations. An edge's visits are those of its child's edges plus those that ended at
    it, and its W is the sum of their returns. Nothing stays in flight. If search skips exhausted subtrees, the revisits
    that it counts instead are added."""
    kind = make_search if skips else {"mcts": Revisiting, "gumbel": RevisitingGumbel}[config.method]
    [tree] = asyncio.run(kind(TablePolicy(TANGLED), world, config, PlaceValue()).run([task()], [seed]))
    assert config.limits.simulations is not None
    assert tree.budget.simulations <= min(tree.root.visits, config.limits.simulations)
    assert tree.root.visits == tree.budget.simulations or skips
    assert tree.budget.simulations == config.limits.simulations or tree.root.exhausted
    nodes = list(tree.nodes())
    assert tree.budget.environment_steps == len(nodes) - 1
    assert tree.budget.estimates == len(nodes)
    assert tree.budget.proposals == sum(bool(node.edges) for node in nodes) or config.widening
    for path, node in tree.walk():
        priors = sum(edge.prior for edge in node.edges)
        widens = config.widening > 0
        assert priors <= 1 + 1e-9 if widens else priors == pytest.approx(1.0 if node.edges else 0.0)
        assert all((edge.visits > 0) == (edge.child is not None) for edge in node.edges)
        assert all(edge.in_flight == 0 for edge in node.edges)
        closed = node.ended or node.invalid
        assert not (closed and node.edges)
        if not path or skips:
            continue
        # The first visit evaluates the node, and every later one goes on to a child. An end can only be visited again.
        arrivals, leaf_visits = path[-1].visits, path[-1].visits - node.visits
        assert leaf_visits == 1 or (closed and leaf_visits == arrivals)
        assert path[-1].value_sum == pytest.approx(returns(path[-1], leaf_visits, config.discount), abs=1e-9)


def returns(edge: Edge, leaf_visits: int, discount: float) -> float:
    """Σ G of the visits to an edge."""
    assert edge.child is not None
    below = [returns(lower, lower.visits - lower.child.visits, discount) for lower in edge.child.edges if lower.child]
    passed = (edge.visits - leaf_visits) * (edge.reward or 0.0) + discount * sum(below)
    return leaf_visits * edge.leaf_return(discount) + passed


@given(configs, worlds, seeds)
def test_values_are_within_the_range_of_returns(config: SearchConfig, world: Tangle, seed: int) -> None:
    """Outcomes and estimates are in [0, 1)."""
    [tree] = search(config, world, [task()], [seed])
    assert all(0.0 <= edge.value <= 1.0 for node in tree.nodes() for edge in node.edges)


@given(configs, worlds, seeds)
def test_every_node_has_its_own_value_and_context(config: SearchConfig, world: Tangle, seed: int) -> None:
    """Also if siblings or neighbours in the batch have ended, failed, or were evaluated before."""
    trees = search(config, world, TASKS[:3], [seed, seed + 1, seed])
    for tree in trees:
        for node in tree.nodes():
            assert node.value == PlaceValue.of(node.state)
            assert node.context_ids == (len(node.state.messages), 7)
            assert node.state.task is tree.task


@given(configs, worlds, st.lists(seeds, min_size=8, max_size=8), st.integers(0, 7))
def test_a_tree_depends_on_its_seed_alone(config: SearchConfig, world: Tangle, drawn: list[int], place: int) -> None:
    """It does not depend on the trees searched beside it, under any combination of settings."""
    batch = search(config, world, TASKS, drawn)
    [alone] = search(config, world, [TASKS[place]], [drawn[place]])
    assert digest(batch[place]) == digest(alone)


def test_one_call_serves_the_whole_batch() -> None:
    value = HashValue()
    grow(
        TablePolicy(WORDS),
        Maze(end_share=0.0, limit_share=0.0),
        SearchConfig(limits=Limits(simulations=5), widening=0),
        value,
        TASKS,
    )
    assert value.calls == [8] * 6  # the roots, then one new leaf per tree and simulation


class Lever:
    """Two levers, pulled twice. Every path ends, so the tree has six nodes below the root."""

    async def reset(self, task: Task) -> State:
        return begin(task, "start")

    async def step(self, state: State, action: Action) -> Transition:
        return await Treasure(("a", "b")).step(state, action)


def test_an_exhausted_tree_stops_early() -> None:
    [tree] = grow(AllPolicy("a", "b"), Lever(), SearchConfig(limits=Limits(simulations=50)))
    assert tree.root.exhausted
    assert tree.budget.simulations == 6
    assert len(list(tree.nodes())) == 7
    search = Revisiting(AllPolicy("a", "b"), Lever(), SearchConfig(limits=Limits(simulations=50)))
    [again] = asyncio.run(search.run([task()], [0]))
    assert again.budget.simulations == 50
    assert len(list(again.nodes())) == 7


def test_an_exhausted_subtree_is_left_alone() -> None:
    """One branch ends at once and looks best, so the other gets what is left. Each simulation there also counts as a
    revisit of the first branch."""

    class Trap:
        async def reset(self, task: Task) -> State:
            return begin(task, "start")

        async def step(self, state: State, action: Action) -> Transition:
            transition = await Maze(end_share=0.0, limit_share=0.0).step(state, action)
            ends = len(state.messages) == 1 and action.call == "a"
            return replace(transition, terminated=ends, reward=float(ends))

    [tree] = grow(AllPolicy("a", "b"), Trap(), SearchConfig(limits=Limits(simulations=20)))
    assert [edge.visits for edge in tree.root.edges][1:] == [19]
    assert tree.root.edges[0].visits > 15
    assert len(list(tree.root.edges[0].child.edges)) == 0  # type: ignore[union-attr]
    assert [edge.exhausted for edge in tree.root.edges] == [True, False]


@pytest.mark.parametrize("seed", range(5))
def test_the_known_best_leaf_is_found(seed: int) -> None:
    """340 nodes, 64 simulations, and a value function that counts the right steps, with noise."""

    class Hint(HashValue):
        @staticmethod
        def of(state: State) -> float:
            steps = [message.content for message in state.messages if message.role == "assistant"]
            on_path = sum(step == best for step, best in zip(steps, Treasure().path, strict=False))
            return 0.2 * on_path + 0.15 * share("noise", str(seed), *steps)

    config = SearchConfig(limits=Limits(simulations=64), c_init=0.5)
    [tree] = grow(AllPolicy("a", "b", "c", "d"), Treasure(), config, Hint())
    assert child(tree, *Treasure().path).terminated
    assert max(tree.root.edges, key=lambda edge: edge.visits).action.call == "c"


@pytest.mark.parametrize(("bootstrap", "expected"), [(False, [(1, 0.25), (1, 0.25)]), (True, [(2, 0.75), (1, 0.25)])])
def test_nothing_follows_an_end_and_a_truncated_leaf_keeps_its_estimate_on_demand(
    bootstrap: bool, expected: list[tuple[int, float]]
) -> None:
    """If the limit is not the task's own, the other edge is revisited instead once it is worth more."""

    class Fork(Lever):
        async def step(self, state: State, action: Action) -> Transition:
            transition = await super().step(state, action)
            return replace(transition, reward=0.25, terminated=action.call == "a", truncated=action.call == "b")

    config = SearchConfig(limits=Limits(simulations=8), bootstrap=bootstrap)
    [tree] = grow(AllPolicy("b", "a"), Fork(), config, ConstantValue(0.5))
    assert [(edge.visits, edge.value) for edge in tree.root.edges] == expected
    assert tree.root.exhausted


def test_withheld_rewards_are_replaced_by_the_value() -> None:
    [tree] = grow(AllPolicy("a", "b"), Maze(end_share=1.0, withheld=True), SearchConfig(), HashValue())
    for edge in tree.root.edges:
        assert edge.reward is None
        assert edge.child is not None and edge.child.terminated
        assert edge.value == edge.child.value == HashValue.of(edge.child.state)


def test_without_a_value_only_rewards_count() -> None:
    [tree] = grow(AllPolicy("a", "b"), Lever(), SearchConfig(limits=Limits(simulations=6)))
    assert all(node.value == 0.0 for node in tree.nodes())
    assert max(edge.value for _, node in tried(tree.root) for edge in node.edges) == 1.0
    assert tree.budget.estimates == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"task toy was estimated as {value}"):
        grow(AllPolicy("a"), Corridor(), SearchConfig(), ConstantValue(value))


def test_a_log_probability_that_is_no_number_is_refused() -> None:
    class Broken(AllPolicy):
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            return [Proposal((1,), (act("a", math.nan),)) for _ in states]

    with pytest.raises(ValueError, match="log-probability nan of action 'a'"):
        grow(Broken(), Corridor(), SearchConfig())


def test_tokens_without_log_probabilities_are_refused() -> None:
    class Broken(AllPolicy):
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            return [Proposal((1,), (Action("a", "a", "", (1, 2), (-0.5,)),)) for _ in states]

    with pytest.raises(ValueError, match="action 'a' has 2 tokens and 1 log-probabilities"):
        grow(Broken(), Corridor(), SearchConfig())


class Nearsighted(TablePolicy):
    """A policy that cannot read a state of more than three messages."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        drawn = await super().propose(states, count, seeds)
        return [
            Proposal((), (), "the prompt is too long") if len(state.messages) > 3 else proposal
            for state, proposal in zip(states, drawn, strict=True)
        ]


def test_a_state_that_the_policy_cannot_read_is_a_limit() -> None:
    """Nothing follows it, and the search goes on elsewhere. The first visit comes before the policy reads it, and
    returns V(s). Later visits return the rewards, which are 0."""
    config = SearchConfig(limits=Limits(simulations=60), widening=0)
    [tree] = grow(Nearsighted(WORDS), Maze(0.0, 0.0), config, HashValue())
    unread = [(path, node) for path, node in tree.walk() if node.truncated]
    assert unread and not tree.error
    for path, node in unread:
        assert len(node.state.messages) == 5 and not node.edges
        assert path[-1].value_sum == pytest.approx(HashValue.of(node.state))
    assert tree.root.exhausted


def test_an_empty_proposal_is_refused() -> None:
    with pytest.raises(ValueError, match="proposed no action"):
        grow(AllPolicy(), Corridor(), SearchConfig())


def test_a_reset_that_takes_too_long_is_an_error_of_its_tree() -> None:
    class Stuck(Maze):
        async def reset(self, task: Task) -> State:
            await asyncio.sleep(60.0)
            return await super().reset(task)

    [tree] = grow(TablePolicy(WORDS), Stuck(), SearchConfig(step_seconds=0.05), HashValue())
    assert (tree.error, tree.budget.simulations) == ("TimeoutError", 0)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_an_error_of_its_tree(reward: float) -> None:
    class Broken(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            return replace(await super().step(state, action), reward=reward)

    [tree] = grow(AllPolicy("a", "b"), Broken(), SearchConfig(), HashValue())
    assert f"reward {reward}" in tree.error
    assert tree.root.visits == 0
    assert tree.budget.environment_steps == 1
