"""What every search method does to a tree: plant it, expand a node, step, estimate, back up.

What is sampled for a tree depends on its own seed alone, never on the trees beside it. If the environment fails, only
its own tree ends, and keeps the reason in ``Tree.error``: a failed rollout is data.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from treeagent.search.config import SearchConfig
from treeagent.search.gumbel import Halving
from treeagent.search.node import Edge, Node, Spent, Tree, taken_back
from treeagent.search.puct import ValueRange, edges_from, given_edges, merge_key, sampled_edges
from treeagent.types import (
    Action,
    Dynamics,
    Estimate,
    Proposal,
    State,
    Task,
    Transition,
    Value,
    derive_seed,
    storable,
    time_limit,
)

NOTHING_NEW = 0.05
"""Where the prior of all calls not sampled yet is below this, a state is taken to have no others."""


@dataclass(slots=True)
class Growth:
    """A tree that is being grown, with what only its search needs to remember."""

    tree: Tree
    value_range: ValueRange = field(default_factory=ValueRange)
    draws: int = 0
    """How many seeds ``next_seed`` has given."""
    drawn: dict[int, list[Action]] = field(default_factory=dict[int, list[Action]])
    """All candidates sampled at each node, by the node's ``id``; filled where candidates are drawn as selection wants
    them, since each draw changes the priors of all."""
    unseen: dict[int, float] = field(default_factory=dict[int, float])
    """P(new) of each node in ``drawn``: the prior of all calls that were not sampled there yet."""
    known: dict[int, float] = field(default_factory=dict[int, float])
    """The highest return beyond each exhausted edge, by the edge's ``id``; filled by ``note_known``."""
    sampled: dict[int, list[Edge]] = field(default_factory=dict[int, list[Edge]])
    """The edges of the candidates sampled just now at each node, by the node's ``id``: a simulation that waited for
    them goes on through one of them."""
    depth: int = 0
    """Steps of the longest path of the tree."""
    widths: dict[int, int] = field(default_factory=dict[int, int])
    """How many candidates REBASE samples at each node, by the node's ``id``."""
    noise: list[float] = field(default_factory=list[float])
    """The Gumbel noise of each edge of the root."""
    halving: Halving | None = None
    """Sequential halving's schedule; None before the root's candidates are complete."""
    succeeded: bool = False
    """Whether a finished path has reached ``stop_at_return``."""
    best: float = -math.inf
    """G + λ log π of the best end of the task so far; kept where ``LeastGain`` may end the search."""
    bootstrap: bool = False
    """As ``SearchConfig.bootstrap``."""
    timed: int = 0
    """Simulations whose seconds are known: those of the batches that ``share_time`` has seen the end of."""

    def next_seed(self) -> int:
        """The seed of the next sample: it depends on the tree's seed and on how many were given before."""
        self.draws += 1
        return derive_seed(self.tree.seed, self.draws)


def end(growth: Growth, path: Sequence[Edge]) -> Node:
    """The node at the end of ``path``."""
    node = path[-1].child if path else growth.tree.root
    assert node is not None
    return node


async def plant(
    dynamics: Dynamics, tasks: Sequence[Task], seeds: Sequence[int], config: SearchConfig | None = None
) -> list[Growth]:
    """A tree for each task that consists of its root. Where the environment fails to reset, the tree has an error."""
    config = config or SearchConfig()

    async def one(task: Task, seed: int) -> Growth:
        try:
            async with nullcontext() if config.step_seconds is None else time_limit(config.step_seconds):
                root, error = Node(await dynamics.reset(task)), ""
        except Exception as failure:  # the episode boundary: a failed rollout is data
            root, error = Node(State(task, ()), truncated=True), describe(failure)
        return begin(Tree(task, seed, root, error=error), config)

    seeded = list(zip(tasks, seeds, strict=True))
    return list(await asyncio.gather(*(one(task, seed) for task, seed in seeded)))


def begin(tree: Tree, config: SearchConfig) -> Growth:
    """Let a tree of a root alone grow under ``config``."""
    tree.discount = config.discount
    values = ValueRange() if config.value_range is None else ValueRange(*config.value_range, fixed=True)
    return Growth(tree, values, bootstrap=config.bootstrap)


def describe(error: Exception) -> str:
    """An error in words that a file can hold."""
    try:
        words = str(error)
    except Exception:  # a stranger's exception need not be able to tell itself
        words = ""
    return storable(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def expand(growth: Growth, node: Node, proposal: Proposal, count: int, *, more_later: bool = False) -> None:
    """Add the candidates of a proposal to a node as edges. A node that the policy cannot read, such as one beyond the
    model's context, becomes a truncated end. Where the policy gives all that is possible with its priors, the first
    ``count`` become edges, or all of them with ``more_later``.

    Args:
        more_later: whether further candidates may be sampled at the same node. The priors of the edges then leave
            P(new) for calls that were not sampled yet (``puct.sampled_edges``); otherwise they sum to 1.

    Raises:
        ValueError: the policy proposed nothing and says not why, an action has not one log-probability a token, or a
            log-probability is NaN or infinite.
    """
    if not receive(growth, node, proposal):
        return
    if proposal.priors:
        # All that is possible is known, so that widening has nothing to add later.
        node.edges = given_edges(proposal.actions, proposal.priors, None if more_later else count)
        return
    if not more_later:
        node.edges = edges_from(proposal.actions)
        return
    actions = growth.drawn.setdefault(id(node), [])
    actions += proposal.actions
    edges, growth.unseen[id(node)] = sampled_edges(actions)
    node.edges = _kept(node.edges, edges)


def receive(growth: Growth, node: Node, proposal: Proposal) -> bool:
    """Count a proposal's cost and write what the policy read at the node. Returns whether there are candidates."""
    growth.tree.budget.proposals += 1
    if proposal.context_ids:
        node.context_ids, node.left_out = proposal.context_ids, proposal.left_out
    if proposal.error:
        node.truncated = node.exhausted = True
        if node is growth.tree.root:
            growth.tree.error = proposal.error
        return False
    growth.tree.budget.generated_tokens += proposal.generated_tokens
    return True


def _kept(old: Sequence[Edge], new: Sequence[Edge]) -> list[Edge]:
    """The ``new`` edges; an edge that the node has already keeps its statistics and takes the new prior."""
    known = {merge_key(edge.action): edge for edge in old}
    edges: list[Edge] = []
    for edge in new:
        kept = known.get(merge_key(edge.action), edge)
        kept.prior = edge.prior
        edges.append(kept)
    return edges


def score(growth: Growth, node: Node, scores: Sequence[float]) -> None:
    """Write the critic's scores of a node's edges.

    Raises:
        ValueError: a score is NaN or infinite.
    """
    for edge, each in zip(node.edges, scores, strict=True):
        if not math.isfinite(each):
            raise ValueError(f"the critic scored action {edge.action.text!r} of {growth.tree.task.id} as {each}")
        edge.critic = each
        growth.value_range.include(each)


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge], seconds: float | None = None) -> None:
    """Step through the last edge of ``path``: ``attempt``, then ``arrive``."""
    arrive(growth, path, await attempt(dynamics, end(growth, path[:-1]).state, path[-1].action, seconds))


async def attempt(dynamics: Dynamics, state: State, action: Action, seconds: float | None) -> Transition | Exception:
    """Step the dynamics; where it fails or takes more than ``seconds``, the exception."""
    try:
        if seconds is None:
            return await dynamics.step(state, action)
        async with time_limit(seconds):
            return await dynamics.step(state, action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        return error


def arrive(growth: Growth, path: Sequence[Edge], transition: Transition | Exception) -> None:
    """Hang the node that a step led to below the last edge of ``path``.

    Where a judge calls the episode hacked, its last step takes back what the others paid: the path returns 0.

    Where the step failed or paid a reward that is no number, the tree keeps the reason as its error, and the edge stays
    without a child.
    """
    edge, parent = path[-1], end(growth, path[:-1])
    if isinstance(transition, Exception):
        growth.tree.error = describe(transition)
        return
    growth.tree.budget.environment_steps += transition.cost
    if transition.origin == "imagined":
        growth.tree.budget.imagined_steps += 1
        growth.tree.budget.unreadable += bool(transition.error)
    if not math.isfinite(transition.reward or 0.0) or not math.isfinite(transition.process):
        growth.tree.error = f"the environment gave the reward {transition.reward} and process {transition.process}"
        return
    edge.reward, edge.process, edge.components = transition.reward, transition.process, transition.components
    if edge.hacked:
        edge.reward = taken_back(path, lambda each: each.reward or 0.0, growth.tree.discount)
        edge.process = taken_back(path, lambda each: each.process, growth.tree.discount)
    unknown = bool(transition.error)
    ended = transition.terminated or transition.truncated or unknown
    bootstrap = transition.truncated and not unknown and growth.bootstrap
    paid = 0.0 if ended and not bootstrap else parent.state.paid + (edge.reward or 0.0)
    edge.child = Node(
        replace(transition.state, ended=ended, paid=paid),
        terminated=transition.terminated and not unknown,
        truncated=transition.truncated or unknown,
        bootstrap=bootstrap,
        origin=parent.origin if edge.thought else transition.origin,
        invalid=transition.invalid,
        unknown=unknown,
        exhausted=ended,
    )
    growth.depth = max(growth.depth, sum(not each.thought for each in path))


async def estimate_nodes(value: Value | None, wanted: Sequence[tuple[Growth, Node]]) -> None:
    """Write V(s) and the context tokens of each node, by one call. A node after a step without an answer is
    left out, because an estimate there would be made up.

    Raises:
        ValueError: an estimate is NaN or infinite.
    """
    wanted = [(growth, node) for growth, node in wanted if not node.unknown]
    if value is None or not wanted:
        return
    estimates = await value.estimate([node.state for _, node in wanted])
    for (growth, node), estimate in zip(wanted, estimates, strict=True):
        note_estimate(growth, node, estimate)


def note_estimate(growth: Growth, node: Node, estimate: Estimate) -> None:
    """Write V(s) and the context tokens of a node, and count what they cost.

    Raises:
        ValueError: the estimate is NaN or infinite.
    """
    if not math.isfinite(estimate.value):
        raise ValueError(f"the value of a state of task {growth.tree.task.id} was estimated as {estimate.value}")
    node.value, node.context_ids, node.left_out = estimate.value, estimate.context_ids, estimate.left_out
    budget = growth.tree.budget
    budget.estimates += 1
    budget.environment_steps += estimate.environment_steps
    budget.generated_tokens += estimate.generated_tokens


def backup(path: Sequence[Edge], growth: Growth, process_weight: float = 0.0) -> None:
    """N += 1 and W += G on every edge of the path, where G = r + γ G' from the leaf up (Agent Q, equation 8, as a sum).

    W holds sums, and Q = W/N is computed when it is read, so that nothing drifts by rounding. Process rewards of weight
    η change the return of every visit to (1 - η) G + η Σ_k γ^(k-t) r_process. A simulation that ends where the dynamics
    could not tell what follows counts against the budget, but is no visit, because any return would be made up.

    Where an exhausted edge of a state on the path is known to lead to more than G, the simulation would have revisited
    it. That revisit would have found what is known already, so search looked elsewhere in its place. The revisit is
    counted all the same, and its return goes on up the path (as a proven child's value does in MCTS-Solver, Winands et
    al. 2008). Otherwise every further failure beside a success would lower the value of the way to that success.
    """
    leaf = path[-1].child
    assert leaf is not None
    growth.tree.budget.simulations += 1
    growth.tree.order.append(leaf)
    budget = growth.tree.budget
    steps = budget.environment_steps + budget.imagined_steps
    growth.tree.spent.append(Spent(budget.generated_tokens, steps, budget.seconds))
    if leaf.unknown:
        return
    value = leaf.leaf_value(path[-1].reward)
    if process_weight:
        value *= 1 - process_weight
    for place in range(len(path) - 1, -1, -1):
        edge = path[place]
        value = _earned(edge, process_weight) + _discount(edge, growth) * value
        _count(edge, value, growth)
        if growth.known:
            state = end(growth, path[:place])
            rivals = [rival for rival in state.edges if growth.known.get(id(rival), value) > value]
            if rivals:
                best = max(rivals, key=lambda rival: growth.known[id(rival)])
                value = growth.known[id(best)]
                _count(best, value, growth)


def _count(edge: Edge, value: float, growth: Growth) -> None:
    edge.visits += 1
    edge.value_sum += value
    growth.value_range.include(edge.value)


def _earned(edge: Edge, process_weight: float) -> float:
    """The reward of a step, its process reward mixed in. A withheld reward (None) adds nothing: the leaf's value
    estimates it."""
    reward = edge.reward or 0.0
    return (1 - process_weight) * reward + process_weight * edge.process if process_weight else reward


def _discount(edge: Edge, growth: Growth) -> float:
    """γ of a step; a thought is half a turn and is not discounted."""
    return 1.0 if edge.thought else growth.tree.discount


def mark_exhausted(growth: Growth, path: Sequence[Edge]) -> None:
    """Mark the nodes of ``path`` as exhausted from the leaf up, as far as that is so.

    A node is exhausted when the episode ended there, or when all its edges lead to exhausted nodes and no call is left
    to be sampled. In a deterministic environment a further visit would find what is known already, so that search
    spends its simulations elsewhere.
    """
    nodes = [growth.tree.root, *(edge.child for edge in path[:-1] if edge.child is not None)]
    for node in reversed(nodes):
        if may_draw(growth, node) or not all(edge.exhausted for edge in node.edges):
            return
        node.exhausted = True


def may_draw(growth: Growth, node: Node) -> bool:
    """Whether a further draw at a node might bring a call that was not sampled there yet."""
    return growth.unseen.get(id(node), 0.0) >= NOTHING_NEW


def note_known(growth: Growth, path: Sequence[Edge], process_weight: float) -> None:
    """Remember the highest return beyond each exhausted edge of ``path``. Nothing is known beyond a refused call, where
    search did not look."""
    for edge in reversed(path):
        node = edge.child
        if node is None or not node.exhausted or node.unknown or (node.invalid and not node.ended):
            return
        if node.ended:
            value = (1 - process_weight) * node.leaf_value(edge.reward)
        elif below := [growth.known[id(each)] for each in node.edges if id(each) in growth.known]:
            value = max(below)
        else:
            return
        growth.known[id(edge)] = _earned(edge, process_weight) + _discount(edge, growth) * value


def share_time(growths: Sequence[Growth], started: float) -> None:
    """Add the seconds since ``started``, in equal shares, to the budgets of the trees that used them together, and note
    when their latest simulations ended."""
    share = (time.perf_counter() - started) / max(len(growths), 1)
    for growth in growths:
        tree = growth.tree
        tree.budget.seconds += share
        for place in range(growth.timed, len(tree.spent)):
            tokens, steps, _ = tree.spent[place]
            tree.spent[place] = Spent(tokens, steps, tree.budget.seconds)
        growth.timed = len(tree.spent)
