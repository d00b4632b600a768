from pathlib import Path

from treeagent.config import RunConfig
from treeagent.contrib.plan.cost import StageCost
from treeagent.contrib.plan.times import TIMES, TimedProgress, run_costs, stage_of, stage_seconds
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import QuietProgress


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


def test_time_and_tokens_of_a_stage_count_to_the_same_part_of_the_plan(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        clock = Clock()
        timed = TimedProgress(QuietProgress(), run.path / TIMES, clock)
        searches = ("curriculum-1-0", "search-1", "search-1-imagined", "vary-1")
        for work in (*searches, "world-1", "round-1-rft", "evaluate disturbed"):
            with timed.track(work, 1):
                clock.now += 10
        played = {"generated_tokens": 100, "environment_steps": 7}
        grown = ("curriculum-1-0", "collect-1", "collect-1-imagined", "vary-1")
        for stage in (*grown, "evaluate-warm-greedy-failing-tools"):
            run.finish(stage, played)
        for stage, tokens in (("world-1", 3000.0), ("round-1-rft", 50.0)):
            run.finish(stage, {"update": {"metrics": {"num_tokens": tokens}}})
        assert run_costs(run) == {
            "search": StageCost("search", generated_tokens=400, environment_steps=28, seconds=40),
            "world-1": StageCost("world-1", trained_tokens=3000, seconds=10),
            "updates": StageCost("updates", trained_tokens=50, seconds=10),
            "evaluation": StageCost("evaluation", generated_tokens=100, environment_steps=7, seconds=10),
        }


def test_a_torn_line_costs_its_own_time_only(tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    file.write_bytes(b'{"stage":"search","seconds":2.0}\n{"stage":"sea')
    clock = Clock()
    timed = TimedProgress(QuietProgress(), file, clock)
    with timed.track("value", 1):
        clock.now = 5
    assert stage_seconds(file) == {"search": 2, "value head": 5}
    assert stage_seconds(tmp_path / "none") == {}
