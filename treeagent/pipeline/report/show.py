"""Prints runs, results, search trees, episodes and the audit of a world model on the terminal."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Literal

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branch

from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.report import describe
from treeagent.pipeline.report.describe import Row, call_text, cell, observation, steps
from treeagent.pipeline.terminal import Terminal
from treeagent.search.decide import most_visited_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import check_format, from_record
from treeagent.store import read_as, shard_names
from treeagent.visible import visible
from treeagent.world_model.fidelity import Fidelity

Kind = Literal["failed", "solved", "all"]
"""Which episodes to show."""
_INDENT, _NARROWEST = 4, 20
"""Columns by which Rich indents each level of a tree, and the fewest for the text of a step."""
_MOST_REASONS, _MOST_CHARACTERS = 10, 200
"""How many reasons of failures are listed, and how much of each."""
_SHARES = ("observation_agreement", "observation_exact", "reward_accuracy", "termination_accuracy", "unreadable")
_ERRORS = ("reward_error", "transition_error")


def narrow_table(headings: dict[str, bool]) -> Table:
    """An empty table. ``headings`` maps each heading to whether its column holds words (else numbers)."""
    table = Table(box=None, collapse_padding=True, pad_edge=False, header_style="bold")
    for heading, words in headings.items():
        broken = heading.replace(" ", "\n", 1) if not words else heading
        table.add_column(broken, justify="left" if words else "right", overflow="fold", vertical="bottom")
    return table


def print_results(rows: Sequence[Row], console: Terminal) -> None:
    """Print the table, the most successful rows bold, then the headline, limits that bite, notes and failures."""
    columns = describe.result_columns(rows)
    table = narrow_table({heading: key in ("policy", "mode") for key, heading in columns.items()})
    for column, key in zip(table.columns, columns, strict=True):
        column.no_wrap = key == "success"
    best = max((row["success"] for row in rows), default=None)
    for row in rows:
        style = "bold" if row["success"] == best else ""
        table.add_row(*(Text(visible(cell(row, key))) for key in columns), style=style)
    console.print("", table, "", sep="\n")
    for style, sentences in (
        ("", [describe.headline(rows)]),
        ("yellow", describe.limits(rows)),
        ("", describe.notes(rows)),
        ("yellow", describe.failures(rows)),
    ):
        for sentence in sentences:
            console.print(Text(visible(sentence), style=style), soft_wrap=True)


def show_run(run: Run, console: Terminal) -> None:
    """Print the finished stages, the trees, the results and the warnings."""
    console.print(Text.assemble(("run ", "dim"), (visible(str(run.path)), "bold"), f"  seed {run.config.seed}"))
    console.print(Text.assemble(("stages done ", "dim"), visible(", ".join(run.stages())) or "none"))
    for name in shard_names(run.trees):
        for record in islice(read_as(check_format, run.trees, name), 1):
            console.print(Text.assemble(("trees ", "dim"), f"{visible(name)}, of tasks such as ", record["task"]["id"]))
    if rows := run.result_rows():
        print_results(rows, console)
    show_alarms(run, console)


def show_alarms(run: Run, console: Terminal) -> None:
    """Print the warnings of a run so far."""
    for sentence in run.alarms():
        console.print(Text(sentence, style="yellow"), soft_wrap=True)


def show_task(run: Run, task_id: str, console: Terminal, *, depth: int | None = None) -> None:
    """Print every tree of a task below the name of its shards."""
    known: list[str] = []
    for name in shard_names(run.trees):
        for record in read_as(check_format, run.trees, name):
            known.append(visible(record["task"]["id"]))
            if known[-1] == visible(task_id):
                console.print(Text(visible(name), style="bold underline"))
                show_tree(from_record(record), console, depth=depth)
    if visible(task_id) not in known:
        raise RunError(f"{run.path} has no tree of task {task_id}: its {len(known)} trees are of {known[0]} and others")


def show_tree(tree: Tree, console: Terminal, *, depth: int | None = None) -> None:
    """Print a tree down to ``depth`` steps, or as many as fit the console, with its most visited path in colour."""
    path, budget = {id(edge) for edge in most_visited_path(tree)}, tree.budget
    title = Text.assemble(
        ("task ", "dim"), (visible(tree.task.id), "bold"), f"  seed {tree.seed}  V {tree.root.value:.3f}\n"
    )
    branch = Branch(title.append(visible(tree.task.prompt.strip(), lines=True), "italic"), guide_style="dim")
    fitting = max(1, (console.width - _NARROWEST) // _INDENT)
    _grow(branch, tree.root, path, fitting if depth is None else min(depth, fitting))
    console.print(branch)
    console.print(
        f"{budget.simulations} simulations, {budget.environment_steps} environment steps, "
        f"{budget.generated_tokens} generated tokens, {budget.seconds:.1f} s",
        style="dim",
    )
    if tree.error:
        console.print(Text(f"broke off: {visible(tree.error)}", style="red"))


def _grow(branch: Branch, node: Node, path: set[int], depth: int) -> None:
    if depth == 0 and node.edges:
        branch.add(Text("… more steps", style="dim"))
        return
    for edge in sorted(node.edges, key=lambda edge: -edge.visits):
        twig = branch.add(_edge_text(node, edge, on_path=id(edge) in path))
        if edge.child is not None:
            _grow(twig, edge.child, path, depth - 1)


def _edge_text(parent: Node, edge: Edge, *, on_path: bool) -> Text:
    text = Text(visible(call_text(edge.action)), style="bold green" if on_path else "bold" if edge.visits else "dim")
    figures = "  ".join(f"{name} {value}" for name, value in describe.statistics(edge).items())
    text.append(f"   {figures}", style="not bold cyan" if edge.visits else "dim")
    for mark in describe.marks(edge):
        text.append(f"  {mark}", style="not bold magenta" if mark == "imagined" else "not bold yellow")
    if edge.action.thought:
        text.append(f"\n{visible(edge.action.thought.strip(), lines=True)}", style="not bold italic default")
    if edge.child is not None and (shown := observation(parent, edge.child).strip()):
        text.append(f"\n→ {visible(shown.splitlines()[0])}", style="not bold dim default")
    return text


def show_episodes(
    run: Run, kind: Kind, console: Terminal, *, task_id: str | None = None, depth: int | None = None
) -> None:
    """Print the episodes of each evaluation, or those of one task, as conversations of ``depth`` turns, and count why
    failed ones failed."""
    if not (names := shard_names(run.episodes)):
        raise RunError(f"{run.path} holds no episodes: treeagent eval CHECKPOINT --out {run.path} plays some")
    found = False
    for name in names:
        count, failed, why = 0, 0, Counter[str]()
        console.print(Text(visible(name), style="bold underline"))
        for episode in read_as(from_record, run.episodes, name):
            solved = describe.is_solved(episode)
            count, failed = count + 1, failed + (not solved)
            if not solved:
                why.update(" ".join(reason.split()) for reason in describe.reasons(episode))
            ours = task_id is None or visible(task_id) == visible(episode.task.id)
            found = found or ours
            if ours and kind in ("all", "solved" if solved else "failed"):
                show_episode(episode, console, depth=depth)
        console.print(f"{failed} of {count} episodes failed")
        for reason, times in why.most_common(_MOST_REASONS):
            console.print(Text(f"  {times} × {visible(reason)[:_MOST_CHARACTERS]}"), soft_wrap=True)
    if not found:
        raise RunError(f"{run.path} has no episode of task {task_id}: treeagent show RUN --episodes all lists them")


def show_episode(episode: Tree, console: Terminal, *, depth: int | None = None) -> None:
    """Print an episode as a conversation. Texts are indented, so that none can pass for another speaker's."""

    def speak(speaker: str, text: str, style: str = "") -> None:
        words = Text(visible(text.strip("\n"), lines=True), style=style)
        console.print(Text(speaker, style="dim"), Padding(words, (0, 0, 0, 2), expand=False), sep="\n")

    console.print(Text.assemble(("task ", "dim"), (visible(episode.task.id), "bold")))
    for message in episode.root.state.messages:
        speak("environment", describe.shown(message), "italic")
    parent, path = episode.root, steps(episode)
    for edge in path[:depth]:
        action = edge.action
        if action.error:  # the whole turn, because it cannot be split into thought and call
            speak("agent", action.text, "yellow")
        if action.thought.strip() and not action.error:
            speak("agent thinks", action.thought, "italic")
        if not edge.thought and not action.error:
            speak("agent", call_text(action), "bold")
        if edge.child is not None:
            if not edge.thought:
                speaker = "environment refuses" if edge.child.invalid else "environment"
                speak(speaker, observation(parent, edge.child))
            parent = edge.child
    if left := len(path) - len(path[:depth]):
        console.print(f"… {left} more turns", style="dim")
    total = sum(edge.reward or 0.0 for edge in path)
    style = "green" if describe.is_solved(episode) else "red"
    console.print(Text(f"reward {total:.3f}, {visible(describe.ending(episode))}\n", style=style))


def fidelity_table(found: Fidelity) -> Group:
    """The audit of a world model: figures by kind of step, then the error of imagined returns and the allowed share."""
    table = Table("steps of", "number", *(name.replace("_", " ") for name in (*_SHARES, *_ERRORS)), box=None)
    for name, figures in (
        ("all", found.overall),
        ("unseen page and action", found.unseen),
        ("all that can be told", found.determined),
        *((f"imagined step {depth} in a row", figures) for depth, figures in found.compounding.items()),
    ):
        if figures is not None:
            shares = [f"{100 * getattr(figures, share):.1f} %" for share in _SHARES]
            errors = [f"{getattr(figures, error):.3f}" for error in _ERRORS]
            table.add_row(Text(visible(name)), str(figures.steps), *shares, *errors)
    cr = "not replayed" if found.cr is None else f"{found.cr:.2f}"
    note = (
        f"\n{found.episodes} episodes: imagined return {found.optimism:+.3f} above the real one, it or the end wrong "
        f"in {found.wrong_episodes:.0%}, in {found.wrong_unseen:.0%} of the {found.episodes_unseen} with an unseen "
        f"page and action; CR {cr}; share of imagined experience at most {found.lambda_cap:.2f}"
    )
    return Group(table, Text(note))
