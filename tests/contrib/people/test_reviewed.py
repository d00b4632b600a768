from pathlib import Path

import orjson
import pytest
from command import treeagent
from review_sample import sample_run

from treeagent.contrib.people.marks import FILE, append_mark, new_mark
from treeagent.contrib.people.queue import review_queue
from treeagent.contrib.people.reviewed import reviewed_rows
from treeagent.pipeline.folder import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with tasks e0 and e1. The greedy policy solved e1, and tree search solved both."""
    run = sample_run(tmp_path / "run")
    rows = [
        {"policy": "base", "mode": mode, "tasks": 2, "solved": solved, "success": solved.count("1") / 2}
        | {"success_low": 0.0, "success_high": 1.0, "reward": 0.5, "errors": 0, "environment_steps": 4}
        | {"generated_tokens": 8, "seconds": 1.0}
        for mode, solved in (("greedy", "01"), ("mcts", "11"))
    ]
    run.results.write_bytes(orjson.dumps(rows))
    return run


def say(run: Run, task: str, verdict: str, ending: str) -> str:
    """Mark the episode of ``task`` whose last action ends with ``ending``. Returns the mark's id."""
    [item] = [
        each for each in review_queue(run, "episodes") if each.task_id == task and each.texts[-1].endswith(ending)
    ]
    mark = new_mark("ada", verdict, task_id=task, state=item.state, shown=item.texts)  # type: ignore[arg-type]
    append_mark(run.path / FILE, mark)
    return mark.id


def test_reviewers_outrank_the_environment_in_results(run: Run) -> None:
    """The failure of e0 is marked as solved. The end of e1, which both modes reached, is marked as solved, as it was
    counted."""
    assert reviewed_rows(run) == run.result_rows()
    wrong = say(run, "e0", "solved", "buy 0")
    say(run, "e1", "solved", "buy 1")
    greedy, mcts = reviewed_rows(run)
    assert (greedy["solved"], greedy["success"], greedy["judged"], greedy["agreed"]) == ("11", 1.0, 2, 1)
    assert greedy["success_low"] == pytest.approx(0.3424, abs=1e-4)  # Wilson, 2 of 2
    assert (mcts["solved"], mcts["judged"], mcts["agreed"]) == ("11", 1, 1)
    shown = treeagent("show", run.path)
    assert shown.returncode == 0 and "reviewers judged 2 of 2 episodes" in shown.stdout
    append_mark(run.path / FILE, new_mark("ben", "withdraw", withdraws=wrong))
    assert reviewed_rows(run)[0]["solved"] == "01"


def test_the_share_taken_is_left_out_if_reviewers_contradict_the_environment(run: Run) -> None:
    rows = run.result_rows()
    run.results.write_bytes(orjson.dumps([rows[0], {**rows[1], "found": 1.0, "taken": 1.0}]))
    say(run, "e1", "solved", "buy 1")
    assert reviewed_rows(run)[1]["taken"] == 1.0
    say(run, "e1", "failed", "buy 1")
    row = reviewed_rows(run)[1]
    assert row["solved"] == "10" and row["found"] == 1.0 and "taken" not in row
