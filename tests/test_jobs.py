"""What the jobs of an update make of trees."""

import pytest
import torch

from treeagent.config import RunConfig
from treeagent.jobs import sample_value_rows
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, Refused, State, Task
from treeagent.value_head import ValueHead

TASK = Task("t", "earn")


def tree(reward: float, value: float, *, terminated: bool) -> Tree:
    """One step that earned ``reward`` and led to a state of V ``value``, or to the end."""
    action = Action("go", "go", token_ids=(2, 3))
    after = State(TASK, (Message("user", "earn"), Message("assistant", "go"), Message("user", "on")))
    child = Node(after, value=value, context_ids=(4,), terminated=terminated)
    root = Node(State(TASK, (Message("user", "earn"),)), context_ids=(1,))
    root.edges = [Edge(action, 1.0, 1, reward, reward, child)]
    return Tree(TASK, 0, root)


def targets(*trees: Tree) -> set[float]:
    head = ValueHead(4)
    return {target for row in sample_value_rows(trees, RunConfig(), head.reward_range) for target in row.value_targets}


def test_an_estimate_behind_a_reward_is_held_within_the_range_of_returns() -> None:
    assert targets(tree(0.25, 0.5, terminated=False)) == {0.75}
    assert targets(tree(0.5, 0.6, terminated=False)) == {1.0}
    assert targets(tree(-0.5, 0.25, terminated=False)) == {0.0}


def test_a_return_out_of_range_is_left_to_the_head_to_refuse() -> None:
    found = targets(tree(7.0, 0.0, terminated=True))
    assert found == {7.0}
    with pytest.raises(Refused, match="value target 7 lies outside the head's reward range"):
        ValueHead(4).rescale(torch.tensor(sorted(found)))
