"""The operations on a tree that every search method uses: create it, expand a node, step, estimate, back up.

The samples for a tree depend only on its own seed, never on the other trees. If the environment fails, only its own
tree ends, and stores the reason in ``Tree.error``: a failed rollout is data.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from treeagent.search.config import SearchConfig
from treeagent.search.gumbel import Halving
from treeagent.search.node import Edge, Node, Spent, Tree
from treeagent.search.puct import ValueRange, candidate_edges, given_edges, merge_key, sampled_edges
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

UNSEEN_AT_FIRST, UNSEEN_AT_LAST = 0.05, 0.0125
"""If the total prior of all calls not sampled yet is below a threshold, a state counts as having no others. A search
begins with the first threshold, because further samples rarely find a new call there. Where that leaves nothing to
search and no good end is found, ``reopen`` lowers it, at most to the second."""


@dataclass(slots=True)
class Growth:
    """A tree that is being grown, with the data that only its search needs."""

    tree: Tree
    value_range: ValueRange = field(default_factory=ValueRange)
    seed_count: int = 0
    """How many seeds ``next_seed`` has returned."""
    samples: dict[int, list[Action]] = field(default_factory=dict[int, list[Action]])
    """All candidates sampled at each node, by the node's ``id``. Filled if candidates are sampled on demand, because
    each sample then changes the priors of all candidates."""
    unseen: dict[int, float] = field(default_factory=dict[int, float])
    """P(new) of each node in ``samples``: the total prior of all calls that were not sampled there yet."""
    least_unseen: float = UNSEEN_AT_FIRST
    """At nodes where P(new) is below this threshold, no further candidates are sampled."""
    reopened: list[Node] = field(default_factory=list[Node])
    """The nodes that ``reopen`` opened."""
    exhausted_returns: dict[int, float] = field(default_factory=dict[int, float])
    """The highest return beyond each exhausted edge, by the edge's ``id``. Filled by ``record_exhausted_returns``."""
    latest_edges: dict[int, list[Edge]] = field(default_factory=dict[int, list[Edge]])
    """The edges of the latest candidates at each node, by the node's ``id``. A simulation that waited for them
    continues through one of them."""
    depth: int = 0
    """Number of steps on the longest path of the tree."""
    widths: dict[int, int] = field(default_factory=dict[int, int])
    """How many candidates REBASE samples at each node, by the node's ``id``."""
    noise: list[float] = field(default_factory=list[float])
    """The Gumbel noise of each edge of the root."""
    halving: Halving | None = None
    """The schedule of sequential halving; None before the root's candidates are complete."""
    succeeded: bool = False
    """Whether a finished path has reached ``stop_at_return``."""
    best: float = -math.inf
    """G + λ ℓ of the best end of the task so far (``Enough``). Updated only for a search with ``Enough``."""
    bootstrap: bool = False
    """As in ``SearchConfig``."""
    failure: str = ""
    """Why the latest failed request to the policy or the value failed; empty if none has failed."""
    timed: int = 0
    """Number of simulations whose end time is recorded: those of the batches that ``share_time`` has closed."""

    def next_seed(self) -> int:
        """The seed of the next sample. It depends on the tree's seed and on how many seeds were returned before."""
        self.seed_count += 1
        return derive_seed(self.tree.seed, self.seed_count)


def last_node(growth: Growth, path: Sequence[Edge]) -> Node:
    """The node at the end of ``path``."""
    node = path[-1].child if path else growth.tree.root
    assert node is not None
    return node


async def create_trees(
    dynamics: Dynamics, tasks: Sequence[Task], seeds: Sequence[int], config: SearchConfig | None = None
) -> list[Growth]:
    """Create a tree for each task, which consists of its root. If the environment fails to reset, the tree has an
    error."""
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
    """Prepare to grow a tree under ``config``."""
    tree.discount = config.discount
    values = ValueRange() if config.value_range is None else ValueRange(*config.value_range, fixed=True)
    return Growth(tree, values, bootstrap=config.bootstrap)


def describe(error: Exception) -> str:
    """The type and message of an error, as text that a file can hold."""
    try:
        words = str(error)
    except Exception:  # str() of a foreign exception may itself fail
        words = ""
    return storable(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def expand(growth: Growth, node: Node, proposal: Proposal, count: int, *, may_widen: bool = False) -> None:
    """Add the candidates of a proposal to a node as edges.

    A node that the policy cannot read, such as one beyond the model's context, becomes a truncated end. If the policy
    gives all possible actions with their priors, the first ``count`` become edges, or all of them with ``may_widen``.

    Args:
        may_widen: whether further candidates may be sampled at the same node. The priors of the edges then leave
            P(new) for calls that were not sampled yet (``puct.sampled_edges``); otherwise they sum to 1.

    Raises:
        ValueError: the policy proposed nothing and gave no reason, an action does not have one log-probability per
            token, or a log-probability is NaN or infinite.
    """
    if not store_proposal(growth, node, proposal):
        return
    if proposal.priors:
        # All possible actions are known, so widening has nothing to add later.
        node.edges = given_edges(proposal.actions, proposal.priors, None if may_widen else count)
        return
    if not may_widen:
        node.edges = candidate_edges(proposal.actions)
        return
    actions = growth.samples.setdefault(id(node), [])
    actions += proposal.actions
    edges, growth.unseen[id(node)] = sampled_edges(actions)
    node.edges = _merge_edges(node.edges, edges)


def store_proposal(growth: Growth, node: Node, proposal: Proposal) -> bool:
    """Count a proposal's cost, and store at the node what the policy read. Returns whether there are candidates."""
    growth.tree.budget.proposals += 1
    if proposal.context_ids:
        node.context_ids, node.left_out = proposal.context_ids, proposal.left_out
    if proposal.failed:
        _leave_unknown(growth, node, proposal.error)
        return False
    if proposal.error:
        node.truncated = node.exhausted = True
        growth.unseen[id(node)] = 0.0
        if node is growth.tree.root:
            growth.tree.error = proposal.error
        return False
    growth.tree.budget.generated_tokens += proposal.generated_tokens
    return not node.unknown  # another request for this node, of the same batch, may have failed


def _leave_unknown(growth: Growth, node: Node, reason: str) -> None:
    """Handle a failed request about a node. A node without edges becomes a dead end of unknown value, and a node with
    edges gets no further ones. If it is the root, the search ends."""
    growth.failure = reason
    if node is growth.tree.root:
        growth.tree.error = reason
    if node.edges:
        growth.unseen[id(node)] = 0.0
        return
    node.terminated = node.bootstrap = False
    node.truncated = node.unknown = node.exhausted = True


def _merge_edges(old: Sequence[Edge], new: Sequence[Edge]) -> list[Edge]:
    """The ``new`` edges. An edge that the node already has keeps its statistics and takes the new prior."""
    old_edges = {merge_key(edge.action): edge for edge in old}
    edges: list[Edge] = []
    for edge in new:
        merged = old_edges.get(merge_key(edge.action), edge)
        merged.prior = edge.prior
        edges.append(merged)
    return edges


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge], seconds: float | None = None) -> None:
    """Step through the last edge of ``path``: ``try_step``, then ``add_step_result``."""
    state = last_node(growth, path[:-1]).state
    add_step_result(growth, path, await try_step(dynamics, state, path[-1].action, seconds))


async def try_step(dynamics: Dynamics, state: State, action: Action, seconds: float | None) -> Transition | Exception:
    """Step the dynamics. If that fails or takes more than ``seconds``, return the exception."""
    try:
        if seconds is None:
            return await dynamics.step(state, action)
        async with time_limit(seconds):
            return await dynamics.step(state, action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        return error


def add_step_result(growth: Growth, path: Sequence[Edge], transition: Transition | Exception) -> None:
    """Add the node that a step led to below the last edge of ``path``.

    If the step failed or paid a reward that is not finite, the tree stores the reason as its error, and the edge stays
    without a child.
    """
    edge, parent = path[-1], last_node(growth, path[:-1])
    if isinstance(transition, Exception):
        growth.tree.error = describe(transition)
        return
    growth.tree.budget.environment_steps += transition.cost
    if transition.origin == "imagined":
        growth.tree.budget.imagined_steps += 1
        growth.tree.budget.unreadable += bool(transition.error)
    if not math.isfinite(transition.reward or 0.0):
        growth.tree.error = f"the environment gave the reward {transition.reward}"
        return
    edge.reward, edge.own_reward = transition.reward, transition.outcome
    unknown = bool(transition.error)
    ended = transition.terminated or transition.truncated or unknown
    bootstrap = transition.truncated and not unknown and growth.bootstrap
    over = ended and not bootstrap and edge.reward is not None
    paid = 0.0 if over else parent.state.paid + (edge.reward or 0.0)
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


def prune_repeat(growth: Growth, path: Sequence[Edge], failure: float = 0.0) -> None:
    """Mark the end of ``path`` as a repeat, with the value of a failure: the lowest return so far, at most 0. If an
    episode that fails is known to return ``failure`` < 0, because every step costs, the path returns just that."""
    node, parent = last_node(growth, path), last_node(growth, path[:-1])
    lowest = failure - node.state.paid if failure < 0 else min(parent.value, growth.value_range.low)
    node.repeat, node.value = True, min(0.0, lowest)


async def estimate_nodes(value: Value | None, paths: Sequence[tuple[Growth, Sequence[Edge]]]) -> None:
    """Estimate V(s) at the ends of all paths in one call, and store it with the context tokens. A node after a step
    without an answer is left out, because an estimate there would have no basis.

    Raises:
        ValueError: an estimate is NaN or infinite.
    """
    paths = [(growth, path) for growth, path in paths if not last_node(growth, path).unknown]
    if value is None or not paths:
        return
    estimates = await value.estimate([last_node(growth, path).state for growth, path in paths])
    for (growth, path), estimate in zip(paths, estimates, strict=True):
        store_estimate(growth, path, estimate)


def store_estimate(growth: Growth, path: Sequence[Edge], estimate: Estimate) -> None:
    """Store V(s) and the context tokens of the node at the end of ``path``, and count the cost of the estimate. If the
    request failed, the node is a dead end of unknown value, unless its return is known without V(s).

    Raises:
        ValueError: the estimate is NaN or infinite.
    """
    node = last_node(growth, path)
    if not math.isfinite(estimate.value):
        raise ValueError(f"the value of a state of task {growth.tree.task.id} was estimated as {estimate.value}")
    node.value, node.context_ids, node.left_out = estimate.value, estimate.context_ids, estimate.left_out
    budget = growth.tree.budget
    budget.estimates += 1
    budget.environment_steps += estimate.environment_steps
    budget.imagined_steps += estimate.imagined_steps
    budget.unreadable += estimate.unreadable
    budget.generated_tokens += estimate.generated_tokens
    if estimate.failed and not (path and node.final and path[-1].reward is not None):
        _leave_unknown(growth, node, estimate.error)


def backup(growth: Growth, path: Sequence[Edge]) -> None:
    """N += 1 and W += G on every edge of the path, where G = r + γ G' from the leaf up (Agent Q, equation 8, as a sum).

    W holds sums, and Q = W/N is computed when it is read, so rounding errors do not build up. A simulation
    that ends where the dynamics could not tell what follows counts against the budget, but is not a visit, because its
    return would have no basis.

    An exhausted edge of a state on the path may be known to lead to more than G. The simulation would then have
    revisited that edge, but search looked elsewhere because the revisit would have found nothing new. The revisit is
    counted all the same, and its return continues up the path (as a proven child's value does in MCTS-Solver, Winands
    et al. 2008). Otherwise every further failure beside a success would lower the value of the path to that success.
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
    for index in range(len(path) - 1, -1, -1):
        edge = path[index]
        value = (edge.reward or 0.0) + edge.discount(growth.tree.discount) * value
        _add_visit(growth, edge, value)
        if growth.exhausted_returns:
            node = last_node(growth, path[:index])
            better = [each for each in node.edges if growth.exhausted_returns.get(id(each), value) > value]
            if better:
                best = max(better, key=lambda each: growth.exhausted_returns[id(each)])
                value = growth.exhausted_returns[id(best)]
                _add_visit(growth, best, value)


def _add_visit(growth: Growth, edge: Edge, value: float) -> None:
    edge.visits += 1
    edge.value_sum += value
    growth.value_range.include(edge.value)


def mark_exhausted(growth: Growth, path: Sequence[Edge]) -> None:
    """Mark the exhausted nodes of ``path``, from the leaf up to the first node that is not exhausted.

    A node is exhausted if the episode ended there, or if all its edges lead to exhausted nodes and no call is left to
    be sampled. In a deterministic environment a further visit would find nothing new, so search spends its simulations
    elsewhere.
    """
    for node in reversed(growth.tree.states(path[:-1])):
        if may_sample_new(growth, node) or not all(edge.exhausted for edge in node.edges):
            return
        node.exhausted = True


def may_sample_new(growth: Growth, node: Node) -> bool:
    """Whether a further sample at a node might be a call that was not sampled there yet."""
    return growth.unseen.get(id(node), 0.0) >= growth.least_unseen


def reopen(growth: Growth) -> bool:
    """Find something to search for in a tree that is exhausted. Returns whether there is something.

    Halves the threshold of P(new) until some state may get a further candidate again. A good action that the policy
    finds unlikely can thus still be found with what is left of the limits.
    """
    root = growth.tree.root
    while root.exhausted and growth.least_unseen / 2 >= UNSEEN_AT_LAST:
        growth.least_unseen /= 2
        grown = [node for _, node in growth.tree.walk() if node.edges and not node.ended]
        for node in reversed(grown):  # children before their parents
            if may_sample_new(growth, node) or not all(edge.exhausted for edge in node.edges):
                node.exhausted = False
                growth.reopened.append(node)
                for edge in node.edges:
                    if not edge.exhausted:
                        growth.exhausted_returns.pop(id(edge), None)
    return not root.exhausted


def close_reopened(growth: Growth) -> None:
    """Mark the nodes that ``reopen`` opened as exhausted again, at the end of the search. Search left them after it had
    explored all likely calls, so their few visits do not mean a low value, and decisions must know that."""
    for node in growth.reopened:
        node.exhausted = True


def record_exhausted_returns(growth: Growth, path: Sequence[Edge]) -> None:
    """Store the highest return beyond each exhausted edge of ``path``. Nothing is known beyond a refused call, because
    search did not look there."""
    for edge in reversed(path):
        node = edge.child
        if node is None or not node.exhausted:
            return
        if node.unknown or (node.invalid and not node.ended):
            continue  # other calls may have made the nodes above known
        if node.ended:
            value = node.leaf_value(edge.reward)
        elif below := [
            growth.exhausted_returns[id(each)] for each in node.edges if id(each) in growth.exhausted_returns
        ]:
            value = max(below)
        else:
            continue
        beyond = edge.discount(growth.tree.discount) * value
        growth.exhausted_returns[id(edge)] = (edge.reward or 0.0) + beyond


def share_time(growths: Sequence[Growth], started: float) -> None:
    """Add the seconds since ``started``, in equal shares, to the budgets of the trees that used them together. Also
    record when the latest simulations of these trees ended."""
    share = (time.perf_counter() - started) / max(len(growths), 1)
    for growth in growths:
        tree = growth.tree
        tree.budget.seconds += share
        for index in range(growth.timed, len(tree.spent)):
            tokens, steps, _ = tree.spent[index]
            tree.spent[index] = Spent(tokens, steps, tree.budget.seconds)
        growth.timed = len(tree.spent)
