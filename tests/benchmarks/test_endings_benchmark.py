"""How episodes of planning problems end, on paths by hand."""

import random
from collections.abc import Sequence

from toy_search import act, begin

from benchmarks.endings import can_succeed, ending
from treeagent.envs.planning import PlanningEnv, PlanningOptions
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Task


def path(task: Task, calls: Sequence[str]) -> Tree:
    """A tree with one path."""
    node = Node(begin(task, "end"))
    for call in reversed(calls):
        node = Node(begin(task, "before"), edges=[Edge(act(call), 1.0, child=node)])
    return Tree(task, 0, node)


def plan(env: PlanningEnv, task: Task) -> list[str]:
    """The planner's actions, of which the last is ``finish``."""
    env.reset(options={"task": task})
    calls, over = list[str](), False
    while not over:
        calls.append(env.demonstrator(0.0).act(random.Random(0))[1])
        _, _, over, _, _ = env.step(calls[-1])
    return calls


def test_how_episodes_end() -> None:
    env = PlanningEnv(PlanningOptions(size=3))
    [task] = env.tasks("train", 1)
    calls = plan(env, task)
    assert len(calls) > 2 and calls[-1] == "finish"
    assert ending(env, path(task, calls)) == "finished at the goal"
    assert ending(env, path(task, ["finish"])) == "finished elsewhere"
    assert ending(env, path(task, calls[:-1])) == "at the goal, not finished"
    assert ending(env, path(task, calls[:1])) == "never at the goal"


def test_where_a_success_is_still_possible() -> None:
    env, blocked = PlanningEnv(PlanningOptions(domain="tireworld", size=3)), 0
    for task in env.tasks("train", 5):
        tree, [first, *_] = path(task, []), plan(env, task)
        assert can_succeed(env, tree, []) and can_succeed(env, tree, [Edge(act(first), 1.0)])
        assert not can_succeed(env, tree, [Edge(act("finish"), 1.0)])
        env.reset(options={"task": task})
        for call in set(env.legal_actions()) - {first, "finish"}:
            blocked += not can_succeed(env, tree, [Edge(act(call), 1.0)])
    assert blocked  # a wrong road, after which the spare tires do not suffice
