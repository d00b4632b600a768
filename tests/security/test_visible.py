"""Foreign text made visible: no terminal sequence and no invisible character remains."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treeagent.visible import visible

FORMATS = "\u200b\u200c\u200d\u200e\u200f\u2028\u202a\u202e\u2060\u2066\u2069\ufeff\ufe0f\u3164\U000e0041"
texts = st.text(
    st.characters() | st.characters(categories=["Cc", "Cs", "Cf", "Mn"]) | st.sampled_from(f"{FORMATS}❤👩1پ")
)


@given(texts, st.booleans())
@example("\x1b]0;title\x07", True)
@example("\u2427\ufe0f \u061c\u200d\u061c", False)
def test_only_text_comes_through(text: str, lines: bool) -> None:
    shown = visible(text, lines=lines)
    kept = "\n\t" if lines else ""
    for place, each in enumerate(shown):
        category = unicodedata.category(each)
        if category == "Cf":
            assert each in "\u200c\u200d" and 0 < place < len(shown) - 1
        else:
            assert category not in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp") or each in kept, ascii(each)
    assert visible(shown, lines=lines) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]8;;https://evil.example\x1b\\here", "\\x1b]8;;https://evil.example\\x1b\\here"),
        ("\x9b31m", r"\x9b31m"),
        ("over\rwritten\b\x7f", r"over\rwritten\x08\x7f"),
        ("one\ntwo\tthree", r"one\ntwo\tthree"),
        ("pay \u202e001\u202c", r"pay \u202e001\u202c"),
        ("\u2066\u2067\u2068\u2069\u061c\u200e\u200f", r"\u2066\u2067\u2068\u2069\u061c\u200e\u200f"),
        ("ad\u200bmin ad\u200dmin \ufeff\u2060\xad", r"ad\u200bmin ad\u200dmin \ufeff\u2060\xad"),
        ("a\ufe0f\u034fb\u3164\uffa0\u115f", r"a\ufe0f\u034fb\u3164\uffa0\u115f"),
        ("❤\ufe0f\ufe0f \u200d👩", r"❤" "\ufe0f" r"\ufe0f \u200d👩"),
        ("half \ud800 of a pair", r"half \ud800 of a pair"),
    ],
)
def test_what_is_obeyed_or_hidden_is_spelt(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "plain [bold] \\x1b text",
        "naïve Größe 東京\u3000大阪 10\xa0000 10\u202f000 שלום עליכם",
        "❤\ufe0f 👍🏽 👩\u200d🚀 👩🏽\u200d🚀 🏳\ufe0f\u200d🌈 ❤\ufe0f\u200d🔥 ↔\ufe0f ©\ufe0f 🇩🇪",
        "1\ufe0f\u20e3 #\ufe0f\u20e3",
        "می\u200cخواهم",
        "क्\u200dष ক্\u200cষ",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert visible(text) == visible(text, lines=True) == text
