"""``treeagent envs`` from the command line. Each rule of its check is broken by one small environment."""

import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner, Result

from treeagent.cli.app import app
from treeagent.envs import BUILT_IN, Demonstrator, Env, ToolSpec, check_env
from treeagent.envs.base import SnapshotKind, StepResult
from treeagent.envs.check import check_tasks, first_tasks
from treeagent.envs.example import Example
from treeagent.types import Split, Task, ToolCall, UserError

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


class Loose(Quiz):
    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return cast(Sequence[Task], [{"id": place} for place in range(start, start + count)])


class Text(Quiz):
    def tools(self) -> Sequence[ToolSpec]:
        return ()

    def step(self, action: str | ToolCall) -> StepResult:
        return super().step(ToolCall("submit", {"answer": action}) if isinstance(action, str) else action)


class Lenient(Quiz):
    def verify(self) -> float:
        return float(self.said in ("forty-two", " "))

    def step(self, action: str | ToolCall) -> StepResult:
        return super().step(
            ToolCall("submit", {"answer": " "}) if action == ToolCall("submit", {"answer": ""}) else action
        )


class Echo(Text):
    def verify(self) -> float:
        return float("six" in self.said)


class Worn(Quiz):
    """Accepts any answer after enough questions."""

    asked = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.asked = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        self.asked += 1
        return "hm", self.verify(), False, False, {"tool_error": "hm"}

    def verify(self) -> float:
        return float(self.asked >= 3)


class Twice(Text):
    def step(self, action: str | ToolCall) -> StepResult:
        self.said = ""
        return super().step(action)


class Deadly(Quiz):
    def step(self, action: str | ToolCall) -> StepResult:
        os._exit(7)


class Telling(Quiz):
    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        return "Not forty-two.", super().reset(seed=seed, options=options)[1]


class Moody(Text):
    """Each instance shows a number of its own, which no seed sets."""

    made = 0

    def __init__(self) -> None:
        Moody.made += 1
        self.mood = Moody.made

    def step(self, action: str | ToolCall) -> StepResult:
        return (f"thank you {self.mood}", *super().step(action)[1:])


class Fated(Text):
    """A restored snapshot goes on with its copied random state, whatever ``reseed`` says."""

    snapshot_kind: SnapshotKind = "exact"
    stochastic = True

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.rng.seed(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        return (f"{self.rng.random()}", *super().step(action)[1:])

    def snapshot(self) -> object:
        return self.said, self.rng.getstate()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.said, state = cast(tuple[str, tuple[int, ...]], snapshot)
        self.rng.setstate(state)


class Forgetful(Quiz):
    """Its snapshots are numbers, and a reset deletes what they refer to."""

    snapshot_kind: SnapshotKind = "exact"

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.kept = list[str]()
        return super().reset(seed=seed, options=options)

    def snapshot(self) -> object:
        self.kept.append(self.said)
        return len(self.kept) - 1

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.said = self.kept[cast(int, snapshot)]


class Absent(Quiz):
    """Its snapshots hold everything except the task, and its answers show the task's number."""

    snapshot_kind: SnapshotKind = "exact"

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task = cast(Task, (options or {"task": TASK})["task"])
        return super().reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        return (f"{self.task.id}: thank you", *super().step(action)[1:])

    def snapshot(self) -> object:
        return self.said

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.said = cast(str, snapshot)


class Misspelt(Quiz):
    snapshot_kind = "exakt"  # type: ignore[assignment]


@pytest.mark.parametrize("make", [Quiz, Text, Example])
def test_a_sound_quiz_passes(make: Callable[[], Env]) -> None:
    env = make()
    report = check_env(env, env.tasks("train", 1)[0], other=make())
    assert report.passed, report.violations
    assert not check_tasks(env)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Lenient, "nothing but ToolCall(name='submit', arguments={'answer': ''}) a success, given 1 times"),
        (Echo, "nothing but 'What is six times seven?' a success"),
        (Worn, "given 3 times"),
        (Twice, "'forty-two', repeated after the end, is rewarded again by 1"),
        (Telling, "the answer 'forty-two' stands in"),
        (Moody, "two instances answer the same episode differently"),
        (Fated, "restore with another reseed never leads elsewhere"),
        (Forgetful, "a call raised IndexError"),
        (Absent, "restored after a reset to another task, differ"),
        (Misspelt, "snapshot_kind is 'exakt'"),
    ],
)
def test_each_broken_rule_is_named(make: Callable[[], Env], sentence: str) -> None:
    report = check_env(make(), TASK, other=make())
    assert any(sentence in violation for violation in report.violations), report.violations


def test_splits_that_overlap_or_change_are_named() -> None:
    class Mixed(Quiz):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            return [replace(TASK, id=f"quiz-{number}") for number in range(count)]

    class Restless(Quiz):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            self.drawn = getattr(self, "drawn", 0) + 1
            return [replace(TASK, id=f"{split}-{self.drawn}-{number}", split=split) for number in range(count)]

    mixed = check_tasks(Mixed(), 2)
    assert "tasks('train') depends on where it starts" in mixed
    assert "task 'quiz-0' of 'test' is in 'train', too: give each its own id" in mixed or (
        "task 'quiz-0' of 'test' is in 'validation', too: give each its own id" in mixed
    )
    assert "task 'quiz-1' of 'test' says that it is of 'train'" in mixed
    assert "tasks('train') gives other tasks when asked again" in check_tasks(Restless(), 2)


def test_tasks_that_are_no_sequence_are_refused() -> None:
    class Lazy(Quiz):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            return (each for each in super().tasks(split, count, start))  # type: ignore[return-value]

    with pytest.raises(UserError, match=r"tasks\('train'\) returns a generator"):
        first_tasks(Lazy(), "train", 2)


def test_a_split_may_hold_fewer_tasks_than_are_asked_for() -> None:
    assert len(first_tasks(Example(), "train", 33)) == 33
    assert 1 <= len(first_tasks(Example(), "train", 100)) <= 33
    assert first_tasks(Example(), "train", 1, start=33) == ()


def test_another_number_of_tasks_than_was_asked_for_is_named() -> None:
    class Sliced(Quiz):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            held = [replace(TASK, id=f"{split}-{number}", split=split) for number in range(5)]
            return held[start : start + count]

    class All(Sliced):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            return super().tasks(split, 5)[start:]

    assert not check_tasks(Sliced(), 5)
    assert ["tasks('train', 6) gives 5 tasks" in each for each in check_tasks(Sliced(), 6)] == [True, False, False]
    assert any("tasks('test', 2) gives 5 tasks" in each for each in check_tasks(All(), 2))


def test_a_split_may_be_empty() -> None:
    class TestOnly(Quiz):
        def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
            if split != "test" and start + count > 0:
                raise ValueError("there are no such tasks")
            return super().tasks(split, count, start)

    assert check_tasks(TestOnly(), 3) == []


def test_list_names_every_built_in_environment() -> None:
    result = treeagent("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in BUILT_IN)


class OpenAI(Quiz):
    def tools(self) -> Sequence[ToolSpec]:
        return [{"type": "function", "function": {"name": "submit", "parameters": {}}}]  # type: ignore[list-item]


def test_tools_and_turns_of_another_type_are_named_with_the_right_one() -> None:
    told = treeagent("check", f"{__name__}:OpenAI")
    assert told.exit_code == 1 and "treeagent.envs.ToolSpec" in told.stdout

    class Silent(Quiz):
        def demonstrator(self, noise: float) -> Demonstrator | None:
            return cast(Demonstrator, SimpleNamespace(act=lambda rng: None))

    assert any("act returned None" in each for each in check_env(Silent(), TASK).violations)


def test_check_passes_and_prints_counts() -> None:
    result = treeagent("check", "shop", "difficulty=1", "--tasks", "1")
    assert result.exit_code == 0, result.output
    assert "branches equal their replays (1 tasks, snapshots exact)" in result.stdout
    assert result.stdout.rstrip().endswith("passed")
    assert "demonstrations take up to" in result.stdout


def test_a_check_in_a_worker_reports_what_kills_the_process() -> None:
    assert treeagent("check", f"{__name__}:Text", "--worker", "--tasks", "1").exit_code == 0
    result = treeagent("check", f"{__name__}:Deadly", "--worker", "--tasks", "1")
    assert result.exit_code == 1
    assert "EnvCrashed" in result.stdout and "ended with exit code 7" in result.stdout


class Unclosable(Example):
    """An environment whose ``close`` fails."""

    def close(self) -> None:
        raise RuntimeError("the lights stay on")


def test_findings_are_printed_before_the_environment_fails_to_close() -> None:
    result = treeagent("check", f"{__name__}:Unclosable", "--tasks", "1")
    assert isinstance(result.exception, RuntimeError)
    assert "branches equal their replays" in result.output


def test_check_exits_with_1_on_a_violation() -> None:
    result = treeagent("check", f"{__name__}:Twice")
    assert result.exit_code == 1
    assert result.stdout.count("violation: 'forty-two', repeated after the end, is rewarded again by 1") == 1
    assert "(3 tasks" in result.stdout and f"{__name__}:Twice" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "shopp"), "environment.name is 'shopp'"),
        (("check", "nowhere:Env"), "'nowhere:Env' cannot be imported"),
        (("check", f"{__name__}:Loose"), "gives {'id': 0} as a task"),
        (("check", "shop", "products=7"), "products=7"),
        (("check", "shop", "products"), "is not of the form key=value"),
        (
            ("check", "toolbox", "least_calls=3", "most_calls=1"),
            "options {'least_calls': 3, 'most_calls': 1}: least_calls is 3",
        ),
        (("new", "Two Words"), "'Two Words' cannot name a module"),
        (("new", "class"), "'class' is a word or a module of Python's own"),
        (("new", "random"), "'random' is a word or a module of Python's own: give another name, such as my_random"),
        (("new", "lights", "--out", __file__), "File exists"),
        (("new", "lights", "--out", "/proc/nowhere"), "/proc/nowhere does not exist"),
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


def test_a_full_disk_leaves_no_part_of_a_new_environment(tmp_path: Path) -> None:
    # A device that is always full takes the place of the disk under the temporary file.
    (tmp_path / f".lamps.py.{os.getpid()}.tmp").symlink_to("/dev/full")
    result = treeagent("new", "lamps", "--out", tmp_path)
    assert result.exit_code == 2 and "lamps.py: No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert treeagent("new", "lamps", "--out", tmp_path).exit_code == 0


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
