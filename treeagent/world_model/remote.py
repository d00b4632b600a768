"""A model on a server as the writer of a world model. It is prompted with instructions and never trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.generators.base import Failure
from treeagent.generators.remote import RemoteChat, Replies
from treeagent.types import Message


@dataclass(frozen=True, slots=True)
class RemoteWriter:
    """Answers prompts by chat completions at temperature 0, which every server of the OpenAI protocol offers. White
    space at the end of an answer is removed, because chat models add it arbitrarily."""

    chat: RemoteChat
    max_new_tokens: int
    """Most tokens of an answer. An answer that is cut off is a ``Failure``."""

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        seeds = [0] * len(prompts)  # seeds have no effect at temperature 0
        replies = self.chat.reply(prompts, 1, seeds, max_new_tokens=self.max_new_tokens, temperature=0.0)
        return [reply if isinstance(reply, Failure) else self._text(reply) for reply in replies]

    def _text(self, replies: Replies) -> str | Failure:
        if replies.cut_off[0]:
            return Failure(f"the answer was cut off after {self.max_new_tokens} tokens")
        return replies.texts[0].rstrip()
