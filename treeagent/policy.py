"""A language model as policy and value function: states in, think/action candidates and V(s) out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.grammar import ReAct
from treeagent.types import Estimate, Proposal, State
from treeagent.value_head import ValueHead


@dataclass(frozen=True, slots=True)
class LLMPolicy:
    """Draws whole think/action steps from a causal language model."""

    generator: LocalGenerator
    chat: ChatFormat
    grammar: ReAct = ReAct()  # noqa: RUF009 - frozen
    temperature: float = 1.0
    """0 is greedy."""
    max_new_tokens: int = 64
    """Per step; a step cut off there has no stop token."""

    def greedy(self) -> "LLMPolicy":
        return replace(self, temperature=0.0)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """``count`` steps at each state; log-probabilities are those of the distribution drawn from."""
        samples = self.generator.sample(
            [self.chat.prompt_ids(state.messages) for state in states],
            count,
            seeds,
            stop_id=self.chat.stop_id,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        return [
            Proposal(
                self.chat.context_ids(state.messages),
                tuple(
                    self.grammar.read(self.chat.decode(draw.token_ids), draw.token_ids, draw.logprobs) for draw in drawn
                ),
            )
            for state, drawn in zip(states, samples, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class HeadValue:
    """V(s) from a value head on the policy's hidden state at the last token it has read."""

    generator: LocalGenerator
    chat: ChatFormat
    head: ValueHead

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        with torch.no_grad():
            hidden = self.generator.hidden([self.chat.prompt_ids(state.messages) for state in states])
            values = self.head.value(hidden)
        return [
            Estimate(value, self.chat.context_ids(state.messages))
            for state, value in zip(states, values.tolist(), strict=True)
        ]
