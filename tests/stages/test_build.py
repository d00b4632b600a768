"""The tasks at the indices that a job names."""

from collections.abc import Sequence

import pytest
from toy_doors import Doors

from treeagent.envs.example import Example
from treeagent.stages.build import tasks_at
from treeagent.types import Split, Task, UserError


class Short(Doors):
    """Has only two tasks per split, and returns fewer tasks without raising."""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return super().tasks(split, 2)[start : start + count]


def test_tasks_come_in_the_order_of_their_places() -> None:
    found = tasks_at(Doors(), "test", [4, 5, 0, 9])
    assert [task.id for task in found] == ["doors-test-4", "doors-test-5", "doors-test-0", "doors-test-9"]


def test_a_split_that_holds_fewer_tasks_is_refused() -> None:
    with pytest.raises(UserError, match="gave 0 where tasks 2 to 2 of split 'train' were asked for"):
        tasks_at(Short(), "train", [0, 2])
    with pytest.raises(UserError, match="gave 2 where tasks 0 to 4 of split 'validation' were asked for"):
        tasks_at(Short(), "validation", range(5))
    with pytest.raises(UserError, match=r"split 'train' holds 33 tasks, not 34"):
        tasks_at(Example(), "train", range(34))
