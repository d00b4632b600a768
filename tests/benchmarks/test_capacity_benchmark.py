"""The benchmark of what limits a policy: whether a thought misreads the page."""

import random
from dataclasses import replace

import pytest

from benchmarks.capacity import misreads
from treeagent.envs.make import make_env
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, State


@pytest.mark.parametrize("wrong_step", [None, 0, 2])
def test_a_thought_that_differs_from_the_demonstrators_is_misread(wrong_step: int | None) -> None:
    env = make_env("shop", {"difficulty": 1, "page_size": 3, "labels": "number"})
    [task] = env.tasks("test", 1, 3)
    demonstrator, over = env.demonstrator(0.0), False
    assert demonstrator is not None
    env.reset(options={"task": task})
    actions = list[Action]()
    while not over:
        thought, call = demonstrator.act(random.Random(0))
        actions.append(Action(call, call, thought))
        _, _, over, _, _ = env.step(call)
    assert env.verify() == 1.0 and len(actions) > 3
    if wrong_step is not None:
        actions[wrong_step] = replace(actions[wrong_step], thought="1 fits . 2 fits")
    tree = Tree(task, 0, Node(State(task, ())))
    node = tree.root
    for action in actions:
        following = Node(State(task, ()))
        node.edges.append(Edge(action, 1.0, child=following))
        node = following
    assert misreads(env, tree) is (wrong_step is not None)
