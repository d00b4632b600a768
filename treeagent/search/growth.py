"""What every way of searching does to a tree: plant it, draw candidates, step, estimate, back up.

Many trees advance together, so that one ``propose`` and one ``estimate`` serve them all; each tree's draws depend on
its own seed alone. An environment that fails costs its own tree only, which keeps the reason: a failed rollout is data.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from treeagent.search.config import SearchConfig
from treeagent.search.node import Edge, Node, Tree, path_return, reaches
from treeagent.search.puct import ValueRange, edges_from, merge_key
from treeagent.types import Action, Critic, Dynamics, Policy, Proposal, State, Task, Value, derive_seed

OnBatch = Callable[[Sequence[Tree]], None]
"""Told after every batch, with all trees as they stand."""


class Searcher(Protocol):
    """A way of searching."""

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """One tree a task, grown together."""
        ...


@dataclass(slots=True)
class Growth:
    """What one tree needs while it grows, beside the tree itself."""

    tree: Tree
    value_range: ValueRange = field(default_factory=ValueRange)
    draws: int = 0
    """Times that a seed was taken."""
    drawn: dict[int, list[Action]] = field(default_factory=dict[int, list[Action]])
    """By ``id`` of the node, its candidates as drawn; kept where progressive widening draws more later."""
    noise: list[float] = field(default_factory=list[float])
    """Gumbel noise of the root's edges."""
    schedule: list[int] = field(default_factory=list[int])
    """Sequential halving's: visits of the root's edge that each simulation chooses."""
    seen: dict[str, Node] = field(default_factory=dict[str, Node])
    """First node of each state key, where transpositions count."""
    succeeded: bool = False
    """A finished path has returned as much as the search is to stop at."""

    def next_seed(self) -> int:
        """A seed for the next draw, from the tree's seed and the count of draws so far."""
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
    """A tree of its root alone for each task. An environment that fails to reset costs its own tree only."""
    config = config or SearchConfig()

    async def one(task: Task, seed: int) -> Growth:
        try:
            async with asyncio.timeout(config.step_seconds):
                root, error = Node(await dynamics.reset(task)), ""
        except Exception as failure:  # the episode boundary: a failed rollout is data
            root, error = Node(State(task, ()), truncated=True), describe(failure)
        values = ValueRange() if config.value_range is None else ValueRange(*config.value_range, fixed=True)
        return Growth(Tree(task, seed, root, error=error, discount=config.discount), values)

    seeded = list(zip(tasks, seeds, strict=True))
    return list(await asyncio.gather(*(one(task, seed) for task, seed in seeded)))


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def draw(
    policy: Policy,
    wanted: Sequence[tuple[Growth, Node]],
    count: int,
    config: SearchConfig,
    critic: Critic | None = None,
) -> None:
    """Draw ``count`` candidates at each node and make edges of them, beside those it has already. A state that the
    policy cannot read is left as a limit that was hit.

    Raises:
        ValueError: the policy proposed nothing and says not why, an action has not one log-probability a token, or a
            log-probability or a critic's score is NaN or infinite.
    """
    if not wanted:
        return
    seeds = [growth.next_seed() for growth, _ in wanted]
    proposals = await policy.propose([node.state for _, node in wanted], count, seeds)
    for (growth, node), proposal in zip(wanted, proposals, strict=True):
        growth.tree.budget.proposals += 1
        write_context(node, proposal)
        if proposal.error:
            node.truncated = node.exhausted = True
            if node is growth.tree.root:
                growth.tree.error = proposal.error
            continue
        actions = list(proposal.actions)
        if config.widening is not None:
            actions = [*growth.drawn.get(id(node), ()), *actions]
            growth.drawn[id(node)] = actions
        node.edges = _kept(
            node.edges,
            edges_from(
                actions, merge=config.merge, temperature=config.prior_temperature, length_power=config.length_power
            ),
            config.merge,
        )
        growth.tree.budget.generated_tokens += proposal.generated_tokens
    if critic is not None and config.critic_weight:
        await _ask(critic, wanted)


def write_context(node: Node, proposal: Proposal) -> None:
    """Write what the policy has read at the node, if it has read anything."""
    if proposal.context_ids:
        node.context_ids, node.left_out = proposal.context_ids, proposal.left_out


def _kept(old: Sequence[Edge], new: Sequence[Edge], merge: str) -> list[Edge]:
    """``new`` edges, those that exist already in their old form and under their new prior."""
    known = {merge_key(edge.action, merge): edge for edge in old}
    edges: list[Edge] = []
    for edge in new:
        kept = known.get(merge_key(edge.action, merge), edge)
        kept.prior = edge.prior
        edges.append(kept)
    return edges


async def _ask(critic: Critic, wanted: Sequence[tuple[Growth, Node]]) -> None:
    several = [(growth, node) for growth, node in wanted if len(node.edges) > 1]
    if not several:
        return
    scores = await critic.rank(
        [node.state for _, node in several], [[edge.action for edge in node.edges] for _, node in several]
    )
    for (growth, node), ranked in zip(several, scores, strict=True):
        for edge, score in zip(node.edges, ranked, strict=True):
            if not math.isfinite(score):
                raise ValueError(f"the critic scored action {edge.action.text!r} of {growth.tree.task.id} as {score}")
            edge.critic = score
            growth.value_range.include(score)


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge], seconds: float | None = None) -> None:
    """Step through the last edge of ``path``. An environment that fails, pays what is no number or takes more than
    ``seconds`` costs its own tree only: the tree keeps the reason, the edge stays untried."""
    edge, parent = path[-1], end(growth, path[:-1])
    try:
        async with asyncio.timeout(seconds):
            transition = await dynamics.step(parent.state, edge.action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        growth.tree.error = describe(error)
        return
    growth.tree.budget.environment_steps += transition.cost
    if transition.origin == "imagined":
        growth.tree.budget.imagined_steps += 1
        growth.tree.budget.doubted += transition.doubted
        growth.tree.budget.unreadable += bool(transition.error) and not transition.doubted
    if not math.isfinite(transition.reward or 0.0) or not math.isfinite(transition.process):
        growth.tree.error = f"the environment gave the reward {transition.reward} and process {transition.process}"
        return
    edge.reward, edge.process = transition.reward, transition.process
    unknown = bool(transition.error)
    ended = transition.terminated or transition.truncated or unknown
    edge.child = Node(
        replace(transition.state, ended=ended),
        terminated=transition.terminated and not unknown,
        truncated=transition.truncated or unknown,
        origin=parent.origin if edge.thought else transition.origin,
        invalid=transition.invalid,
        unknown=unknown,
        exhausted=ended,
    )


async def estimate_nodes(value: Value | None, wanted: Sequence[tuple[Growth, Node]]) -> None:
    """Write V(s) and the context of each node of which something is known, by one call.

    Raises:
        ValueError: an estimate is NaN or infinite.
    """
    wanted = [(growth, node) for growth, node in wanted if not node.unknown]
    if value is None or not wanted:
        return
    estimates = await value.estimate([node.state for _, node in wanted])
    for (growth, node), estimate in zip(wanted, estimates, strict=True):
        if not math.isfinite(estimate.value):
            raise ValueError(f"the value of a state of task {growth.tree.task.id} was estimated as {estimate.value}")
        node.value, node.context_ids, node.left_out = estimate.value, estimate.context_ids, estimate.left_out
        budget = growth.tree.budget
        budget.estimates += 1
        budget.environment_steps += estimate.environment_steps
        budget.generated_tokens += estimate.generated_tokens


def backup(path: Sequence[Edge], growth: Growth, process_weight: float = 0.0) -> None:
    """N += 1, W += G along the path, with G = r + γ G' from the leaf up (Agent Q, equation 8, as a sum).

    Process rewards, where they weigh η, enter as G ← (1 - η) G + η Σ_k γ^(k-t) r_process, in every visit's return. A
    simulation that ends where nothing is known counts, but is no visit: any return would be made up.
    """
    leaf = path[-1].child
    assert leaf is not None
    growth.tree.budget.simulations += 1
    if leaf.unknown:
        return
    outcome, process = leaf.leaf_value(path[-1].reward), 0.0
    for edge in reversed(path):
        discount = 1.0 if edge.thought else growth.tree.discount
        outcome = (edge.reward or 0.0) + discount * outcome
        process = edge.process + discount * process
        edge.visits += 1
        edge.value_sum += (1 - process_weight) * outcome + process_weight * process if process_weight else outcome
        growth.value_range.include(edge.value)


def note_success(path: Sequence[Edge], growth: Growth, enough: float | None) -> None:
    """The tree has succeeded if ``path`` ends for good with a return of ``enough``."""
    leaf = path[-1].child
    if enough is not None and leaf is not None and leaf.terminated:
        growth.succeeded |= reaches(path_return(path, growth.tree.discount), enough)


def mark_exhausted(root: Node, path: Sequence[Edge]) -> None:
    """A node is exhausted when it ended, or when every one of its candidates leads to an exhausted node."""
    nodes = [root, *(edge.child for edge in path[:-1] if edge.child is not None)]
    for node in reversed(nodes):
        if not all(edge.exhausted for edge in node.edges):
            return
        node.exhausted = True


def share_time(growths: Sequence[Growth], started: float) -> None:
    share = (time.perf_counter() - started) / max(len(growths), 1)
    for growth in growths:
        growth.tree.budget.seconds += share
