import io
from contextlib import ExitStack

import pytest

from treeagent.pipeline.progress import Progress, QuietProgress, RichProgress
from treeagent.pipeline.terminal import Terminal


def work(progress: Progress) -> None:
    with progress.track("collect", 4) as advance:
        advance(1, {"simulations/s": "12.5"})
        with progress.track("batch [1]", 2) as advance_inner:
            advance_inner(2)
        advance(3)


def test_without_a_terminal_it_writes_plain_lines() -> None:
    stream = io.StringIO()
    work(RichProgress(Terminal(file=stream, width=100)))
    assert stream.getvalue().splitlines() == ["batch [1] 2/2 0 s", "collect 4/4 0 s simulations/s 12.5"]


def test_on_a_terminal_it_draws_bars_that_may_nest() -> None:
    stream = io.StringIO()
    work(RichProgress(Terminal(file=stream, width=100, force_terminal=True)))
    assert "collect" in stream.getvalue() and "4/4" in stream.getvalue() and "12.5" in stream.getvalue()


def test_bars_are_drawn_until_the_last_of_two_side_by_side_ends() -> None:
    stream = io.StringIO()
    progress = RichProgress(Terminal(file=stream, width=100, force_terminal=True))
    search, updates = ExitStack(), ExitStack()
    search.enter_context(progress.track("search-2", 4))
    advance = updates.enter_context(progress.track("round-1-grpo", 7))
    search.close()
    before = len(stream.getvalue())
    advance(6)
    updates.close()
    assert "6/7" in stream.getvalue()[before:]


def test_it_can_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    work(QuietProgress())
    assert capsys.readouterr() == ("", "")
