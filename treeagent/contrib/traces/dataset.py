"""The command ``treeagent export``: views of a run's trees as a dataset that ``datasets.load_dataset`` reads, in TRL's
formats where TRL has one."""

import hashlib
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow
import pyarrow.parquet
import typer
from huggingface_hub import DatasetCardData

from treeagent.cli.options import Overrides, find_checkpoint
from treeagent.config import RunConfig, dump_config, load_config
from treeagent.contrib.traces.traces import plain_message
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards
from treeagent.types import Message, as_read
from treeagent.views.advantages import advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.visible import visible

app = typer.Typer()
Row = dict[str, Any]
_IGNORED = -100
"""The label by which torch and TRL exclude a token from the loss."""


def export(config: RunConfig, run: Run, progress: Progress, views: Sequence[str], out: Path) -> dict[str, int]:
    """Write views of every collected tree to the new folder ``out``, which appears once it is complete. Returns the
    number of rows by view. The sections of ``update`` in ``config`` may differ from the run's own."""
    if out.exists():
        raise RunError(f"{out} exists: choose another --out")
    if unknown := [view for view in views if view not in VIEWS]:
        raise RunError(f"unknown view {unknown[0]!r}: choose {', '.join(VIEWS)}")
    collected = [path for name in run.collections() for path in shards(run.trees, name)]
    if not collected:
        raise RunError(f"{run.path} holds no trees: make some with treeagent collect CHECKPOINT --out {run.path}")
    begun = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(begun, ignore_errors=True)  # of an export that was killed
    counts, digest = Counter[tuple[str, str]](), hashlib.sha256(dump_config(config).encode())
    writers = dict[tuple[str, str], Any]()
    with ExitStack() as files, progress.track("export", len(collected)) as advance:
        for path in collected:
            digest.update(path.read_bytes())
            for (view, split), rows in _shard_rows(path, config, views).items():
                writer = writers.get((view, split))
                table = pyarrow.Table.from_pylist(rows, schema=writer and writer.schema)
                if writer is None:
                    place = begun / view / f"{split}.parquet"
                    place.parent.mkdir(parents=True, exist_ok=True)
                    writers[view, split] = files.enter_context(pyarrow.parquet.ParquetWriter(place, table.schema))
                writers[view, split].write_table(table)
                counts[view, split] += len(rows)
            advance()
    totals = {view: sum(count for (each, _), count in counts.items() if each == view) for view in views}
    if empty := [view for view in views if not totals[view]]:
        shutil.rmtree(begun, ignore_errors=True)
        raise RunError(f"the view {empty[0]} of {run.path} has no rows: collect more trees, or leave it out by --view")
    (begun / "README.md").write_text(_card(config, counts, digest.hexdigest()), encoding="utf-8")
    begun.rename(out)
    return totals


def _shard_rows(path: Path, config: RunConfig, views: Sequence[str]) -> dict[tuple[str, str], list[Row]]:
    """The rows of a shard's trees by view and split."""
    found = defaultdict[tuple[str, str], list[Row]](list)
    for tree in read_as(from_record, path.parent, *shard_place(path)):
        if tree.text_only:
            raise RunError(
                f"the tree of task {tree.task.id} in {path} holds actions without token ids: use treeagent traces"
            )
        for view in views:
            if rows := list(VIEWS[view](tree, config)):
                found[view, tree.task.split] += rows
    return found


def _card(config: RunConfig, counts: Mapping[tuple[str, str], int], digest: str) -> str:
    """README.md, whose header declares the files. The digest keeps the library, which caches by folder name and header,
    from returning the rows of another export."""
    header = DatasetCardData(
        pretty_name="Search trees of a language agent",
        tags=["treeagent", "trl", "agent", "tree-search"],
        configs=[
            {
                "config_name": view,
                "description": f"From trees and settings {digest[:16]}",
                "data_files": [
                    {"split": split, "path": f"{view}/{split}.parquet"} for each, split in counts if each == view
                ],
            }
            for view in dict.fromkeys(view for view, _ in counts)
        ],
    )
    rows = "\n".join(f"| {view} | {split} | {count:,} |" for (view, split), count in counts.items())
    return (
        f"---\n{header}\n---\n\n# Search trees as training data, by treeagent\n\n| config | split | rows |\n"
        f"|---|---|---|\n{rows}\n\n`sft` trains by TRL's SFTTrainer as it is; `pairs` train by DPOTrainer on `prompt`, "
        "`chosen` and `rejected`. The ids are those that were sampled.\n\n## Settings\n\n"
        f"```toml\n{visible(dump_config(config), lines=True)}```\n"
    )


def _pairs(tree: Tree, config: RunConfig) -> Iterator[Row]:
    conversations = _conversations(tree)
    for pair in preference_pairs(tree, config.update.pairs):
        prompt = conversations[pair.context_ids]
        if prompt[-1].partial:  # both sides continue a turn: include its beginning in both
            prompt = prompt[:-1]
        sides = (pair.chosen, pair.rejected)
        chosen, rejected = (conversations[pair.context_ids + side.token_ids][len(prompt) :] for side in sides)
        yield {
            "task_id": pair.task_id,
            "prompt": _message_rows(prompt),
            "chosen": _message_rows(chosen),
            "rejected": _message_rows(rejected),
            "ends_turn": not (chosen[-1].partial or rejected[-1].partial),
            "prompt_ids": pair.context_ids,
            "chosen_ids": pair.chosen.token_ids,
            "rejected_ids": pair.rejected.token_ids,
            "chosen_mask": pair.chosen.mask,
            "rejected_mask": pair.rejected.mask,
            "ref_chosen_logps": pair.chosen.logprob,
            "ref_rejected_logps": pair.rejected.logprob,
            "margin": pair.margin,
            "origin": pair.origin,
        }


def _advantages(tree: Tree, config: RunConfig) -> Iterator[Row]:
    yield from map(asdict, advantage_rows(tree, advantages([tree], config.update.advantages)))


def _imitation(tree: Tree, config: RunConfig) -> Iterator[Row]:
    conversations = _conversations(tree)
    for row in imitation_rows(tree, config.update.imitation):
        messages = conversations[row.token_ids]
        if not any(row.mask):  # the segment after a cut of the prompt may hold no action
            continue
        while messages[-1].role != "assistant":  # messages after the last action are not imitated
            messages = messages[:-1]
        yield {
            "task_id": row.task_id,
            "messages": _message_rows(messages),
            "input_ids": row.token_ids,
            "labels": [token if in_loss else _IGNORED for token, in_loss in zip(row.token_ids, row.mask, strict=True)],
            "origin": row.origin,
        }


def _conversations(tree: Tree) -> dict[tuple[int, ...], tuple[Message, ...]]:
    """The conversation up to each state and to each action drawn there, as the policy read it, by token ids."""
    found: dict[tuple[int, ...], tuple[Message, ...]] = {}
    for path, node in tree.walk():
        *_, (start, _) = tree.segments(path)
        prompt, messages = tree.prompt_ids(path), as_read(node.state.messages, start.left_out)
        found.setdefault(prompt, messages)
        for edge in node.edges:
            *earlier, last = messages
            kept, prefix = (earlier, last.content) if last.partial else (messages, "")  # of a turn that goes on
            turn = Message("assistant", prefix + edge.action.text, partial=edge.thought)
            found.setdefault(prompt + edge.action.token_ids, (*kept, turn))
    return found


def _message_rows(messages: Iterable[Message]) -> list[Row]:
    return [plain_message(message) for message in messages]


VIEWS: Mapping[str, Callable[[Tree, RunConfig], Iterator[Row]]] = {
    "pairs": _pairs,
    "advantages": _advantages,
    "sft": _imitation,
}


@app.command("export")
def export_command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run's folder, or a checkpoint with an adapter.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new folder of the dataset or model.")],
    overrides: Overrides = None,
    view: Annotated[
        list[str] | None,
        typer.Option(help="pairs, advantages or sft; give it once for each, by default all."),
    ] = None,
) -> None:
    """Export views of a run's trees as a Hugging Face dataset, or a checkpoint's adapter merged into its base model.

    Example: treeagent export runs/shop --view pairs --view sft --out shop-trees update.pairs.min_margin=0.1

    Example: treeagent export runs/lora/checkpoints/round-1-rft --out shop-policy
    """
    if (source / "adapter_config.json").is_file():
        from treeagent.agent.checkpoint import merge

        merge(find_checkpoint(str(source)), out)
        Terminal().print(f"checkpoint in {out}")
        return
    run, config = Run.open(source), load_config(source / "config.toml", overrides or ())
    views = list(dict.fromkeys(view or VIEWS))
    for name, count in export(config, run, RichProgress(), views, out).items():
        Terminal().print(f"{count:,} rows in {out / name}")
