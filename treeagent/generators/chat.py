"""Conversations as token ids, through the tokenizer's own chat template, without tokenising an action twice.

What a model sampled enters the next prompt as the very ids that it sampled; only text that no model wrote (task,
observations, the template's marks) is tokenised, once, as the piece that it adds. A template that rewrites earlier
turns cannot be used so, and is refused. Only the template's own marks become special tokens: an observation that spells
one is plain text, so that no page can end its turn and speak for another.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from treeagent.types import Message, Refused

_ESCAPE = "\U000ffffd"
"""A private character that announces a stand-in for a special token's text, or for itself."""


class ChatFormat:
    """Renders conversations that end before an assistant turn, in the midst of one, or after one at the very end."""

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
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._escaped = [_ESCAPE, *sorted(special, key=len, reverse=True)]  # of two that fit, the longer one is meant
        self._escapable = re.compile("|".join(map(re.escape, self._escaped)))
        self.context_ids = lru_cache(maxsize=1 << 16)(self._context_ids)
        self._render = lru_cache(maxsize=1 << 12)(self._rendered)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text, no special token among them."""
        return tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Ids of an action that no model sampled (a demonstration), stop token included."""
        return (*self.encode(text), self.stop_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids, without the stop token."""
        ids = list(token_ids)
        if ids and ids[-1] == self.stop_id:
            ids.pop()
        return str(self.tokenizer.decode(ids))

    def tokens_with(self, character: str) -> frozenset[int]:
        """The tokens whose text holds an (ASCII) character."""
        return frozenset(token for token in range(len(self.tokenizer)) if character in self.tokenizer.decode([token]))

    def prompt_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Everything that the policy reads before its next action."""
        ids: tuple[int, ...] = ()
        for place, message in enumerate(messages):
            if message.role == "assistant":
                ids += self.context_ids(messages[:place]) + message.token_ids
        return ids + self.context_ids(messages)

    def _context_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Ids that the messages after the last assistant turn add, the next turn's opening included; none in the midst
        of a turn.

        Raises:
            ValueError: the template rewrites earlier turns, or an assistant message carries no ids.
        """
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            return self._encode_rendered(self._render(messages))
        said = messages[turns[-1]]
        if not said.token_ids:
            raise Refused(f"the assistant message {said.content!r} carries no token ids: it cannot be trained on")
        if messages[-1].partial:
            return ()
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
        return self._encode_rendered(added)

    def _rendered(self, messages: tuple[Message, ...]) -> str:
        """The conversation as the template writes it, with stand-ins for what spells a special token in what is read;
        what was said is not encoded again."""
        rows = [
            {
                "role": message.role,
                "content": message.content if message.role == "assistant" else self._escape(message.content),
            }
            for message in messages
        ]
        return str(self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True))

    def _escape(self, text: str) -> str:
        return self._escapable.sub(lambda found: _ESCAPE + chr(0xF0000 + self._escaped.index(found[0])), text)

    def _encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of rendered text: special tokens where the template wrote them, plain text where there are stand-ins."""
        first, *others = text.split(_ESCAPE)
        ids = list(self.tokenizer(first, add_special_tokens=False)["input_ids"])
        for piece in others:
            ids += self.encode(self._escaped[ord(piece[0]) - 0xF0000])
            ids += self.tokenizer(piece[1:], add_special_tokens=False)["input_ids"]
        return tuple(ids)
