"""BFCL's multi-turn tasks: the contract, agreement with the package's own checker, hostile texts."""

import random
import uuid
from pathlib import Path
from typing import Any, get_args

import pytest
from measure_tasksets import every_task

from treeagent.contrib.worlds.tasksets.bfcl import Api, BfclEnv, BfclOptions
from treeagent.envs import check_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import Task, ToolCall

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")

APIS: tuple[Api, ...] = get_args(Api)


@pytest.fixture(scope="module")
def env() -> BfclEnv:
    return BfclEnv(BfclOptions(apis=("TradingBot", "MessageAPI")))


def played(env: BfclEnv, task: Task, noise: float) -> list[list[list[str]]]:
    """The calls of a demonstrator's episode in each turn, as the package's checker wants them."""
    env.reset(options={"task": task})
    player, rng, turns = env.demonstrator(noise), random.Random(task.id), list[list[list[str]]]([[]])
    while env.verdict() is None:
        before, call = env.visit, as_call(player.act(rng)[1], env.tools())
        env.step(call)
        if isinstance(call, ToolCall) and env.visit.turn > before.turn:
            turns.append([])
        elif isinstance(call, ToolCall) and env.visit is not before:
            turns[-1].append([f"{call.name}(**{dict(call.arguments)!r})"])
    return turns[:-1]


def package_says(env: BfclEnv, task: Task, turns: list[list[list[str]]]) -> bool:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    entry: dict[str, Any] = env._entries[str(task.data["item"])]
    name = f"m{uuid.uuid4().hex}"  # it keeps objects under this name for ever
    return bool(multi_turn_checker(turns, entry["solution"], entry, "multi_turn", name)["valid"])


def test_it_keeps_the_contract(env: BfclEnv) -> None:
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=BfclEnv(env.options))
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
    assert check_tasks(env) == []


@pytest.mark.parametrize(
    ("category", "count"), [("base", 199), ("long_context", 199), ("miss_func", 198), ("miss_param", 199)]
)
def test_solutions_are_right_and_the_package_agrees(category: Any, count: int) -> None:
    env = BfclEnv(BfclOptions(category=category, apis=APIS))
    tasks = every_task(env)
    assert len(tasks) == count
    for task in tasks[::5]:
        for noise in (0.0, 0.2):
            turns = played(env, task, noise)
            assert (env.verify() == 1.0) == package_says(env, task, turns)
            assert noise or env.verify() == 1.0


def test_doing_nothing_or_less_is_no_success(env: BfclEnv) -> None:
    for task in every_task(env):
        env.reset(options={"task": task})
        while env.verdict() is None:
            env.step(ToolCall("respond", {"message": "Done."}))
        assert env.verify() == 0.0
        env.reset(options={"task": task})
        env.step(as_call(env.plan()[0], env.tools()))
        env.step("respond[Done.]")
        while env.verdict() is None:
            env.step(as_call(env.plan()[-1], env.tools()))
        assert env.verify() == 0.0


def test_a_withheld_tool_comes_with_its_turn() -> None:
    env = BfclEnv(BfclOptions(category="miss_func", apis=("GorillaFileSystem", "TwitterAPI")))
    (task,) = [each for each in every_task(env) if each.id.endswith("miss_func_0")]
    assert env.reset(options={"task": task})[0].endswith("(not available yet: sort)")
    sort = ToolCall("sort", {"file_name": "final_report.pdf"})
    assert env.step(sort)[4]["tool_error"] == "sort is not available yet"
    for _ in range(3):
        observation = env.step("respond[I lack a tool.]")[0]
    assert observation == "User: I have updated some more functions you can choose from. What about now?"
    assert "not available" not in env.step(sort)[0]


def test_a_text_of_a_model_is_never_evaluated(env: BfclEnv, tmp_path: Path) -> None:
    env.reset(options={"task": env.tasks("train", 1)[0]})
    code = f"open({str(tmp_path / 'written')!r}, 'w')"
    for call in (code, f"get_stock_info[{code}]", f"_load_scenario[{code}]", ToolCall("__class__", {"x": code})):
        env.step(call)
    assert not list(tmp_path.iterdir())
    assert env.step(ToolCall("_load_scenario", {"scenario": {}}))[4]["tool_error"]


def test_numbers_that_would_take_minutes_are_refused() -> None:
    env = BfclEnv(BfclOptions(apis=("MathAPI", "TradingBot")))
    env.reset(options={"task": env.tasks("train", 1)[0]})
    for exponent in (10**9, 9_999):  # the second has more digits than Python writes
        assert env.step(ToolCall("power", {"base": 9, "exponent": exponent}))[4]["tool_error"]
