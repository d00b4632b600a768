"""The command ``treeagent import``: transcripts of other agents become a run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from transformers import AutoConfig

from treeagent.agent.checkpoint import base_and_adapter, load_tokenizer
from treeagent.cli.options import Config, Overrides, find_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.contrib.traces.transcripts import Transcript, read_transcripts, transcript_tree
from treeagent.generators.attention import context_of
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.build import conversation
from treeagent.pipeline.demonstrate import tokenise
from treeagent.pipeline.folder import COLLECTED, Run, RunError
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Tree
from treeagent.types import UserError

_SHARD = 100
"""Trees in a shard."""
_MOST_REASONS = 5
"""Most transcripts that are named if they are left out."""

app = typer.Typer()


@dataclass(slots=True)
class Imported:
    """What an import wrote and what it left out."""

    trees: int = 0
    unfit: int = 0
    """Turns that the format cannot express. They are shown, but not imitated."""
    left_out: list[str] = field(default_factory=list[str])
    """A sentence about each transcript that could not be read."""


@app.command()
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Transcripts (.jsonl, .json).")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    overrides: Overrides = None,
    config: Config = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="CHECKPOINT",
            help="The model whose tokens they get, so that it can imitate them.",
        ),
    ] = None,
) -> None:
    """Import transcripts of other agents as a run.

    Transcripts are OpenAI messages, one JSON line each. Each becomes a tree with one path, which show, view, review,
    export and update rft can read. The settings (--config, KEY=VALUE) name their environment and policy.format; the
    default format is "tools".

    Example: treeagent import chats.jsonl runs/chats --checkpoint Qwen/Qwen3-0.6B
    """
    if out.exists():
        raise RunError(f"{out} exists: choose a new folder")
    console = Terminal(soft_wrap=True)
    settings = [*([] if config else ["policy.format=tools"]), *(overrides or ())]
    chosen = load_config(find_recipe(config) if config else None, settings)
    done = import_transcripts(chosen, file, out, find_checkpoint(checkpoint) if checkpoint else None)
    console.print(f"{done.trees:,} trees in {out}")
    if done.unfit:
        console.print(f"{done.unfit:,} turns do not fit policy.format={chosen.policy.format} and are not imitated")
    if done.left_out:
        console.print(f"{len(done.left_out):,} transcripts are left out:", *done.left_out[:_MOST_REASONS], sep="\n")


def import_transcripts(config: RunConfig, file: Path, out: Path, checkpoint: Path | None = None) -> Imported:
    """Write a run that holds the transcripts of a file, both as training trees and as episodes, in the tokens of
    ``checkpoint``. Without it they hold text only, and cannot be imitated."""
    transcripts, left_out = read_transcripts(file)
    done = Imported(left_out=left_out)
    trees = list(_trees(config, transcripts, checkpoint, done))
    if not trees:
        why = f"{done.left_out[0]}" if done.left_out else "give JSON lines with messages"
        raise UserError(f"{file} holds no transcript that can be imported: {why}")
    numbers = Counter[str]()
    for tree in trees:  # traces know their tree by the task and the seed
        tree.seed = numbers[tree.task.id]
        numbers[tree.task.id] += 1
    with Run.create(out, config, resume=False) as run:
        run.episodes.mkdir(exist_ok=True)
        for index, start in enumerate(range(0, len(trees), _SHARD)):
            some = trees[start : start + _SHARD]
            write_trees(run.episodes, "imported", index, some)
            write_trees(run.trees, COLLECTED, index, some)
        run.finish(COLLECTED, {"tasks": len(trees), "batches": index + 1, "value_signal": []})
    done.trees = len(trees)
    done.unfit = sum(bool(edge.action.error) for tree in trees for node in tree.nodes() for edge in node.edges)
    return done


def _trees(config: RunConfig, transcripts: list[Transcript], checkpoint: Path | None, done: Imported) -> Iterator[Tree]:
    if checkpoint is None:
        chat, grammar, context = None, make_grammar(config.policy.format), 0
    else:
        context = context_of(AutoConfig.from_pretrained(base_and_adapter(checkpoint)[0], trust_remote_code=False))
        chat, grammar = conversation(load_tokenizer(checkpoint), config, context)
    for transcript in transcripts:
        try:
            tree = transcript_tree(transcript, grammar)
            if chat is not None:
                tree = tokenise(tree, chat)
                _require_room(tree, context)
        except UserError as error:
            done.left_out.append(f"{transcript.place}, {transcript.task_id}: {error}")
            continue
        yield tree


def _require_room(tree: Tree, context: int) -> None:
    """Refuse a tree with a turn that ends beyond a context of so many tokens."""
    for path, node in tree.walk():
        if any(len(tree.prompt_ids(path)) + len(edge.action.token_ids) > context for edge in node.edges):
            raise UserError(f"it is longer than the model's context of {context} tokens")
