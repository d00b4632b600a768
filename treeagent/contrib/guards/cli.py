"""``treeagent approve``: a person's terminal for the calls that wait for approval."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def approve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the wrapper approval.")],
    who: Annotated[str, typer.Option("--who", help="Your name, which your answers bear.")] = "a person",
    once: Annotated[bool, typer.Option("--once", help="End when no call is waiting.")] = False,
) -> None:
    """Approve or refuse calls that wait for approval in a run in another terminal.

    Asks for y or n, followed by an optional reason, for each call. Ends by Ctrl-C.

    Example: treeagent approve runs/shop-approvals
    """
    from rich.text import Text

    from treeagent.contrib.guards.approval import Answer, answer, waiting
    from treeagent.visible import visible

    console, is_waiting = Terminal(soft_wrap=True), False
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        request = next(waiting(folder), None)
        if request is None:
            if once:
                return
            if not is_waiting:
                console.print("no call is waiting", style="dim")
                is_waiting = True
            time.sleep(0.3)
            continue
        is_waiting = False
        for style, text in (("dim", request.task_id), ("italic", request.prompt), ("", request.observation)):
            console.print(Text(visible(text, lines=True), style=style))
        console.print(Text(visible(request.call, lines=True), style="bold"))
        console.print("approve? y, or n and a reason: ", end="")
        line = sys.stdin.readline()
        if not line:
            return
        word, _, note = line.strip().partition(" ")
        if word.lower() not in ("y", "yes", "n", "no"):
            continue
        if not answer(folder, request.id, Answer(word.lower() in ("y", "yes"), who, note=note)):
            console.print("too late: it was answered before", style="yellow")
