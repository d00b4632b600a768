"""A language model in this process: as the writer of a world model, and as an encoder of texts."""

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
    """Samples answers from a model in this process: in transformers or in a vLLM engine."""

    generator: Generator
    chat: ChatFormat
    temperature: float = 0.0
    """Sampling temperature of the answers; 0 samples greedily."""
    max_new_tokens: int = 256
    """Most tokens of an answer. An answer that is cut off is not used."""

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
        return Draft(text)


@dataclass(frozen=True, slots=True)
class HiddenStateEncoder:
    """Embeds a text by the hidden state of a language model, such as the policy, at the text's last token."""

    generator: LocalGenerator
    chat: ChatFormat

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Rows of length 1, [texts, width]. Of a text longer than the model's context only the end is read."""
        limit = self.generator.context - 1
        ids = [(*self.chat.encode(text)[-limit + 1 :], self.chat.stop_id) for text in texts]
        return unit(np.asarray(self.generator.hidden(ids).cpu().numpy(), np.float32))
