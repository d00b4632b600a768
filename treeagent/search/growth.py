"""The operations on a tree that every search method uses: create it, add candidates, step, estimate, back up.

The samples for a tree depend only on its own seed, never on the other trees. If the environment fails, only its own
tree ends, and stores the reason in ``Tree.error``: a failed rollout is data.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from treeagent.search.config import SearchConfig
from treeagent.search.gumbel import Halving
from treeagent.search.node import Edge, Node, Spent, Tree, path_return
from treeagent.search.puct import ValueRange, candidate_edges, given_edges, merge_key, sampled_edges
from treeagent.types import (
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
    number: int = 0
    """The place of the tree among those that grow together."""
    value_range: ValueRange = field(default_factory=ValueRange)
    seed_count: int = 0
    """How many seeds ``next_seed`` has returned."""
    least_unseen: float = UNSEEN_AT_FIRST
    """At nodes where P(new) is below this threshold, no further candidates are sampled."""
    depth: int = 0
    """Number of steps on the longest path of the tree."""
    noise: list[float] = field(default_factory=list)
    """The Gumbel noise of each edge of the root."""
    halving: Halving | None = None
    """The schedule of sequential halving; None before the root's candidates are complete."""
    best: float = -math.inf
    """G + λ ℓ of the best end of the task so far (``Enough``). Updated only for a search with ``Enough``."""
    bootstrap: bool = False
    """As in ``SearchConfig``."""
    failure: str = ""
    """Why the latest failed request to the policy or the value failed; empty if none has failed."""

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

    async def one(number: int, task: Task, seed: int) -> Growth:
        try:
            async with nullcontext() if config.step_seconds is None else time_limit(config.step_seconds):
                root, error = Node(await dynamics.reset(task)), ""
        except Exception as failure:  # the episode boundary: a failed rollout is data
            root, error = Node(State(task, ()), truncated=True), describe(failure)
        tree = Tree(task, seed, root, error=error, discount=config.discount)
        return Growth(tree, number, bootstrap=config.bootstrap)

    seeded = list(zip(tasks, seeds, strict=True))
    return await asyncio.gather(*[one(number, task, seed) for number, (task, seed) in enumerate(seeded)])


def describe(error: Exception) -> str:
    """The type and message of an error, as text that a file can hold."""
    try:
        words = str(error)
    except Exception:  # str() of a foreign exception may itself fail
        words = ""
    return storable(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def add_candidates(growth: Growth, node: Node, proposal: Proposal, count: int, *, may_widen: bool = False) -> None:
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
    node.samples = [*(node.samples or ()), *proposal.actions]
    edges, node.unseen = sampled_edges(node.samples)
    known = {merge_key(edge.action): edge for edge in node.edges}
    node.edges = [known.get(merge_key(edge.action), edge) for edge in edges]
    for edge, sampled in zip(node.edges, edges, strict=True):
        edge.prior = sampled.prior
    latest = {merge_key(action) for action in proposal.actions}
    node.fresh = [edge for edge in node.edges if merge_key(edge.action) in latest]


def store_proposal(growth: Growth, node: Node, proposal: Proposal) -> bool:
    """Count a proposal's cost, and store at the node what the policy read. Returns whether there are candidates."""
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
    """Handle a failed request about a node. A node without edges becomes a dead end of unknown value, and a node with
    edges gets no further ones. If it is the root, the search ends."""
    growth.failure = reason
    if node is growth.tree.root:
        growth.tree.error = reason
    node.unseen = 0.0
    if node.edges:
        return
    node.terminated = node.bootstrap = False
    node.truncated = node.unknown = node.exhausted = True


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge], seconds: float | None = None) -> None:
    """Step through the last edge of ``path``, and add the node that it led to. If the step fails or takes more than
    ``seconds``, the tree stores the reason as its error, and the edge stays without a child."""
    parent = path[-2].child if len(path) > 1 else growth.tree.root
    assert parent is not None
    try:
        if seconds is None:
            transition = await dynamics.step(parent.state, path[-1].action)
        else:
            async with time_limit(seconds):
                transition = await dynamics.step(parent.state, path[-1].action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        growth.tree.error = describe(error)
        return
    add_step(growth, path, parent, transition)


def add_step(growth: Growth, path: Sequence[Edge], parent: Node, transition: Transition) -> None:
    """Add the node that a step led to below the last edge of ``path``. If the step paid a reward that is not finite,
    the tree stores the reason as its error."""
    edge, tree, reward = path[-1], growth.tree, transition.reward
    tree.budget.environment_steps += transition.cost
    if transition.origin == "imagined":
        tree.budget.imagined_steps += 1
        tree.budget.unreadable += bool(transition.error)
    if reward is not None and not math.isfinite(reward):
        tree.error = f"the environment gave the reward {reward}"
        return
    edge.reward, edge.own_reward = reward, transition.outcome
    unknown = bool(transition.error)
    ended = transition.terminated or transition.truncated or unknown
    bootstrap = transition.truncated and not unknown and growth.bootstrap
    over = ended and not bootstrap and reward is not None
    paid = 0.0 if over else parent.state.paid + (reward or 0.0)
    state = transition.state
    if ended != state.ended or paid != state.paid:
        state = replace(state, ended=ended, paid=paid)
    edge.child = node = Node(state)
    if ended:
        node.terminated = transition.terminated and not unknown
        node.truncated = transition.truncated or unknown
        node.bootstrap, node.unknown, node.exhausted = bootstrap, unknown, True
    node.origin = parent.origin if edge.thought else transition.origin
    node.invalid = transition.invalid
    if len(path) > growth.depth:
        growth.depth = max(growth.depth, sum(not each.thought for each in path))


def prune_repeat(growth: Growth, path: Sequence[Edge], failure: float = 0.0) -> None:
    """Mark the end of ``path`` as a repeat, with the value of a failure: the lowest return so far, at most 0. If an
    episode that fails is known to return ``failure`` < 0, because every step costs, the value is such that the whole
    path returns just that."""
    node, parent = last_node(growth, path), last_node(growth, path[:-1])
    node.repeat, node.value = True, 0.0
    lowest = min(parent.value, growth.value_range.low)
    if failure < 0:
        gamma = growth.tree.discount
        left = failure - growth.tree.root.state.paid - path_return(path, gamma)
        lowest = left / math.prod(edge.discount(gamma) for edge in path)
    node.value = min(0.0, lowest)


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

    W holds sums, and Q = W/N is computed when it is read, so rounding errors do not build up. A simulation that ends
    where the dynamics could not tell what follows counts against the budget, but is not a visit, because its return
    would have no basis.

    An exhausted edge of a state on the path may be known to lead to more than G. The simulation would then have
    revisited that edge, but search looked elsewhere because the revisit would have found nothing new. The revisit is
    counted all the same, and its return continues up the path (as a proven child's value does in MCTS-Solver, Winands
    et al. 2008). Otherwise every further failure beside a success would lower the value of the path to that success.
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


def may_sample_new(growth: Growth, node: Node) -> bool:
    """Whether a further sample at a node might be a call that was not sampled there yet."""
    return node.unseen >= growth.least_unseen


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


def note_best_returns(growth: Growth, path: Sequence[Edge]) -> None:
    """Note the greatest return beyond each exhausted edge of ``path``, by which ``backup`` counts revisits. Nothing is
    known beyond a refused call or a repeat, because search did not look there."""
    gamma = growth.tree.discount
    for edge, parent in zip(reversed(path), reversed(growth.tree.states(path[:-1])), strict=True):
        node = edge.child
        if node is None or not node.exhausted:
            return
        if node.ended and not node.unknown:
            edge.best = edge.leaf_return(gamma)
        elif node.best > -math.inf:
            edge.best = (edge.reward or 0.0) + edge.discount(gamma) * node.best
        if edge.best is not None:
            parent.best = max(parent.best, edge.best)


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
                for edge in node.edges:
                    if not edge.exhausted:
                        edge.best = None
                node.best = max((edge.best for edge in node.edges if edge.best is not None), default=-math.inf)
    return not root.exhausted
