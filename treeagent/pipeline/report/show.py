"""Prints runs, results and search trees on the terminal."""

import difflib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branch

from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.report.describe import (
    Row,
    call_text,
    cell,
    failures,
    headline,
    marks,
    more_steps,
    notes,
    observation,
    result_columns,
    statistics,
)
from treeagent.pipeline.terminal import Terminal
from treeagent.search.decide import most_visited_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import check_format, from_record
from treeagent.store import read_as, shard_names
from treeagent.visible import visible

_INDENT = 4
"""Columns by which Rich indents each level of a tree."""
_NARROWEST = 20
"""Fewest columns for the text of a step."""


def narrow_table(headings: dict[str, bool]) -> Table:
    """An empty table without lines. ``headings`` maps each heading to whether its column holds words (else numbers)."""
    table = Table(box=None, collapse_padding=True, pad_edge=False, header_style="bold")
    for heading, words in headings.items():
        broken = heading.replace(" ", "\n", 1) if not words else heading
        table.add_column(broken, justify="left" if words else "right", overflow="fold", vertical="bottom")
    return table


def print_results(rows: Sequence[Row], console: Terminal) -> None:
    """Print one row per policy and mode, the most successful ones bold, with the headline and notes below."""
    columns = result_columns(rows)
    table = narrow_table({heading: key in ("policy", "mode") for key, heading in columns.items()})
    for column, key in zip(table.columns, columns, strict=True):
        column.no_wrap = key == "success"
    best = max((row["success"] for row in rows), default=None)
    for row in rows:
        table.add_row(
            *(Text(visible(cell(row, key))) for key in columns), style="bold" if row["success"] == best else ""
        )
    console.print("", table, "", sep="\n")
    for sentence in (headline(rows), *notes(rows)):
        console.print(Text(visible(sentence)), soft_wrap=True)
    for sentence in failures(rows):
        console.print(Text(visible(sentence), style="yellow"), soft_wrap=True)


def show_run(run: Run, console: Terminal) -> None:
    """Print the warnings, the finished stages, the names of the trees, a task of theirs, and the results."""
    stages = run.stages()
    console.print(Text.assemble(("run ", "dim"), (visible(str(run.path)), "bold"), f"  seed {run.config.seed}"))
    show_alarms(run, console)
    console.print(Text.assemble(("stages done ", "dim"), visible(", ".join(stages)) or "none"))
    for name in shard_names(run.trees):
        for record in islice(read_as(check_format, run.trees, name), 1):
            console.print(Text.assemble(("trees ", "dim"), f"{visible(name)}, of tasks such as ", record["task"]["id"]))
    if rows := run.result_rows():
        print_results(rows, console)


def show_alarms(run: Run, console: Terminal) -> None:
    """Print the warnings of a run so far."""
    for sentence in run.alarms():
        console.print(Text(sentence, style="yellow"), soft_wrap=True)


def show_task(
    run: Run, task_id: str, console: Terminal, *, depth: int | None = None, graph: Path | None = None
) -> None:
    """Print every tree of a task below the name of its shards, or write the first tree to the file ``graph``.

    ``task_id`` is the id itself, or the id as it is printed, with escapes for invisible characters.

    Raises:
        RunError: the run has no tree of that task.
        ValueError: the suffix of ``graph`` names no known format.
    """
    known: list[str] = []
    found = False
    for name in shard_names(run.trees):
        for record in read_as(check_format, run.trees, name):
            known.append(record["task"]["id"])
            if task_id not in (known[-1], visible(known[-1])):
                continue
            found = True
            if graph is not None:
                from treeagent.search.graph import write_graph  # networkx, which only a graph needs

                write_graph(from_record(record), graph)
                console.print(f"tree of {visible(name)} in {visible(str(graph))}")
                return
            console.print(Text(visible(name), style="bold underline"))
            show_tree(from_record(record), console, depth=depth)
    if not found:
        [near] = difflib.get_close_matches(task_id, known, 1, cutoff=0.0)
        raise RunError(
            f"{run.path} has no tree of task {task_id}: its {len(known)} trees are of others, such as {visible(near)}"
        )


def show_tree(tree: Tree, console: Terminal, *, depth: int | None = None) -> None:
    """Print a tree down to ``depth`` steps, with its most visited path in colour. At most as many steps are printed as
    fit the width of the console, because each is indented further than the step before it."""
    path = {id(edge) for edge in most_visited_path(tree)}
    title = Text.assemble(
        ("task ", "dim"), (visible(tree.task.id), "bold"), f"  seed {tree.seed}  V {tree.root.value:.3f}"
    )
    branch = Branch(
        Text.assemble(title, "\n", (visible(tree.task.prompt.strip(), lines=True), "italic")), guide_style="dim"
    )
    fitting = max(1, (console.width - _NARROWEST) // _INDENT)
    _grow(branch, tree.root, path, fitting if depth is None else min(depth, fitting))
    console.print(branch)
    budget = tree.budget
    console.print(
        f"{budget.simulations} simulations, {budget.environment_steps} environment steps, "
        f"{budget.generated_tokens} generated tokens, {budget.seconds:.1f} s",
        style="dim",
    )
    if tree.error:
        console.print(Text(f"broke off: {visible(tree.error)}", style="red"))


def _grow(branch: Branch, node: Node, path: set[int], depth: int) -> None:
    if depth == 0:
        if node.edges:
            branch.add(Text(more_steps(node), style="dim"))
        return
    for edge in sorted(node.edges, key=lambda edge: -edge.visits):
        twig = branch.add(_edge_text(node, edge, on_path=id(edge) in path))
        if edge.child is not None:
            _grow(twig, edge.child, path, depth - 1)


def _edge_text(parent: Node, edge: Edge, *, on_path: bool) -> Text:
    text = Text(visible(call_text(edge.action)), style="bold green" if on_path else "bold" if edge.visits else "dim")
    figures = "  ".join(f"{name} {value}" for name, value in statistics(edge).items())
    text.append(f"   {figures}", style="not bold cyan" if edge.visits else "dim")
    for mark in marks(edge):
        text.append(f"  {mark}", style="not bold magenta" if mark == "imagined" else "not bold yellow")
    if edge.action.thought:
        text.append(f"\n{visible(edge.action.thought.strip(), lines=True)}", style="not bold italic default")
    if edge.child is not None and (shown := observation(parent, edge.child).strip()):
        text.append(f"\n→ {visible(shown.splitlines()[0])}", style="not bold dim default")
    return text
