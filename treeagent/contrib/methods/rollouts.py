"""PUCT whose V(s) are rollouts of the policy (Agent Q, Putta et al. 2024, section 5.1.2)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.search.config import SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Path, Tree, path_return
from treeagent.search.searcher import Growth, last_node, store_estimate, store_proposal, take_step
from treeagent.types import Dynamics, Estimate, Policy, State, UserError, Value, derive_seed, is_concurrent


class Rollouts(Search):
    """PUCT with ``RolloutValue``."""

    def __init__(
        self, policy: Policy, dynamics: Dynamics, config: SearchConfig, value: Value | None = None, **more: bool
    ) -> None:
        super().__init__(policy, dynamics, config, value, **more)
        self.value = RolloutValue(policy, dynamics, config.discount, value)


@dataclass(frozen=True, slots=True)
class RolloutValue:
    """V(s) = G, the return of one rollout of the policy from s to the end. Equal states give equal rollouts, in any
    tree and batch. Where a rollout stops before a known end, V_head of its last state is added to the rewards so
    far."""

    policy: Policy
    dynamics: Dynamics
    discount: float = 1.0
    """γ per step."""
    value: Value | None = None
    """V_head; None uses 0."""

    @property
    def concurrent(self) -> bool:
        """As for ``is_concurrent``."""
        return is_concurrent(self.policy) and (self.value is None or is_concurrent(self.value))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """Advance the rollouts of all states together, with one call of ``propose`` for each action."""
        rollouts = [(self._begin(state), Path()) for state in states]
        active = [rollout for rollout in rollouts if not rollout[0].tree.root.ended]
        while active:
            active = await self._advance(active)
        left = [rollout for rollout in rollouts if _is_open(*rollout)]
        if self.value is not None and left:
            ends = await self.value.estimate([last_node(*rollout).state for rollout in left])
            for rollout, estimate in zip(left, ends, strict=True):
                store_estimate(*rollout, estimate)
        return [self._estimate(*rollout) for rollout in rollouts]

    def _begin(self, state: State) -> Growth:
        texts = (message.content for message in state.messages)
        seed = derive_seed("rollout", state.task.id, state.task.seed, *texts)
        return Growth(Tree(state.task, seed, Node(state, truncated=state.ended), discount=self.discount))

    async def _advance(self, rollouts: Sequence[tuple[Growth, Path]]) -> list[tuple[Growth, Path]]:
        """Play one action of each rollout. Returns the rollouts that are not finished."""
        seeds = [derive_seed(growth.tree.seed, len(path)) for growth, path in rollouts]
        proposals = await self.policy.propose([last_node(*rollout).state for rollout in rollouts], 1, seeds)
        acting: list[tuple[Growth, Path]] = []
        for (growth, path), proposal in zip(rollouts, proposals, strict=True):
            if store_proposal(growth, last_node(growth, path), proposal):
                path.append(Edge(proposal.actions[0], prior=1.0))
                acting.append((growth, path))
        await asyncio.gather(*(take_step(self.dynamics, growth, path) for growth, path in acting))
        unfinished: list[tuple[Growth, Path]] = []
        for growth, path in acting:
            child = path[-1].child
            if child is None or child.unknown:  # the rollout stops before this step
                path.pop()
            elif path[-1].outcome is None and self.value is None:
                raise UserError(
                    f"a rollout of task {growth.tree.task.id!r} sees no reward, and there is no value head to judge "
                    "its end: train one, or search by another method"
                )
            elif not child.ended:
                unfinished.append((growth, path))
        return unfinished

    def _estimate(self, growth: Growth, path: Path) -> Estimate:
        root, spent = growth.tree.root, growth.tree.budget
        return Estimate(
            path_return(path, self.discount) if path else root.value,
            root.context_ids,
            spent.environment_steps,
            spent.generated_tokens,
            growth.tree.error or growth.failure,
            root.left_out,
            spent.imagined_steps,
            spent.unreadable,
            failed=bool(growth.failure),
        )


def _is_open(growth: Growth, path: Path) -> bool:
    """Whether V_head is needed at the end of ``path``."""
    node = last_node(growth, path)
    return not node.unknown and not (path and node.final and path[-1].reward is not None)
