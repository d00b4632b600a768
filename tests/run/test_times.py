from pathlib import Path

from treeagent.run.progress import QuietProgress
from treeagent.run.times import TimedProgress, stage_of, stage_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_wall_time_counts_to_one_stage_and_resumed_runs_add_up(tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    for _ in range(2):
        clock = Clock()
        timed = TimedProgress(QuietProgress(), file, clock)
        clock.now = 3  # preparing the search
        with timed.track("search", 2) as advance:
            clock.now = 20
            advance()
            assert stage_seconds(file)["search"] >= 20  # what a kill would leave
            clock.now = 21
        with timed.track("rft", 1), timed.track("round-1-dpo", 1):  # side by side
            clock.now = 30
        clock.now = 31  # for example, writing the report
        timed.write()
    assert stage_seconds(file) == {"search": 42, "updates": 20}


def test_the_searches_of_rounds_count_to_the_search() -> None:
    assert [stage_of(work) for work in ("search", "search-12", "round-1-rft", "teacher")] == [
        *("search", "search", "updates", "teacher"),
    ]


def test_a_torn_line_costs_its_own_time_only(tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    file.write_bytes(b'{"stage":"search","seconds":2.0}\n{"stage":"sea')
    clock = Clock()
    timed = TimedProgress(QuietProgress(), file, clock)
    with timed.track("value", 1):
        clock.now = 5
    assert stage_seconds(file) == {"search": 2, "value head": 5}
    assert stage_seconds(tmp_path / "none") == {}
