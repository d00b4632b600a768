"""The perfect critic of the updates."""

import random

from benchmarks.perfect import judged
from treeagent.contrib.worlds.planning import PlanningEnv, PlanningOptions
from treeagent.contrib.worlds.planning.planner import FINISH
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State


def test_a_move_of_the_plan_is_worth_one_and_an_end_at_once_nothing() -> None:
    env = PlanningEnv(PlanningOptions(domain="tireworld", size=4))
    task = env.tasks("train", 1)[0]
    env.reset(options={"task": task})
    planned = env.demonstrator(0.0).act(random.Random(0))[1]

    def tried(call: str, visits: int = 4) -> Edge:
        child = Node(State(task, (Message("user", call),)))
        return Edge(Action(call, call), 0.3, visits, 0.25 * visits, 0.0, child)

    edges = [tried(planned), tried(FINISH), tried(planned, visits=0)]
    judged(env, Tree(task, 0, Node(State(task, ()), edges=edges)))
    assert [edge.value for edge in edges] == [1.0, 0.0, 0.0]
