"""A language model in this process, as the writer of a world model."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.types import Message


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
