"""Faults in real packages: tasks that are proven, verdicts that cannot be forged, branches that equal replays."""

import os
import random
import sys
from pathlib import Path

import pytest

from treeagent.contrib.worlds.swe import SweEnv, SweOptions, passage
from treeagent.contrib.worlds.swe.tasks import Fault, calls, faults, functions, holds, package
from treeagent.envs import check_env, make_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import SPLITS, ToolCall, UserError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)

SOURCE = '''"""A package for this test."""


def clip(values, most):
    """Cut values off.

    >>> top = 3
    >>> clip([1, 5, 2, 9], top)
    [1, 3, 2, 3]
    """
    return [most if value > most else value for value in values]


def spread(values):
    """The largest minus the smallest.

    >>> spread([4, 1, 7])
    6
    """
    return max(values) - min(values)
'''


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution that is installed in a folder of its own."""
    name = f"tiny{tmp_path.name.replace('_', '')}"
    files = {f"{name}/__init__.py": SOURCE, f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / f"{name}-1.0.dist-info/RECORD").write_text(f"{name}/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_faults_are_single_words_of_bodies_and_calls_come_from_examples(tiny: str) -> None:
    source, path = package(tiny), f"{tiny}/__init__.py"
    assert [(each.function, each.line, each.right, each.wrong) for each in faults(tiny)] == [
        ("clip", 11, ">", ">="),
        ("spread", 20, "max", "min"),
        ("spread", 20, "-", "+"),
        ("spread", 20, "min", "max"),
    ]
    changed = faults(tiny)[2].applied(source.files)[path]
    assert changed == SOURCE.replace("max(values) - min", "max(values) + min")
    assert passage(changed, SOURCE) == ("    return max(values) + min(values)", "    return max(values) - min(values)")
    made = calls(source, path, next(each for each in functions(SOURCE) if each.endswith(" clip")))
    assert len(made) > 20
    assert all(each.module == tiny and each.before.startswith("top = ") for each in made)
    assert ("top = 3", "clip([1, 5, 2, 9], top)") not in [(each.before, each.expression) for each in made]


def test_every_task_fails_before_and_passes_after_the_reverse_of_its_fault(tiny: str) -> None:
    env, found = SweEnv(SweOptions((tiny,))), dict[str, int]()
    for split in SPLITS:
        with pytest.raises(ValueError, match=split):
            env.tasks(split, 9)
        found[split] = next(count for count in range(9, -1, -1) if _has(env, split, count))
        for task in env.tasks(split, found[split]):
            key, files = env.key_of(task), package(tiny).files
            assert not holds(package(tiny), key.fault.applied(files), key.checks)
            assert holds(package(tiny), files, key.checks)
            assert not any(call.expression in task.prompt for call, _ in key.checks)
    assert sum(found.values()) == 3  # `>=` in clip changes nothing
    assert check_tasks(env) == []


def _has(env: SweEnv, split: str, count: int) -> bool:
    try:
        return len(env.tasks(split, count)) == count  # type: ignore[arg-type]
    except ValueError:
        return False


def test_a_fault_of_a_real_package_is_repaired_by_search_read_edit_and_run() -> None:
    env, other = (make_env("swe", {"packages": ["packaging"]}) for _ in range(2))
    assert isinstance(env, SweEnv)
    (task,) = env.tasks("train", 1)
    report = check_env(env, task, other=other, branches=6, depth=3)
    assert report.passed, report.violations
    assert report.equal_branches == report.branches > 2
    env.reset(options={"task": task})
    player, names = env.demonstrator(0.0), list[str]()
    while env.verdict() is None:
        call = as_call(player.act(random.Random(0))[1], env.tools())
        assert isinstance(call, ToolCall)
        names.append(call.name)
        said = env.step(call)[0]
        assert said != env.key.example.expression
    assert names == ["search", "read", "edit", "run", "submit"]
    assert env.verify() == 1.0
    env.reset(options={"task": task})
    assert env.step(env.idle)[1:3] == (0.0, True)


@pytest.mark.parametrize(
    "cheat",
    [
        "import os\nos._exit(0)\n",
        "raise SystemExit(0)\n",
        "import importlib.metadata, packaging\n",
        "class Any:\n    def __getattr__(self, name): return Any()\n    def __call__(self, *a, **k): return Any()\n"
        "    def __eq__(self, other): return True\n    def __repr__(self): return ''\nspread = clip = Any()\n",
        "import sys, os\nfor n in range(3, 30):\n    try: os.write(n, b'[]')\n    except OSError: pass\n",
        "import builtins\nbuiltins.repr = lambda value: 'None'\n",
    ],
)
def test_a_verdict_cannot_be_forged(cheat: str, tiny: str) -> None:
    env = SweEnv(SweOptions((tiny,)))
    split = next(each for each in SPLITS if _has(env, each, 1))
    env.reset(options={"task": env.tasks(split, 1)[0]})
    path = f"{tiny}/__init__.py"
    env.step(ToolCall("edit", {"path": path, "old": '"""A package for this test."""\n', "new": cheat}))
    assert env.visit.changed[path].startswith(cheat)
    assert env.step("submit[]")[1:3] == (0.0, True)


def test_what_is_missing_or_impossible_is_said(tiny: str) -> None:
    with pytest.raises(UserError, match="no-such-package is not installed"):
        SweEnv(SweOptions(("no-such-package",)))
    env = SweEnv(SweOptions((tiny,)))
    split = next(each for each in SPLITS if _has(env, each, 1))
    task = env.tasks(split, 1)[0]
    with pytest.raises(UserError, match=r"needs .* 0\.9"):
        env.reset(options={"task": type(task)("other", "", split, 0, {**task.data, "version": "0.9"})})
    env.reset(options={"task": task})
    assert "no file x.py" in env.step(ToolCall("read", {"path": "x.py", "line": 1}))[0]
    assert "occurs 0 times" in env.step(ToolCall("edit", {"path": f"{tiny}/__init__.py", "old": "?", "new": ""}))[0]
    assert env.step("search[no such text]")[0] == "no line contains it"
    assert env.step("run[print(6 * 7)]")[0] == "42"
    assert isinstance(env.key.fault, Fault)
