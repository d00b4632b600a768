"""Every place that reads foreign text, with the fuzzer's findings so far and a few of its random texts."""

import itertools
import json
import runpy
from pathlib import Path

import pytest

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz.py"))
CASES = [json.loads(line) for line in Path(__file__).with_name("fuzz_cases.jsonl").read_text().splitlines()]
SOME = {"sandbox": 2, "settings": 3, "settings file": 10}
"""Number of texts for slow places; the others get 200."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['place']} {case['text'][:10]!r}")
def test_a_finding_of_the_past_does_not_come_back(case: dict[str, str]) -> None:
    assert FUZZ["attempt"](case["place"], case["text"]) == ""


@pytest.mark.parametrize("place", list(FUZZ["PLACES"]))
def test_no_text_raises_or_hangs(place: str) -> None:
    for text in itertools.islice(FUZZ["texts"](place, 0), SOME.get(place, 200)):
        assert FUZZ["attempt"](place, text) == "", text[:500]
