"""Constrained decoding: while a turn is sampled, only tokens are drawn after which the turn can still satisfy a form.

The form is a context-free grammar in llguidance's dialect of Lark, which vLLM also reads.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, count
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from treeagent.generators.chat import ChatFormat
from treeagent.generators.tag_calls import VALUE_END
from treeagent.types import UserError

try:
    import llguidance.hf
    from llguidance import LLMatcher
except ImportError as error:
    raise UserError(f"llguidance is missing ({error}): pip install 'llguidance>=1.3,<2'") from error


_MAX_EXPANSIONS = 2000
"""Most continuations that a search for the rest of a turn expands. A call of four arguments takes about fifty."""
_PIECES = ('"}],:{[', ("0", "x"), (" ", "\n"))
"""Groups of texts that complete a call: punctuation of its syntax, a digit and a letter, and blanks."""
_BRACKETS = ("[", "{")
_WRITTEN = 3
"""Cost of a piece within a text, in units of a text."""
_FALLBACK_TOKENS = 8
"""Number of tokens that are tried if no short token is allowed."""
_MAX_BRIDGE_TOKENS = 4
"""Most tokens that may be written before the lead into a call."""


class _Continuation(NamedTuple):
    """The rest of a turn, as far as a search has got. Compared by its fields, in order."""

    cost: int
    left: int
    """Number of tokens that may come next."""
    order: int
    """Differs between all continuations of a search."""
    path: tuple[int, ...]
    matcher: LLMatcher


class Form:
    """The grammar that a whole turn must satisfy, including its stop token.

    Args:
        rules: returns the rules of a turn (``Grammar.rules``); the rule ``turn`` describes the whole turn. It gets a
            function that writes a mark as a term of the rules: quoted, or as a special token.

    Attributes:
        lark: the complete rules, beginning with ``start``.

    Raises:
        UserError: llguidance misreads the tokenizer, or refuses the rules, for example because of a tool's schema.
    """

    def __init__(self, chat: ChatFormat, rules: Callable[[Callable[[str], str]], str]) -> None:
        tokenizer = cast(PreTrainedTokenizerFast, chat.tokenizer)
        self._stop = chat.stop_id
        known = llguidance.hf.from_tokenizer(tokenizer, eos_token=chat.stop_id)  # a large tokenizer takes a second
        if b" b" not in known.decode_bytes(list(chat.encode("a b"))):
            raise UserError(
                "turns cannot be held to their format, because llguidance misreads the tokens of this tokenizer: set "
                "policy.structured=false; if transformers 5.17 imported the model from a GGUF file, import it again "
                "with a newer transformers"
            )
        vocabulary = tokenizer.get_vocab()

        def mark_term(mark: str) -> str:
            token = vocabulary.get(mark)
            special = token is not None and known.is_special_token(token)  # includes some that transformers calls plain
            return f"<[{token}]>" if special else json.dumps(mark)

        end = mark_term("</think>")
        opened = f"opened: /(?s:.*)/ {end}" if end.startswith("<[") else r"opened[lazy]: /(?s:.*)<\/think>/"
        start = r"opened /\n{0,2}/ turn" if chat.opens_thought else "turn"
        rest = f"\n{opened}" if chat.opens_thought else ""
        # The first line names the dialect; without it, vLLM's xgrammar would read the rules as its own dialect.
        self.lark = f"%llguidance {{}}\nstart: {start} <[{chat.stop_id}]>{rest}\n{rules(mark_term)}"
        grammar = LLMatcher.grammar_from_lark(self.lark)
        if error := LLMatcher.validate_grammar(grammar, known):
            raise UserError(
                f"turns cannot be held to their format and the environment's tools ({error.splitlines()[0]}): set "
                "policy.structured=false, or mend the tool's schema"
            )
        self._start = LLMatcher(known, grammar)
        # A tag that ends an argument may be half written. The last line break alone would be a blank.
        ends = [VALUE_END[cut:] for cut in range(len(VALUE_END) - 1)] if "<parameter=" in self.lark else []
        first, *others = _PIECES
        self._pieces = [list(map(chat.encode_within, texts)) for texts in ([*ends, *first], *others)]
        self._decode = chat.decode

    def lead_in(self, token_ids: Sequence[int], lead: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens to append to a turn that begins with ``token_ids``: ``lead``, after at most a few tokens that
        complete an unfinished character or word. Empty if the form does not allow ``lead`` there."""
        found = self._search(
            token_ids, lambda matcher: lead if matcher.validate_tokens(list(lead)) == len(lead) else ()
        )
        return found if len(found) <= len(lead) + _MAX_BRIDGE_TOKENS else ()

    def ending(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """A few tokens, including the stop token, that complete a turn that begins with ``token_ids`` so that it is
        well-formed. Empty if none are found."""
        return self._search(token_ids, lambda matcher: (self._stop,) if _allowed_tokens(matcher)[self._stop] else ())

    def _search(self, token_ids: Sequence[int], goal: Callable[[LLMatcher], tuple[int, ...]]) -> tuple[int, ...]:
        """Search for a continuation of ``token_ids``. ``goal`` returns its last tokens, or none while the goal is not
        reached. Returns the whole continuation; empty if none is found.

        This is a best-first search: the cheapest continuation is expanded first. Each text, object or array that it
        begins costs 1, and each piece within a text ``_WRITTEN``. A continuation is within a text if the grammar allows
        more than half of all tokens after it. Of two that cost the same, the one that allows fewer tokens comes first.

        Tokens without an alternative are taken at once. Otherwise the pieces of the first group of ``_PIECES`` that the
        grammar allows are tried. If it allows none of any group, the first few allowed tokens are. If the same tokens
        may follow two pieces, only the first piece is tried. No text is reached twice, by whatever tokens.
        """
        start = self._start.deep_copy()
        if not start.consume_tokens(list(token_ids)):
            return ()
        order, seen = count(), set[str]()
        waiting = [_Continuation(0, 0, next(order), (), start)]
        for _ in range(_MAX_EXPANSIONS):
            if not waiting:
                break
            cost, left, _, path, matcher = heappop(waiting)
            if found := goal(matcher):
                return (*path, *found)
            forced = tuple(matcher.compute_ff_tokens())
            if forced and matcher.consume_tokens(list(forced)):
                path = (*path, *forced)
                if found := (self._stop,) if matcher.is_stopped() else goal(matcher):
                    return (*path, *found) if found != path[-1:] else path
            alike = set[bytes]()
            for piece in self._next_pieces(matcher):
                after, text = matcher.deep_copy(), self._decode((*path, *piece))
                if text in seen or not after.consume_tokens(list(piece)) or after.is_stopped():
                    continue
                seen.add(text)
                if (allowed := _allowed_tokens(after)).tobytes() not in alike:
                    alike.add(allowed.tobytes())
                    more, half = int(allowed.sum()), len(allowed) // 2
                    of_text = _WRITTEN if left > half else 1
                    added = of_text if more > half else int(text.endswith(_BRACKETS))
                    heappush(waiting, _Continuation(cost + added, more, next(order), (*path, *piece), after))
        return ()

    def _next_pieces(self, matcher: LLMatcher) -> list[tuple[int, ...]]:
        """The tokens with which a search goes on."""
        for pieces in self._pieces:
            if allowed := [piece for piece in pieces if matcher.validate_tokens(list(piece)) == len(piece)]:
                return allowed
        return [(token,) for token in np.flatnonzero(_allowed_tokens(matcher))[:_FALLBACK_TOKENS].tolist()]

    def sample_states(self, turn_prefixes: Sequence[tuple[int, ...]], count: int, vocabulary: int) -> "SampleStates":
        """Track ``count`` samples for each turn. ``turn_prefixes`` holds the existing tokens of the turns.
        ``vocabulary`` is the number of logits."""
        matchers: list[list[LLMatcher]] = []
        for ids in turn_prefixes:
            matcher = self._start.deep_copy()
            matcher.consume_tokens(list(ids))
            matchers.append([matcher, *(matcher.deep_copy() for _ in range(count - 1))])
        return SampleStates(matchers, vocabulary)


def _allowed_tokens(matcher: LLMatcher) -> NDArray[np.uint8]:
    """1 for each token that may come next, else 0, [vocabulary]."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")


@dataclass(frozen=True, slots=True)
class SampleStates:
    """The grammar states of samples that are being drawn."""

    matchers: Sequence[Sequence[LLMatcher]]
    """[rows, siblings]"""
    vocabulary: int
    """Number of logits."""

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token may come next in each sample, [rows, siblings, vocabulary]. If a sample allows no further
        token, it allows the stop token."""
        masks = [[matcher.compute_bitmask() for matcher in siblings] for siblings in self.matchers]
        words = np.frombuffer(b"".join(chain.from_iterable(masks)), np.uint8)
        bits = np.unpackbits(words, bitorder="little").reshape(len(masks), len(masks[0]), -1)
        allowed = np.zeros((*bits.shape[:2], self.vocabulary), bool)  # logits may be padded beyond the tokens
        width = min(bits.shape[2], self.vocabulary)
        allowed[..., :width] = bits[..., :width]
        return allowed

    def advance(self, tokens: Sequence[Sequence[int]]) -> None:
        """Advance by the drawn tokens, [rows, siblings]. Tokens after the end of a turn are ignored."""
        for siblings, row in zip(self.matchers, tokens, strict=True):
            for matcher, token in zip(siblings, row, strict=True):
                if not matcher.is_stopped():
                    matcher.consume_token(token)
