"""Conversations as token ids, by the tokenizer's own chat template, without ever tokenising a sampled action again.

A text has many tokenisations, and stored log-probabilities belong to the sampled ids, so these enter the next prompt
unchanged. The template gets a stand-in for each turn of the agent, the rendered text is cut there, and only the text in
between is tokenised. A template that rewrites the text before a turn is refused. A mark in an observation or a tool's
description stays plain text, so no web page and no tool server can write a turn of the agent.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from treeagent.generators.base import common_prefix
from treeagent.types import Message, UserError, as_read

_ESCAPE = "\U000ffffd"
"""With the character after it, stands for the text of a special token in a message, or for one of these characters."""
_TURN = "\U000ffffc"
"""With the character after it, stands for a turn of the agent."""
_DATE = datetime(2024, 7, 26)
"""The date for templates that write today's: the one that Llama's write without a clock."""
_TAG = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")
"""Texts of added tokens by which templates mark parts of a turn, although the tokenizer does not call them special."""
_MARKS = re.compile(r"(</?think>|</?tool_call>|\[TOOL_CALLS\]|\[ARGS\])")
"""Marks of thoughts and calls in a turn, which a model writes as special tokens if its tokenizer has them."""
_TEST_CONVERSATION = (
    Message("system", "70101"),  # digits, which no template changes
    Message("user", "70202"),
    Message("assistant", "70303", (0,)),
    Message("user", "70404"),
    Message("assistant", "70505", (0,)),
    Message("user", "70606"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A conversation as the policy reads it: a short note replaces each observation that was left out."""

    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    added_ids: tuple[int, ...]
    """The ids that the messages after the last turn add to the prompt; the whole prompt if it starts anew."""
    left_out: tuple[int, ...] = ()
    """Indices of the observations that were left out, if the last message made the prompt start anew; else empty."""
    error: str = ""
    """The reason why the conversation cannot be read; empty if it can."""


class ChatFormat:
    """Turns conversations into token ids. A conversation may end before a turn of the agent, within one, or after one.

    Args:
        instructions: system message of every conversation, unless the template writes the tools itself.
        preface: text before the instructions, in every conversation.
        tools: tools in OpenAI's form, which the template writes.
        context_tokens: most tokens of a prompt; old observations are left out of a longer one. None leaves nothing out.
        shots: demonstrations that every prompt shows as earlier turns, from a message to a turn of the agent.
        end_ids: tokens beside ``stop_id``, with which the template ends a turn, that end one (``other_stops``).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        instructions: str = "",
        preface: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        context_tokens: int | None = None,
        shots: Sequence[Sequence[Message]] = (),
        end_ids: Sequence[int] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise UserError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: give it one")
        self.tokenizer = tokenizer
        added = sorted(tokenizer.added_tokens_decoder.values(), key=lambda token: -len(token.content))
        special = [token.content for token in added if token.special]
        tags = [token.content for token in added if not token.special and _TAG.fullmatch(token.content)]
        self._escaped = [_ESCAPE, _TURN, *special, *tags]
        self._escapable, self._tags = _any_of(self._escaped), _any_of(tags) if tags else None
        # Our own text may name the tags of a call, so only special tokens are escaped in it.
        own = _any_of([_ESCAPE, _TURN, *special])
        self._instructions, self._preface = self._escape(instructions, own), self._escape(preface, own)
        self._shots, self._shown, self._begins = tuple[Message, ...](), tuple[int, ...](), {0}
        """The messages of the demonstrations, their token ids, and where each and the conversation itself begin."""
        self._context_tokens = context_tokens
        self._tools: list[dict[Any, Any]] = [self._escape_all(dict(tool)) for tool in tools]
        self.context_ids = lru_cache(maxsize=1 << 16)(self._context_ids)
        self.encode_action = lru_cache(maxsize=1 << 16)(self._encode_action)
        self._render = lru_cache(maxsize=1 << 12)(self._rendered)
        self._choose_form()
        after = self._render(_TEST_CONVERSATION).partition(_placeholder(0))[2].lstrip()
        self.stop_text = next((e.content for e in added if after.startswith(e.content)), tokenizer.eos_token)
        if self.stop_text is None:
            raise UserError(f"the tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token: give it one")
        self.stop_id: int = tokenizer.get_vocab()[self.stop_text]
        ends = {*end_ids, self.stop_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id}
        self.other_stops = tuple(sorted(ends - {self.stop_id}))
        if shots:
            self._begins |= set(accumulate(map(len, shots)))
            shown = self.with_ids([message for shot in shots for message in shot])
            self._shown = self.prompt_ids(shown)
            self.forget()
            self._shots = shown
            self._text_after_turn(self._render((*shown, *_TEST_CONVERSATION)), (*shown, *_TEST_CONVERSATION[:-2]))

    def forget(self) -> None:
        """Clear the caches of conversations read so far."""
        for cached in (self.context_ids, self._render, self.encode_action):
            cached.cache_clear()

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text, without special tokens or tags such as ``</tool_response>`` as one token."""
        # The tokenizer splits special tokens by itself. A tag is encoded in two pieces.
        cuts = [0, *(found.start() + 1 for found in self._tags.finditer(text))] if self._tags else [0]
        pieces = [text[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]
        encoded = (self.tokenizer(piece, add_special_tokens=False, split_special_tokens=True) for piece in pieces)
        return tuple(chain.from_iterable(each["input_ids"] for each in encoded))

    def encode_marks(self, text: str) -> tuple[int, ...]:
        """Ids of text in which the text of a special token becomes that token."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _encode_action(self, text: str) -> tuple[int, ...]:
        """Ids of a turn that no model sampled, with the stop token. A thought that the template has opened is closed or
        goes on."""
        if self.opens_thought and text.startswith(opening := "<think>\n"):
            return (*self.encode_within(text.removeprefix(opening)), self.stop_id)
        return (*self.closing, *self._encode_turn(text), self.stop_id)

    def _encode_turn(self, text: str) -> tuple[int, ...]:
        """Ids of text of a turn that no model sampled. The first of each mark becomes a special token; any other text
        of a special token, such as one in an argument, stays plain."""
        parts = _MARKS.split(text)  # every second part is a mark
        marks, others = parts[1::2], "".join(parts[::2])
        if len(set(marks)) == len(marks) and not any(token in others for token in self._escaped[2:]):
            return self.encode_marks(text)
        ids = tuple[int, ...]()
        for number, part in enumerate(parts):
            if part:
                is_first_mark = number % 2 and part not in parts[:number]
                ids += self.encode_marks(part) if is_first_mark else self.encode(part)
        return ids

    def encode_within(self, text: str) -> tuple[int, ...]:
        """Ids of text that continues a turn: encoded behind another one, since SentencePiece would add a blank."""
        other = "a" if text.startswith("\n") else "\n"
        before, ids = self.encode(other), self._encode_turn(other + text)
        return ids[len(before) :] if ids[: len(before)] == before else self._encode_turn(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids, without the stop token."""
        return str(self.tokenizer.decode(list(token_ids[:-1] if self.has_ended(token_ids) else token_ids)))

    def has_ended(self, token_ids: Sequence[int]) -> bool:
        """Whether a turn ends with one of its stop tokens."""
        return bool(token_ids) and (token_ids[-1] == self.stop_id or token_ids[-1] in self.other_stops)

    @cached_property
    def opens_thought(self) -> bool:
        """Whether the template begins a turn with ``<think>``."""
        return self._rendered((Message("user", "go"),)).rstrip().endswith("<think>")

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """Ids that close a thought that the template has opened, before an answer without a thought."""
        return self.encode_within("\n</think>\n\n") if self.opens_thought else ()

    def tokens_with(self, character: str) -> frozenset[int]:
        """All tokens whose text contains this ASCII character."""
        return frozenset(token for token in range(len(self.tokenizer)) if character in self.tokenizer.decode([token]))

    def shared_ids(self) -> tuple[int, ...]:
        """The ids with which every prompt begins: instructions, tools and demonstrations. Empty if there are none."""
        if not (self._preface or self._instructions or self._tools or self._shots):
            return ()
        return common_prefix([self.context_ids((Message("user", text),)) for text in ("a", "0", "\n")])

    def with_ids(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of a demonstration, with token ids for its turns."""
        return tuple(
            replace(message, token_ids=self.encode_action(message.content) if message.role == "assistant" else ())
            for message in messages
        )

    def prompt_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """All ids that the policy reads before its next action."""
        ids: tuple[int, ...] = ()
        for index, message in enumerate(messages):
            if message.role == "assistant":
                ids += self.context_ids(messages[:index]) + message.token_ids
        return ids + self.context_ids(messages)

    def read(self, messages: tuple[Message, ...]) -> Reading:
        """The conversation as the policy reads it within ``context_tokens``.

        When a prompt becomes too long, the oldest observations are left out of it and of all later ones, until it takes
        only half of the tokens. The opening, the agent's turns and the newest observation stay.
        """
        limit = self._context_tokens
        if limit is None:
            return Reading(messages, self.prompt_ids(messages), self.context_ids(messages))
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        read_messages, left_out, is_cut, length = messages, tuple[int, ...](), False, 0
        for end in (*turns, len(messages)):
            length += len(self.context_ids(read_messages[:end]))
            is_cut = length > limit and not (end and read_messages[end - 1].partial)
            if is_cut:
                left_out = self._leave_out(messages[:end], left_out, length - limit // 2)
                read_messages = as_read(messages, left_out)
                length = len(self.prompt_ids(read_messages[:end]))
            if is_cut and length > limit:
                return Reading(
                    messages,
                    (),
                    (),
                    error=f"the prompt has {length} tokens with its old observations left out, but may have {limit}: "
                    "lower environment.max_steps or the length of observations, or use a model with a longer context",
                )
            if end < len(messages):
                length += len(messages[end].token_ids)
        prompt = self.prompt_ids(read_messages)
        if is_cut and left_out:
            return Reading(read_messages, prompt, prompt, left_out)
        return Reading(read_messages, prompt, self.context_ids(read_messages))

    def _leave_out(self, messages: tuple[Message, ...], left_out: tuple[int, ...], surplus: int) -> tuple[int, ...]:
        """``left_out`` with further observations, oldest first, until they save ``surplus`` tokens."""
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"] or [0]
        for index in range(turns[0], turns[-1]):
            if surplus > 0 and messages[index].role == "user" and index not in left_out:
                [note] = as_read(messages[index : index + 1], (0,))
                saved = len(self.encode(messages[index].content)) - len(self.encode(note.content))
                if saved > 0:
                    left_out, surplus = (*left_out, index), surplus - saved
        return left_out

    def _context_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The ids that the messages after the agent's last turn add, with the opening of its next turn; none while a
        turn is unfinished."""
        whole = (*self._shots, *messages)
        last = max((index for index, message in enumerate(whole) if message.role == "assistant"), default=None)
        if last is None:
            return self._encode_rendered(self._render(whole))
        shown, turn = self._shown if last < len(self._shots) else (), whole[last]
        if not turn.token_ids:
            raise UserError(f"the assistant message {turn.content!r} carries no token ids: it cannot be trained on")
        if last == len(whole) - 1:  # unfinished, or the last word of the conversation
            return shown
        added = self._text_after_turn(self._render(whole), whole[:last])
        if turn.token_ids[-1] != self.stop_id or not added.lstrip().startswith(self.stop_text):
            return shown + self._encode_rendered(added)
        # The turn has its stop token already, but a tokenizer may encode the text behind it otherwise (Phi-3).
        ids = self._encode_rendered(added.lstrip())
        if ids[0] == self.stop_id:
            return shown + ids[1:]
        return shown + self._encode_rendered(added.lstrip().removeprefix(self.stop_text))

    def _text_after_turn(self, rendered: str, before: tuple[Message, ...]) -> str:
        """The text after the turn that follows the messages ``before``. The text before it must be what the model read,
        but for blanks at its end and a part of the generation prompt, such as a ``<think>`` that the template leaves
        out of earlier turns."""
        read, turn = self._render(before), sum(message.role == "assistant" for message in before)
        head, found, added = rendered.partition(_placeholder(turn))
        if found and head.rstrip() == read.rstrip():
            return added
        if found and read.startswith(head) and head.startswith(self._rendered(before, opening=False)):
            return added
        raise self._unusable(
            "rewrites earlier turns, or opens a turn with more than its generation prompt holds; give the tokenizer "
            "one under which a longer conversation starts with the shorter one and its generation prompt"
        )

    def _unusable(self, reason: str) -> UserError:
        return UserError(f"the chat template of {self.tokenizer.name_or_path!r} {reason}")

    def _choose_form(self) -> None:
        """Choose the first form, from the most informative, in which the template writes all and rewrites nothing:
        whether it writes the tools, the role of the observations, and whether it has a system role."""
        forms = [(False, "user", True), (False, "user", False)]
        if self._tools:
            forms = [(True, answers, system) for answers in ("tool", "user") for system in (True, False)] + forms
        for form in forms:
            self._writes_tools, self._answers, self._has_system = form
            self._render.cache_clear()
            try:
                return self._test_template()
            except UserError:
                if form == forms[-1]:
                    raise

    def _test_template(self) -> None:
        self._text_after_turn(self._render(_TEST_CONVERSATION[:4]), _TEST_CONVERSATION[:2])
        rendered = self._render(_TEST_CONVERSATION)
        self._text_after_turn(rendered, _TEST_CONVERSATION[:4])
        for message in _TEST_CONVERSATION:
            if message.role != "assistant" and rendered.count(message.content) != 1:
                raise self._unusable(
                    f"does not write a message of role {message.role!r} once: give the tokenizer one that does"
                )
        if self._writes_tools and any(tool["function"]["name"] not in rendered for tool in self._tools):
            raise self._unusable("writes no tools")

    def _rendered(self, messages: tuple[Message, ...], opening: bool = True) -> str:
        """The messages as the template writes them, then the ``opening`` of a turn, with stand-ins."""
        rows, turns, begun = list[dict[str, str]](), 0, False
        first = [text for text in (self._preface, "" if self._writes_tools else self._instructions) if text]
        later = {"user": self._answers, "system": "system" if self._has_system else "user"}
        for index, message in enumerate(messages):
            if message.images:
                raise UserError(
                    "a chat template for text cannot write the environment's images: set policy.generator=chat and "
                    "policy.url to a server of a multimodal model, or let the environment show text alone"
                )
            content, begun = self._escape(message.content), begun and index not in self._begins
            if message.role == "assistant":
                rows.append({"role": "assistant", "content": _placeholder(turns)})
                turns, begun = turns + 1, True
            elif message.role == "system" and not begun:
                first.append(content)
            else:
                rows.append({"role": later.get(message.role, "user") if begun else "user", "content": content})
        if first and self._has_system:
            rows.insert(0, {"role": "system", "content": "\n\n".join(first)})
        elif first:  # without a system role, the system text begins the first message
            rows[0]["content"] = "\n\n".join((*first, rows[0]["content"]))
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    rows,
                    tools=[*self._tools] if self._writes_tools else None,
                    tokenize=False,
                    add_generation_prompt=opening,
                    date_string=_DATE.strftime("%d %b %Y"),
                    strftime_now=_DATE.strftime,
                )
            )
        except TemplateError as error:
            raise self._unusable(
                f"cannot write this conversation ({error}): give the tokenizer one that can"
            ) from error

    def _escape(self, text: str, escapable: re.Pattern[str] | None = None) -> str:
        """The text with a stand-in for each special token and tag, or for each ``escapable``."""
        pattern = escapable or self._escapable
        return pattern.sub(lambda found: _ESCAPE + chr(0xF0000 + self._escaped.index(found[0])), text)

    def _escape_all(self, value: Any) -> Any:
        """A JSON value with its strings and keys escaped, because the description of a tool may be untrusted."""
        if isinstance(value, str):
            return self._escape(value)
        if isinstance(value, Mapping):
            return {self._escape_all(key): self._escape_all(each) for key, each in value.items()}
        return [self._escape_all(each) for each in value] if isinstance(value, list | tuple) else value

    def _encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of rendered text: marks of the template become special tokens, stand-ins become plain text."""
        first, *others = text.split(_ESCAPE)
        ids = self.encode_marks(first)
        for piece in others:
            ids += self.encode(self._escaped[ord(piece[0]) - 0xF0000]) + self.encode_marks(piece[1:])
        return ids


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _placeholder(turn: int) -> str:
    return _TURN + chr(0xF0000 + turn)
