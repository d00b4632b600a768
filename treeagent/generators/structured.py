"""Turns held to a form while they are sampled: of all tokens only those with which it can still be reached are drawn.

The form is a context-free grammar in llguidance's dialect of Lark, which vLLM reads too.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from treeagent.generators.chat import ChatFormat
from treeagent.types import Message, UserError

try:
    import llguidance.hf
    from llguidance import LLMatcher
except ImportError as error:
    raise UserError(f"llguidance is missing ({error}): pip install 'treeagent[structured]'") from error


class Form:
    """What a turn has to come to, its stop token included.

    Args:
        rules: given how to spell a mark (quoted, or as the special token that it is), the rules of a turn, of which
            ``turn`` is the whole.

    Attributes:
        lark: the rules, from ``start`` on.

    Raises:
        UserError: llguidance refuses the rules, for example because of a tool's schema.
    """

    def __init__(self, chat: ChatFormat, rules: Callable[[Callable[[str], str]], str]) -> None:
        tokenizer = cast(PreTrainedTokenizerFast, chat.tokenizer)
        known = llguidance.hf.from_tokenizer(tokenizer, eos_token=chat.stop_id)  # a large one takes a second
        vocabulary = tokenizer.get_vocab()

        def spelt(mark: str) -> str:
            token = vocabulary.get(mark)
            special = token is not None and known.is_special_token(token)  # also some that transformers calls plain
            return f"<[{token}]>" if special else json.dumps(mark)

        end = spelt("</think>")
        opened = f"opened: /(?s:.*)/ {end}" if end.startswith("<[") else r"opened[lazy]: /(?s:.*)<\/think>/"
        start = f"opened turn <[{chat.stop_id}]>\n{opened}" if _opens_thought(chat) else f"turn <[{chat.stop_id}]>"
        # The first line says whose dialect it is, which others might take for theirs: vLLM's xgrammar does.
        self.lark = f"%llguidance {{}}\nstart: {start}\n{rules(spelt)}"
        grammar = LLMatcher.grammar_from_lark(self.lark)
        if error := LLMatcher.validate_grammar(grammar, known):
            raise UserError(
                f"turns cannot be held to their format and the environment's tools ({error.splitlines()[0]}): set "
                "policy.structured=false, or mend the tool's schema"
            )
        self._start = LLMatcher(known, grammar)

    def follow(self, begun: Sequence[tuple[int, ...]], count: int, vocabulary: int) -> "Followed":
        """``count`` samples for each turn that has come so far, drawn from logits of that many tokens."""
        matchers: list[list[LLMatcher]] = []
        for ids in begun:
            matcher = self._start.deep_copy()
            matcher.consume_tokens(list(ids))
            matchers.append([matcher, *(matcher.deep_copy() for _ in range(count - 1))])
        return Followed(matchers, vocabulary)


def _opens_thought(chat: ChatFormat) -> bool:
    """Whether the template begins a turn with the thinking's first mark, which the turn then lacks."""
    return chat.decode(chat.prompt_ids((Message("user", "go"),))).rstrip().endswith("<think>")


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
