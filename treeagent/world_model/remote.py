"""A model on a server as the writer of a world model. It is prompted with instructions and never trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.generators.base import Failure
from treeagent.generators.remote import RemoteChat
from treeagent.types import Message
from treeagent.world_model.experience import Draft


@dataclass(frozen=True, slots=True)
class RemoteWriter:
    """Asks for answers by chat completions, which every server of the OpenAI protocol has. White space at the end of an
    answer is dropped: chat models add it freely."""

    chat: RemoteChat
    temperature: float = 0.0
    max_new_tokens: int = 256
    """Most tokens of an answer."""

    async def write(self, prompts: Sequence[tuple[Message, ...]], seeds: Sequence[int]) -> Sequence[Draft]:
        replies = self.chat.reply(prompts, 1, seeds, max_new_tokens=self.max_new_tokens, temperature=self.temperature)
        return [
            Draft("", told.reason) if isinstance(told, Failure) else Draft(told.texts[0].rstrip()) for told in replies
        ]
