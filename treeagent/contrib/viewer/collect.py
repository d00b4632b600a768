"""Collects the content of the viewer's page: an index of all trees and episodes, and pieces that load on demand."""

import base64
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from treeagent.contrib.viewer.pack import FLAGS, Packed, pack
from treeagent.pipeline.folder import Run
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards
from treeagent.visible import visible

_PIECE = 1 << 20
"""Bytes of JSON after which a new piece begins. Opening a tree unpacks its whole piece, so pieces are small."""
_PLANS = ("evaluate-", "weigh-")
"""Prefixes of the names of plan shards. Episodes that were played after these plans are in shards of the same name."""


@dataclass(frozen=True, slots=True)
class Content:
    """The data of the page."""

    index: dict[str, Any]
    pieces: list[str]
    """JSON arrays of trees, each gzipped and in base64."""


def collect(paths: Sequence[Path]) -> Content:
    """The content of the page for the runs in the folders ``paths``."""
    runs, trees, pieces = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    for number, path in enumerate(paths):
        run, used = Run.open(path), set[int]()
        for kind, folder in (("trees", run.trees), ("episodes", run.episodes)):
            for file in shards(folder):
                name, index = shard_place(file)
                waiting, size = list[bytes](), 0
                for line, (tree, packed) in enumerate(_packed(run, name, index, kind)):
                    written = orjson.dumps(packed.rows)
                    if size + len(written) > _PIECE and waiting:
                        pieces.append(squeeze(_array(waiting)))
                        waiting, size = [], 0
                    where = {"run": number, "kind": kind, "name": visible(name), "shard": index, "line": line}
                    trees.append(where | packed.summary | {"piece": len(pieces), "place": len(waiting)})
                    used |= {token for node in tree.nodes() for edge in node.edges for token in edge.action.token_ids}
                    waiting.append(written)
                    size += len(written)
                if waiting:
                    pieces.append(squeeze(_array(waiting)))
        runs.append(_run(run, used))
    return Content({"runs": runs, "trees": trees, "flags": FLAGS}, pieces)


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


def _packed(run: Run, name: str, index: int, kind: str) -> Iterator[tuple[Tree, Packed]]:
    if kind == "episodes":
        for episode in read_as(from_record, run.episodes, name, index):
            yield episode, pack(episode, run.config, "episode")
        return
    plans, episodes = name.startswith(_PLANS), dict[str, Tree]()
    if plans and any(shard_place(file) == (name, index) for file in shards(run.episodes, name)):
        episodes = {episode.task.id: episode for episode in read_as(from_record, run.episodes, name, index)}
    evaluation = run.config.evaluate
    weight = run.stages().get(name, {}).get("likelihood_weight", evaluation.weight)  # as validation tasks chose it
    config = replace(run.config, evaluate=replace(evaluation, likelihood_weight=weight))
    for tree in read_as(from_record, run.trees, name, index):
        yield tree, pack(tree, config, "plan" if plans else "training", episodes.get(tree.task.id))


def _array(written: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(written) + b"]"


def squeeze(content: bytes) -> str:
    """Bytes as gzip in base64. Equal bytes give equal texts."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def vocabulary(run: Run, used: Iterable[int]) -> dict[str, str]:
    """The text of each token in ``used``, by its id; empty if no tokenizer of the run is on this machine."""
    file = next(_tokenizers(run), None)
    if file is None:
        return {}
    from tokenizers import Tokenizer  # installed with transformers; needs no torch

    tokenizer = Tokenizer.from_file(str(file))
    return {
        str(token): visible(tokenizer.decode([token], skip_special_tokens=False), lines=True) for token in sorted(used)
    }


def _tokenizers(run: Run) -> Iterator[Path]:
    folders = sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    recorded = [path for purpose in ("start", *run.stages()) if (path := run.recorded_checkpoint(purpose)) is not None]
    model = run.config.policy.model
    for folder in (*folders, *recorded, *([Path(model)] if model else [])):
        if (file := folder / "tokenizer.json").is_file():
            yield file
    if model and "/" in model:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "tokenizer.json")
        if isinstance(cached, str):
            yield Path(cached)
