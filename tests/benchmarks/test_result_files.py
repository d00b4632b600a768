"""Result files: rows survive a kill, are not measured twice, and are checked when they are read."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.record import (
    RESULTS,
    ROOT,
    Machine,
    Result,
    Row,
    Session,
    read,
    recording,
    write,
)

SESSION = Session("abc", False, "python -m benchmarks.toy", Machine("Xeon", 2, 8.0), {"torch": "2"}, "2026-01-01")
ROW = Row("mcts", 0, "s1", first_task=200, solved="101", environment_steps=12, figures={"ratio": 1.5})


def test_a_file_reads_back_equal(tmp_path: Path) -> None:
    result = Result("toy", "Which?", {"generated_tokens": 800}, (SESSION,), (ROW, replace(ROW, seed=1)))
    write(tmp_path / "toy.json", result)
    assert read(tmp_path / "toy.json") == result
    assert (tmp_path / "toy.json").read_text().count('{"arm":') == 2
    assert result.of("mcts")[0].success == pytest.approx(2 / 3)


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    with recording("toy", "Which?", folder=tmp_path) as record:
        record.add(ROW)
    with recording("toy", "Which?", folder=tmp_path) as record:
        assert record.has("mcts", 0, "s1")
        assert not record.has("mcts", 1, "s1") and not record.has("mcts", 0, "s2") and not record.has("uct", 0, "s1")
        record.add(replace(ROW, seed=1))
    found = read(tmp_path / "toy.json")
    assert found is not None
    assert [(row.seed, row.session) for row in found.rows] == [(0, 0), (1, 1)]
    assert len(found.sessions) == 2


def test_rows_outlive_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom benchmarks.record import Row, recording\n"
        "with recording('toy', 'Which?', folder=Path(sys.argv[1])) as record:\n"
        "    for seed in range(1000):\n"
        "        record.add(Row('mcts', seed, 's1', solved='1'))\n"
        "        print(seed, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    found = read(tmp_path / "toy.json")
    assert found is not None and len(found.rows) >= 5


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: str(path.stem))
def test_stored_results_are_whole(path: Path) -> None:
    found = read(path)
    assert found is not None and found.name == path.stem and found.rows
