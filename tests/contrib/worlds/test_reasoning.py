"""reasoning-gym's questions: the contract, every data set's own answers, and answers that no score may run as code."""

import sys
from typing import Any

import pytest

from treeagent.contrib.worlds.tasksets.reasoning import LEFT_OUT, ReasoningEnv, ReasoningOptions, offered
from treeagent.envs import check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import ToolCall, UserError

gym = pytest.importorskip("reasoning_gym", reason="the reasoning extra is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that it imports

MARK = "unlikely_name"
CODE = (MARK, f"[{MARK}]", f"{MARK}()", f"1 + {MARK}", f"[[{MARK}]]", f"['{MARK}']")
seen: list[str] = []
watching = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in ("compile", "exec") and MARK in str(arguments[0]):
        seen.append(event)


sys.addaudithook(watch)


def test_it_keeps_the_contract() -> None:
    env, other = (ReasoningEnv(ReasoningOptions(questions=60)) for _ in range(2))
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 1  # most episodes are over before they branch
    assert check_tasks(env) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("coin_flip", "number_sorting", "sudoku") else pytest.mark.slow)
        for name in offered(gym)
    ],
)
def test_a_data_set_accepts_its_own_answers_and_runs_none(name: str) -> None:
    global watching
    env = make_env("reasoning", {"dataset": name, "questions": 6})
    assert isinstance(env, ReasoningEnv)
    for item, split in env.items.items():
        (task,) = [each for each in env.tasks(split, list(env.items.values()).count(split))
                   if each.data["item"] == item]  # fmt: skip
        env.reset(options={"task": task})
        start = env.snapshot()
        assert env.step(env.plan()[0])[1:3] == (1.0, True)
        for text in ("", "I do not know", *CODE):
            env.restore(start)
            watching = True
            score = env.step(ToolCall("answer", {"text": text}))[1]
            watching = False
            assert score < 1.0
    assert seen == []


def test_data_sets_that_run_answers_are_refused() -> None:
    for name in LEFT_OUT:
        with pytest.raises(UserError, match=name):
            ReasoningEnv(ReasoningOptions(dataset=name))
    with pytest.raises(UserError, match="is refused by chain_sum"):
        ReasoningEnv(ReasoningOptions(config={"min_terms": -1}))


def test_a_huge_power_is_no_answer() -> None:
    env = ReasoningEnv(ReasoningOptions(dataset="coin_flip", questions=10))
    env.reset(options={"task": env.tasks("train", 1)[0]})
    assert env.step(ToolCall("answer", {"text": "1e999999999"}))[1] == 0.0
