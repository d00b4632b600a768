"""Values of leaves that need no value head: rollouts of the policy, and a weighted mean of several values.

A search takes any ``Value``: a value head, a language model that scores states, a ``RolloutValue`` or a ``MixedValue``.
At an end of known reward, no value is used.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from treeagent.search.growth import describe
from treeagent.types import (
    Action,
    Dynamics,
    Estimate,
    Policy,
    Proposal,
    State,
    Transition,
    UserError,
    Value,
    derive_seed,
)


@dataclass(frozen=True, slots=True)
class RolloutValue:
    """V(s) as the mean return of the policy played from s to the end (Agent Q, section 5.1.2), outcome rewards alone.

    The draws of a rollout follow from ``seed``, the task and the texts of the state's messages: equal states give
    equal rollouts, in whatever tree and batch they are asked for. A rollout that stops short of a known end, at a
    limit, a withheld reward, a prompt too long to be read or a failing environment, is worth what it was paid so far
    and ``value`` of where it stands. If the environment failed, the estimate's ``error`` says why.
    """

    policy: Policy
    dynamics: Dynamics
    """Its steps count in the budget of the tree that the state belongs to."""
    _: KW_ONLY
    max_steps: int
    """A rollout takes at most this many steps."""
    count: int = 1
    """Number of rollouts from each state."""
    discount: float = 1.0
    """γ, per step; give the search's."""
    value: Value | None = None
    """Estimates what follows a rollout that stopped early; without it, 0."""
    step_seconds: float | None = None
    """A step that takes more than this many seconds fails, as in ``SearchConfig``."""
    seed: int = 0
    """Seed of the rollouts; give the run's."""

    def __post_init__(self) -> None:
        for name, least in (("max_steps", self.max_steps), ("count", self.count)):
            if least < 1:
                raise UserError(f"{name} of a rollout is {least}: give at least 1")

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """All rollouts of all states advance together, one ``propose`` a batch.

        Raises:
            UserError: the dynamics withholds its rewards and there is no ``value``.
        """
        groups = [
            [_Rollout(state, _seed(self.seed, state, number), stopped=state.ended) for number in range(self.count)]
            for state in states
        ]
        rollouts = [rollout for group in groups for rollout in group]
        await self._read([rollout for rollout in rollouts if rollout.stopped])
        while active := [rollout for rollout in rollouts if not rollout.stopped and rollout.steps < self.max_steps]:
            await self._advance(active)
        await self._close([rollout for rollout in rollouts if not rollout.told])
        return [_mean(group) for group in groups]

    async def _read(self, rollouts: Sequence["_Rollout"]) -> None:
        """The contexts of states at which the episode is over, where nothing can be played."""
        if rollouts:
            states, seeds = [rollout.state for rollout in rollouts], [rollout.seed for rollout in rollouts]
            for rollout, proposal in zip(rollouts, await self.policy.propose(states, 0, seeds), strict=True):
                rollout.context_ids, rollout.left_out = proposal.context_ids, proposal.left_out

    async def _advance(self, rollouts: Sequence["_Rollout"]) -> None:
        seeds = [derive_seed(rollout.seed, rollout.steps) for rollout in rollouts]
        proposals = await self.policy.propose([rollout.state for rollout in rollouts], 1, seeds)
        acting: list[tuple[_Rollout, Action]] = []
        for rollout, proposal in zip(rollouts, proposals, strict=True):
            rollout.generated_tokens += proposal.generated_tokens
            if rollout.reads(proposal):
                acting.append((rollout, proposal.actions[0]))
        transitions = await asyncio.gather(*(self._step(rollout.state, action) for rollout, action in acting))
        for (rollout, _), transition in zip(acting, transitions, strict=True):
            if isinstance(transition, str):
                rollout.stopped, rollout.error = True, transition
                continue
            if transition.error:  # the dynamics cannot predict what follows, so that the rollout stops here
                rollout.stopped = True
                rollout.environment_steps += transition.cost
                continue
            if transition.reward is None and self.value is None:
                raise UserError(
                    f"a rollout of task {rollout.state.task.id!r} cannot judge itself, because rewards are withheld: "
                    "give RolloutValue a value that does"
                )
            rollout.take(transition, self.discount)

    async def _step(self, state: State, action: Action) -> Transition | str:
        """The transition, or the reason why the environment failed."""
        try:
            async with asyncio.timeout(self.step_seconds):
                transition = await self.dynamics.step(state, action)
        except Exception as error:  # the episode boundary: a failed rollout is data
            return describe(error)
        return transition if math.isfinite(transition.reward or 0.0) else f"the reward is {transition.reward}"

    async def _close(self, rollouts: Sequence["_Rollout"]) -> None:
        if self.value is None or not rollouts:
            return
        estimates = await self.value.estimate([rollout.state for rollout in rollouts])
        for rollout, estimate in zip(rollouts, estimates, strict=True):
            rollout.total += self.discount**rollout.steps * estimate.value
            rollout.environment_steps += estimate.environment_steps
            rollout.generated_tokens += estimate.generated_tokens


@dataclass(slots=True)
class _Rollout:
    """The state of one rollout."""

    state: State
    seed: int
    steps: int = 0
    total: float = 0.0
    """Σ_t γ^t r_t."""
    stopped: bool = False
    told: bool = False
    """It came to a known end: nothing is to be added."""
    context_ids: tuple[int, ...] = ()
    """Context ids of the state at which the rollout began."""
    left_out: tuple[int, ...] = ()
    """Observations left out of the prompt at that state."""
    environment_steps: int = 0
    generated_tokens: int = 0
    error: str = ""

    def reads(self, proposal: Proposal) -> bool:
        """Whether the policy could read the state; where not, the rollout stops."""
        if not self.steps:
            self.context_ids, self.left_out = proposal.context_ids, proposal.left_out
            self.error = proposal.error
        self.stopped = bool(proposal.error)
        return not self.stopped

    def take(self, transition: Transition, discount: float) -> None:
        self.total += discount**self.steps * (transition.reward or 0.0)
        self.state = transition.state
        self.steps += 1
        self.environment_steps += transition.cost
        self.stopped = transition.terminated or transition.truncated
        self.told = transition.terminated and transition.reward is not None


def _seed(seed: int, state: State, number: int) -> int:
    texts = (message.content for message in state.messages)
    return derive_seed(seed, "rollout", number, state.task.id, state.task.seed, *texts)


def _mean(rollouts: Sequence[_Rollout]) -> Estimate:
    return Estimate(
        sum(rollout.total for rollout in rollouts) / len(rollouts),
        rollouts[0].context_ids,
        sum(rollout.environment_steps for rollout in rollouts),
        sum(rollout.generated_tokens for rollout in rollouts),
        next((rollout.error for rollout in rollouts if rollout.error), ""),
        rollouts[0].left_out,
    )


@dataclass(frozen=True, slots=True)
class MixedValue:
    """Σ_i w_i V_i(s), the values asked in their order; the context is that of the first which reads tokens."""

    values: Sequence[Value]
    weights: Sequence[float]
    """w, one a value; they sum to 1."""

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.values):
            raise UserError(f"{len(self.values)} values have {len(self.weights)} weights: give one a value")
        if min(self.weights, default=0.0) < 0 or not math.isclose(sum(self.weights), 1.0, abs_tol=1e-9):
            raise UserError(f"the weights {tuple(self.weights)} of values must sum to 1, none of them below 0")

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """The mixed estimates. Their costs are summed, and the first error is kept."""
        told = [await value.estimate(states) for value in self.values]
        return [self._mix(of_state) for of_state in zip(*told, strict=True)]

    def _mix(self, estimates: Sequence[Estimate]) -> Estimate:
        reader = max(estimates, key=lambda estimate: bool(estimate.context_ids))  # the first of equals
        return Estimate(
            sum(weight * estimate.value for weight, estimate in zip(self.weights, estimates, strict=True)),
            reader.context_ids,
            sum(estimate.environment_steps for estimate in estimates),
            sum(estimate.generated_tokens for estimate in estimates),
            next((estimate.error for estimate in estimates if estimate.error), ""),
            reader.left_out,
        )
