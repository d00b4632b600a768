"""Conversations as token ids, through the tokenizer's own chat template, without tokenising an action twice.

What a model sampled enters the next prompt as the very ids that it sampled; only text that no model wrote (task,
observations, the template's marks) is tokenised, once, as the piece that it adds. A template that rewrites earlier
turns cannot be used so, and is refused.
"""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from treeagent.types import Message, Refused


class ChatFormat:
    """Renders conversations that end before an assistant turn, or after one at the very end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """
        Raises:
            ValueError: the tokenizer has no chat template or no end-of-sequence token.
        """
        if not tokenizer.chat_template:
            raise Refused(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: give it one")
        if tokenizer.eos_token_id is None:
            raise Refused(f"the tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token")
        self.tokenizer = tokenizer
        self.stop_id = int(tokenizer.eos_token_id)
        self.stop_text = str(tokenizer.eos_token)
        self.context_ids = lru_cache(maxsize=1 << 16)(self._context_ids)
        self._render = lru_cache(maxsize=1 << 12)(self._rendered)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Ids of an action that no model sampled (a demonstration), stop token included."""
        return (*self.encode(text), self.stop_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids, without the stop token."""
        ids = list(token_ids)
        if ids and ids[-1] == self.stop_id:
            ids.pop()
        return str(self.tokenizer.decode(ids))

    def prompt_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Everything that the policy reads before its next action."""
        ids: tuple[int, ...] = ()
        for place, message in enumerate(messages):
            if message.role == "assistant":
                ids += self.context_ids(messages[:place]) + message.token_ids
        return ids + self.context_ids(messages)

    def _context_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Ids that the messages after the last assistant turn add, the next turn's opening included.

        Raises:
            ValueError: the template rewrites earlier turns, or an assistant message carries no ids.
        """
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            return self.encode(self._render(messages))
        said = messages[turns[-1]]
        if not said.token_ids:
            raise Refused(f"the assistant message {said.content!r} carries no token ids: it cannot be trained on")
        before = self._render(messages[: turns[-1]]) + said.content
        whole = self._render(messages)
        if not whole.startswith(before):
            raise Refused(
                f"the chat template of {self.tokenizer.name_or_path!r} rewrites earlier turns; treeagent needs one "
                "under which a longer conversation starts with the shorter one"
            )
        added = whole[len(before) :]
        if said.token_ids[-1] == self.stop_id:
            added = added.removeprefix(self.stop_text)
        return self.encode(added)

    def _rendered(self, messages: tuple[Message, ...]) -> str:
        rows = [{"role": message.role, "content": message.content} for message in messages]
        return str(self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True))
