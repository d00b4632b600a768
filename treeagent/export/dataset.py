"""Export a run's trees to a folder that ``datasets.load_dataset`` reads, with one config for each view.

One tree is in memory at a time. Each shard of trees becomes files that are written atomically, then one line of
``export.jsonl``. An export that was killed continues after the last such line. The dataset's card is written last.
"""

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Literal

import orjson
import pyarrow
import pyarrow.parquet

from treeagent.config import RunConfig, config_difference
from treeagent.export.card import Totals, card
from treeagent.export.views import VIEWS, Row
from treeagent.run.folder import COLLECTED, Run, RunError
from treeagent.run.progress import Progress
from treeagent.search.node import Budget, Tree
from treeagent.search.record import from_record
from treeagent.store import StoreError, read_as, remove_leftovers, replacing, shards, write_atomic

Format = Literal["parquet", "jsonl"]
Write = Callable[[list[Row]], None]
_LOG = "export.jsonl"
_ROW_GROUP = 1 << 24
"""Bytes of uncompressed rows in one row group of a parquet file."""


def export(
    config: RunConfig, run: Run, progress: Progress, views: Sequence[str], format: Format, out: Path
) -> dict[str, int]:
    """Write views of every collected tree into the dataset ``out``, or go on with the one begun there.

    Args:
        config: the run's own but for its tables ``update.pairs``, ``advantages``, ``imitation`` and ``values``.
        views: names in ``VIEWS``.

    Returns:
        Rows in the dataset, by view.

    Raises:
        RunError: there are no trees, a view has no row or does not exist, or ``out`` is no export of just this.
    """
    collected = _collected(run)
    definition = _definition(config, run, views, format)
    if not collected:
        raise RunError(f"{run.path} holds no trees: make some with treeagent collect CHECKPOINT --out {run.path}")
    finished = _finished(out, definition)
    _refuse_changed(out, finished, collected)
    missing = [path for path in collected if path.name not in finished]
    if missing:
        _refuse_empty(config, run, set(views) - _totals(finished.values()).rows.keys())
    with _locked(out) as log:
        if log.tell() == 0:
            _append(log, definition)
        with progress.track("export", len(collected)) as advance:
            advance(len(finished))
            for path in missing:
                finished[path.name] = _export_shard(path, config, views, format, out)
                _append(log, finished[path.name])
                advance(1)
        totals = _totals(finished.values())
        readme, content = out / "README.md", card(config, run, totals, format, _digest(out / _LOG)).encode()
        if not readme.exists() or readme.read_bytes() != content:
            write_atomic(readme, content)
    return {view: sum(totals.rows[view].values()) for view in views}


def _definition(config: RunConfig, run: Run, views: Sequence[str], format: Format) -> Row:
    """Everything besides the trees that the rows depend on, by dotted keys: the first line of the log.

    Raises:
        RunError: a view does not exist, or a setting differs from the run's although no row depends on it.
    """
    for view in views:
        if view not in VIEWS:
            raise RunError(f"unknown view {view!r}: choose {', '.join(VIEWS)}")
    sections = list(dict.fromkeys(VIEWS[view].section for view in views if VIEWS[view].section))
    for key in config_difference(run.config, config):
        if not key.startswith(tuple(f"update.{section}." for section in sections)):
            raise RunError(f"{key} does not change what is exported: leave it out, or change the run itself")
    settings = {
        f"update.{section}.{key}": value
        for section in sections
        for key, value in asdict(getattr(config.update, section)).items()
    }
    columns = {
        f"columns of {view}": {column.name: str(column.type) for column in VIEWS[view].columns} for view in views
    }
    definition = {"treeagent": version("treeagent"), "format": format, "views": list(views)} | columns | settings
    return dict(orjson.loads(orjson.dumps(definition)))


def _finished(out: Path, definition: Row) -> dict[str, Row]:
    """The log's line about every finished shard of trees, by file name.

    Raises:
        RunError: ``out`` holds something other than an export of this definition.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file: choose a folder as --out")
    if not out.exists() or not any(out.iterdir()):
        return {}
    if not (out / _LOG).is_file():
        raise RunError(f"{out} holds files but no export (no {_LOG}): choose another --out")
    try:
        begun, *noted = [dict(orjson.loads(line)) for line in _whole_lines((out / _LOG).read_bytes())] or [definition]
        finished = {line["shard"]: line for line in noted}
    except (ValueError, KeyError, TypeError):  # not JSON, or other JSON
        raise RunError(f"{out / _LOG} is no log of an export: choose another --out") from None
    keys = dict.fromkeys([*definition, *begun])
    changed = [key for key in keys if definition.get(key) != begun.get(key)]
    if changed:
        raise RunError(
            f"{out} was exported with other settings ({', '.join(changed)}): repeat those, or choose another --out"
        )
    return finished


def _refuse_changed(out: Path, finished: Mapping[str, Row], collected: Sequence[Path]) -> None:
    """Check that the files of ``out`` still exist and still come from these trees."""
    here = {path.name: path for path in collected}
    for name, shard in finished.items():
        if name not in here or _digest(here[name]) != shard["sha256"]:
            raise RunError(f"{out} was exported from other trees ({name} differs): choose another --out")
        for file in shard["files"]:
            if not (out / file).is_file():
                raise RunError(f"{out / file} is gone: delete {out} to export everything again")


def _refuse_empty(config: RunConfig, run: Run, views: set[str]) -> None:
    """Check before anything is written that each view has a row. Mostly the first one or two trees show it."""
    for path in _collected(run):
        for tree in _trees(path):
            _refuse_text_only(tree, path, views)
            views -= {view for view in views if any(True for _ in VIEWS[view].rows(tree, config))}
            if not views:
                return
    name = min(views)
    section, loosen = VIEWS[name].section, VIEWS[name].loosen
    settings = [f"update.{section}.{key} (now {getattr(getattr(config.update, section), key)})" for key in loosen]
    fix = f"loosen {' or '.join(settings)}, or collect" if settings else "collect"
    raise RunError(f"the view {name} of {run.path} has no rows: {fix} more trees, or leave it out by --view")


def _refuse_text_only(tree: Tree, path: Path, views: Collection[str]) -> None:
    if tree.text_only and not all(VIEWS[view].texts for view in views):
        texts = " or ".join(name for name, view in VIEWS.items() if view.texts)
        raise RunError(
            f"the tree of task {tree.task.id} in {path} holds actions without token ids: of trees collected with "
            f"policy.text_only only --view {texts} can be exported"
        )


@contextmanager
def _locked(out: Path) -> Iterator[BinaryIO]:
    """The log, open at the end of its last whole line. The kernel releases its lock when the process ends.

    Raises:
        RunError: another process holds it, or the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        log = (out / _LOG).open("a+b")
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror}: choose another --out") from error
    with log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process is exporting to {out}: wait for it, or choose another --out") from None
        log.seek(0)
        content = log.read()
        if (whole := sum(map(len, _whole_lines(content)))) < len(content):
            log.truncate(whole)
        log.seek(0, os.SEEK_END)
        for folder in (out, *(out / view for view in VIEWS)):
            remove_leftovers(folder)
        yield log


def _whole_lines(content: bytes) -> list[bytes]:
    """The complete lines; a last line that was being written when the writer was killed is dropped."""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _append(log: BinaryIO, line: Row) -> None:
    try:
        log.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        log.flush()
        os.fsync(log.fileno())
    except OSError as error:
        raise StoreError(f"cannot write {log.name}: {error.strerror}: free some space, then repeat") from error


def _export_shard(path: Path, config: RunConfig, views: Sequence[str], format: Format, out: Path) -> Row:
    """Write one file for each view and split. Returns the log's line about the shard."""
    rows = {view: Counter[str]() for view in views}
    budget, origins, trees = Budget(), Counter[str](), 0
    files: dict[str, Write] = {}
    place = path.name.removeprefix(f"{COLLECTED}-").split(".")[0]
    with ExitStack() as stack:
        for tree in _trees(path):
            trees += 1
            budget.add(tree.budget)
            origins.update(node.origin for node in tree.nodes() if node is not tree.root)
            _refuse_text_only(tree, path, views)
            for view in views:
                made = list(VIEWS[view].rows(tree, config))
                if not made:
                    continue
                rows[view][tree.task.split] += len(made)
                file = f"{view}/{tree.task.split}-{place}.{format}"
                if file not in files:
                    files[file] = stack.enter_context(_WRITERS[format](out / file, VIEWS[view].columns))
                files[file](made)
    return {
        "shard": path.name,
        "sha256": _digest(path),
        "files": list(files),
        "trees": trees,
        "rows": rows,
        "budget": asdict(budget),
        "origins": origins,
    }


def _collected(run: Run) -> list[Path]:
    """The shards of training trees of all rounds."""
    return [path for name in run.collections() for path in shards(run.trees, name)]


def _trees(path: Path) -> Iterator[Tree]:
    name, number = path.name.split(".")[0].rsplit("-", 1)
    return read_as(from_record, path.parent, name, int(number))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _parquet(path: Path, columns: pyarrow.Schema) -> Iterator[Write]:
    with _whole_file(path) as file, pyarrow.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        waiting: list[pyarrow.RecordBatch] = []
        size = 0

        def write(rows: list[Row]) -> None:
            nonlocal size
            waiting.append(pyarrow.RecordBatch.from_pylist(rows, schema=columns))
            size += waiting[-1].nbytes
            if size >= _ROW_GROUP:
                flush()

        def flush() -> None:
            nonlocal size
            writer.write_table(pyarrow.Table.from_batches(waiting, columns))
            waiting.clear()
            size = 0

        yield write
        flush()


@contextmanager
def _jsonl(path: Path, columns: pyarrow.Schema) -> Iterator[Write]:
    with _whole_file(path) as file:
        yield lambda rows: file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _whole_file(path: Path) -> AbstractContextManager[BinaryIO]:
    path.parent.mkdir(exist_ok=True)
    return replacing(path)


_WRITERS: dict[Format, Callable[[Path, pyarrow.Schema], AbstractContextManager[Write]]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
}


def _totals(finished: Iterable[Row]) -> Totals:
    totals = Totals()
    for shard in finished:
        totals.trees += shard["trees"]
        totals.budget.add(Budget(**shard["budget"]))
        totals.origins.update(shard["origins"])
        for view, splits in shard["rows"].items():
            if splits:
                totals.rows.setdefault(view, Counter()).update(splits)
    return totals
