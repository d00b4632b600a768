"""Tests of the environment. ``treeagent envs new`` writes a copy of them next to it."""

from treeagent.envs import check_env
from treeagent.envs.example import Example
from treeagent.types import ToolCall


def guess(number: int) -> ToolCall:
    return ToolCall("guess", {"number": number})


def test_it_keeps_the_contract() -> None:
    env = Example()
    for task in env.tasks("train", 3):
        report = check_env(env, task, other=Example())
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5


def test_only_the_number_itself_is_a_success() -> None:
    env = Example()
    (task,) = env.tasks("test", 1, start=5)
    assert task.data["answer"] == 18
    env.reset(options={"task": task})
    assert env.step(guess(17))[:3] == ("too low", 0.0, False)
    assert env.step(guess(19))[:3] == ("too high", 0.0, False)
    assert env.step(guess(18))[:3] == ("found", 1.0, True)
