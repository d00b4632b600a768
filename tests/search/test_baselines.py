"""Properties of every search method: statistics add up, limits are kept, and trees are independent of each other."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import AllPolicy, HashValue, Maze, TablePolicy, Treasure, digest, plain, task
from written_world import InOrder, Written

from treeagent.seams import names
from treeagent.search.config import METHODS as CORE
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.searcher import make_search
from treeagent.types import Action, Dynamics, Policy, Proposal, State, Task, Transition, Value
from treeagent.views.pairs import PairConfig, preference_pairs

METHODS = tuple(name for name in names("search.method", CORE) if name not in ("critic", "rollouts"))
BASELINES = tuple(method for method in METHODS if method not in ("mcts", "gumbel"))
CHAINS = ("best_of_n", "random_expand", "entropy_expand")
WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(6)]

OPTIONS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "beam": {"width": st.integers(1, 3)},
    "random_expand": {"initial": st.integers(1, 3), "expansions": st.integers(1, 3)},
    "entropy_expand": {"initial": st.integers(1, 3), "expansions": st.integers(1, 3)},
    "lookahead": {"depth": st.integers(1, 3)},
    "ab_mcts": {},
    "rebase": {"width": st.integers(1, 8), "temperature": st.sampled_from([0.01, 0.2, 5.0])},
}


def of_method(method: str) -> st.SearchStrategy[SearchConfig]:
    return st.builds(
        SearchConfig,
        method=st.just(method),
        options=st.fixed_dictionaries(OPTIONS.get(method, {})),
        limits=st.builds(Limits, simulations=st.integers(1, 24)),
        candidates=st.integers(1, 4),
        discount=st.sampled_from([1.0, 0.9]),
        leaves=st.integers(1, 4),
    )


configs = st.sampled_from(BASELINES).flatmap(of_method)
mazes = st.builds(Maze, end_share=st.floats(0.1, 0.6), limit_share=st.floats(0.1, 0.4), withheld=st.booleans())
seeds = st.integers(0, 2**63 - 1)


def searched(
    config: SearchConfig,
    policy: Policy,
    dynamics: Dynamics,
    value: Value | None = None,
    tasks: Sequence[Task] = TASKS[:1],
    seeds: Sequence[int] | None = None,
) -> list[Tree]:
    search = make_search(policy, dynamics, config, value)
    return asyncio.run(search.run(tasks, range(len(tasks)) if seeds is None else seeds))


def limited(method: str, simulations: int = 12, candidates: int = 4) -> SearchConfig:
    limits = Limits(simulations=simulations)
    options = {"widening": 0} if method in ("mcts", "gumbel") else {}
    return SearchConfig(method=method, limits=limits, candidates=candidates, options=options)


def visited(node: Node) -> list[Edge]:
    return [edge for edge in node.edges if edge.visits]


@given(configs, mazes, seeds)
def test_statistics_add_up(config: SearchConfig, maze: Maze, seed: int) -> None:
    """N counts the simulations through an edge; W sums their returns, each closed at its last state."""
    [tree] = searched(config, TablePolicy(WORDS), maze, HashValue(), seeds=[seed])
    assert config.limits.simulations is not None
    assert not tree.error
    assert tree.root.visits == tree.budget.simulations <= config.limits.simulations
    assert tree.discount == config.discount
    for path, node in tree.walk():
        priors = sum(edge.prior for edge in node.edges)  # AB-MCTS reserves a share for calls not sampled yet
        assert priors == pytest.approx(1.0 if node.edges else 0.0) or (config.method == "ab_mcts" and 0 < priors < 1)
        assert not (node.ended and node.edges)
        assert all(edge.child is not None for edge in visited(node))
        if not path:
            continue
        edge, below = path[-1], sum(lower.value_sum for lower in node.edges)
        ended_here = edge.visits - node.visits
        assert ended_here >= 0
        reward = node.visits * (edge.reward or 0.0)
        expected = ended_here * edge.leaf_return(config.discount) + reward + config.discount * below
        assert edge.value_sum == pytest.approx(expected)


@given(configs, mazes, seeds)
def test_the_budget_tells_what_was_spent(config: SearchConfig, maze: Maze, seed: int) -> None:
    value = HashValue()
    [tree] = searched(config, TablePolicy(WORDS), maze, value, seeds=[seed])
    nodes, spent = list(tree.nodes()), tree.budget
    assert spent.environment_steps == len(nodes) - 1
    assert spent.estimates == sum(value.calls)
    assert spent.seconds > 0
    if config.method in CHAINS:
        assert spent.proposals == spent.environment_steps
        assert spent.estimates == spent.simulations == sum(not node.edges for node in nodes)
    else:
        assert spent.estimates == len(nodes) - 1
        assert all(node.value == HashValue.of(node.state) for node in nodes[1:])
    assert all(node.context_ids == (len(node.state.messages), 7) for node in nodes[1:])


@given(configs, mazes, st.lists(seeds, min_size=6, max_size=6), st.integers(0, 5))
def test_a_tree_depends_on_its_seed_alone(config: SearchConfig, maze: Maze, drawn: list[int], place: int) -> None:
    together = searched(config, TablePolicy(WORDS), maze, HashValue(), TASKS, drawn)
    [alone] = searched(config, TablePolicy(WORDS), maze, HashValue(), TASKS[place : place + 1], [drawn[place]])
    assert digest(together[place]) == digest(alone)


@pytest.mark.parametrize("method", [each for each in METHODS if not each.endswith("_expand") and each != "ab_mcts"])
def test_one_call_of_each_kind_serves_every_tree_of_a_batch(method: str) -> None:
    """If all episodes have the same length, the trees stay in step, and every call serves all of them. Methods that
    draw by the tree's seed where to continue are excluded."""

    class Counting(AllPolicy):
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            assert len(states) % 6 == 0 and len({state.task.id for state in states}) == 6
            return await super().propose(states, count, seeds)

    value = HashValue()
    trees = searched(limited(method), Counting("a", "b"), Treasure(), value, TASKS)
    assert all(tree.budget.simulations for tree in trees)
    assert all(count % 6 == 0 for count in value.calls)


@pytest.mark.parametrize("method", METHODS)
def test_a_failing_step_costs_its_own_tree_only(method: str) -> None:
    class Fragile(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            if state.task.id == "task 1" and len(state.messages) > 1:
                raise RuntimeError("the page did not load")
            return await super().step(state, action)

    config = limited(method)
    broken = searched(config, TablePolicy(WORDS), Fragile(0.1, 0.1), HashValue(), TASKS[:3])
    whole = searched(config, TablePolicy(WORDS), Maze(0.1, 0.1), HashValue(), TASKS[:3])
    assert [bool(tree.error) for tree in broken] == [False, True, False]
    assert [digest(broken[place]) == digest(whole[place]) for place in range(3)] == [True, False, True]
    failed = broken[1]
    assert failed.root.visits == failed.budget.simulations < 12
    assert all(edge.visits == 0 for node in failed.nodes() for edge in node.edges if edge.child is None)
    assert plain(failed)["error"].startswith("RuntimeError: the page did not load (test_baselines.py, line ")


@pytest.mark.parametrize("method", METHODS)
def test_an_environment_that_fails_to_reset_costs_its_own_tree_only(method: str) -> None:
    class Fragile(Maze):
        async def reset(self, task: Task) -> State:
            if task.id == "task 0":
                raise ConnectionError("no server")
            return await super().reset(task)

    broken, sound = searched(limited(method), TablePolicy(WORDS), Fragile(), HashValue(), TASKS[:2])
    [alone] = searched(limited(method), TablePolicy(WORDS), Maze(), HashValue(), TASKS[1:2], [1])
    assert broken.error.startswith("ConnectionError: no server")
    assert broken.budget.simulations == 0 and not broken.root.edges
    assert digest(sound) == digest(alone)


def test_every_state_of_a_chain_can_be_estimated_once() -> None:
    """As GAE requires. Nothing else about a chain changes."""
    settings = SearchConfig(method="best_of_n", limits=Limits(simulations=24), options={"estimate_all": True})
    [tree] = searched(settings, TablePolicy(WORDS), Maze(0.4, 0.1), HashValue(), seeds=[3])
    nodes = list(tree.nodes())
    assert all(node.value != 0 for node in nodes)
    assert tree.budget.estimates == len(nodes)
    [plainly] = searched(limited("best_of_n", 24), TablePolicy(WORDS), Maze(0.4, 0.1), HashValue(), seeds=[3])
    assert len(list(plainly.nodes())) == len(nodes)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_dynamics_cannot_tell_is_no_visit_and_has_no_worth(method: str) -> None:
    """Every a leads to an unknown state. The step counts as a simulation, but no return is invented for it."""
    world = Written(ends={"bb": 1.0}, values={"a": 0.9}, untold=("a", "ba"))
    config = replace(limited(method, 12), candidates=2)
    [tree] = searched(config, InOrder("ab", {"a": -0.1, "b": -2.0}), world, world)
    dead = [edge for node in tree.nodes() for edge in node.edges if edge.child is not None and edge.child.unknown]
    assert dead and all(edge.visits == 0 and edge.value_sum == 0 and edge.child is not None for edge in dead)
    assert all(edge.child.value == 0 and edge.child.exhausted for edge in dead if edge.child is not None)
    assert tree.budget.simulations >= len(dead)
    assert not tree.error
    assert all(pair.chosen.text != "a" for pair in preference_pairs(tree, PairConfig(min_margin=0.01)))
    if method not in (*CHAINS, "ab_mcts"):  # these follow the order of the words
        assert any(node.terminated for node in tree.nodes())
