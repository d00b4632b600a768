"""The command ``treeagent review``: people judge what an agent did, and a run is written anew as they judged it."""

import getpass
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from treeagent.contrib.people.apply import EDITS, write_marked
from treeagent.contrib.people.marks import FILE, Mark, effective_marks, read_marks, unsafe_calls
from treeagent.contrib.people.queue import review_queue
from treeagent.contrib.people.server import Review, ReviewServer
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.terminal import Terminal
from treeagent.types import UserError
from treeagent.visible import visible

app = typer.Typer(
    help="Let people judge a run in the browser, list their marks, and write the run anew as they judged it.",
    no_args_is_help=True,
)
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


@app.command()
def serve(
    run_folder: RunFolder,
    who: Annotated[str, typer.Option("--who", help="Your name, which your marks bear; by default your login.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
) -> None:
    """Review a run in the browser: compare actions blind; judge episodes; veto actions, correct them or mark them
    unsafe.

    Serves a page on this machine only, until Ctrl-C. Reads RUN, also while it is being written, and adds to
    RUN/marks.jsonl.

    Example: treeagent review serve runs/shop --who ada
    """
    run = Run.open(run_folder)
    items = review_queue(run)
    if not items:
        raise RunError(f"{run.path} holds nothing to review: collect trees in it, or evaluate a checkpoint")
    try:
        server = ReviewServer(Review(run, items, _name(who)), port)
    except OSError as error:
        raise RunError(f"port {port} cannot be used ({error.strerror}): leave --port out, or give another") from error
    with server:
        Terminal(soft_wrap=True).print(f"{len(items)} items to review at {server.url}", "Ctrl-C ends it", sep="\n")
        server.serve_forever()


@app.command("list")
def list_marks(run_folder: RunFolder) -> None:
    """List the marks that count, and a pattern for each call that one of them calls unsafe.

    Example: treeagent review list runs/shop
    """
    run = Run.open(run_folder)
    every = _marks(run)
    table = Table("when", "who", "verdict", "of", "task", "note", box=None, pad_edge=False)
    for mark in every:
        of = mark.text if mark.verdict == "edit" else "" if mark.choice is None else mark.shown[mark.choice]
        cells = (mark.when[:16], mark.who, mark.verdict, " ".join(of.split())[:60], mark.task_id, mark.note)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    console = Terminal(soft_wrap=True)
    Terminal().print(table)
    for call in unsafe_calls(every):
        console.print(Text(f"unsafe; a pattern that forbids it: {visible(re.escape(call))}"))


@app.command()
def apply(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="MARKED", help="The folder of the new run.")],
) -> None:
    """Write the trees and episodes of a run anew, as its reviewers judged them. RUN stays as it is.

    MARKED is a run from which updates learn: treeagent update dpo CHECKPOINT --trees MARKED --out NEW. Turns that
    reviewers wrote are in MARKED/edits.jsonl as prompts and completions.

    Example: treeagent review apply runs/shop --out runs/marked
    """
    source = Run.open(run_folder)
    _marks(source)
    if out.exists():
        raise RunError(f"{out} exists: choose a new folder")
    counts = write_marked(source, out)
    changes = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no mark is on a state of its trees"
    Terminal(soft_wrap=True).print(f"{out}: {changes}; written turns are in {EDITS}")


def _marks(run: Run) -> list[Mark]:
    """The marks of a run that count."""
    if not (found := effective_marks(read_marks(run.path / FILE))):
        raise RunError(f"{run.path} has no marks: make some with treeagent review serve {run.path}")
    return found


def _name(who: str) -> str:
    """The name that marks bear: ``who``, or else the user's login."""
    try:
        return who or getpass.getuser()
    except (KeyError, OSError) as error:  # as in a container
        raise UserError("this user has no login name: give a name by --who") from error
