"""The example that plans with a checkpoint of a run."""

import runpy
from pathlib import Path

import pytest

from treeagent.pipeline.build import environment
from treeagent.pipeline.folder import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan_with_checkpoint.py"


def test_the_example_prints_a_task_and_a_plan(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(finished_run), str(finished_run / "checkpoints" / "base"))
    [task] = environment(Run.open(finished_run).config).tasks("test", 1)
    said = capsys.readouterr().out
    assert said.startswith(task.prompt)
    calls = said.removeprefix(task.prompt).strip().splitlines()
    assert calls and all(line.startswith("->") for line in calls)
