"""A model in this process as a world model's writer, and its hidden states as an encoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.types import Message
from treeagent.world_model.encoder import Vectors, unit
from treeagent.world_model.experience import Draft


@dataclass(frozen=True, slots=True)
class LocalWriter:
    """Samples answers, in transformers or by an engine."""

    generator: Generator
    chat: ChatFormat
    temperature: float = 0.0
    """0 is greedy."""
    max_new_tokens: int = 256
    """Per answer; one cut off there is no answer."""

    async def write(self, prompts: Sequence[tuple[Message, ...]], seeds: Sequence[int]) -> Sequence[Draft]:
        ids = [self.chat.prompt_ids(prompt) for prompt in prompts]
        errors = [self.generator.refusal(prompt) for prompt in ids]
        readable = [place for place, error in enumerate(errors) if not error]
        request = SampleRequest(
            [ids[place] for place in readable],
            1,
            [seeds[place] for place in readable],
            stop_id=self.chat.stop_id,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        samples = self.generator.sample(request)
        drafts = {place: self._draft(drawn) for place, drawn in zip(readable, samples, strict=True)}
        return [drafts.get(place, Draft("", error)) for place, error in enumerate(errors)]

    def _draft(self, drawn: Sequence[Sample] | Failure) -> Draft:
        if isinstance(drawn, Failure):
            return Draft("", drawn.reason)
        (sample,) = drawn
        text, count = self.chat.decode(sample.token_ids), len(sample.token_ids)
        if sample.token_ids[-1] != self.chat.stop_id:
            return Draft(text, f"the answer was cut off after {count} tokens")
        return Draft(text, confidence=math.exp(min(sample.logprobs)))


@dataclass(frozen=True, slots=True)
class HiddenStateEncoder:
    """The policy's own hidden state at a text's last token, as its embedding."""

    generator: LocalGenerator
    chat: ChatFormat

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Rows of length 1, [texts, width]. A text longer than the model's context counts by its end."""
        limit = self.generator.context - 1
        ids = [(*self.chat.encode(text)[-limit + 1 :], self.chat.stop_id) for text in texts]
        return unit(np.asarray(self.generator.hidden(ids).cpu().numpy(), np.float32))
