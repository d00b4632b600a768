"""``treeagent watch`` reads a run's state from its files alone: while it works, after it has ended, and after a
kill."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from command import treeagent
from viewer_sample import large_tree

from treeagent.config import RunConfig, load_config
from treeagent.loop import _train_stages
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import RichProgress, Stage
from treeagent.pipeline.report.watch import Board
from treeagent.pipeline.status import FILE, in_words, read_status
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard
from treeagent.types import Action, Message, State, Task

STAGES = [Stage("demonstrations", 10), Stage("search", 20), Stage("updates", 30, ("rft", "dpo"))]


def told(run: Run) -> str:
    stream = io.StringIO()
    Terminal(file=stream, width=300).print(Board(Run.open(run.path)).drawn())
    return stream.getvalue()


def lines(run: Run) -> dict[str, str]:
    """The lines by their first two words; a mark counts as a word."""
    return {" ".join(line.split()[:2]): " ".join(line.split()) for line in told(run).splitlines()}


def test_it_shows_what_is_done_running_and_left(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        progress = RichProgress(Terminal(quiet=True), run.path)
        assert "told nothing yet" in " ".join(told(run).split())  # a long path wraps the line
        progress.plan(STAGES)
        with progress.track("demonstrations", 2) as advance:
            advance(2)
        with progress.track("search", 8) as advance:
            advance(2, {"simulations/s": "12"})
            run.log("search", {"step": 0, "loss": 0.5})
            time.sleep(1.05)  # the standing is written once a second
            advance(0)
            now = lines(run)
            assert "running" in now["run " + str(run.path)]
            assert {"✓ demonstrations", "▸ search", "· updates"} <= set(now)
            assert now["▸ search"].endswith("25%")
            assert now["search 2/8"].endswith("simulations/s 12")
            status = read_status(run.path)
            assert status is not None and [stage.done for stage in status.stages] == [1.0, 0.25, 0.0]
            # Both pieces were reported at once, like work of an earlier run, so they say nothing about the rate.
            assert status.seconds_left is None and status.works[0].rate == 0.0
        progress.warn("round 1: echo trap: entropy fell\x1b[2J")
        assert "round 1: echo trap: entropy fell\\x1b[2J" in told(run)
    stopped = told(run)
    assert "--resume" in stopped and "▸ search" in stopped and "simulations/s" not in stopped
    with Run.create(run.path, RunConfig(), resume=True) as run:
        RichProgress(Terminal(quiet=True), run.path).finish()
    assert "finished" in told(run)


def test_rates_and_time_left_are_of_what_this_program_did(tmp_path: Path) -> None:
    progress = RichProgress(Terminal(quiet=True), tmp_path)
    with progress.track("search", 10) as advance:
        advance(4)  # at once, like work of an earlier run
        time.sleep(1.05)
        advance(2)
        status = read_status(tmp_path)
        assert status is not None
        [work] = status.works
        assert (work.done, work.resumed) == (6, 4)
        assert 1.0 < work.seconds < 3.0 and work.rate == 2 / work.seconds
        assert work.seconds_left == 4 / work.rate


def test_the_latest_episodes_are_those_of_the_newest_shards(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        board = Board(run)
        for index in range(3):
            path = write_shard(run.trees, "collect", index, [to_record(large_tree(8, seed=index))] * 2)
            os.utime(path, (1000 + index, 1000 + index))
        # An evaluation's plans are not listed; its episodes are.
        write_shard(run.trees, "evaluate-base-mcts", 0, [to_record(large_tree(8, seed=9))])
        stream = io.StringIO()
        Terminal(file=stream, width=120).print(board.drawn())
        rows = [line for line in stream.getvalue().splitlines() if line.startswith("collect")]
        assert len(rows) == 5 and "evaluate-base" not in stream.getvalue()


def test_a_planned_episode_ends_like_any_other(tmp_path: Path) -> None:
    """Although its budget includes the simulations of its plan."""
    task = Task("door", "open it")
    end = Node(State(task, (Message("user", "open it"), Message("assistant", "left"), Message("user", "a wall"))))
    end.terminated = True
    root = Node(State(task, (Message("user", "open it"),)), edges=[Edge(Action("left", "left"), 1.0, child=end)])
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        run.episodes.mkdir()
        write_shard(run.episodes, "evaluate-base-mcts", 0, [to_record(Tree(task, 0, root, Budget(simulations=4)))])
        assert "wrong end by left" in told(run)


def test_no_run_and_a_damaged_file_give_a_sentence(tmp_path: Path) -> None:
    missing = treeagent("watch", tmp_path / "none")
    assert missing.returncode == 2 and "holds no run" in missing.stderr
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        (run.path / FILE).write_text('{"written": 1}')
    damaged = treeagent("watch", run.path, "--once")
    assert damaged.returncode == 2 and FILE in damaged.stderr and "Traceback" not in damaged.stderr


def test_a_finished_run_is_shown_once(finished_run: Path) -> None:
    shown = treeagent("watch", finished_run)
    assert shown.returncode == 0, shown.stderr
    assert "finished" in shown.stdout and shown.stdout.count("✓") == 6
    assert len(re.findall(r"^evaluate-\S+ ", shown.stdout, re.M)) == 5


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        progress = RichProgress(Terminal(quiet=True), run.path)
        progress.plan(STAGES)
        leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "treeagent", "watch", str(run.path)]
        process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
        os.close(follower)
        shown = b""
        while b"updates" not in shown:
            shown += os.read(leader, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                shown += os.read(leader, 4096)
            except OSError:  # no process writes to the terminal any more
                break
        assert process.wait(20) == 0
        os.close(leader)
    assert b"Traceback" not in shown and b"interrupted" not in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")  # the cursor is shown again


def test_times_are_told_roughly() -> None:
    assert [in_words(each) for each in (12.4, 59.6, 3599, 7830)] == ["12 s", "1 min", "1 h 00 min", "2 h 10 min"]


def test_the_rounds_of_training_are_stages_whose_work_has_names_of_their_own(tmp_path: Path) -> None:
    config = load_config(None, ["adapt.rounds=2", 'adapt.methods=["dpo"]', "adapt.imagined=[0.0, 0.5]"])
    with Run.create(tmp_path / "run", config, resume=False) as run:
        stages = _train_stages(config, run, None)
        works = [work for stage in stages for work in stage.works]
        rounds = ["search-1", "round-1-dpo", "world-2", "search-2", "round-2-dpo"]
        assert works == ["demonstrations", "warm_start", *rounds, "evaluate"]
        assert _train_stages(config, run, tmp_path / "base")[0].works == ("search-1",)
