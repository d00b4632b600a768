"""Updates of a real run learn from marks, but not from withdrawn ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from command import treeagent

from treeagent.contrib.people.marks import FILE, append_mark, new_mark
from treeagent.contrib.people.queue import load, review_queue
from treeagent.pipeline.folder import Run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_update_learns_from_marks_until_they_are_withdrawn(tmp_path: Path, finished_run: Path) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    run = Run.open(folder)
    item = review_queue(run, "pairs")[0]
    about = {"task_id": item.task_id, "state": item.state, "shown": item.texts, "seed": load(run, item).seed}
    edit = new_mark("ada", "edit", choice=0, text="Thought: so\nAction: search[red kettle]", **about)
    better = new_mark("ada", "better", choice=1, **about)
    for mark in (edit, better):
        append_mark(folder / FILE, mark)

    def updated(out: str) -> list[Any]:
        base = folder / "checkpoints" / "base"
        for method in ("rft", "dpo"):
            done = treeagent("update", method, base, "--trees", folder, "--out", tmp_path / out, "--resume")
            assert done.returncode == 0, done.stderr
        return [Run.open(tmp_path / out).facts(method).get("marks") for method in ("rft", "dpo")]

    counts = updated("with")
    assert counts[0] == counts[1] and counts[0] >= 2  # as many as there are trees with the state
    for mark in (edit, better):
        assert treeagent("marks", folder, "--withdraw", mark.id, "--who", "ben").returncode == 0
    assert updated("without") == [None, None]
