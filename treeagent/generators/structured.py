"""Constrained decoding: while a turn is sampled, only tokens are drawn after which the turn can still satisfy a form.

The form is a context-free grammar in llguidance's dialect of Lark, which vLLM also reads.
"""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

import llguidance.hf
import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from treeagent.generators.chat import ChatFormat
from treeagent.types import UserError


class Form:
    """The grammar that a whole turn must satisfy, including its stop token, by ``Grammar.rules`` of some tools."""

    def __init__(self, chat: ChatFormat, rules: Callable[[Callable[[str], str]], str]) -> None:
        tokenizer = cast(PreTrainedTokenizerFast, chat.tokenizer)
        known = llguidance.hf.from_tokenizer(tokenizer, eos_token=chat.stop_id)
        if b" b" not in known.decode_bytes(list(chat.encode("a b"))):
            raise UserError(
                "turns cannot be held to their format, because llguidance misreads the tokens of this tokenizer: set "
                "policy.structured=false"
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

    def may_follow(self, token_ids: Sequence[int], lead: Sequence[int]) -> bool:
        """Whether a turn that begins with ``token_ids`` may go on with ``lead``."""
        matcher = self._start.deep_copy()
        return bool(matcher.consume_tokens(list(token_ids))) and matcher.validate_tokens(list(lead)) == len(lead)

    def begun(self, turn_prefixes: Sequence[tuple[int, ...]], count: int) -> list[list[LLMatcher]]:
        """The states of ``count`` samples of each turn after its existing tokens, [rows, siblings]."""
        matchers: list[list[LLMatcher]] = []
        for ids in turn_prefixes:
            matcher = self._start.deep_copy()
            matcher.consume_tokens(list(ids))
            matchers.append([matcher, *(matcher.deep_copy() for _ in range(count - 1))])
        return matchers

    def allowed(self, states: Sequence[Sequence[LLMatcher]], vocabulary: int) -> NDArray[np.bool_]:
        """Whether each token may come next in each sample, [rows, siblings, vocabulary]."""
        masks = [[matcher.compute_bitmask() for matcher in siblings] for siblings in states]
        words = np.frombuffer(b"".join(chain.from_iterable(masks)), np.uint8)
        bits = np.unpackbits(words, bitorder="little").reshape(len(masks), len(masks[0]), -1)
        allowed = np.zeros((*bits.shape[:2], vocabulary), bool)  # logits may be padded beyond the tokens
        width = min(bits.shape[2], vocabulary)
        allowed[..., :width] = bits[..., :width]
        return allowed

    def advance(self, states: Sequence[Sequence[LLMatcher]], tokens: Sequence[Sequence[int]]) -> None:
        """Advance by the drawn tokens, [rows, siblings]. Tokens after the end of a turn are ignored."""
        for siblings, row in zip(states, tokens, strict=True):
            for matcher, token in zip(siblings, row, strict=True):
                if not matcher.is_stopped():
                    matcher.consume_token(token)
