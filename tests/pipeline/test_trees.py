"""Stored trees are read when needed: the trees of a task together, whichever shards hold them."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hand_trees import random_tree
from hypothesis import given
from hypothesis import strategies as st
from pytest import TempPathFactory

from treeagent.pipeline.index import ShardRows, append, write_trees
from treeagent.pipeline.trees import read_trees, trees_by_task
from treeagent.search.record import to_record
from treeagent.store import CorruptShard, write_shard
from treeagent.types import Share

NAMES = ("collect-2", "collect-1")


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5), st.randoms())
def test_trees_of_a_task_come_together_where_its_first_tree_stands(
    tmp_path_factory: TempPathFactory, shards: list[list[int]], shuffler: random.Random
) -> None:
    folder: Path = tmp_path_factory.mktemp("trees")
    for number, tasks in enumerate(shards):
        trees = [random_tree(shuffler) for _ in tasks]
        for tree, task in zip(trees, tasks, strict=True):
            tree.task = replace(tree.task, id=f"task-{task}")
        name, index = NAMES[number % 2], number // 2
        rows = write_trees(folder, name, index, trees)
        if shuffler.random() < 0.7:  # the index lacks some shards
            append(folder, name, rows)
    stored = list(map(to_record, read_trees(folder, NAMES)))
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(stored):
        groups.setdefault(record["task"]["id"], []).append(place)
    found = [(list(places), list(map(to_record, trees))) for places, trees in trees_by_task(folder, NAMES)]
    expected = [(places, [stored[place] for place in places]) for places in groups.values()]
    assert found == expected
    for index in range(3):
        part = trees_by_task(folder, NAMES, share=Share(index, 3))
        assert [(list(places), list(map(to_record, trees))) for places, trees in part] == expected[index::3]


def test_the_trees_of_other_shares_are_not_parsed(tmp_path: Path) -> None:
    trees = [random_tree(random.Random(number)) for number in range(4)]
    for number, tree in enumerate(trees):
        tree.task = replace(tree.task, id=f"task-{number}")
    write_trees(tmp_path, "collect-1", 0, trees)
    records = list(map(to_record, trees))
    records[1] |= {"format": 999}
    append(tmp_path, "collect-1", ShardRows.of(write_shard(tmp_path, "collect-1", 0, records), trees))
    even, odd = (trees_by_task(tmp_path, ["collect-1"], share=Share(index, 2)) for index in range(2))
    assert [list(places) for places, _ in even] == [[0], [2]]
    with pytest.raises(CorruptShard, match="line 2"):
        list(odd)


def test_tasks_that_share_an_id_but_not_their_data_are_not_compared(tmp_path: Path) -> None:
    """As in two stages of a curriculum that number their tasks alike."""
    maps = ["SFG", "SHG", "SFG"]
    trees = [random_tree(random.Random(0)) for _ in maps]
    for tree, text in zip(trees, maps, strict=True):
        tree.task = replace(tree.task, data={"map": text})
    write_trees(tmp_path, "collect-1", 0, trees)
    found = [(list(places), len(of_task)) for places, of_task in trees_by_task(tmp_path, ["collect-1"])]
    assert found == [([0, 2], 2), ([1], 1)]
