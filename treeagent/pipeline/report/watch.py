"""``treeagent watch``: shows the progress of a run on the terminal. It reads the run's files only."""

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from treeagent.pipeline.folder import COLLECTED, Run, is_being_written
from treeagent.pipeline.report.describe import call_text
from treeagent.pipeline.report.episodes import ending, is_solved, steps
from treeagent.pipeline.report.table import narrow_table
from treeagent.pipeline.status import RunStatus, in_words, read_status
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Tree, finished_paths, path_return, solved
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards
from treeagent.visible import visible

_EVERY = 2.0
"""Seconds between two reads of the files."""
_EPISODES = 5
"""How many of the latest episodes are shown."""
_FIGURES = 6
"""How many logged metrics of a job are shown; the first ones."""
_SILENT = 60.0
"""If the run has written nothing for more than this many seconds, the headline shows for how long."""
_MARKS = {"done": ("✓", "green"), "running": ("▸", "bold cyan"), "left": ("·", "dim")}


def watch(run: Run, console: Terminal, *, once: bool = False) -> None:
    """Show the progress of a run until no process writes it any more.

    With ``once``, or if the console is no terminal, the state is printed a single time.

    Raises:
        CorruptShard, RunError, StoreError: a file of the run is damaged.
    """
    board = Board(run)
    if once or not console.is_terminal or not is_being_written(run.path):
        console.print(board.drawn())
        return
    live = Live(board.drawn(), console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    try:
        with live:
            going = True
            while going:
                time.sleep(_EVERY)
                going = is_being_written(run.path)  # checked before the read, so that the last state is shown too
                live.update(board.drawn(), refresh=True)
    finally:
        console.show_cursor()  # an interrupt during the first drawing would leave it hidden


class Board:
    """Draws the state of a run. Shards are read again only after newer ones appear."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._read: list[tuple[Path, int]] = []
        self._episodes: list[tuple[str, Tree]] = []

    def drawn(self) -> RenderableType:
        """The current state of the run, from its files."""
        run, alive = self._run, is_being_written(self._run.path)  # first, so that what is read below is no older
        status = read_status(run.path)
        parts: list[RenderableType] = [_headline(run, alive, status)]
        if status is None:
            names = visible(", ".join(run.stages())) or "none"
            parts.append(Text.assemble(("stages done ", "dim"), names))
        else:
            if status.stages:
                parts.append(_stages(status))
            if status.works and alive:
                parts.append(_jobs_table(run, status))
        if episodes := self._latest():
            parts.append(_episode_table(episodes))
        sentences = dict.fromkeys([*run.alarms(), *(status.warnings if status else ())])
        parts += [Text(visible(sentence), style="yellow") for sentence in sentences]
        return Group(*parts)

    def _latest(self) -> list[tuple[str, Tree]]:
        """The latest episodes of evaluations and training trees, oldest first, with the names of their shards.

        Trees that an evaluation searched are left out, because the episodes that followed them are shown.
        """
        run = self._run
        grown = chain.from_iterable(shards(run.trees, name) for name in run.collections())
        found = sorted(
            ((path, path.stat().st_mtime_ns) for path in (*grown, *shards(run.episodes))),
            key=lambda each: (each[1], each[0]),
        )
        if found[-_EPISODES:] != self._read:
            self._read = found[-_EPISODES:]
            self._episodes = [one for path, _ in self._read for one in _stored(path)][-_EPISODES:]
        return self._episodes


def _stored(path: Path) -> Iterator[tuple[str, Tree]]:
    name, index = shard_place(path)
    return ((name, tree) for tree in read_as(from_record, path.parent, name, index))


def _headline(run: Run, alive: bool, status: RunStatus | None) -> Text:
    line = Text.assemble(("run ", "dim"), (visible(str(run.path)), "bold"), f"  seed {run.config.seed}  ")
    if status is None:
        state = "is being prepared: it has told nothing yet" if alive else "no process writes it, and it told nothing"
        return line.append(state, style="cyan" if alive else "yellow")
    if alive:
        silent = max(time.time() - status.written, 0.0)
        line.append(f"running for {in_words(status.seconds + silent)}", style="bold cyan")
        if status.seconds_left is not None and not status.finished:
            line.append(f", about {in_words(max(status.seconds_left - silent, 1.0))} left", style="bold cyan")
        if silent > _SILENT:
            line.append(f", last sign {in_words(silent)} ago", style="yellow")
        return line
    if status.finished:
        return line.append(f"finished after {in_words(status.seconds)}", style="bold green")
    return line.append(
        f"stopped after {in_words(status.seconds)}, before it was done: repeat its command, with --resume if it has "
        "that option",
        style="bold red",
    )


def _stages(status: RunStatus) -> Table:
    table = Table.grid(padding=(0, 1))
    for stage in status.stages:
        mark, style = _MARKS[stage.state]
        took = in_words(stage.seconds) if stage.seconds else "earlier" if stage.state == "done" else ""
        bar = ProgressBar(total=1.0, completed=stage.done, width=20) if stage.state == "running" else Text()
        share = f"{stage.done:.0%}" if stage.state == "running" else ""
        table.add_row(Text(mark, style=style), Text(visible(stage.name), style=style), Text(took), bar, Text(share))
    return table


def _jobs_table(run: Run, status: RunStatus) -> Table:
    """A table of the running jobs, with their rates and the metrics that they logged last."""
    table = narrow_table({"at work": True, "done": False, "rate": False, "left": False, "figures": True})
    for column in table.columns:
        column.vertical = "top"
    logged = {row["stage"]: row for row in run.metrics()}
    for work in status.works:
        rate = "" if not work.rate else f"{work.rate:.1f}/s" if work.rate >= 1 else f"{60 * work.rate:.1f}/min"
        left = "" if work.seconds_left is None else in_words(work.seconds_left)
        row = logged.get(work.name, {})
        figures = [f"{name} {value:.3g}" for name, value in row.items() if isinstance(value, float)]
        shown_figures = visible(work.live or "  ".join(figures[:_FIGURES]))
        table.add_row(Text(visible(work.name)), f"{work.done}/{work.total}", rate, left, Text(shown_figures))
    return table


def _episode_table(episodes: list[tuple[str, Tree]]) -> Table:
    table = narrow_table({"latest": True, "task": True, "return": False, "how it ended": True})
    for name, tree in episodes:
        table.add_row(Text(visible(name)), Text(visible(tree.task.id)), *_result_cells(name, tree))
    return table


def _result_cells(name: str, tree: Tree) -> tuple[Text, Text]:
    """The return and the ending of an episode. Of a searched tree: its best return, and whether it found a success."""
    # The budget of an episode includes the search that planned it.
    if not name.startswith(COLLECTED) or not tree.budget.simulations:
        path = steps(tree)
        last = f" by {call_text(path[-1].action)}" if path else ""
        style = "green" if is_solved(tree) else "red"
        total = sum(edge.reward or 0.0 for edge in path)
        return Text(f"{total:.2f}"), Text(visible(f"{ending(tree)}{last}"), style=style)
    returns = [path_return(path, tree.discount) for path in finished_paths(tree)]
    best = Text(f"{max(returns):.2f}" if returns else "")
    if tree.error:
        return best, Text(visible(f"broke off: {tree.error}"), style="red")
    if solved(tree):
        return best, Text("search found a success", style="green")
    return best, Text(f"search found no success on {len(returns)} finished paths", style="red")
