"""Properties of every grown tree, independence of the trees in a batch, and errors that stop a search."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import (
    AllPolicy,
    HashValue,
    Maze,
    Revisiting,
    RevisitingGumbel,
    TablePolicy,
    Treasure,
    begin,
    digest,
    grow,
    share,
    task,
)

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.searcher import make_search
from treeagent.types import Action, State, Task, Transition

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "wrong": 0.1}
TASKS = [task(f"task {number}") for number in range(8)]

configs = st.builds(
    SearchConfig,
    limits=st.builds(Limits, simulations=st.integers(1, 40)),
    candidates=st.integers(1, 5),
    method=st.sampled_from(["mcts", "gumbel"]),
    options=st.fixed_dictionaries({"c_init": st.floats(0, 4), "widening": st.sampled_from([0, 1, 2])}),
    discount=st.sampled_from([1.0, 0.9]),
    leaves=st.integers(1, 6),
)
"""Every combination of search settings."""
worlds = st.builds(Maze, end_share=st.floats(0, 0.6), limit_share=st.just(0.1))
seeds = st.integers(0, 2**63 - 1)


def tried(node: Node) -> list[tuple[str, Node]]:
    return [(edge.action.text, edge.child) for edge in node.edges if edge.child is not None]


def child(tree: Tree, *words: str) -> Node:
    node = tree.root
    for word in words:
        node = dict(tried(node))[word]
    return node


@given(configs, worlds, seeds, st.booleans())
def test_statistics_add_up(config: SearchConfig, world: Maze, seed: int, skips: bool) -> None:
    """The root's visits are the simulations. An edge's visits are those of its child's edges plus those that ended at
    it, and its W is the sum of their returns. Nothing stays in flight. If search skips exhausted subtrees, the revisits
    that it counts instead are added."""
    kind = make_search if skips else {"mcts": Revisiting, "gumbel": RevisitingGumbel}[config.method]
    [tree] = asyncio.run(kind(TablePolicy(WORDS), world, config, HashValue()).run([task()], [seed]))
    assert config.limits.simulations is not None
    assert tree.budget.simulations <= min(tree.root.visits, config.limits.simulations)
    assert tree.root.visits == tree.budget.simulations or skips
    assert tree.budget.simulations == config.limits.simulations or tree.root.exhausted
    nodes = list(tree.nodes())
    assert tree.budget.environment_steps == len(nodes) - 1
    assert tree.budget.estimates == len(nodes)
    assert tree.budget.proposals == sum(bool(node.edges) for node in nodes) or config.options["widening"]
    for path, node in tree.walk():
        priors = sum(edge.prior for edge in node.edges)
        widens = config.options["widening"] > 0
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


@given(configs, worlds, st.lists(seeds, min_size=8, max_size=8), st.integers(0, 7))
def test_a_tree_depends_on_its_seed_alone(config: SearchConfig, world: Maze, drawn: list[int], place: int) -> None:
    """It does not depend on the trees searched beside it, under any combination of settings."""
    batch = grow(TablePolicy(WORDS), world, config, HashValue(), TASKS, drawn)
    [alone] = grow(TablePolicy(WORDS), world, config, HashValue(), [TASKS[place]], [drawn[place]])
    assert digest(batch[place]) == digest(alone)


def test_one_call_serves_the_whole_batch() -> None:
    value = HashValue()
    grow(
        TablePolicy(WORDS),
        Maze(end_share=0.0, limit_share=0.0),
        SearchConfig(limits=Limits(simulations=5), options={"widening": 0}),
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


@pytest.mark.parametrize("seed", range(5))
def test_the_known_best_leaf_is_found(seed: int) -> None:
    """340 nodes, 64 simulations, and a value function that counts the right steps, with noise."""

    class Hint(HashValue):
        @staticmethod
        def of(state: State) -> float:
            steps = [message.content for message in state.messages if message.role == "assistant"]
            on_path = sum(step == best for step, best in zip(steps, Treasure().path, strict=False))
            return 0.2 * on_path + 0.15 * share("noise", str(seed), *steps)

    config = SearchConfig(limits=Limits(simulations=64), options={"c_init": 0.5})
    [tree] = grow(AllPolicy("a", "b", "c", "d"), Treasure(), config, Hint())
    assert child(tree, *Treasure().path).terminated
    assert max(tree.root.edges, key=lambda edge: edge.visits).action.call == "c"


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_an_error_of_its_tree(reward: float) -> None:
    class Broken(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            return (await super().step(state, action))._replace(reward=reward)

    [tree] = grow(AllPolicy("a", "b"), Broken(), SearchConfig(), HashValue())
    assert f"reward {reward}" in tree.error
    assert tree.root.visits == 0
    assert tree.budget.environment_steps == 1
