"""A model on a server as the writer of a world model. It is prompted with instructions and never trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from treeagent.generators.base import Failure
from treeagent.generators.remote import Server
from treeagent.types import Message, storable


@dataclass(frozen=True, slots=True)
class RemoteWriter:
    """Answers prompts by chat completions at temperature 0. White space at the end of an answer is removed, because
    chat models add it arbitrarily."""

    server: Server
    max_new_tokens: int
    """Most tokens of an answer. An answer that is cut off is a ``Failure``."""

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        return [
            Failure(f"the answer was cut off after {self.max_new_tokens} tokens") if text is None else text
            for text in self.server.gather([partial(self._text, prompt) for prompt in prompts])
        ]

    def _text(self, prompt: Sequence[Message]) -> str | None:
        """The answer; None if it was cut off."""
        choice = self.server.chat(prompt, max_tokens=self.max_new_tokens, temperature=0.0).choices[0]
        return None if choice.finish_reason == "length" else storable(choice.message.content or "").rstrip()
