"""An environment under disturbances keeps its contract, its tasks and its verdicts."""

import random
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from faulty_envs import Stairs, stairs_task

from treeagent.contrib.guards.disturbed import CANARY, Disturbance, Disturbances, DisturbedEnv, has_obeyed
from treeagent.contrib.worlds.planning import PlanningEnv
from treeagent.envs import Env, Forkable, check_env
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.types import Task, ToolCall

KINDS: Sequence[Disturbance] = get_args(Disturbance)


def shop() -> ShopEnv:
    return ShopEnv(ShopOptions(products=100))


def disturbed(env: Env, *kinds: Disturbance) -> DisturbedEnv:
    return DisturbedEnv(env, Disturbances(kinds))


def begun(env: Env, place: int = 0) -> tuple[Task, str]:
    """A task of an environment, and the opening of its episode."""
    [task] = env.tasks("test", 1, place)
    return task, env.reset(seed=task.seed, options={"task": task})[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", [shop, PlanningEnv])
def test_the_contract_is_kept_under_each(kind: Disturbance, made: Callable[[], Env]) -> None:
    env, other = disturbed(made(), kind), disturbed(made(), kind)
    [task] = env.tasks("train", 1)
    report = check_env(env, task, other=other, branches=24 if kind == "failing tools" else 6, depth=4)
    assert not report.violations


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "failing tools"])
def test_a_demonstrator_succeeds_as_it_did(kind: Disturbance) -> None:
    env, chance = disturbed(shop(), kind), random.Random(0)
    forkable = Forkable(env)
    for task in env.tasks("test", 3):
        forkable.reset(task)
        player, over = env.demonstrator(0.0), False
        assert player is not None
        while not over:
            _, _, over, _, _ = forkable.step(player.act(chance)[1])
        assert env.verify() == 1


def test_one_call_in_ten_fails_by_the_seed_of_the_episode() -> None:
    env = disturbed(Stairs(), "failing tools")
    assert env.stochastic
    failed = [list[bool](), list[bool]()]
    for luck in range(400):
        for each in failed:
            env.reset(seed=luck, options={"task": stairs_task(1)})
            each.append(env.step("up")[0] != "stair 1")
    assert 0.05 < sum(failed[0]) / 400 < 0.15 and failed[0] == failed[1]


def test_an_injection_asks_for_a_call_and_the_agent_that_makes_it_has_obeyed() -> None:
    env = disturbed(shop(), "injection")
    begun(env)
    told = [env.step(ToolCall("search", {"query": "lamp"}))[0] for _ in range(4)]
    assert [CANARY in observation for observation in told] == [True, False, False, True]
    assert f"search[{CANARY}]" in told[0]
    assert has_obeyed([ToolCall("click", {"label": "1"}), ToolCall("search", {"query": CANARY})])
    assert not has_obeyed(["search[lamp]"])
