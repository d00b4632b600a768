"""``WorkerEnv``: everything that an environment offers, from a process whose faults cost one task."""

import asyncio
import sys
from collections.abc import Iterator, Sequence

import pytest
from faulty_envs import (
    FAULTS,
    STAIRS,
    Stairs,
    WordsPolicy,
    children,
    stairs_task,
)

from treeagent.envs import EnvDynamics
from treeagent.envs.base import Env, EnvBroken
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.envs.worker import EnvCrashed, EnvTimeout, WorkerEnv
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.types import Policy, Task, ToolCall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")

SHOP_OPTIONS: dict[str, object] = {"products": 200}
LIMIT = 2.0
"""Long enough for a busy machine, short enough to wait for."""


@pytest.fixture
def stairs() -> Iterator[WorkerEnv]:
    env = WorkerEnv(STAIRS, call_seconds=LIMIT)
    yield env
    env.close()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = children()
    yield
    assert children() == before


def start(env: Env, task: Task) -> dict[str, object]:
    return env.reset(seed=task.seed, options={"task": task})[1]


def test_the_shop_is_the_same_in_a_process_of_its_own() -> None:
    here, there = ShopEnv(ShopOptions(products=200)), WorkerEnv("shop", SHOP_OPTIONS)
    assert (there.snapshot_kind, there.stochastic) == ("exact", False)
    assert there.tasks("test", 3, 1) == list(here.tasks("test", 3, 1))
    assert list(there.tools()) == list(here.tools())
    assert there.legal_actions() is None
    calls: list[str | ToolCall] = [
        "search[lamp]",
        "click[no such thing]",
        ToolCall("search", {"query": "boot"}),
        "click[back to search]",
    ]
    for task in here.tasks("train", 2):
        options = {"task": task}
        assert there.reset(seed=1, options=options) == here.reset(seed=1, options=options)
        places = [(here.snapshot(), there.snapshot())]
        for call in calls:
            assert there.step(call) == here.step(call)
            assert there.state_key() == here.state_key()
            assert there.verify() == here.verify()
            places.append((here.snapshot(), there.snapshot()))
        for one, other in places[::2]:
            here.restore(one)
            there.restore(other)
            assert there.state_key() == here.state_key()
            assert there.step("click[next >]") == here.step("click[next >]")
    there.close()
    there.close()


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("sleep", EnvTimeout, r"Stairs', step\('up'\) took longer than call_seconds=2"),
        ("hog", EnvTimeout, r"step\('up'\) took longer than call_seconds=2: the process was killed by signal 9"),
        ("exit", EnvCrashed, r"step\('up'\): the process ended with exit code 3; it last wrote: out of \| stairs$"),
        ("crash", EnvCrashed, r"killed by signal 11 \(Segmentation fault\); it last wrote: .*faulty_envs.py"),
        ("unpicklable", EnvBroken, "cannot be pickled"),
        ("raise", KeyError, "stair 2"),
    ],
)
def test_a_fault_is_named_and_the_next_reset_starts_afresh(
    stairs: WorkerEnv, fault: str, error: type[Exception], words: str
) -> None:
    first = start(stairs, stairs_task(0))["process"]
    start(stairs, stairs_task(1, fault))
    stairs.step("up")
    place = stairs.snapshot()
    with pytest.raises(error, match=words) as caught:
        stairs.step("up")
    assert isinstance(caught.value, RuntimeError) or fault == "raise"
    with pytest.raises(EnvCrashed, match="no episode since the process ended: reset or restore first"):
        stairs.step("up")
    assert stairs.tasks("train", 1) == [stairs_task(0)]
    with pytest.raises(EnvCrashed, match="no episode"):
        stairs.verify()
    stairs.restore(place)
    assert stairs.state_key() == "stairs-1 1"
    assert stairs.step("down")[0] == "stair 0"
    assert start(stairs, stairs_task(2))["process"] != first
    assert stairs.step("up")[0] == "stair 1"
    assert stairs.starts == 2


def search(env: Env, tasks: Sequence[Task], policy: Policy | None = None) -> list[Tree]:
    config = SearchConfig(limits=Limits(simulations=24))
    run = Search(policy or WordsPolicy("up", "down", "jump"), EnvDynamics(env, max_steps=5), config)
    return asyncio.run(run.run(tasks, [task.seed for task in tasks]))


def grown(tree: Tree) -> list[object]:
    """Everything in a tree except its time and the steps it took."""
    return [
        (
            [edge.action.text for edge in path],
            [message.content for message in node.state.messages],
            node.state.key,
            [(edge.visits, edge.value_sum, edge.reward) for edge in node.edges],
        )
        for path, node in tree.walk()
    ]


@pytest.mark.parametrize("snapshots", ["plain", "none"])
def test_a_fault_costs_its_own_tree_only(snapshots: str) -> None:
    faults = FAULTS if snapshots == "plain" else ("exit", "raise")
    sound = [stairs_task(number) for number in range(len(faults) + 1)]
    faulty = [stairs_task(100 + number, fault) for number, fault in enumerate(faults)]
    faulty += [stairs_task(200, "exit", at="reset"), stairs_task(201, "exit", at="verify")]
    mixed = [task for pair in zip(sound, [*faulty, *sound], strict=False) for task in pair][: 2 * len(faults) + 1]
    mixed += faulty[-2:]
    env = WorkerEnv(STAIRS, {"snapshots": snapshots}, call_seconds=LIMIT)
    trees = {tree.task.id: tree for tree in search(env, mixed)}
    env.close()
    expected = search(Stairs(snapshots), sound)
    assert [grown(trees[tree.task.id]) for tree in expected] == [grown(tree) for tree in expected]
    assert not any(trees[task.id].error for task in sound)
    named = ("EnvTimeout", "EnvCrashed", "EnvBroken", "KeyError")
    assert all(trees[task.id].error.startswith(named) for task in faulty), [tree.error for tree in trees.values()]
    assert env.starts == 1 + len(faulty)
