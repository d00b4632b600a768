"""Prints the episodes of evaluations as conversations, and counts why they failed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from rich.padding import Padding
from rich.text import Text

from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.report.describe import call_text, observation
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Edge, Node, Tree, reaches
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names
from treeagent.visible import visible

Kind = Literal["failed", "solved", "all"]
"""Which episodes to show."""
_MOST_REASONS = 10
"""How many reasons are listed, the most frequent first."""
_MOST_CHARACTERS = 200
"""How many characters of a reason are shown."""


def steps(episode: Tree) -> list[Edge]:
    """The steps of an episode, in order. The last one has no child if the environment failed in it."""
    path = list[Edge]()
    node: Node | None = episode.root
    while node is not None and node.edges:
        path.append(node.edges[0])
        node = path[-1].child
    return path


def is_solved(episode: Tree) -> bool:
    """Whether the rewards of the episode sum to at least 1, as for ``Outcome.success``."""
    return reaches(_total(episode), 1.0)


def _total(episode: Tree) -> float:
    return sum(edge.reward or 0.0 for edge in steps(episode))


def ending(episode: Tree) -> str:
    """A phrase that says how an episode ended."""
    path = steps(episode)
    last = path[-1].child if path else None
    if episode.error:
        return f"broke off: {episode.error}"
    if last is None or not last.ended:
        return "broke off"
    if last.terminated:
        return "solved" if is_solved(episode) else "wrong end"
    return "cut off by a limit"


def reasons(episode: Tree) -> Iterator[str]:
    """Why a failed episode failed: how it ended, and each malformed turn and refused call."""
    yield ending(episode)
    parent = episode.root
    for edge in steps(episode):
        if edge.action.error:
            yield f"malformed turn: {edge.action.error}"
        elif edge.child is not None and edge.child.invalid:
            yield f"refused call: {observation(parent, edge.child).strip()}"
        if edge.child is not None:
            parent = edge.child


def show_episodes(
    run: Run, kind: Kind, console: Terminal, *, task_id: str | None = None, depth: int | None = None
) -> None:
    """Print episodes of each evaluation as conversations, then count why its failed episodes failed.

    Args:
        task_id: show only the episodes of this task; the counts at the end are still over all episodes.
        depth: how many turns of each episode to show; None for all.

    Raises:
        RunError: the run has no episodes, or none of that task.
    """
    names = shard_names(run.episodes)
    if not names:
        raise RunError(f"{run.path} holds no episodes: treeagent eval CHECKPOINT --out {run.path} plays some")
    found = False
    for name in names:
        count, failed, why = 0, 0, Counter[str]()
        console.print(Text(visible(name), style="bold underline"))
        for episode in read_as(from_record, run.episodes, name):
            count += 1
            if not is_solved(episode):
                failed += 1
                why.update(" ".join(reason.split()) for reason in reasons(episode))
            ours = task_id is None or task_id in (episode.task.id, visible(episode.task.id))
            found = found or ours
            if ours and kind in ("all", "solved" if is_solved(episode) else "failed"):
                show_episode(episode, console, depth=depth)
        console.print(f"{failed} of {count} episodes failed")
        for reason, times in why.most_common(_MOST_REASONS):
            console.print(Text(f"  {times} × {visible(reason)[:_MOST_CHARACTERS]}"), soft_wrap=True)
    if not found:
        raise RunError(f"{run.path} has no episode of task {task_id}: treeagent show RUN --episodes all lists them")


def show_episode(episode: Tree, console: Terminal, *, depth: int | None = None) -> None:
    """Print an episode as a conversation."""
    console.print(Text.assemble(("task ", "dim"), (visible(episode.task.id), "bold")))
    opening = episode.root.state.messages
    _print_message(console, "environment", (message.content for message in opening), "italic")
    parent, path = episode.root, steps(episode)
    for edge in path[:depth]:
        action = edge.action
        if action.error:  # the whole turn, because it cannot be split into thought and call
            _print_message(console, "agent", [action.text], "yellow")
        else:
            thought = [action.thought] if action.thought.strip() else []
            _print_message(console, "agent thinks", thought, "italic")
            _print_message(console, "agent", [] if edge.thought else [call_text(action)], "bold")
        if edge.child is not None:
            answer = [] if edge.thought else [observation(parent, edge.child)]
            _print_message(console, "environment refuses" if edge.child.invalid else "environment", answer, "")
            parent = edge.child
    if left := len(path) - len(path[:depth]):
        console.print(f"… {left} more turns", style="dim")
    solved = is_solved(episode)
    console.print(Text(f"reward {_total(episode):.3f}, {visible(ending(episode))}", style="green" if solved else "red"))
    console.print()


def _print_message(console: Terminal, speaker: str, texts: Iterable[str], style: str) -> None:
    """Print texts indented below the speaker's name, so that no text can pass for that of another speaker."""
    for text in texts:
        console.print(Text(speaker, style="dim"))
        console.print(Padding(Text(visible(text.strip("\n"), lines=True), style=style), (0, 0, 0, 2), expand=False))
