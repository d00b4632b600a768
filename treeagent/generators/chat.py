"""Conversations as token ids, through the tokenizer's own chat template, without tokenising an action twice.

What a model sampled enters the next prompt as the very ids that it sampled: the template writes stand-ins for the
agent's turns, and only the text between them is tokenised, once, as the piece that it adds. So it does not matter what
a template does to the words of a turn, such as trimming them or leaving thoughts out. A template that rewrites what
stands before a turn cannot be used so, and is refused. Only the template's own marks become special tokens: an
observation that spells one is plain text, so that no page can end its turn and speak for another.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from treeagent.types import Message, UserError, as_read

_ESCAPE = "\U000ffffd"
"""A private character that announces a stand-in for a special token's text, or for itself."""
_TURN = "\U000ffffc"
"""A private character that announces the stand-in for a turn of the agent."""
_DATE = "26 Jul 2024"
"""Some templates write today's date, and today's prompt would not be tomorrow's; this is what they write without a
clock."""
_TRIAL = (
    Message("system", "70101"),  # digits, which no template spells otherwise
    Message("user", "70202"),
    Message("assistant", "70303", (0,)),
    Message("user", "70404"),
    Message("assistant", "70505", (0,)),
    Message("user", "70606"),
)
"""A conversation by which a template shows what it can do."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A conversation as a policy reads it."""

    messages: tuple[Message, ...]
    """With a note in the place of each observation left out."""
    left_out: tuple[int, ...] = ()
    """Places of these, where the conversation's last message made the prompt start anew; else empty."""
    error: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a conversation is handed to the template."""

    tools: bool
    """The template writes the tools."""
    answers: str
    """Role of what the agent reads after its turns."""
    system: bool
    """The template has a system role; else what it would hold begins the first message."""


class ChatFormat:
    """Renders conversations that end before an assistant turn, in the midst of one, or after one at the very end.

    Args:
        instructions: lines that open every conversation, as its system message, unless the template writes the tools.
        tools: in OpenAI's form, for the template to write; what the agent reads is then a tool's answer, where the
            template can tell that.
        context_tokens: most tokens of a prompt, beyond which old observations are left out; none leaves nothing out.

    Attributes:
        stop_id: the special token that the template ends a turn of the agent with, the tokenizer's end of sequence
            where it writes none.

    Raises:
        UserError: the tokenizer has no chat template, or one that rewrites earlier turns or opens a turn otherwise than
            its generation prompt does, or nothing ends a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        instructions: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        context_tokens: int | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise UserError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: give it one")
        self.tokenizer = tokenizer
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = sorted(special, key=len, reverse=True)  # of two that fit, the longer one is meant
        self._escaped = [_ESCAPE, _TURN, *self._special]
        self._escapable = re.compile("|".join(map(re.escape, self._escaped)))
        self._instructions = instructions
        self._context_tokens = context_tokens
        self._tools: list[dict[Any, Any] | Callable[..., Any]] = [dict(tool) for tool in tools]
        self._tool_names = [tool["function"]["name"] for tool in tools]
        self.context_ids = lru_cache(maxsize=1 << 16)(self._context_ids)
        self._saved = lru_cache(maxsize=1 << 16)(self._tokens_saved)
        self._render = lru_cache(maxsize=1 << 12)(self._rendered)
        self._form = _Form(tools=False, answers="user", system=False)
        self._fit_form()
        self.stop_text, self.stop_id = self._stop()

    def forget(self) -> None:
        """Drop what is kept of the conversations read so far."""
        for cached in (self.context_ids, self._saved, self._render):
            cached.cache_clear()

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

    def read(self, messages: tuple[Message, ...]) -> Reading:
        """The conversation as it is read within ``context_tokens``, which follows from the conversation alone.

        Its turns are replayed. Where a prompt is too long, the oldest observations are left out of it and of all later
        ones, until half of the tokens would do: so prompts go on from one another for long between two such places. The
        opening, the agent's turns and the newest observation stay. A turn that has begun goes on behind its prompt.
        """
        most = self._context_tokens
        if most is None:
            return Reading(messages)
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
        told, left_out, anew, length = messages, tuple[int, ...](), False, 0
        for end in (*turns, len(messages)):
            length += len(self.context_ids(told[:end]))
            anew = length > most and not (end and told[end - 1].partial)
            if anew:
                left_out = self._leave_out(messages[:end], left_out, length - most // 2)
                told = as_read(messages, left_out)
                length = len(self.prompt_ids(told[:end]))
            if anew and length > most:
                return Reading(
                    messages,
                    error=f"the prompt has {length} tokens with its old observations left out, but may have {most}: "
                    "lower environment.observation_bytes or environment.max_steps, raise policy.context_tokens, or use "
                    "a model with a longer context",
                )
            if end < len(messages):
                length += len(messages[end].token_ids)
        return Reading(told, left_out if anew else ())

    def added_ids(self, reading: Reading) -> tuple[int, ...]:
        """Ids that a conversation's last messages add to the prompt: all of it, where it starts anew; none where it
        cannot be read."""
        if reading.error:
            return ()
        return self.prompt_ids(reading.messages) if reading.left_out else self.context_ids(reading.messages)

    def _leave_out(self, messages: tuple[Message, ...], left_out: tuple[int, ...], surplus: int) -> tuple[int, ...]:
        """``left_out`` and the oldest other observations before the newest that hold ``surplus`` tokens together."""
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"] or [0]
        for place in range(turns[0], turns[-1]):
            saved = self._saved(messages[place].content) if messages[place].role == "user" else 0
            if surplus > 0 and saved > 0 and place not in left_out:
                left_out, surplus = (*left_out, place), surplus - saved
        return left_out

    def _tokens_saved(self, observation: str) -> int:
        """How many fewer tokens the note has that stands for an observation."""
        (note,) = as_read([Message("user", observation)], (0,))
        return len(self.encode(observation)) - len(self.encode(note.content))

    def _context_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Ids that the messages after the last assistant turn add, the next turn's opening included; none in the midst
        of a turn.

        Raises:
            UserError: the template rewrites earlier turns, or an assistant message carries no ids.
        """
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            return self._encode_rendered(self._render(messages))
        said = messages[turns[-1]]
        if not said.token_ids:
            raise UserError(f"the assistant message {said.content!r} carries no token ids: it cannot be trained on")
        if messages[-1].partial:
            return ()
        added = self._added(self._render(messages), messages[: turns[-1]])
        if said.token_ids[-1] == self.stop_id and added.lstrip().startswith(self.stop_text):
            added = added.lstrip().removeprefix(self.stop_text)
        return self._encode_rendered(added)

    def _added(self, whole: str, before: tuple[Message, ...]) -> str:
        """What a rendered conversation adds after its last turn, which follows the messages ``before``.

        Three ways of opening that turn go with what was read before it: the same text; more blanks, which are the
        turn's own words; and less of the generation prompt, such as an opened thought that is told in no earlier turn.
        """
        read = self._render(before)
        head, found, added = whole.partition(_stand_in(sum(message.role == "assistant" for message in before)))
        if found and (head.rstrip() == read.rstrip() or self._opens_less(head, read, before)):
            return added
        if found and head.startswith(read):
            raise UserError(
                f"the chat template of {self.tokenizer.name_or_path!r} opens a turn with {head[len(read) :]!r}, which "
                "its generation prompt leaves out: make it write that where add_generation_prompt is true"
            )
        raise UserError(
            f"the chat template of {self.tokenizer.name_or_path!r} rewrites earlier turns; give the tokenizer one "
            "under which a longer conversation starts with the shorter one"
        )

    def _opens_less(self, head: str, read: str, before: tuple[Message, ...]) -> bool:
        return read.startswith(head) and head.startswith(self._rendered(before, opening=False))

    def _fit_form(self) -> None:
        """Take the form that tells the template most, of those under which it writes all and rewrites nothing."""
        forms = [_Form(True, answers, system) for answers in ("tool", "user") for system in (True, False)]
        fault = ""
        for form in (*(forms if self._tools else ()), _Form(False, "user", True), _Form(False, "user", False)):
            self._form = form
            self._render.cache_clear()
            if not (fault := self._trial_fault()):
                return
        raise UserError(fault)

    def _trial_fault(self) -> str:
        """Why the template cannot be used as ``_form`` says; empty where it can."""
        try:
            self._added(self._render(_TRIAL[:4]), _TRIAL[:2])
            self._added(self._render(_TRIAL), _TRIAL[:4])
        except UserError as fault:
            return str(fault)
        whole = self._render(_TRIAL)
        missing = next((each for each in _TRIAL if each.role != "assistant" and whole.count(each.content) != 1), None)
        if missing is not None:
            return (
                f"the chat template of {self.tokenizer.name_or_path!r} does not write a message of role "
                f"{missing.role!r} once: give the tokenizer one that does"
            )
        if self._form.tools and any(name not in whole for name in self._tool_names):
            return f"the chat template of {self.tokenizer.name_or_path!r} writes no tools: give it none"
        return ""

    def _stop(self) -> tuple[str, int]:
        """How a turn of the agent ends."""
        after = self._render(_TRIAL).partition(_stand_in(0))[2].lstrip()
        text = next((token for token in self._special if after.startswith(token)), self.tokenizer.eos_token)
        if text is None:
            raise UserError(f"the tokenizer {self.tokenizer.name_or_path!r} has no end-of-sequence token: give it one")
        return str(text), self.tokenizer.get_vocab()[str(text)]

    def _rendered(self, messages: tuple[Message, ...], opening: bool = True) -> str:
        """The conversation as the template writes it, with stand-ins for the agent's turns, and in what is read for all
        that spells a special token; ``opening`` adds the next turn's."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    self._rows(messages),
                    tools=self._tools if self._form.tools else None,
                    tokenize=False,
                    add_generation_prompt=opening,
                    date_string=_DATE,
                )
            )
        except TemplateError as error:
            raise UserError(
                f"the chat template of {self.tokenizer.name_or_path!r} cannot write this conversation ({error}): give "
                "the tokenizer one that can"
            ) from error

    def _rows(self, messages: tuple[Message, ...]) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = []
        opening = [] if self._form.tools or not self._instructions else [self._instructions]
        turns = 0
        for message in messages:
            content = self._escape(message.content)
            if message.role == "assistant":
                rows.append({"role": "assistant", "content": _stand_in(turns)})
                turns += 1
            elif message.role == "system":
                opening.append(content)
            elif turns:
                rows.append({"role": self._form.answers, "content": content})
            else:
                rows.append({"role": "user", "content": content})
        if opening and self._form.system:
            return [{"role": "system", "content": "\n\n".join(opening)}, *rows]
        if opening:
            rows[0]["content"] = "\n\n".join((*opening, rows[0]["content"]))
        return rows

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


def _stand_in(turn: int) -> str:
    return _TURN + chr(0xF0000 + turn)
