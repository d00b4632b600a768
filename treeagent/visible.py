"""Makes untrusted text safe to display: characters that a terminal or a page would obey or hide become Python
escapes."""

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

_SPACES = "\xa0\u2002-\u200a\u202f\u205f\u3000"
"""Spaces of ordinary text for which ``str.isprintable`` is false."""
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Characters without a visible glyph for which ``str.isprintable`` is true: fillers and variation selectors."""
_HIDDEN, _SPACE = re.compile(f"[{_INVISIBLE}]"), re.compile(f"[{_SPACES}]")
_COLOUR, _JOINERS, _KEYCAP = "\ufe0f", "\u200c\u200d", "\u20e3"


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with each control, format or invisible character as a Python escape, such as ``\x1b``.

    They could command a terminal, reorder words or hide them. Joiners and selectors stay where emoji and scripts need
    them. Idempotent. ``lines`` keeps line feeds and tabs, and writes CR LF as a line feed.
    """
    if lines:
        text = text.replace("\r\n", "\n")
    words = text.replace("\n", "").replace("\t", "") if lines else text
    if words.isprintable() and (words.isascii() or not _HIDDEN.search(words)):
        return text
    return re.sub("[^ -~\n\t]" if lines else "[^ -~]", _escaped, text)


def _escaped(match: re.Match[str]) -> str:
    one, text, place = match[0], match.string, match.start()
    before, after = text[max(place - 1, 0) : place], text[place + 1 : place + 2]
    if one == _COLOUR:  # asks for an emoji in colour, or for a keycap
        fine = _has_glyph(before) or (bool(before) and before in "0123456789#*" and after == _KEYCAP)
    elif one in _JOINERS:  # merges two emoji, or joins letters of scripts such as Arabic
        left = text[max(place - 2, 0) : place - 1] if before == _COLOUR else before
        fine = _has_glyph(left) and _has_glyph(after)
    else:
        fine = _has_glyph(one) or bool(_SPACE.match(one))
    return one if fine else ascii(one)[1:-1]


def _has_glyph(one: str) -> bool:
    return one > "\x7f" and one.isprintable() and not _HIDDEN.match(one)


def uncoloured(text: str) -> str:
    """The text without the colours that loggers add, and with other control characters made visible."""
    return visible(re.sub(r"\x1b\[[0-9;]*m", "", text), lines=True)


class Stream:
    """Base class of wrappers of a standard stream that change the text written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)
        """The wrapped stream. A Rich console looks for it under this name."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        raise NotImplementedError

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _Guarded(Stream):
    """Makes control characters visible in text of other libraries, such as tracebacks, warnings and logs."""

    _BAR = re.compile(r"\r?(?:(?:\n|\x1b\[A)+\Z)?")
    """What tqdm draws its bars with, which is passed on: a first carriage return, or cursor moves alone."""

    def write(self, text: str) -> int:
        bar = self._BAR.match(text)
        assert bar is not None  # the pattern also matches the empty string
        self._stream.write(bar[0] + uncoloured(text[bar.end() :]))
        return len(text)


def guard_streams() -> None:
    """Make control characters, and those that a stream's encoding lacks, visible in text that reaches the standard
    streams without a terminal of ours."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream is not None:  # it is None if the process started without it
            setattr(sys, name, _Guarded(stream))


def close_unwritable() -> OSError | None:
    """Redirect each standard stream that cannot be written to the null device, since Python would exit with 120 when it
    flushes it at the end. Returns the reason, if there is one."""
    reason = None
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError as error:
            reason = error
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())
            os.close(null_device)
    return reason
