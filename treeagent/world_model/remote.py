"""A server's model as a world model's writer: prompted with instructions, never trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.generators.base import Failure
from treeagent.generators.remote import RemoteChat
from treeagent.types import Message
from treeagent.world_model.experience import Draft


@dataclass(frozen=True, slots=True)
class RemoteWriter:
    """Asks for answers by chat completions, so that any server that speaks the OpenAI protocol will do. White space at
    an answer's end, which chat models are free with, is dropped."""

    chat: RemoteChat
    temperature: float = 0.0
    max_new_tokens: int = 256
    """Per answer."""

    async def write(self, prompts: Sequence[tuple[Message, ...]], seeds: Sequence[int]) -> Sequence[Draft]:
        replies = self.chat.reply(prompts, 1, seeds, max_new_tokens=self.max_new_tokens, temperature=self.temperature)
        return [
            Draft("", told.reason) if isinstance(told, Failure) else Draft(told.texts[0].rstrip()) for told in replies
        ]
