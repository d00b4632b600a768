"""Turns held to a form while they are sampled: of all tokens only those with which it can still be reached are drawn.

The form is a context-free grammar in llguidance's dialect of Lark, which vLLM reads too.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, count
from typing import cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from treeagent.generators.chat import ChatFormat
from treeagent.types import UserError

try:
    import llguidance.hf
    from llguidance import LLMatcher
except ImportError as error:
    raise UserError(f"llguidance is missing ({error}): pip install 'llguidance>=1.3,<2'") from error


_MOST_TRIED = 400
"""Continuations that a search for the rest of a turn looks at. An argument that is cut off takes about ten."""
_FEW = 8
"""Tokens that are tried where no short one is allowed."""
_BRIDGE = 4
"""Most tokens that are written before the lead into a call."""


class Form:
    """What a turn has to come to, its stop token included.

    Args:
        rules: given how to spell a mark (quoted, or as the special token that it is), the rules of a turn; ``turn``
            is the rule of the whole turn.

    Attributes:
        lark: the rules, from ``start`` on.

    Raises:
        UserError: llguidance refuses the rules, for example because of a tool's schema.
    """

    def __init__(self, chat: ChatFormat, rules: Callable[[Callable[[str], str]], str]) -> None:
        tokenizer = cast(PreTrainedTokenizerFast, chat.tokenizer)
        self._stop = chat.stop_id
        known = llguidance.hf.from_tokenizer(tokenizer, eos_token=chat.stop_id)  # a large one takes a second
        vocabulary = tokenizer.get_vocab()

        def spelt(mark: str) -> str:
            token = vocabulary.get(mark)
            special = token is not None and known.is_special_token(token)  # also some that transformers calls plain
            return f"<[{token}]>" if special else json.dumps(mark)

        end = spelt("</think>")
        opened = f"opened: /(?s:.*)/ {end}" if end.startswith("<[") else r"opened[lazy]: /(?s:.*)<\/think>/"
        start = f"opened turn <[{chat.stop_id}]>\n{opened}" if chat.opens_thought else f"turn <[{chat.stop_id}]>"
        # The first line says whose dialect it is, which others might take for theirs: vLLM's xgrammar does.
        self.lark = f"%llguidance {{}}\nstart: {start}\n{rules(spelt)}"
        grammar = LLMatcher.grammar_from_lark(self.lark)
        if error := LLMatcher.validate_grammar(grammar, known):
            raise UserError(
                f"turns cannot be held to their format and the environment's tools ({error.splitlines()[0]}): set "
                "policy.structured=false, or mend the tool's schema"
            )
        self._start = LLMatcher(known, grammar)
        self._short = _short_tokens(chat)

    def led(self, token_ids: Sequence[int], lead: tuple[int, ...]) -> tuple[int, ...]:
        """``lead``, where a turn that begins with ``token_ids`` may go on with it, behind a token or two that complete
        an unfinished character or word. Empty where it may not."""
        found = self._search(
            token_ids, lambda matcher: lead if matcher.validate_tokens(list(lead)) == len(lead) else ()
        )
        return found if len(found) <= len(lead) + _BRIDGE else ()

    def ending(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Few tokens, the stop token included, with which a turn that began with ``token_ids`` is well-formed. Empty
        where none are found."""
        return self._search(token_ids, lambda matcher: (self._stop,) if _bits(matcher)[self._stop] else ())

    def _search(self, token_ids: Sequence[int], goal: Callable[[LLMatcher], tuple[int, ...]]) -> tuple[int, ...]:
        """The tokens behind ``token_ids`` up to where ``goal`` gives the last of them; empty where none are found.

        Best-first search: first where the grammar leaves least choice, since a closed quote leaves less than an open
        one. Tokens without a choice are taken at once; of the others only those of one punctuation mark, digit or
        letter are tried, or the first few if the grammar allows none of these.
        """
        begun = self._start.deep_copy()
        if not begun.consume_tokens(list(token_ids)):
            return ()
        order = count()
        waiting: list[tuple[float, int, tuple[int, ...], LLMatcher]] = [(0.0, next(order), (), begun)]
        for _ in range(_MOST_TRIED):
            if not waiting:
                break
            _, _, path, matcher = heappop(waiting)
            if found := goal(matcher):
                return (*path, *found)
            forced = tuple(matcher.compute_ff_tokens())
            if forced and matcher.consume_tokens(list(forced)):
                path = (*path, *forced)
                if found := (self._stop,) if matcher.is_stopped() else goal(matcher):
                    return (*path, *found) if found != path[-1:] else path
            allowed = _bits(matcher)
            short = self._short[allowed[self._short] > 0]
            for token in short.tolist() or np.flatnonzero(allowed)[:_FEW].tolist():
                after = matcher.deep_copy()
                if after.consume_token(token) and not after.is_stopped():
                    left = _bits(after)
                    choice = 0.0 if left[self._stop] else len(path) + math.log2(1 + int(left.sum()))
                    heappush(waiting, (choice, next(order), (*path, token), after))
        return ()

    def follow(self, begun: Sequence[tuple[int, ...]], count: int, vocabulary: int) -> "Followed":
        """``count`` samples for each turn that has come so far, drawn from logits of that many tokens."""
        matchers: list[list[LLMatcher]] = []
        for ids in begun:
            matcher = self._start.deep_copy()
            matcher.consume_tokens(list(ids))
            matchers.append([matcher, *(matcher.deep_copy() for _ in range(count - 1))])
        return Followed(matchers, vocabulary)


def _bits(matcher: LLMatcher) -> NDArray[np.uint8]:
    """1 for each token with which the turn can go on, [vocabulary]."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")


def _short_tokens(chat: ChatFormat) -> NDArray[np.int64]:
    """Ids of the tokens that are one character of a call's syntax, a digit or a letter."""
    found = (chat.encode(each) for each in '"}],: \n{[0x')
    return np.array([ids[0] for ids in found if len(ids) == 1], np.int64)


@dataclass(frozen=True, slots=True)
class Followed:
    """Samples that are being drawn."""

    matchers: Sequence[Sequence[LLMatcher]]
    """[rows, siblings]"""
    vocabulary: int

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens with which each can go on, [rows, siblings, vocabulary]; the stop token alone where none can."""
        masks = [[matcher.compute_bitmask() for matcher in siblings] for siblings in self.matchers]
        words = np.frombuffer(b"".join(chain.from_iterable(masks)), np.uint8)
        bits = np.unpackbits(words, bitorder="little").reshape(len(masks), len(masks[0]), -1)
        allowed = np.zeros((*bits.shape[:2], self.vocabulary), bool)  # logits may be padded beyond the tokens
        width = min(bits.shape[2], self.vocabulary)
        allowed[..., :width] = bits[..., :width]
        return allowed

    def take(self, tokens: Sequence[Sequence[int]]) -> None:
        """The tokens drawn, [rows, siblings]; what comes after a turn's end does not matter."""
        for siblings, drawn in zip(self.matchers, tokens, strict=True):
            for matcher, token in zip(siblings, drawn, strict=True):
                if not matcher.is_stopped():
                    matcher.consume_token(token)
