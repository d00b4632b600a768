import io
from contextlib import ExitStack

import pytest

from treeagent.pipeline.progress import LockedProgress, Progress, QuietProgress, RichProgress, RunPosition, Stage
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
    progress = LockedProgress(RichProgress(Terminal(file=stream, width=100, force_terminal=True)))
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


STAGES = [Stage("demonstrations", 10), Stage("search", 20), Stage("updates", 30, ("rft", "dpo"))]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_course_counts_stages_and_scales_the_time_seen_to_the_shares_left() -> None:
    clock = Clock()
    course = RunPosition(STAGES, clock)
    assert course.start("demonstrations") == "stage 1 of 3: demonstrations"  # nothing is seen yet: no estimate
    clock.now = 60
    course.advance("demonstrations", 0.5)  # 5 of 60 units took 60 s, 55 are left: 660 s
    assert course.left() == "about 11 min left"
    clock.now = 120
    course.advance("demonstrations", 1.0)
    assert course.start("search").startswith("stage 2 of 3: search; about 10 min")  # 10 units took 120 s, 50 are left
    assert course.start("demonstrations") == course.start("another") == ""
    clock.now = 360
    course.advance("search", 1.0)
    assert course.start("rft").startswith("stage 3 of 3: updates")
    assert course.start("dpo") == ""  # the same stage
    clock.now = 540
    course.advance("rft", 1.0)  # 45 units took 540 s, 15 are left: 180 s
    assert course.left() == "about 3 min left"


def test_what_an_earlier_run_did_is_counted_but_not_timed() -> None:
    clock = Clock()
    course = RunPosition(STAGES, clock)
    assert course.start("search").startswith("stage 2 of 3")  # the demonstrations exist already
    course.advance("search", 0.5)
    assert course.left() == ""
    clock.now = 60
    course.advance("search", 1.0)  # 10 units took 60 s, 30 are left
    assert course.left() == "about 3 min left"


def test_plain_lines_name_the_stage_before_its_work() -> None:
    stream = io.StringIO()
    progress = RichProgress(Terminal(file=stream, width=100))
    progress.plan(STAGES)
    with progress.track("search", 4) as advance:
        advance(2)
    assert stream.getvalue().splitlines()[0].startswith("stage 2 of 3: search")
