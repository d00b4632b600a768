"""Views of a run's trees as files that other trainers read: token ids and stored log-probabilities, and the texts."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow
import pyarrow.parquet

from treeagent.advantages import advantage_rows, q_advantages
from treeagent.config import UpdateConfig
from treeagent.jobs import COLLECTED
from treeagent.pairs import preference_pairs
from treeagent.run import Run, RunError
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, replacing
from treeagent.targets import imitation_rows, value_rows

View = Literal["pairs", "advantages", "sft", "values"]
Row = dict[str, Any]
_BATCH = 1000
"""Rows per row group of a parquet file."""


def export(run: Run, view: View, out: Path, format: Literal["jsonl", "parquet"]) -> int:
    """Write one view of every collected tree, tree by tree; the file exists whole or not at all. Returns its rows.

    Raises:
        RunError: the view of these trees is empty.
    """
    trees = read_as(from_record, run.trees, COLLECTED)
    rows = (row for tree in trees for row in _VIEWS[view](tree, run.config.update))
    first = next(rows, None)
    if first is None:
        raise RunError(
            f"the view {view!r} of {run.path} is empty: collect more trees, or loosen update.pairs, update.advantages "
            "or update.targets"
        )
    with replacing(out) as file:
        return _WRITERS[format](_chain(first, rows), file)


def _chain(first: Row, rest: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rest


def _write_jsonl(rows: Iterator[Row], file: Any) -> int:
    count = 0
    for row in rows:
        file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        count += 1
    return count


def _write_parquet(rows: Iterator[Row], file: Any) -> int:
    batch = list(islice(rows, _BATCH))
    table = pyarrow.Table.from_pylist(batch)
    count = 0
    with pyarrow.parquet.ParquetWriter(file, table.schema, compression="zstd") as writer:
        while batch:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=table.schema))
            count += len(batch)
            batch = list(islice(rows, _BATCH))
    return count


_WRITERS: dict[str, Callable[[Iterator[Row], Any], int]] = {"jsonl": _write_jsonl, "parquet": _write_parquet}


def _pairs(tree: Tree, config: UpdateConfig) -> Iterator[Row]:
    for pair in preference_pairs(tree, config.pairs):
        yield {
            "task_id": pair.task_id,
            "prompt_ids": pair.context_ids,
            "chosen_ids": pair.chosen.token_ids,
            "rejected_ids": pair.rejected.token_ids,
            "ref_chosen_logps": pair.chosen.logprob,
            "ref_rejected_logps": pair.rejected.logprob,
            "chosen": pair.chosen.text,
            "rejected": pair.rejected.text,
            "margin": pair.margin,
            "smoothing": pair.smoothing,
            "origin": pair.origin,
        }


def _advantages(tree: Tree, config: UpdateConfig) -> Iterator[Row]:
    return map(asdict, advantage_rows(tree, q_advantages(tree, config.advantages)))


def _imitation(tree: Tree, config: UpdateConfig) -> Iterator[Row]:
    for row in imitation_rows(tree, config.targets):
        labels = [token if kept else -100 for token, kept in zip(row.token_ids, row.mask, strict=True)]
        yield {"task_id": row.task_id, "input_ids": row.token_ids, "labels": labels}


def _values(tree: Tree, config: UpdateConfig) -> Iterator[Row]:
    for row in value_rows(tree, config.targets):
        yield {
            "task_id": row.task_id,
            "input_ids": row.token_ids,
            "value_positions": row.value_positions,
            "value_targets": row.value_targets,
        }


_VIEWS: dict[str, Callable[[Tree, UpdateConfig], Iterator[Row]]] = {
    "pairs": _pairs,
    "advantages": _advantages,
    "sft": _imitation,
    "values": _values,
}
