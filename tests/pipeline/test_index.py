"""The index of stored trees holds what the shards hold, whatever happened to it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hand_trees import hand_tree

from treeagent.pipeline.index import ShardRows, append, index_path, shard_rows, tree_rows, write_trees
from treeagent.search.node import Tree, accuracy, return_spread
from treeagent.search.record import from_record
from treeagent.store import CorruptShard, read_as, shards


def trees(count: int, first: int = 0) -> list[Tree]:
    return [replace(hand_tree(), place=place, policy="./checkpoints/base") for place in range(first, first + count)]


def whole(folder: Path) -> list[ShardRows]:
    return [
        ShardRows.of(path, read_as(from_record, folder, "collect", index)) for index, path in enumerate(shards(folder))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards, of which the index holds the first two."""
    for index in range(3):
        rows = write_trees(tmp_path, "collect", index, trees(2, first=2 * index))
        if index < 2:
            append(tmp_path, "collect", rows)
    return tmp_path


def test_a_row_tells_what_its_tree_holds(tmp_path: Path) -> None:
    tree = replace(hand_tree(), place=3, policy="./checkpoints/base", error="gone")
    [row] = write_trees(tmp_path, "collect", 0, [tree]).trees
    assert (row.task, row.place, row.policy, row.failed) == (tree.task.id, 3, "./checkpoints/base", True)
    assert (row.spread, row.accuracy, row.told) == (return_spread(tree), accuracy(tree), True)
    assert row.nodes == len(list(tree.nodes()))
    [again] = read_as(from_record, tmp_path, "collect")
    assert (again.place, again.policy) == (3, "./checkpoints/base")


def test_shards_without_an_entry_are_read_and_kept_by_the_writer_alone(folder: Path) -> None:
    before = index_path(folder, "collect").read_bytes()
    assert list(shard_rows(folder, "collect")) == whole(folder)
    assert index_path(folder, "collect").read_bytes() == before
    assert list(shard_rows(folder, "collect", keep=True)) == whole(folder)
    assert index_path(folder, "collect").read_bytes().count(b"\n") == 3
    assert [row.place for row in tree_rows(folder, "collect")] == list(range(6))


def test_a_read_with_an_index_opens_no_tree(folder: Path) -> None:
    first = shards(folder)[0]
    content = first.read_bytes()
    first.write_bytes(bytes(len(content) - 4) + content[-4:])  # damaged, with the same length and checksum
    assert [row.place for row in tree_rows(folder, "collect")] == list(range(6))
    index_path(folder, "collect").unlink()
    with pytest.raises(CorruptShard, match=first.name):
        list(tree_rows(folder, "collect"))


@pytest.mark.parametrize("harm", ["torn", "deleted", "garbled", "another version's"])
def test_a_damaged_index_is_made_up_for(folder: Path, harm: str) -> None:
    path = index_path(folder, "collect")
    content = path.read_bytes()
    if harm == "deleted":
        path.unlink()
    else:
        changed = {
            "torn": content[:-20],
            "garbled": b"\xff" * 40 + content[40:],
            "another version's": content.replace(b'"told"', b'"seen"'),
        }
        path.write_bytes(changed[harm])
    for _ in range(2):
        assert list(shard_rows(folder, "collect", keep=True)) == whole(folder)


def test_a_shard_that_was_written_again_is_read_again(folder: Path) -> None:
    write_trees(folder, "collect", 1, trees(1, first=90))
    assert [row.place for row in tree_rows(folder, "collect")] == [0, 1, 90, 4, 5]
    shards(folder)[0].unlink()
    assert [row.place for row in tree_rows(folder, "collect")] == [90, 4, 5]


def test_a_tree_that_cannot_be_stored_has_the_row_of_what_is_stored(tmp_path: Path) -> None:
    tree = hand_tree()
    tree.task = replace(tree.task, data={"answer": object()})
    rows = write_trees(tmp_path, "collect", 0, [tree])
    assert rows == next(shard_rows(tmp_path, "collect")) and rows.trees[0].failed and rows.trees[0].nodes == 1
