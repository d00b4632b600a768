"""Value functions that need no value head: rollouts of the policy, and a weighted mean of several values.

A search takes any ``Value``: a value head, a language model that scores states, a ``RolloutValue`` or a ``MixedValue``.
No value is used at an end with a known reward.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.search.node import Edge, Node, Tree, path_return
from treeagent.search.searcher import Growth, last_node, store_estimate, store_proposal, take_step
from treeagent.types import Dynamics, Estimate, Policy, State, UserError, Value, derive_seed, is_concurrent

_Rollout = tuple[Growth, list[Edge]]
"""A tree that consists of a single path, and that path."""


@dataclass(frozen=True, slots=True)
class RolloutValue:
    """V(s) as the return of one rollout of the policy from s to the end (Agent Q, section 5.1.2), by outcome rewards
    alone.

    Equal states give equal rollouts, in any tree and batch. A rollout may stop before a known end: after ``max_steps``,
    at a withheld reward, or at a failure of the environment. Its value is then the reward so far plus ``value`` of the
    state where it stopped. If a request to the policy or to ``value`` failed, so has the estimate.
    """

    policy: Policy
    dynamics: Dynamics
    """Its steps count in the budget of the tree that the state belongs to."""
    max_steps: int
    """Maximum number of steps in a rollout."""
    discount: float = 1.0
    """γ per step. Use the search's."""
    value: Value | None = None
    """Estimates the rest of a rollout that stopped early; None uses 0."""
    seed: int = 0
    """Seed of the rollouts. Use the run's."""
    step_seconds: float | None = None
    """As in ``SearchConfig``. Use the search's."""

    @property
    def concurrent(self) -> bool:
        """As of ``types.Concurrent``."""
        return is_concurrent(self.policy)

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """Advance the rollouts of all states together, with one call of ``propose`` for each action."""
        rollouts = [self._begin(state) for state in states]
        await self._read([growth for growth, _ in rollouts if growth.tree.root.ended])
        active = [rollout for rollout in rollouts if not rollout[0].tree.root.ended]
        while active:
            active = await self._advance(active)
        contexts = [(growth.tree.root.context_ids, growth.tree.root.left_out) for growth, _ in rollouts]
        left = [rollout for rollout in rollouts if _needs_value(rollout[1]) and not last_node(*rollout).unknown]
        if self.value is not None and left:
            estimates = await self.value.estimate([last_node(*rollout).state for rollout in left])
            for (growth, path), estimate in zip(left, estimates, strict=True):
                store_estimate(growth, path, estimate)
        return [
            Estimate(
                self._return(growth, path),
                context_ids,
                growth.tree.budget.environment_steps,
                growth.tree.budget.generated_tokens,
                growth.tree.error or growth.failure,
                left_out,
                growth.tree.budget.imagined_steps,
                growth.tree.budget.unreadable,
                failed=bool(growth.failure),
            )
            for (growth, path), (context_ids, left_out) in zip(rollouts, contexts, strict=True)
        ]

    def _begin(self, state: State) -> _Rollout:
        texts = (message.content for message in state.messages)
        seed = derive_seed(self.seed, "rollout", 0, state.task.id, state.task.seed, *texts)
        tree = Tree(state.task, seed, Node(state, truncated=state.ended), discount=self.discount)
        return Growth(tree), []

    async def _read(self, growths: Sequence[Growth]) -> None:
        """Fill in the contexts of states at which the episode is over, from which no rollout starts."""
        if growths:
            roots = [growth.tree.root for growth in growths]
            proposals = await self.policy.propose([root.state for root in roots], 0, [0] * len(roots))
            for root, proposal in zip(roots, proposals, strict=True):
                root.context_ids, root.left_out = proposal.context_ids, proposal.left_out

    async def _advance(self, rollouts: Sequence[_Rollout]) -> list[_Rollout]:
        """Play one action of each rollout. Returns the rollouts that are not finished."""
        seeds = [derive_seed(growth.tree.seed, len(path)) for growth, path in rollouts]
        proposals = await self.policy.propose([last_node(*rollout).state for rollout in rollouts], 1, seeds)
        acting: list[_Rollout] = []
        for (growth, path), proposal in zip(rollouts, proposals, strict=True):
            if store_proposal(growth, last_node(growth, path), proposal):
                path.append(Edge(proposal.actions[0], prior=1.0))
                acting.append((growth, path))
        await asyncio.gather(*(take_step(self.dynamics, growth, path, self.step_seconds) for growth, path in acting))
        unfinished: list[_Rollout] = []
        for growth, path in acting:
            child = path[-1].child
            if child is None or child.unknown:  # the rollout stops before this step
                path.pop()
            elif path[-1].outcome is None and self.value is None:  # if only a verdict is missing, it is known
                raise UserError(
                    f"a rollout of task {growth.tree.task.id!r} cannot judge itself, because rewards are withheld: "
                    "give RolloutValue a value that does"
                )
            elif not child.ended and sum(not edge.thought for edge in path) < self.max_steps:
                unfinished.append((growth, path))
        return unfinished

    def _return(self, growth: Growth, path: Sequence[Edge]) -> float:
        """Σ_t γ^t r_t + γ^T V(s_T), where V is 0 at a known end."""
        return path_return(path, self.discount) if path else growth.tree.root.value


def _needs_value(path: Sequence[Edge]) -> bool:
    """Whether V(s) is still needed at the end of ``path``."""
    last = path[-1].child if path else None
    return last is None or not last.final or path[-1].reward is None


@dataclass(frozen=True, slots=True)
class MixedValue:
    """Σ_i w_i V_i(s). The values are called in order, and the context is that of the first value that reads tokens."""

    values: Sequence[Value]
    weights: Sequence[float]
    """w, one weight for each value; they sum to 1."""

    @property
    def concurrent(self) -> bool:
        """As of ``types.Concurrent``."""
        return all(map(is_concurrent, self.values))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """The mixed estimates. Their costs are summed, and the first error is kept."""
        estimates = [await value.estimate(states) for value in self.values]
        return [self._mix(of_state) for of_state in zip(*estimates, strict=True)]

    def _mix(self, estimates: Sequence[Estimate]) -> Estimate:
        reader = max(estimates, key=lambda estimate: bool(estimate.context_ids))  # the first of equals
        return Estimate(
            sum(weight * estimate.value for weight, estimate in zip(self.weights, estimates, strict=True)),
            reader.context_ids,
            sum(estimate.environment_steps for estimate in estimates),
            sum(estimate.generated_tokens for estimate in estimates),
            next((estimate.error for estimate in estimates if estimate.error), ""),
            reader.left_out,
            sum(estimate.imagined_steps for estimate in estimates),
            sum(estimate.unreadable for estimate in estimates),
            failed=any(estimate.failed for estimate in estimates),
        )
