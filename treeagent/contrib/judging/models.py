"""The model behind a judge: on a server, where it replies in text, or in this process, where its answer to one question
is its probability of yes."""

import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol

from treeagent.contrib.judging.replies import Reply
from treeagent.types import Message, UserError

if TYPE_CHECKING:
    from treeagent.generators.chat import ChatFormat
    from treeagent.generators.local import LocalGenerator

_SIDE_BY_SIDE = 16
"""Requests to a server at a time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A request that got no answer."""

    reason: str


class JudgeModel(Protocol):
    """Answers conversations. Several threads may call it."""

    scores: ClassVar[bool]
    """Whether a reply is the probability of yes, written as a number; each conversation then asks one question.
    Otherwise the reply is text that answers all questions."""

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]: ...


@dataclass(frozen=True)
class Served(JudgeModel):
    """A model on a server with OpenAI's API; its key is read from ``OPENAI_API_KEY``."""

    model: str
    url: str
    temperature: float
    max_new_tokens: int
    timeout: float
    """Of a request, in seconds. A request that fails is tried once more."""
    scores: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            import openai  # noqa: F401
        except ImportError:
            raise UserError("a judge on a server needs the package openai: install treeagent[remote]") from None

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]:
        import openai

        key = os.environ.get("OPENAI_API_KEY") or "none"
        with openai.OpenAI(base_url=self.url, api_key=key, timeout=self.timeout, max_retries=1) as client:

            def one(conversation: Sequence[Message], seed: int) -> Reply | Fault:
                rows = [{"role": message.role, "content": message.content} for message in conversation]
                try:
                    answer = client.chat.completions.create(
                        model=self.model,
                        messages=rows,  # type: ignore[arg-type]  # openai has a type for each role
                        seed=seed,
                        temperature=self.temperature,
                        max_tokens=self.max_new_tokens,
                    )
                except openai.OpenAIError as error:
                    return Fault(f"the judge at {self.url} gave no answer ({type(error).__name__}: {error})"[:300])
                if not answer.choices:
                    return Fault(f"the judge at {self.url} sent an answer without choices")
                return Reply(answer.choices[0].message.content or "", answer.usage.total_tokens if answer.usage else 0)

            with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
                return list(threads.map(one, conversations, seeds))


@lru_cache(maxsize=1)
def local(model: str) -> "Local":
    """The judge's checkpoint, loaded once in each process."""
    from treeagent.agent.checkpoint import load_checkpoint
    from treeagent.generators.chat import ChatFormat
    from treeagent.generators.local import LocalGenerator

    loaded = load_checkpoint(model, merged=True)
    return Local(LocalGenerator(loaded.model), ChatFormat(loaded.tokenizer))


@dataclass(frozen=True)
class Local(JudgeModel):
    """A model in this process. It answers one batch at a time."""

    generator: "LocalGenerator"
    chat: "ChatFormat"
    scores: ClassVar[bool] = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]:
        """Reply with P(yes) / (P(yes) + P(no)) at temperature 1, where each word counts with a small and a capital
        first letter. If the chat template opens a thought, it is closed first, because the first word of a thought is
        no answer."""
        with self._lock:
            words = [self.chat.encode(word) for word in ("yes", "Yes", "no", "No")]
            longest = max(words, key=len)
            prompts = [self.chat.prompt_ids(tuple(each)) + self.chat.closing for each in conversations]
            refused = [self.generator.refusal((*prompt, *longest[1:])) for prompt in prompts]
            read = [prompt for prompt, why in zip(prompts, refused, strict=True) if not why]
            scored = iter(self.generator.score(read, [words] * len(read)))
            self.chat.forget()  # the replies are stored, so no prompt is read a second time
            return [
                Fault(why) if why else Reply(repr(_yes([sum(each.logprobs) for each in next(scored)])), len(prompt))
                for prompt, why in zip(prompts, refused, strict=True)
            ]


def _yes(logprobs: Sequence[float]) -> float:
    """The probability of yes, normalised over all ``logprobs``: the first two belong to yes, the others to no."""
    most = max(logprobs)
    shares = [math.exp(each - most) for each in logprobs]
    return sum(shares[:2]) / sum(shares)
