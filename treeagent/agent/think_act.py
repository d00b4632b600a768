"""Think and action as two steps: an edge of the tree is a thought, the edges below it the actions that may follow.

P(turn | s) = P(thought | s) P(action | s, thought). A thought's state holds the turn so far, from whose last token the
policy goes on, so that a path holds the same tokens as one of whole turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeagent.agent.policy import LLMPolicy
from treeagent.generators.base import Pause
from treeagent.generators.grammar import Grammar, ReAct
from treeagent.types import Action, Dynamics, Message, Proposal, State, Task, Transition


class SplitPolicy:
    """Draws thoughts where a turn is to begin, and actions where a thought has been had.

    A thought ends with the token that completes the grammar's mark. A turn that ends before (by its stop token or for
    its length) is drawn whole.
    """

    def __init__(self, policy: LLMPolicy) -> None:
        chat, grammar = policy.chat, policy.grammar
        self.policy = policy
        self._pause = Pause(chat.tokens_with(grammar.mark[-1]), lambda ids: grammar.begins_action(chat.decode(ids)))

    @property
    def concurrent(self) -> bool:
        """As of ``types.Concurrent``."""
        return self.policy.concurrent

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """``count`` thoughts or actions at each state."""
        drawn = await self.policy.propose(states, count, seeds, self._pause)
        return [
            proposal
            if state.messages[-1].partial
            else replace(proposal, actions=tuple(map(self._thought, proposal.actions)))
            for state, proposal in zip(states, drawn, strict=True)
        ]

    def _thought(self, turn: Action) -> Action:
        """The thought that a turn paused after; a whole turn as it is."""
        sampled = len(turn.token_ids) - len(turn.forced)
        goes_on = self.policy.grammar.begins_action(turn.text) and sampled < self.policy.max_new_tokens
        if not goes_on:
            return turn
        thought = self.policy.grammar.read_thought(turn.text, turn.token_ids, turn.logprobs)
        return replace(thought, forced=turn.forced)


@dataclass(frozen=True, slots=True)
class SplitDynamics:
    """Plays thoughts itself, at no cost, and whole turns on the dynamics that it wraps."""

    dynamics: Dynamics
    grammar: Grammar = ReAct()  # noqa: RUF009 - frozen

    async def reset(self, task: Task) -> State:
        return await self.dynamics.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        """A thought leads to the same place with the turn begun; what follows it is stepped together with it."""
        if not action.call and not action.error:
            said = Message("assistant", action.text, action.token_ids, partial=True)
            key = None if state.key is None else f"{state.key}\n{action.text}"
            begun = replace(state, messages=(*state.messages, said), key=key, snapshot=_Begun(state, action))
            return Transition(begun, cost=0)
        if isinstance(state.snapshot, _Begun):
            before, thought = state.snapshot.state, state.snapshot.thought
            turn = self.grammar.read(
                thought.text + action.text, thought.token_ids + action.token_ids, thought.logprobs + action.logprobs
            )
            return await self.dynamics.step(before, turn)
        return await self.dynamics.step(state, action)


@dataclass(frozen=True, slots=True)
class _Begun:
    """How the state of a thought finds the one that it was had in."""

    state: State
    thought: Action
