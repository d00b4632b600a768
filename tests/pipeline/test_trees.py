"""Stored trees are read when needed: the trees of a task together, whichever shards hold them."""

import random
from dataclasses import replace
from pathlib import Path

from hand_trees import random_tree
from hypothesis import given
from hypothesis import strategies as st
from pytest import TempPathFactory

from treeagent.pipeline.trees import read_trees, trees_by_task, write_trees
from treeagent.search.record import to_record

NAMES = ("collect-2", "collect-1")


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5), st.randoms())
def test_trees_of_a_task_come_together_once_the_last_is_read(
    tmp_path_factory: TempPathFactory, shards: list[list[int]], shuffler: random.Random
) -> None:
    folder: Path = tmp_path_factory.mktemp("trees")
    for number, tasks in enumerate(shards):
        trees = [random_tree(shuffler) for _ in tasks]
        for tree, task in zip(trees, tasks, strict=True):
            tree.task = replace(tree.task, id=f"task-{task}")
        name, index = NAMES[number % 2], number // 2
        write_trees(folder, name, index, trees)
    stored = list(map(to_record, read_trees(folder, NAMES)))
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(stored):
        groups.setdefault(record["task"]["id"], []).append(place)
    found = [list(map(to_record, trees)) for trees in trees_by_task(folder, NAMES)]
    last_first = sorted(groups.values(), key=lambda places: places[-1])
    expected = [[stored[place] for place in places] for places in last_first]
    assert found == expected
