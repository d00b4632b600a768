"""A language model in this process, as the writer of a world model and as an encoder of texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.types import Message
from treeagent.world_model.encoder import Vectors, unit


@dataclass(frozen=True, slots=True)
class LocalWriter:
    """Answers prompts by greedy decoding with a model in this process, in transformers or in a vLLM engine."""

    generator: Generator
    chat: ChatFormat
    max_new_tokens: int
    """Most tokens of an answer. An answer that is cut off is a ``Failure``."""

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        ids = [self.chat.prompt_ids(self.chat.with_ids(prompt)) for prompt in prompts]
        errors = [self.generator.refusal(prompt) for prompt in ids]
        readable = [prompt for prompt, error in zip(ids, errors, strict=True) if not error]
        request = SampleRequest(
            readable,
            1,
            [0] * len(readable),  # seeds have no effect at temperature 0
            stop_id=self.chat.stop_id,
            max_new_tokens=self.max_new_tokens,
            temperature=0.0,
        )
        samples = iter(self.generator.sample(request))
        return [Failure(error) if error else self._text(next(samples)) for error in errors]

    def _text(self, samples: Sequence[Sample] | Failure) -> str | Failure:
        if isinstance(samples, Failure):
            return samples
        (sample,) = samples
        if sample.token_ids[-1] != self.chat.stop_id:
            return Failure(f"the answer was cut off after {len(sample.token_ids)} tokens")
        return self.chat.decode(sample.token_ids)


@dataclass(frozen=True, slots=True)
class HiddenStateEncoder:
    """Embeds a text as the hidden state of a language model, such as the policy, at the stop token after the text."""

    generator: LocalGenerator
    chat: ChatFormat

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return rows of length 1, [texts, width]. Only the end of a text that exceeds the model's context is used."""
        limit = self.generator.context - 1
        ids = [(*self.chat.encode(text)[-limit + 1 :], self.chat.stop_id) for text in texts]
        _, last = self.generator.hidden(ids).chunk(2, dim=-1)
        return unit(np.asarray(last.cpu().numpy(), np.float32))
