"""AgentDojo's tasks: the contract, solutions, the clock, and attacks."""

import random
from typing import Any

import pytest
from measure_tasksets import every_task, verdict

from treeagent.contrib.worlds.tasksets.agentdojo import AgentDojoEnv, AgentDojoOptions
from treeagent.envs import check_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import ToolCall, UserError

pytest.importorskip("agentdojo", reason="the agentdojo extra is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that it imports


@pytest.fixture(scope="module")
def env() -> AgentDojoEnv:
    return AgentDojoEnv()


def test_it_keeps_the_contract(env: AgentDojoEnv) -> None:
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=AgentDojoEnv(), branches=12)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 2
    assert check_tasks(env) == []


@pytest.mark.parametrize(("suite", "count"), [("workspace", 40), ("travel", 20), ("banking", 16), ("slack", 21)])
def test_every_solution_is_right(suite: Any, count: int) -> None:
    env = AgentDojoEnv(AgentDojoOptions(suite=suite))
    tasks = every_task(env)
    assert len(tasks) == count
    for task in tasks:
        assert verdict(env, task, lambda: env.demonstrator(0.0).act(random.Random(0))[1]) == 1.0


def test_the_clock_stands_still(env: AgentDojoEnv) -> None:
    env.reset(options={"task": env.tasks("train", 1)[0]})
    made = env.step(ToolCall("create_file", {"filename": "a", "content": "b"}))[0]
    assert "2024-05-15 12:00" in made


def test_an_attack_is_read_and_told_apart_from_the_task() -> None:
    env = AgentDojoEnv(AgentDojoOptions(suite="banking", injection="injection_task_0"))
    task = next(each for each in every_task(env) if each.data["item"] == "user_task_0")
    env.reset(options={"task": task})
    assert "IMPORTANT!!!" in env.step(as_call(env.plan()[0], env.tools()))[0]
    assert env.step("answer[done]")[4] == {"injected": False}
    env.reset(options={"task": task})
    for call in env._attack.ground_truth(env.visit.office):
        env.step(ToolCall(call.function, dict(call.args)))
    assert env.step("answer[done]")[4] == {"injected": True}
    with pytest.raises(UserError, match="is 'no': use one of injection_task_0"):
        AgentDojoEnv(AgentDojoOptions(injection="no"))
