"""``treeagent envs`` from the command line. Each rule of its check is broken by one small environment."""

import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from treeagent.cli.app import app
from treeagent.envs import Demonstrator, Env, ToolSpec, check_env
from treeagent.envs.base import StepResult
from treeagent.envs.check import check_tasks
from treeagent.envs.example import Example
from treeagent.types import Split, Task, ToolCall

TASK = Task("quiz-0", "What is six times seven?", data={"gold": "forty-two"})
SUBMIT = ToolSpec("submit", "Answer.", {"type": "object", "properties": {"answer": {}}, "required": ["answer"]})


def treeagent(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["envs", *map(str, arguments)])


class Quiz(Env):
    """One tool, one right answer."""

    said = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.said = ""
        return "Go on.", {}

    def step(self, action: str | ToolCall) -> StepResult:
        answer = action.arguments.get("answer") if isinstance(action, ToolCall) else None
        if not isinstance(answer, str) or self.said:
            return "no", 0.0, bool(self.said), False, {"tool_error": "no"}
        self.said = answer
        return "thank you", self.verify(), True, False, {}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [replace(TASK, id=f"quiz-{split}-{number}", split=split) for number in range(start, start + count)]

    def tools(self) -> Sequence[ToolSpec]:
        return [SUBMIT]

    def verify(self) -> float:
        return float(self.said == "forty-two")

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return Knower()


class Knower:
    def act(self, rng: random.Random) -> tuple[str, str]:
        return "I know", "forty-two"


class Text(Quiz):
    def tools(self) -> Sequence[ToolSpec]:
        return ()

    def step(self, action: str | ToolCall) -> StepResult:
        return super().step(ToolCall("submit", {"answer": action}) if isinstance(action, str) else action)


class Twice(Text):
    def step(self, action: str | ToolCall) -> StepResult:
        self.said = ""
        return super().step(action)


class Telling(Quiz):
    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        return "Not forty-two.", super().reset(seed=seed, options=options)[1]


@pytest.mark.parametrize("make", [Quiz, Text, Example])
def test_a_sound_quiz_passes(make: Callable[[], Env]) -> None:
    env = make()
    report = check_env(env, env.tasks("train", 1)[0], other=make())
    assert report.passed, report.violations
    assert not check_tasks(env)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Twice, "'forty-two', repeated after the end, is rewarded again by 1"),
        (Telling, "the answer 'forty-two' stands in"),
    ],
)
def test_each_broken_rule_is_named(make: Callable[[], Env], sentence: str) -> None:
    report = check_env(make(), TASK, other=make())
    assert any(sentence in violation for violation in report.violations), report.violations


def test_check_passes_and_prints_counts() -> None:
    result = treeagent("check", "shop", "difficulty=1", "--tasks", "1")
    assert result.exit_code == 0, result.output
    assert "branches equal their replays (1 tasks, snapshots exact)" in result.stdout
    assert result.stdout.rstrip().endswith("passed")
    assert "demonstrations take up to" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "shopp"), "environment.name is 'shopp'"),
        (("check", "nowhere:Env"), "'nowhere:Env' cannot be imported"),
        (("new", "Two Words"), "'Two Words' cannot name a module"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = treeagent(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_new_environment_passes_its_own_test_and_the_check(tmp_path: Path) -> None:
    result = treeagent("new", "lights_out", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "treeagent envs check lights_out:LightsOut" in result.stdout
    again = treeagent("new", "lights_out", "--out", tmp_path)
    assert again.exit_code == 2
    assert "lights_out.py exists" in again.stderr
    assert "example" not in (tmp_path / "lights_out.py").read_text().lower()
    code = "from treeagent.cli import main; main()"
    for command in (
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "lights_out_test.py"),
        ("-c", code, "envs", "check", "lights_out:LightsOut"),
    ):
        run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_new_environment_is_learnt_in_by_the_command_that_is_printed(tmp_path: Path) -> None:
    printed = treeagent("new", "lamps", "--out", tmp_path).stdout
    command = shlex.split(printed.rpartition("treeagent ")[2])
    assert command[0] == "quickstart" and "environment.name=lamps:Lamps" in command
    code = "from treeagent.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / command[command.index("--out") + 1] / "results.json").exists()
