"""What the adapters of task sets share, without any of their packages."""

import re
from pathlib import Path

import pytest

from treeagent.contrib.worlds.tasksets import package, split_of
from treeagent.envs import check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import UserError


def test_a_missing_package_or_version_is_one_sentence_with_the_command() -> None:
    with pytest.raises(UserError, match=r"no-such 1 is needed \(.*no-such.*\): pip install no-such==1"):
        package("no_such", "no-such", "1", "no-such==1")
    with pytest.raises(UserError, match=r"pytest 1\.2 is needed \(version .* is installed\): pip install pytest==1\.2"):
        package("pytest", "pytest", "1.2", "pytest==1.2")
    assert package("pytest", "pytest", pytest.__version__.split(".")[0], "") is pytest


def test_splits_depend_on_the_id_alone() -> None:
    splits = [split_of(str(number)) for number in range(400)]
    assert [splits.count(each) for each in ("train", "validation", "test")] == [204, 104, 92]


def test_the_page_shows_a_program_that_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "task_sets.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(program.splitlines()) <= 40
    (tmp_path / "hardware.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    env, other = make_env("hardware:Hardware"), make_env("hardware:Hardware")
    for task in env.tasks("train", 3):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
        assert report.longest == 1 + int(task.prompt.split()[3])
    assert check_tasks(env) == []
