"""What all search methods share. A method is a coroutine that grows one tree (``Searcher.grow``).

It is written as if it searched a single tree, by ``sample``, ``step`` and ``estimate``. Many trees grow at once and
share the calls of the models (``together.py``); a tree depends only on its own seed. Limits and errors act only where a
method asks ``simulations_allowed``. If the environment fails, only its own tree ends: a failed rollout is data.
"""

import asyncio
import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as options_dataclass

from treeagent.seams import checked, resolve
from treeagent.search.config import METHODS, SearchConfig
from treeagent.search.gumbel import Halving
from treeagent.search.node import Edge, Node, Path, Spent, Tree, path_return
from treeagent.search.puct import LEAST_UNSEEN, ValueRange, given_edges, merge_key, sampled_edges
from treeagent.search.together import Ask, Together
from treeagent.types import (
    Dynamics,
    Estimate,
    Policy,
    Proposal,
    State,
    Task,
    UserError,
    Value,
    derive_seed,
    is_concurrent,
    raised_at,
    storable,
)

MOST_FREE = 1000
"""Most simulations that may spend nothing of the limits, as where only tokens are limited and a policy samples none."""

OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called between the calls of models with all trees in their current state."""


@dataclass(slots=True)
class Growth:
    """A tree that is being grown, with the data that only its search needs."""

    tree: Tree
    number: int = 0  # the place of the tree among those that grow together
    value_range: ValueRange = field(default_factory=ValueRange)
    seed_count: int = 0
    depth: int = 0  # steps on the longest path of the tree
    noise: list[float] = field(default_factory=list)  # the Gumbel noise of each edge of the root
    halving: Halving | None = None  # None before the root's candidates are complete
    failure: str = ""  # why the latest failed request to the policy or the value failed

    def next_seed(self) -> int:
        self.seed_count += 1
        return derive_seed(self.tree.seed, self.seed_count)


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class NoOptions:
    """The options of a method that has none."""


class Searcher(ABC):
    """Base class of the search methods. Grows one tree for each task, many trees at once. Without ``value``, V(s) is 0;
    ``noise`` False leaves out the noise at the root, as evaluation does."""

    Options: ClassVar[type[Any]] = NoOptions
    """A pydantic dataclass: the method's own settings."""
    prunes: ClassVar[bool] = True
    """Whether ``search.prune_repeats`` applies to the method."""
    takes_visited: ClassVar[bool] = False
    """Whether the plan of a tree is its most visited path, whatever ``evaluate.decision`` says."""

    def __init__(
        self,
        policy: Policy,
        dynamics: Dynamics,
        config: SearchConfig,
        value: Value | None = None,
        *,
        noise: bool = True,
    ) -> None:
        self.policy, self.dynamics, self.config, self.value = policy, dynamics, config, value
        self.noise = noise
        self.options: Any = checked(self.Options, config.options, f"search method {config.method!r}")

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """One tree for each task, in order. Equal seeds give equal trees, whatever other tasks are searched at the same
        time. ``on_batch`` is called before every call of a model, and when a tree has stopped growing."""
        asks: list[Ask] = [] if is_concurrent(self.policy) else [self._propose]
        if self.value is not None and not is_concurrent(self.value):
            asks.append(self.value.estimate)
        trees: list[Tree] = []
        self.models = Together(asks, len(tasks), lambda: on_batch(trees) if on_batch else None)
        growths = await create_trees(self.dynamics, tasks, seeds, self.config.discount)
        trees += [growth.tree for growth in growths]
        for tree in trees if self.config.prune_repeats and self.prunes else ():
            if not tree.error and tree.root.state.place is None:
                raise UserError(
                    f"search.prune_repeats compares keys of states, but {tree.task.id} has none: define state_key in "
                    "the environment, or set search.prune_repeats=false"
                )
        growing = [asyncio.create_task(self._grow(growth)) for growth in growths]
        often, *rest = gc.get_threshold()
        gc.set_threshold(10 * often, *rest)  # trees are many objects without a cycle, and reading them again takes long
        try:
            await asyncio.gather(*growing)
        finally:
            gc.set_threshold(often, *rest)
            for task in growing:
                task.cancel()
            await asyncio.gather(*growing, return_exceptions=True)
            await self.models.close()
        return trees

    async def _grow(self, growth: Growth) -> None:
        growth.tree.budget.seconds = self.models.share_time()
        await self.grow(growth)
        self.models.leave()

    @abstractmethod
    async def grow(self, growth: Growth) -> None:
        """Grow one tree by ``sample``, ``step`` and ``estimate``. After a failed step the tree has an error."""

    async def sample(
        self, growth: Growth, nodes: Sequence[Node], counts: Sequence[int] = (), *, may_widen: bool = False
    ) -> None:
        """Sample ``counts`` candidates at each node, ``config.candidates`` by default (``add_candidates``)."""
        counts = counts or [self.config.candidates] * len(nodes)
        for node, count, proposal in zip(nodes, counts, await self.proposals(growth, nodes, counts), strict=True):
            add_candidates(growth, node, proposal, count, may_widen=may_widen)

    async def proposals(self, growth: Growth, nodes: Sequence[Node], counts: Sequence[int]) -> Sequence[Proposal]:
        if not nodes:
            return ()
        asked = [(node.state, count, growth.next_seed()) for node, count in zip(nodes, counts, strict=True)]
        return await self.models.ask(self._propose, growth.number, asked)

    async def _propose(self, asked: Sequence[tuple[State, int, int]]) -> Sequence[Proposal]:
        """Call the policy once for all states that want the same number of candidates."""
        proposals: dict[int, Proposal] = {}
        for count in sorted({count for _, count, _ in asked}):
            places = [place for place, each in enumerate(asked) if each[1] == count]
            states, seeds = [asked[place][0] for place in places], [asked[place][2] for place in places]
            proposals.update(zip(places, await self.policy.propose(states, count, seeds), strict=True))
        return [proposals[place] for place in range(len(asked))]

    async def step(self, growth: Growth, paths: Sequence[Path], *, estimate: bool = True) -> None:
        """Step through the last edge of each path. With ``estimate``, also estimate V(s) of the states reached."""
        if len(paths) == 1:
            await take_step(self.dynamics, growth, paths[0])
        elif paths:
            await asyncio.gather(*[take_step(self.dynamics, growth, path) for path in paths])
        if self.config.prune_repeats and self.prunes:
            for path in paths:
                prune_repeat(growth, path)
        if estimate:
            await self.estimate(growth, [path for path in paths if path[-1].child is not None])

    async def estimate(self, growth: Growth, paths: Sequence[Path]) -> None:
        """Estimate V(s) at the end of each path, but not after a step without an answer or at a pruned repeat."""
        if self.value is None or not paths:
            return
        ends = [(path, node) for path in paths if not ((node := last_node(growth, path)).unknown or node.repeat)]
        if ends:
            answers = await self.models.ask(self.value.estimate, growth.number, [node.state for _, node in ends])
            for (path, _), answer in zip(ends, answers, strict=True):
                store_estimate(growth, path, answer)

    def simulations_allowed(self, growth: Growth) -> int:
        """How many simulations the tree may start in parallel; none after it failed or reached a limit."""
        tree, limits, leaves = growth.tree, self.config.limits, self.config.leaves
        if tree.error or tree.root.ended or (share := limits.share(tree.budget)) >= 1:
            return 0
        if tree.budget.simulations >= MOST_FREE and not share:
            tree.error = f"{MOST_FREE:,} simulations spent nothing of the limits: set limits.simulations too"
            return 0
        return leaves if limits.simulations is None else min(leaves, limits.simulations - tree.budget.simulations)

    def groups(self, growth: Growth, paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
        """Split ``paths`` into groups, each as large as ``simulations_allowed`` when the previous one is finished."""
        start = 0
        while start < len(paths) and (room := self.simulations_allowed(growth)):
            yield paths[start : start + room]
            start += room

    def is_expandable(self, path: Path) -> bool:
        """Whether the tree may grow beyond ``path``."""
        node = path[-1].child
        return node is not None and not self.is_end(node)

    def is_end(self, node: Node) -> bool:
        """Whether the tree does not grow beyond ``node``: an end, a repeat, or the unchanged state after a refusal."""
        return node.terminated or node.truncated or node.repeat or node.invalid

    def back_up(self, growth: Growth, path: Path) -> None:
        growth.tree.budget.seconds = self.models.share_time()
        backup(growth, path)

    def rank(self, path: Path) -> tuple[float, float]:
        """Sort key of a path: its return G with V(s) at its end; among equals, the probability Π P(s,a)."""
        return path_return(path, self.config.discount), math.prod(edge.prior for edge in path)


def make_search(
    policy: Policy,
    dynamics: Dynamics,
    config: SearchConfig,
    value: Value | None = None,
    *,
    noise: bool = True,
) -> Searcher:
    """A search of the method that ``config.method`` names; the other arguments are those of ``Searcher``."""
    method: type[Searcher] = resolve("search.method", config.method, METHODS)
    return method(policy, dynamics, config, value, noise=noise)


def last_node(growth: Growth, path: Sequence[Edge]) -> Node:
    """The node at the end of ``path``."""
    node = path[-1].child if path else growth.tree.root
    assert node is not None
    return node


async def create_trees(
    dynamics: Dynamics, tasks: Sequence[Task], seeds: Sequence[int], discount: float = 1.0
) -> list[Growth]:
    """A tree for each task that consists of its root; one with an error if the environment fails to reset."""

    async def one(number: int, task: Task, seed: int) -> Growth:
        try:
            root, error = Node(await dynamics.reset(task)), ""
        except Exception as failure:  # the episode boundary: a failed rollout is data
            root, error = Node(State(task, ()), truncated=True), describe(failure)
        return Growth(Tree(task, seed, root, error=error, discount=discount), number)

    seeded = list(zip(tasks, seeds, strict=True))
    return await asyncio.gather(*[one(number, task, seed) for number, (task, seed) in enumerate(seeded)])


def describe(error: Exception) -> str:
    """The type and message of an error and the user's line that raised it, as text that a file can hold."""
    return storable(": ".join(filter(None, (type(error).__name__, str(error)))) + raised_at(error))


def add_candidates(growth: Growth, node: Node, proposal: Proposal, count: int, *, may_widen: bool = False) -> None:
    """Add the candidates of a proposal to a node as edges. With ``may_widen`` further ones may follow: the priors then
    leave P(new) for calls that were not sampled yet (``puct.sampled_edges``). If the policy gives all possible actions
    with their priors, the first ``count`` become edges, or all of them with ``may_widen``."""
    if not store_proposal(growth, node, proposal):
        return
    if proposal.priors:  # all possible actions are known, so widening has nothing to add later
        node.edges = given_edges(proposal.actions, proposal.priors, None if may_widen else count)
        return
    if not may_widen:
        node.edges, _ = sampled_edges(proposal.actions, widen=False)
        return
    node.samples = [*(node.samples or ()), *proposal.actions]
    edges, node.unseen = sampled_edges(node.samples)
    keys = [merge_key(edge.action) for edge in edges]
    known = {merge_key(edge.action): edge for edge in node.edges}
    for key, edge in zip(keys, edges, strict=True):
        known.setdefault(key, edge).prior = edge.prior
    node.edges = [known[key] for key in keys]
    latest = set(map(merge_key, proposal.actions))
    node.fresh = [known[key] for key in keys if key in latest]


def store_proposal(growth: Growth, node: Node, proposal: Proposal) -> bool:
    """Count a proposal's cost, and store at the node what the policy read; one that it cannot read becomes a truncated
    end. Returns whether there are candidates."""
    budget = growth.tree.budget
    budget.proposals += 1
    if proposal.context_ids:
        node.context_ids, node.left_out = proposal.context_ids, proposal.left_out
    if proposal.failed:
        _leave_unknown(growth, node, proposal.error)
        return False
    if proposal.error:
        node.truncated = node.exhausted = True
        node.unseen = 0.0
        if node is growth.tree.root:
            growth.tree.error = proposal.error
        return False
    budget.generated_tokens += proposal.generated_tokens
    return not node.unknown  # another request for this node, of the same batch, may have failed


def _leave_unknown(growth: Growth, node: Node, reason: str) -> None:
    """After a failed request, a node without edges is a dead end of unknown value, one with edges gets no further ones,
    and if it is the root, the search ends."""
    growth.failure = reason
    if node is growth.tree.root:
        growth.tree.error = reason
    node.unseen = 0.0
    if not node.edges:
        node.terminated = False
        node.truncated = node.unknown = node.exhausted = True


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge]) -> None:
    """Step through the last edge of ``path``, and add the node that it led to. If the step fails or pays no
    finite reward, the tree gets an error, and the edge stays without a child."""
    edge, tree, parent = path[-1], growth.tree, last_node(growth, path[:-1])
    try:
        transition = await dynamics.step(parent.state, edge.action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        tree.error = describe(error)
        return
    reward, unknown = transition.reward, bool(transition.error)
    tree.budget.environment_steps += transition.cost
    if transition.origin == "imagined":
        tree.budget.imagined_steps += 1
        tree.budget.unreadable += unknown
    if reward is not None and not math.isfinite(reward):
        tree.error = f"the environment gave the reward {reward}"
        return
    edge.reward, edge.own_reward, state = reward, transition.outcome, transition.state
    ended = transition.terminated or transition.truncated or unknown
    paid = 0.0 if ended and reward is not None else parent.state.paid + (reward or 0.0)
    if ended != state.ended or paid != state.paid:
        state = replace(state, ended=ended, paid=paid)
    edge.child = node = Node(state)
    if ended:
        node.terminated = transition.terminated and not unknown
        node.truncated = transition.truncated or unknown
        node.unknown, node.exhausted = unknown, True
    node.origin = parent.origin if edge.thought else transition.origin
    node.invalid = transition.invalid
    if len(path) > growth.depth:
        growth.depth = max(growth.depth, sum(not each.thought for each in path))


def prune_repeat(growth: Growth, path: Sequence[Edge]) -> None:
    """If the last step of ``path`` led back to a state of the path, by ``State.place``, mark its end as a repeat, with
    the value of a failure: the lowest return so far, at most 0."""
    node, parent = path[-1].child, last_node(growth, path[:-1])
    if node is None or node.ended or path[-1].thought or node.state.place is None:
        return
    if any(node.state.place == earlier.state.place for earlier in growth.tree.states(path[:-1])):
        node.repeat, node.value = True, min(0.0, parent.value, growth.value_range.low)


def store_estimate(growth: Growth, path: Sequence[Edge], estimate: Estimate) -> None:
    """Store V(s) and the context tokens of the node at the end of ``path``, and count the cost of the estimate. If the
    request failed, the node is a dead end of unknown value, unless its return is known without V(s)."""
    node, budget = last_node(growth, path), growth.tree.budget
    if not math.isfinite(estimate.value):
        raise ValueError(f"the value of a state of task {growth.tree.task.id} was estimated as {estimate.value}")
    node.value, node.context_ids, node.left_out = estimate.value, estimate.context_ids, estimate.left_out
    budget.estimates += 1
    budget.environment_steps += estimate.environment_steps
    budget.imagined_steps += estimate.imagined_steps
    budget.unreadable += estimate.unreadable
    budget.generated_tokens += estimate.generated_tokens
    if estimate.failed and not (path and node.final and path[-1].reward is not None):
        _leave_unknown(growth, node, estimate.error)


def backup(growth: Growth, path: Sequence[Edge]) -> None:
    """N += 1 and W += G on every edge of the path, where G = r + γ G' from the leaf up (Agent Q, equation 8, as a sum).
    A simulation that ends where the dynamics has no answer counts against the budget, but is no visit.

    An exhausted edge of a state on the path may be known to lead to more than G. The simulation would have revisited
    that edge, but looked elsewhere because the revisit finds nothing new. The revisit is counted all the same, and its
    return continues up the path (as a proven child's value does in MCTS-Solver, Winands et al. 2008). Otherwise every
    further failure beside a success would lower the value of the path to that success.
    """
    tree, values, leaf = growth.tree, growth.value_range, path[-1].child
    assert leaf is not None
    budget, gamma = tree.budget, tree.discount
    budget.simulations += 1
    tree.order.append(leaf)
    steps = budget.environment_steps + budget.imagined_steps
    tree.spent.append(Spent(budget.generated_tokens, steps, budget.seconds))
    if leaf.unknown:
        return
    value = path[-1].leaf_return(gamma)
    for index in range(len(path) - 1, -1, -1):
        edge, node = path[index], path[index - 1].child if index else tree.root
        assert node is not None
        if edge is not path[-1]:
            value = (edge.reward or 0.0) + edge.discount(gamma) * value
        while True:
            edge.visits += 1
            edge.value_sum += value
            node.edge_visits += 1
            node.edge_values += value
            mean = edge.value_sum / edge.visits
            if not values.low <= mean <= values.high:
                values.include(mean)
            if node.best <= value:
                break
            value = node.best
            edge = next(each for each in node.edges if each.best == value)


def may_sample_new(node: Node) -> bool:
    """Whether a further sample at a node might be a call that was not sampled there yet."""
    return node.unseen >= LEAST_UNSEEN


def mark_exhausted(growth: Growth, path: Sequence[Edge]) -> None:
    """Mark the exhausted nodes of ``path``, from the leaf up. A further visit would find nothing new there."""
    for node in reversed(growth.tree.states(path[:-1])):
        if may_sample_new(node) or not all(edge.exhausted for edge in node.edges):
            return
        node.exhausted = True
