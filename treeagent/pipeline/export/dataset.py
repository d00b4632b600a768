"""Export a run's trees to a folder that ``datasets.load_dataset`` reads, with one config per view.

One tree is in memory at a time. The files of each shard are written atomically and then recorded in ``export.json``.
An export that was killed continues after the last recorded shard. The dataset's card is written last.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import orjson
import pyarrow
import pyarrow.parquet

from treeagent.config import RunConfig, config_difference
from treeagent.pipeline.export.card import card
from treeagent.pipeline.export.views import VIEWS, Row
from treeagent.pipeline.folder import COLLECTED, Run, RunError
from treeagent.pipeline.progress import Progress
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, regular, remove_leftovers, replacing, shard_place, shards, write_atomic

Format = Literal["parquet", "jsonl"]
_STATE = "export.json"
_ROW_GROUP = 1 << 24
"""A row group of a parquet file is written once its uncompressed rows reach this many bytes."""


def export(
    config: RunConfig,
    run: Run,
    progress: Progress,
    views: Sequence[str],
    format: Format,
    out: Path,
    measure: tuple[str, Callable[[Tree], None]] | None = None,
) -> dict[str, int]:
    """Write views of every collected tree to the dataset ``out``, or continue the export that was begun there.

    Args:
        config: the run's config. Only the sections of ``update`` that the views depend on may differ from it.
        views: names in ``VIEWS``.
        measure: a name, and a function that changes each tree before its rows are made. A resumed export must have the
            same name.

    Returns:
        The number of rows in the dataset, by view.

    Raises:
        RunError: there are no trees, a view does not exist or has no row, or ``out`` holds something other than this
            export.
    """
    collected = {path.name: path for name in run.collections() for path in shards(run.trees, name)}
    definition = _definition(config, run, views, format) | ({"hindsight": measure[0]} if measure else {})
    change = measure[1] if measure else _unchanged
    if not collected:
        raise RunError(f"{run.path} holds no trees: make some with treeagent collect CHECKPOINT --out {run.path}")
    finished = _finished(out, definition, collected)
    if not finished:
        _refuse_empty(config, run, collected, views, change)
    out.mkdir(parents=True, exist_ok=True)
    for folder in (out, *(out / view for view in views)):
        remove_leftovers(folder)
    with progress.track("export", len(collected)) as advance:
        advance(len(finished))
        for name, path in collected.items():
            if name not in finished:
                finished[name] = _export_shard(path, config, views, format, out, change)
                write_atomic(out / _STATE, orjson.dumps({"definition": definition, "shards": finished}))
                advance(1)
    rows = {view: Counter[str]() for view in views}
    counts = Counter[str]()
    for shard in finished.values():
        counts.update(shard["counts"])
        for view in views:
            rows[view].update(shard["rows"][view])
    readme, content = out / "README.md", card(config, run, rows, counts, format, _digest(out / _STATE)).encode()
    if not readme.exists() or regular(readme).read_bytes() != content:
        write_atomic(readme, content)
    return {view: splits.total() for view, splits in rows.items()}


def _definition(config: RunConfig, run: Run, views: Sequence[str], format: Format) -> Row:
    """Everything except the trees that the rows depend on, by dotted keys.

    Raises:
        RunError: a view does not exist, or a setting differs from the run's although no row depends on it.
    """
    for view in views:
        if view not in VIEWS:
            raise RunError(f"unknown view {view!r}: choose {', '.join(VIEWS)}")
    sections = [section for section in dict.fromkeys(VIEWS[view].section for view in views) if section]
    for key in config_difference(run.config, config):
        if not key.startswith(tuple(f"update.{section}." for section in sections)):
            raise RunError(f"{key} does not change what is exported: leave it out, or change the run itself")
    settings = {
        f"update.{section}.{key}": value
        for section in sections
        for key, value in asdict(getattr(config.update, section)).items()
    }
    return {"treeagent": version("treeagent"), "format": format, "views": list(views)} | settings


def _finished(out: Path, definition: Row, collected: Mapping[str, Path]) -> dict[str, Row]:
    """The record of every exported shard of trees, by file name.

    Raises:
        RunError: ``out`` holds something other than an export of this definition and of these trees, or lacks a file.
    """
    if not (out / _STATE).is_file():
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise RunError(f"{out} holds something, but no export (no {_STATE}): choose another --out")
        return {}
    state = orjson.loads(regular(out / _STATE).read_bytes())
    changed = [key for key in definition | state["definition"] if definition.get(key) != state["definition"].get(key)]
    if changed:
        raise RunError(
            f"{out} was exported with other settings ({', '.join(changed)}): repeat those, or choose another --out"
        )
    for name, shard in state["shards"].items():
        if name not in collected or _digest(collected[name]) != shard["sha256"]:
            raise RunError(f"{out} was exported from other trees ({name} differs): choose another --out")
        for file in shard["files"]:
            if not (out / file).is_file():
                raise RunError(f"{out / file} is gone: delete {out} to export everything again")
    return dict(state["shards"])


def _refuse_empty(
    config: RunConfig, run: Run, collected: Mapping[str, Path], views: Sequence[str], change: Callable[[Tree], None]
) -> None:
    """Check before anything is written that each view has a row. The first one or two trees are mostly enough.

    Raises:
        RunError: a view has no row.
    """
    empty = list(views)
    for path in collected.values():
        for tree in _trees(path, config, views):
            change(tree)
            empty = [view for view in empty if not any(VIEWS[view].rows(tree, config))]
            if not empty:
                return
    loosen = f"loosen update.{VIEWS[empty[0]].section}, " if VIEWS[empty[0]].section else ""
    raise RunError(
        f"the view {empty[0]} of {run.path} has no rows: {loosen}collect more trees, or leave it out by --view"
    )


def _unchanged(tree: Tree) -> None:
    """Change nothing: the default of ``measure``."""


def _export_shard(
    path: Path,
    config: RunConfig,
    views: Sequence[str],
    format: Format,
    out: Path,
    change: Callable[[Tree], None],
) -> Row:
    """Write one file per view and split. Returns the record of the shard for ``export.json``."""
    rows = {view: Counter[str]() for view in views}
    counts = Counter[str]()
    files: dict[str, Callable[[list[Row]], None]] = {}
    shard = path.name.removeprefix(f"{COLLECTED}-").split(".")[0]
    with ExitStack() as stack:
        for tree in _trees(path, config, views):
            change(tree)
            budget = tree.budget
            counts.update(trees=1, simulations=budget.simulations, environment_steps=budget.environment_steps)
            counts.update(generated_tokens=budget.generated_tokens)
            counts.update(node.origin for node in tree.nodes() if node is not tree.root)
            for view in views:
                view_rows = list(VIEWS[view].rows(tree, config))
                if not view_rows:
                    continue
                rows[view][tree.task.split] += len(view_rows)
                file = f"{view}/{tree.task.split}-{shard}.{format}"
                if file not in files:
                    files[file] = stack.enter_context(_open_file(out / file, format, VIEWS[view].columns))
                files[file](view_rows)
    return {"sha256": _digest(path), "files": list(files), "rows": rows, "counts": counts}


def _trees(path: Path, config: RunConfig, views: Sequence[str]) -> Iterator[Tree]:
    """The trees of a shard.

    Raises:
        RunError: a tree has no token ids, and one of the views needs them.
    """
    for tree in read_as(from_record, path.parent, *shard_place(path)):
        if tree.text_only and not all(VIEWS[view].texts for view in views):
            raise RunError(
                f"the tree of task {tree.task.id} in {path} holds actions without token ids: of trees collected with "
                "policy.text_only, or imported without --checkpoint, only --view "
                f"{' or '.join(view for view in VIEWS if VIEWS[view].texts)} can be exported"
            )
        yield tree


def _digest(path: Path) -> str:
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _open_file(path: Path, format: Format, columns: pyarrow.Schema) -> Iterator[Callable[[list[Row]], None]]:
    """Yield a function that appends rows to the file. The file appears under its name only when it is complete."""
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        if format == "jsonl":
            yield lambda rows: file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
            return
        with pyarrow.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
            waiting: list[pyarrow.RecordBatch] = []

            def write(rows: list[Row]) -> None:
                waiting.append(pyarrow.RecordBatch.from_pylist(rows, schema=columns))
                if sum(batch.nbytes for batch in waiting) >= _ROW_GROUP:
                    flush()

            def flush() -> None:
                writer.write_table(pyarrow.Table.from_batches(waiting, columns))
                waiting.clear()

            yield write
            flush()
