"""Foreign text made safe to look at: what a terminal or a page would obey or hide is written as a Python escape."""

import re
from functools import cache
from itertools import chain

_SPACES = "\xa0\u2002-\u200a\u202f\u205f\u3000"
"""Spaces of ordinary text that ``str.isprintable`` refuses."""
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Characters without any ink that ``str.isprintable`` lets through: fillers and variation selectors."""


def _shown(*ranges: range) -> str:
    """The characters of these ranges that are printable and have ink, as the inside of a regular expression's class."""
    characters = "".join(each for each in map(chr, chain(*ranges)) if each.isprintable())
    return re.sub(f"[{_INVISIBLE}]", "", characters)


_EMOJI = "©®‼⁉™ℹ〰〽㊗㊙" + re.escape(_shown(range(0x2190, 0x2C00), range(0x1F000, 0x1FB00)))
_JOINING = _shown(range(0x600, 0xE00), range(0x1000, 0x10A0), range(0x1780, 0x1800))
"""Arabic, Syriac, the scripts of India, Burmese and Khmer, which need joiners and non-joiners between their letters."""
_HARMLESS = (
    rf"[{_EMOJI}]\ufe0f?(?:\u200d(?=[{_EMOJI}]))?",  # the selector asks for colours, the joiner makes one of two
    r"[0-9#*]\ufe0f\u20e3",  # a keycap
    rf"[{_JOINING}](?:[\u200c\u200d](?=[{_JOINING}]))?",
    f"[{_SPACES}]",
)


@cache
def _pattern() -> re.Pattern[str]:
    """Takes some milliseconds to compile, which plain text is spared."""
    return re.compile(
        rf"(?=[^ -~]|.\ufe0f)(?:(?P<harmless>{'|'.join(_HARMLESS)})|(?P<invisible>[{_INVISIBLE}])|[^ -~])"
    )


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with each control, format or invisible character as a Python escape, such as ``\x1b``.

    Controls could make a terminal do things, bidirectional ones could show words in another order than they have, and
    invisible ones could hide words. Joiners and selectors stay where emoji and scripts need them. A text that has been
    made visible stays as it is when it is made visible again.

    Args:
        lines: keep line feeds and tabs, and write CR LF as a line feed.
    """
    if lines:
        text = text.replace("\r\n", "\n")
    words = text.replace("\n", "").replace("\t", "") if lines else text
    if words.isprintable() and (words.isascii() or not re.search(f"[{_INVISIBLE}]", words)):
        return text
    return _pattern().sub(_kept if lines else _escaped, text)


def _kept(match: re.Match[str]) -> str:
    return match[0] if match[0] in "\n\t" else _escaped(match)


def _escaped(match: re.Match[str]) -> str:
    fine = match["harmless"] or (match["invisible"] is None and match[0].isprintable())
    return match[0] if fine else ascii(match[0])[1:-1]
