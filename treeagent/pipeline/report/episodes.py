"""Prints the episodes of evaluations as conversations, and counts why they failed."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
"""How many reasons are listed; the most frequent come first."""
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


@dataclass
class Failures:
    """Counts of the reasons why episodes failed."""

    episodes: int = 0
    failed: int = 0
    turns: int = 0
    """Number of turns in the failed episodes."""
    endings: Counter[str] = field(default_factory=Counter[str])
    """Number of failed episodes, by how they ended."""
    malformed: Counter[str] = field(default_factory=Counter[str])
    """Number of malformed turns in failed episodes, by reason."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Number of calls in failed episodes that the environment refused, by its message."""

    def add(self, episode: Tree) -> None:
        """Add an episode to the counts."""
        self.episodes += 1
        if is_solved(episode):
            return
        self.failed += 1
        self.endings[ending(episode)] += 1
        parent = episode.root
        for edge in steps(episode):
            self.turns += not edge.thought
            if edge.action.error:
                self.malformed[edge.action.error] += 1
            elif edge.child is not None and edge.child.invalid:
                self.refused[observation(parent, edge.child).strip()] += 1
            if edge.child is not None:
                parent = edge.child

    def lines(self) -> Iterator[str]:
        """The counts as lines of text."""
        yield f"{self.failed} of {self.episodes} episodes failed"
        yield from _reason_lines(self.endings)
        for name, reasons in (("malformed", self.malformed), ("refused", self.refused)):
            if reasons:
                yield f"{reasons.total()} of their {self.turns} turns were {name}"
                yield from _reason_lines(reasons)


def _reason_lines(reasons: Counter[str]) -> Iterator[str]:
    """Lines with the most frequent reasons and their counts. Reasons that differ only in numbers are merged."""
    alike: dict[str, Counter[str]] = {}
    for reason, count in reasons.items():
        alike.setdefault(re.sub(r"\d+", "0", reason), Counter())[reason] += count
    groups = sorted(alike.values(), key=lambda group: -group.total())
    for group in groups[:_MOST_REASONS]:
        [(reason, _)] = group.most_common(1)
        words = visible(" ".join(reason.split())) or "an empty answer"
        yield f"  {group.total()} × {words[:_MOST_CHARACTERS]}{'…' * (len(words) > _MOST_CHARACTERS)}"
    if rest := sum(group.total() for group in groups[_MOST_REASONS:]):
        yield f"  {rest} × others"


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
        failures = Failures()
        console.print(Text(visible(name), style="bold underline"))
        for episode in read_as(from_record, run.episodes, name):
            failures.add(episode)
            ours = task_id is None or task_id in (episode.task.id, visible(episode.task.id))
            found = found or ours
            if ours and kind in ("all", "solved" if is_solved(episode) else "failed"):
                show_episode(episode, console, depth=depth)
        for line in failures.lines():
            console.print(Text(line), soft_wrap=True)
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
