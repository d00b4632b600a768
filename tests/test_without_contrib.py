"""The core works where ``treeagent/contrib`` was taken out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import treeagent

FEWER = (
    *("warm_start.episodes=200", "warm_start.tasks=200", "warm_start.training.max_steps=20"),
    *("collect.tasks=4", "update.validation_tasks=2", "evaluate.tasks=2", "workers=1", 'update.methods=["dpo"]'),
)


@pytest.mark.slow
def test_the_quickstart_of_the_debug_recipe_runs_without_contrib(tmp_path: Path) -> None:
    package = Path(treeagent.__file__).parent
    shutil.copytree(package, tmp_path / "treeagent", ignore=shutil.ignore_patterns("contrib", "__pycache__"))
    # An editable install would find the folder elsewhere.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['treeagent.contrib'] = None\n")
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "treeagent", "quickstart", "--config", "debug", "--out", run, *FEWER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").is_file()
    helped = subprocess.run(
        [sys.executable, "-m", "treeagent", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "quickstart" in helped.stdout and "review" not in helped.stdout
