"""The model behind a judge, on a server."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from treeagent.contrib.judging.replies import Reply
from treeagent.types import Message, UserError

_SIDE_BY_SIDE = 16
"""Requests to a server at a time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A request that got no answer."""

    reason: str


@dataclass(frozen=True)
class Served:
    """A model on a server with OpenAI's API; its key is read from ``OPENAI_API_KEY``."""

    model: str
    url: str
    temperature: float
    max_new_tokens: int
    timeout: float
    """Of a request, in seconds. A request that fails is tried once more."""

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
