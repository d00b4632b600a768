"""Collects the content of the viewer's page: an index of all trees and episodes, and pieces that load on demand."""

import base64
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from treeagent.contrib.viewer.pack import FLAGS, Packed, pack
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


class Collector:
    """Packs runs for the viewer. Between calls it caches each packed shard until the shard changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], _Shard] = {}

    def collect(self, paths: Sequence[Path], names: Sequence[str] = ()) -> Content:
        """The content of the page for some runs.

        Args:
            paths: the runs' folders.
            names: include only trees and episodes of these names, such as "collect-3"; empty for all.

        Raises:
            RunError: a folder holds no run.
            CorruptShard: a shard cannot be read.
        """
        runs: list[dict[str, Any]] = []
        trees: list[dict[str, Any]] = []
        pieces: list[str] = []
        known: dict[tuple[object, ...], _Shard] = {}
        for number, path in enumerate(paths):
            run = Run.open(path)
            used: set[int] = set()
            for kind, folder in (("trees", run.trees), ("episodes", run.episodes)):
                for file in shards(folder):
                    name, index = shard_place(file)
                    if names and name not in names:
                        continue
                    beside = run.episodes / file.name if kind == "trees" and name.startswith(_PLANS) else file
                    key = (file, _stamp(file), _stamp(beside))
                    shard = known[key] = self._known.get(key) or _pack(run, file, kind, beside)
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


def _pack(run: Run, file: Path, kind: str, beside: Path) -> _Shard:
    shard, piece, size = _Shard(), list[bytes](), 0
    for tree, packed in _packed(run, *shard_place(file), kind, beside):
        written = orjson.dumps(packed.rows)
        if size + len(written) > _PIECE and piece:
            shard.pieces.append(squeeze(_array(piece)))
            piece, size = [], 0
        shard.summaries.append(packed.summary | {"piece": len(shard.pieces), "place": len(piece)})
        shard.tokens |= _tokens(tree)
        piece.append(written)
        size += len(written)
    if piece:
        shard.pieces.append(squeeze(_array(piece)))
    return shard


def _packed(run: Run, name: str, index: int, kind: str, beside: Path) -> Iterator[tuple[Tree, Packed]]:
    if kind == "episodes":
        for episode in read_as(from_record, run.episodes, name, index):
            yield episode, pack(episode, run.config, "episode")
        return
    plans, episodes = name.startswith(_PLANS), dict[str, Tree]()
    if plans and beside.is_file():
        episodes = {episode.task.id: episode for episode in read_as(from_record, run.episodes, name, index)}
    for tree in read_as(from_record, run.trees, name, index):
        yield tree, pack(tree, run.config, "plan" if plans else "training", episodes.get(tree.task.id))


def _tokens(tree: Tree) -> set[int]:
    return {token for node in tree.nodes() for edge in node.edges for token in edge.action.token_ids}


def _array(written: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(written) + b"]"


def squeeze(content: bytes) -> str:
    """Bytes as gzip in base64. Equal bytes give equal texts."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()
