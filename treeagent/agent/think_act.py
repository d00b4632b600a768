"""Thought and action as two steps: an edge of the tree is a thought, and the edges below it are actions that follow it.

P(turn | s) = P(thought | s) P(action | s, thought). The policy continues from the last token of an unfinished turn, so
a path holds the same tokens as a path of whole turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeagent.agent.policy import LLMPolicy
from treeagent.envs.dynamics import paid
from treeagent.generators.base import Pause
from treeagent.generators.turn import Grammar, ReAct
from treeagent.types import Action, Dynamics, Message, Proposal, State, Task, Transition


class SplitPolicy:
    """Samples a thought where a turn begins, and an action after a thought. A thought ends with the token that
    completes the grammar's mark; a turn that ends before it is a whole turn."""

    def __init__(self, policy: LLMPolicy) -> None:
        chat, grammar = policy.chat, policy.grammar
        self.policy = policy
        self._pause = Pause(chat.tokens_with(grammar.mark[-1]), lambda ids: self._begins_action(chat.decode(ids)))

    def _begins_action(self, text: str) -> bool:
        return self.policy.grammar.begins_action(text, opened=self.policy.chat.opens_thought)

    @property
    def concurrent(self) -> bool:
        return self.policy.concurrent

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """Sample ``count`` thoughts or actions at each state."""
        proposals = await self.policy.propose(states, count, seeds, self._pause)
        return [
            proposal
            if state.messages[-1].partial
            else replace(proposal, actions=tuple(map(self._thought, proposal.actions)))
            for state, proposal in zip(states, proposals, strict=True)
        ]

    def _thought(self, turn: Action) -> Action:
        """The thought of a turn that was paused after it; a whole turn unchanged."""
        sampled = len(turn.token_ids) - len(turn.forced)
        if not self._begins_action(turn.text) or sampled >= self.policy.max_new_tokens:
            return turn
        thought = self.policy.grammar.read(turn.text).thought
        return replace(turn, call="", thought=thought, error="")


@dataclass(frozen=True, slots=True)
class SplitDynamics:
    """A dynamics in which thoughts are steps of their own, at no cost; whole turns go to the dynamics it wraps."""

    dynamics: Dynamics
    grammar: Grammar = ReAct()  # noqa: RUF009 - frozen

    async def reset(self, task: Task) -> State:
        return await self.dynamics.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        """A thought leads to the same state with an unfinished turn; the action after it is joined with it."""
        if not action.call and not action.error:
            message = Message("assistant", action.text, action.token_ids, partial=True)
            key = None if state.key is None else f"{state.key}\n{action.text}"
            after_thought = replace(
                state, messages=(*state.messages, message), key=key, snapshot=_AfterThought(state, action)
            )
            return Transition(after_thought, cost=0)
        if isinstance(state.snapshot, _AfterThought):
            before, thought = state.snapshot.state, state.snapshot.thought
            whole = action.after(thought)
            turn = self.grammar.read(whole.text, whole.token_ids, whole.logprobs)
            if action.error:  # also of a turn that was cut off, which its text does not show
                turn = replace(turn, call="", error=action.error)
            return await self.dynamics.step(
                replace(before, paid=state.paid), replace(turn, thought=whole.thought, forced=whole.forced)
            )
        return await self.dynamics.step(state, action)


@dataclass(frozen=True, slots=True)
class _AfterThought:
    """Snapshot of the state after a thought."""

    state: State
    thought: Action

    @property
    def paid(self) -> float | None:
        """As ``envs.dynamics.paid`` reads it."""
        return paid(self.state)
