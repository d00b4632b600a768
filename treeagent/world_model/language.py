"""The language model of a world model: the rows that train it, and the writers that ask it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.types import Message, storable
from treeagent.world_model.experience import Retriever
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording

if TYPE_CHECKING:
    from treeagent.generators.remote import Server  # needs the extra "remote"


class AnswerRow(NamedTuple):
    """The first three fields of a ``treeagent.views.TokenRow``."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True for the tokens of the answer."""


def answer_rows(
    experiences: Sequence[Experience],
    chat: ChatFormat,
    wording: Wording,
    retriever: Retriever | None = None,
    examples: int = 0,
    end_rows: int = 1,
) -> Iterator[AnswerRow]:
    """One row per experience, with the prompt that ``ExperienceModel`` would write, and the loss on all tokens of the
    answer: the reasoning R*, then the outcome (DreamGym, equation 5, L = -log P(R* | s, a, d) - log P(s', r | s, a, d,
    R*)). A step that ends its episode gets ``end_rows`` copies.
    """
    near = _examples(experiences, retriever, examples)
    for one, similar in zip(experiences, near, strict=True):
        prompt = chat.prompt_ids(chat.with_ids(wording.prompt(one.history, one.action, similar)))
        answer = chat.encode_action(wording.target(one))
        row = AnswerRow(one.task_id, prompt + answer, (False,) * len(prompt) + (True,) * len(answer))
        yield from repeat(row, end_rows if one.terminated else 1)


def _examples(
    experiences: Sequence[Experience], retriever: Retriever | None, count: int
) -> Sequence[Sequence[Experience]]:
    """Similar steps of other states or actions: from the same ones, the model would learn to copy."""
    examples: list[Sequence[Experience]] = [()] * len(experiences)
    waiting = list(range(len(experiences))) if retriever is not None and count else []
    asked = count + 2
    while retriever is not None and waiting:
        places = [(experiences[index].history, experiences[index].action) for index in waiting]
        left: list[int] = []
        for index, place, similar in zip(waiting, places, retriever.nearest(places, asked), strict=True):
            examples[index] = [other for other in similar if (other.history, other.action) != place][:count]
            if len(examples[index]) < count and len(similar) == asked:
                left.append(index)  # the same step is there with many observations
        waiting, asked = left, 2 * asked
    return examples


@dataclass(frozen=True, slots=True)
class LocalWriter:
    """Answers prompts by greedy decoding with a model in this process, in transformers or in a vLLM engine."""

    generator: Generator
    chat: ChatFormat
    max_new_tokens: int

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        ids = [self.chat.prompt_ids(self.chat.with_ids(prompt)) for prompt in prompts]
        errors = [self.generator.refusal(prompt) for prompt in ids]
        readable = [prompt for prompt, error in zip(ids, errors, strict=True) if not error]
        seeds, stop, most = [0] * len(readable), self.chat.stop_id, self.max_new_tokens  # greedy: seeds have no effect
        request = SampleRequest(readable, 1, seeds, stop_id=stop, max_new_tokens=most, temperature=0.0)
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
class RemoteWriter:
    """Answers prompts by chat completions at temperature 0 of a model on a server. White space at the end of an answer
    is removed, because chat models add it arbitrarily."""

    server: "Server"
    max_new_tokens: int

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        return list(self.server.gather([partial(self._text, prompt) for prompt in prompts]))

    def _text(self, prompt: Sequence[Message]) -> str | Failure:
        choice = self.server.chat(prompt, max_tokens=self.max_new_tokens, temperature=0.0).choices[0]
        if choice.finish_reason == "length":
            return Failure(f"the answer was cut off after {self.max_new_tokens} tokens")
        return storable(choice.message.content or "").rstrip()
