"""Writes a run's trees and episodes anew, as its reviewers judged them, so that an update learns from the marks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson

from treeagent.contrib.people.marks import FILE, Mark, deciding, label, preference, read_marks, state_hash
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Edge, Node, Tree, path_return
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards, write_atomic

EDITS = "edits.jsonl"
"""The file, in the folder of the marked run, with the turns that reviewers wrote: ``prompt`` and ``completion`` as
messages, which TRL's ``SFTTrainer`` reads."""


def write_marked(source: Run, out: Path) -> Counter[str]:
    """Write a run with the trees and episodes of ``source``, changed by its marks. Returns how often each kind of mark
    changed a tree."""
    marks, margin = deciding(read_marks(source.path / FILE)), source.config.update.pairs.min_margin
    counts, edits = Counter[str](), dict[str, dict[str, Any]]()

    def changed(folder: Path, name: str, index: int) -> Iterator[Tree]:
        for tree in read_as(from_record, folder, name, index):
            counts.update(apply_marks(tree, marks, margin))
            edits.update(edited_turns(tree, marks))
            yield tree

    with Run.create(out, source.config, resume=False) as view:
        view.episodes.mkdir(exist_ok=True)
        for path in shards(source.episodes):
            write_trees(view.episodes, *shard_place(path), changed(source.episodes, *shard_place(path)))
        for name in source.collections():
            for path in shards(source.trees, name):
                trees = changed(source.trees, *shard_place(path))
                write_trees(view.trees, *shard_place(path), trees)
            view.finish(name, source.stages().get(name, {}))
    if edits:
        lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in edits.values())
        write_atomic(out / EDITS, b"".join(lines))
        counts["written turns"] = len(edits)
    return counts


def apply_marks(tree: Tree, marks: Mapping[str, Sequence[Mark]], margin: float) -> Counter[str]:
    """Change a tree in memory as reviewers judged it, and count what changed.

    * The end of an episode that they call solved returns 1, and one that they call failed returns 0; the change of the
      return is backed up to the root.
    * Of two tried actions the preferred one has the greater Q afterwards, by at least ``margin``. Two that they call
      equally good get the mean of their Q.
    * An action that they veto, correct or call unsafe counts as refused (``Node.invalid``), so that it is never taught.
      Its Q lies ``margin`` below that of its tried siblings. If a whole episode is vetoed, its last action is refused.

    Args:
        marks: the ``deciding`` marks by state.
        margin: in reward units.
    """
    counts = Counter[str]()
    found = [(path, node, marks.get(state_hash(tree.task.id, node.state.messages), ())) for path, node in tree.walk()]
    for path, node, here in found:
        if path and node.ended and (solved := label(here)) is not None:
            counts["episodes"] += _relabel(path, float(solved), tree.discount)
    for path, node, here in found:
        if path and node.ended and any(mark.verdict == "veto" for mark in here):
            node.invalid = True
            counts["refused actions"] += 1
        if here:
            counts["comparisons"] += _compare(node, here, margin)
            counts["refused actions"] += _refuse(node, here, margin)
    return +counts


def edited_turns(tree: Tree, marks: Mapping[str, Sequence[Mark]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each turn that a reviewer wrote in place of an action of the tree, the mark's id and the turn after the
    conversation before it."""
    for node in tree.nodes():
        for mark in marks.get(state_hash(tree.task.id, node.state.messages), ()):
            if mark.verdict == "edit" and not node.state.messages[-1].partial:
                prompt = [{"role": each.role, "content": each.content} for each in node.state.messages]
                yield mark.id, {"prompt": prompt, "completion": [{"role": "assistant", "content": mark.text}]}


def _relabel(path: Sequence[Edge], target: float, discount: float) -> bool:
    """Set the undiscounted return of a finished path to ``target`` by the reward of its last action, without V(s) after
    it. For each visit of this action, the change of the discounted return is added to W of every action on the path.
    Returns False if the path cannot be judged, because a step of it is unknown."""
    last = path[-1]
    child = last.child
    if child is None or child.unknown:
        return False
    before = path_return([last], discount)
    last.reward = last.reward or 0.0
    last.reward += target - path_return(path)
    change = path_return([last], discount) - before
    for edge in reversed(path):
        if edge is not last:
            change *= edge.discount(discount)
        edge.value_sum += last.visits * change
    return True


def _compare(node: Node, marks: Sequence[Mark], margin: float) -> int:
    tried = {edge.action.text: edge for edge in reversed(node.edges) if edge.visits}
    count = 0
    for first, second in combinations(tried.values(), 2):
        better = preference(marks, first.action.text, second.action.text)
        if better is None:
            continue
        low, high = sorted((first.value, second.value))
        if better == 0:
            low = high = (low + high) / 2
        else:
            high = max(high, low + margin)
        _set_value(first, low if better < 0 else high)
        _set_value(second, high if better < 0 else low)
        count += 1
    return count


def _refuse(node: Node, marks: Sequence[Mark], margin: float) -> int:
    refused = [edge for edge in node.edges if edge.child and any(mark.refuses(edge.action.text) for mark in marks)]
    others = [edge.value for edge in node.edges if edge.visits and edge not in refused]
    for edge in refused:
        assert edge.child is not None
        edge.child.invalid = True
        _set_value(edge, min([edge.value, *(value - margin for value in others)]))
    return len(refused)


def _set_value(edge: Edge, value: float) -> None:
    edge.value_sum = edge.visits * value
