"""Collects the content of the viewer's page: an index of all trees and episodes, and pieces that load on demand."""

import base64
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from treeagent.contrib.people.marks import FILE, Mark, effective_marks, read_marks
from treeagent.contrib.viewer.pack import FLAGS, Packed, pack
from treeagent.contrib.viewer.reviews import by_task
from treeagent.contrib.viewer.tokens import vocabulary
from treeagent.pipeline.folder import Run
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards
from treeagent.visible import visible

_PIECE = 1 << 20
"""Bytes of JSON after which a new piece begins. Opening a tree unpacks its whole piece, so pieces are small."""
_PLANS = "evaluate-"
"""Prefix of the names of plan shards. Episodes that were played after these plans are in shards of the same name."""


@dataclass(frozen=True, slots=True)
class Content:
    """The data of the page."""

    index: dict[str, Any]
    pieces: list[str]
    """JSON arrays of trees, each gzipped and in base64."""


@dataclass(slots=True)
class _Shard:
    summaries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pieces: list[str] = field(default_factory=list[str])
    tokens: set[int] = field(default_factory=set[int])
    tasks: set[str] = field(default_factory=set[str])
    marks: list[Mark] = field(default_factory=list[Mark])
    """The reviewers' marks on its tasks."""


class Collector:
    """Packs runs for the viewer. Between calls it caches each packed shard, until the shard or the marks on its tasks
    change."""

    def __init__(self, measure: Callable[[Tree], None] | None = None) -> None:
        """
        Args:
            measure: called with each searched tree before it is packed, to set further figures of its actions, such as
                ``Edge.divergence``.
        """
        self._measure = measure
        self._known: dict[tuple[object, ...], _Shard] = {}

    def collect(self, paths: Sequence[Path], names: Sequence[str] = ()) -> Content:
        """The content of the page for some runs.

        Args:
            paths: the runs' folders.
            names: include only trees and episodes of these names, such as "collect-3"; empty for all.

        Raises:
            RunError: a folder holds no run.
            CorruptShard: a shard cannot be read.
            StoreError: a file of marks is damaged.
        """
        runs: list[dict[str, Any]] = []
        trees: list[dict[str, Any]] = []
        pieces: list[str] = []
        known: dict[tuple[object, ...], _Shard] = {}
        for number, path in enumerate(paths):
            run = Run.open(path)
            used: set[int] = set()
            marks = effective_marks(read_marks(run.path / FILE))
            for kind, folder in (("trees", run.trees), ("episodes", run.episodes)):
                for file in shards(folder):
                    name, index = shard_place(file)
                    if names and name not in names:
                        continue
                    beside = run.episodes / file.name if kind == "trees" and name.startswith(_PLANS) else file
                    key = (file, _stamp(file), _stamp(beside))
                    shard = self._known.get(key)
                    if shard is None or shard.marks != [mark for mark in marks if mark.task_id in shard.tasks]:
                        shard = _pack(run, file, kind, beside, marks, self._measure)
                    known[key] = shard
                    used |= shard.tokens
                    for line, summary in enumerate(shard.summaries):
                        where = {"run": number, "kind": kind, "name": visible(name), "shard": index, "line": line}
                        trees.append(where | summary | {"piece": summary["piece"] + len(pieces)})
                    pieces += shard.pieces
            runs.append(_run(run, used))
        self._known = known
        return Content({"runs": runs, "trees": trees, "flags": FLAGS}, pieces)


def _stamp(file: Path) -> tuple[int, int] | None:
    if not file.is_file():
        return None
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


def _run(run: Run, used: set[int]) -> dict[str, Any]:
    return {
        "name": visible(run.path.resolve().name),
        "seed": run.config.seed,
        "environment": visible(run.config.environment.name),
        "stages": [visible(name) for name in run.stages()],
        "alarms": [visible(each) for each in run.alarms()],
        "results": [
            {key: visible(value) if isinstance(value, str) else value for key, value in row.items() if key != "solved"}
            for row in run.result_rows()
        ],
        "vocabulary": vocabulary(run, used),
    }


def _pack(
    run: Run, file: Path, kind: str, beside: Path, marks: Sequence[Mark], measure: Callable[[Tree], None] | None
) -> _Shard:
    name, index = shard_place(file)
    shard, piece, size, marks_by_task = _Shard(), list[bytes](), 0, by_task(marks)
    for tree, packed in _packed(run, name, index, kind, beside, marks_by_task, measure):
        written = orjson.dumps(packed.rows)
        if size + len(written) > _PIECE and piece:
            shard.pieces.append(squeeze(_array(piece)))
            piece, size = [], 0
        shard.summaries.append(packed.summary | {"piece": len(shard.pieces), "place": len(piece)})
        shard.tokens |= _tokens(tree)
        shard.tasks.add(tree.task.id)
        piece.append(written)
        size += len(written)
    if piece:
        shard.pieces.append(squeeze(_array(piece)))
    shard.marks = [mark for mark in marks if mark.task_id in shard.tasks]
    return shard


def _packed(
    run: Run,
    name: str,
    index: int,
    kind: str,
    beside: Path,
    marks_by_task: Mapping[str, Sequence[Mark]],
    measure: Callable[[Tree], None] | None,
) -> Iterator[tuple[Tree, Packed]]:
    if kind == "episodes":
        for episode in read_as(from_record, run.episodes, name, index):
            yield episode, pack(episode, run.config, "episode", marks=marks_by_task.get(episode.task.id, ()))
        return
    plans = name.startswith(_PLANS)
    episodes_by_task: Mapping[str, Tree] = (
        {episode.task.id: episode for episode in read_as(from_record, run.episodes, name, index)}
        if plans and beside.is_file()
        else {}
    )
    for tree in read_as(from_record, run.trees, name, index):
        if measure is not None:
            measure(tree)
        kind_of, marks = "plan" if plans else "training", marks_by_task.get(tree.task.id, ())
        yield tree, pack(tree, run.config, kind_of, episodes_by_task.get(tree.task.id), marks)


def _tokens(tree: Tree) -> set[int]:
    return {token for node in tree.nodes() for edge in node.edges for token in edge.action.token_ids}


def _array(written: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(written) + b"]"


def squeeze(content: bytes) -> str:
    """Bytes as gzip in base64. Equal bytes give equal texts."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()
