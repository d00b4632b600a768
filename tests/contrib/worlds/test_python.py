"""The Python code tool: what code can compute, and what its verifier accepts."""

import os
import sys

import pytest

from treeagent.contrib.worlds.python import PythonEnv, PythonOptions
from treeagent.contrib.worlds.python.sandbox import Sandbox
from treeagent.types import ToolCall

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)


@pytest.fixture
def env() -> PythonEnv:
    env = PythonEnv(PythonOptions(difficulty=2))
    env.reset(options={"task": env.tasks("train", 1)[0]})
    return env


def said(code: str, **limits: float) -> str:
    """The output of the code, and why it was ended."""
    run = Sandbox(**limits).run(code)  # type: ignore[arg-type]
    return f"{run.output.strip()} {run.error}".strip()


def test_code_computes_and_prints() -> None:
    assert said("import math, json\nprint(json.dumps([1 + 1, math.floor(2.5)]))") == "[2, 2]"
    assert said("x = 1\n\nx / 0") == "line 3: ZeroDivisionError: division by zero"
    assert said("def f(:") == "SyntaxError: invalid syntax"
    assert said("") == ""
    assert said("import csv, textwrap, statistics; print(statistics.mean([1, 3]))") == "2"
    assert said("from datetime import datetime; print(datetime.strptime('2', '%d').day)") == "2"
    assert said("from dataclasses import dataclass\n@dataclass\nclass A: x: int\nprint(A(1))") == "A(x=1)"
    assert said("import time; time.sleep(0.01); print(time.time() > time.process_time() > 0)") == "True"
    assert Sandbox().run("def f(a, b=2): return [a, b]", [(1,), ("x", None)]).returned == [[1, 2], ["x", None]]
    assert Sandbox().run("import random; f = random.random", [()]) == Sandbox().run(
        "import random; f = random.random", [()]
    )
    assert said("print(sorted({'a', 'b', 'c', 'd'}, key=hash))") == said(
        "print(sorted({'a', 'b', 'c', 'd'}, key=hash))"
    )


def test_the_solution_passes_and_cheap_code_does_not(env: PythonEnv) -> None:
    place, exercise = env.snapshot(), env.key
    (task,) = env.tasks("train", 1)
    table = dict((repr(argument), value) for argument, value in exercise.examples)
    always_equal = (
        "class Any:\n  def __eq__(self, other): return True\n  def __repr__(self): return '0'\ndef f(xs): return Any()"
    )
    for code in (
        "",
        task.prompt,
        "def f(xs): return None",
        "def f(xs): return xs",
        "def f(xs): raise SystemExit(0)",
        f"def f(xs): return {table}.get(repr(xs))",
        f"def f(xs): return {exercise.tests[0][1]!r}",
        always_equal,
        "import os, sys\nos.write(int(sys.argv[1]), b'[' * 9999)\nos._exit(0)",
        "import sys\nprint([each for each in sys._getframe(1).f_locals['request']['calls']])\ndef f(xs): return 1",
    ):
        env.restore(place)
        assert env.step(ToolCall("submit", {"code": code}))[:3] == ("handed in", 0.0, True), code
        assert env.verify() == 0.0
    env.restore(place)
    assert env.verify() == 0.0
    assert env.step(f"submit[{exercise.gold}]") == ("handed in", 1.0, True, False, {})
    assert env.verify() == 1.0


def test_the_expected_values_never_enter_the_sandbox(env: PythonEnv) -> None:
    wanted = [value for _, value in env.key.tests]
    code = "import sys\nprint(sys._getframe(1).f_locals['request'])"
    run = Sandbox().run(code, [(argument,) for argument, _ in env.key.tests])
    assert "'calls': [[[" in run.output
    assert repr(wanted) not in run.output
