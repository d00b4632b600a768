"""Ratings of the policies of several runs, from pairwise comparisons of their episodes of the same tasks."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from rich.table import Table
from rich.text import Text

from treeagent.contrib.judging.judge import Judge
from treeagent.contrib.judging.ratings import Array, Rating, rate
from treeagent.pipeline.folder import Run
from treeagent.pipeline.outcomes import stage_of_row
from treeagent.pipeline.report.describe import Row
from treeagent.pipeline.report.episodes import steps
from treeagent.pipeline.report.parts import sentences, table
from treeagent.pipeline.report.table import narrow_table
from treeagent.search.node import same_task
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Message, Task
from treeagent.visible import visible

_COLUMNS = {
    "run": "run",
    "policy": "policy",
    "mode": "mode",
    "rating": "rating",
    "interval": "interval",
    "comparisons": "comparisons",
}
_WORDS = ("run", "policy", "mode")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that a policy played at evaluation, reduced to what a comparison needs."""

    task: Task
    messages: tuple[Message, ...]
    solved: bool
    """The verdict of reviewers if they judged the episode, else that of the environment."""
    paid: float
    """The sum of the environment's rewards."""


Episodes = Mapping[str, Episode]
"""The episodes of one policy, by task id."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings of policies, the best first."""

    rows: Sequence[tuple[tuple[str, str, str], Rating | None]]
    """(run, policy, mode) and the rating. The rating is None if no chain of comparisons links the policy with the first
    one given to ``rate_policies``."""
    note: str
    """Sentences that say what was compared, and how."""

    def cells(self) -> list[dict[str, str]]:
        """The text of each cell of the table, by column key."""
        return [
            dict(zip(_WORDS, names, strict=True))
            | (
                {"rating": "none"}
                if found is None
                else {
                    "rating": f"{found.value:.0f}",
                    "interval": "" if found.low is None else f"{found.low:.0f} to {found.high:.0f}",
                    "comparisons": f"{found.comparisons:,}",
                }
            )
            for names, found in self.rows
        ]

    def section(self) -> str:
        """The ratings as an HTML section."""
        return f"<h2>Ratings</h2>{table(_COLUMNS, self.cells(), words=_WORDS)}{sentences([self.note])}"

    def table(self) -> Table:
        """The ratings as a table for the terminal."""
        rich_table = narrow_table({heading: key in _WORDS for key, heading in _COLUMNS.items()})
        for row in self.cells():
            rich_table.add_row(*(Text(visible(row.get(key, ""))) for key in _COLUMNS))
        return rich_table


def episodes_of(run: Run, row: Row) -> dict[str, Episode]:
    """The stored episodes of a results row, by task id; empty if the run stores no episodes that match the row."""
    stage = stage_of_row(row)
    trees = list(read_as(from_record, run.episodes, stage))
    solved = str(row.get("solved", ""))
    if len(trees) != len(solved):
        return {}
    found: dict[str, Episode] = {}
    for tree, mark in zip(trees, solved, strict=True):
        path = [edge for edge in steps(tree) if edge.child is not None]
        last = path[-1].child if path else tree.root
        assert last is not None
        paid = sum(edge.outcome or 0.0 for edge in path)
        found[tree.task.id] = Episode(tree.task, last.state.messages, mark == "1", paid)
    return found


def shared_tasks(policies: Sequence[Episodes]) -> list[str]:
    """The ids of the tasks that all policies played, in the order of the first policy. An id that stands for different
    tasks (``same_task``) is left out."""
    first, *others = policies
    return [
        key
        for key, episode in first.items()
        if all(key in each and same_task(episode.task, each[key].task) for each in others)
    ]


def rate_policies(policies: Mapping[tuple[str, str, str], Episodes], judge: Judge | None = None) -> Ratings | None:
    """Rate policies on the tasks that all of them played; None if there is no such task, or only one policy.

    Without a judge, a solved episode beats an unsolved one. If both or neither are solved, the one with more reward
    wins; equal rewards are a tie.

    Args:
        policies: episodes by run, policy and mode.

    Raises:
        UserError: as for ``Judge.prefer``.
    """
    names = list(policies)
    shared = shared_tasks(list(policies.values())) if names else []
    if len(names) < 2 or not shared:
        return None
    pairs = list(combinations(range(len(names)), 2))
    before = Counter(dict(judge.ledger.reasons())) if judge else Counter[str]()
    episode_pairs = [
        [(policies[names[one]][task], policies[names[other]][task]) for one, other in pairs] for task in shared
    ]
    scores_by_task: Sequence[Sequence[float | None]] = (
        asyncio.run(_judge_pairs(judge, episode_pairs))
        if judge
        else [[_score_by_outcome(*both) for both in each] for each in episode_pairs]
    )
    scores: Array = np.full((len(shared), len(names), len(names)), np.nan)
    for index, row in enumerate(scores_by_task):
        for (one, other), score in zip(pairs, row, strict=True):
            if score is not None:
                scores[index, one, other], scores[index, other, one] = score, 1 - score
    rows = zip(names, rate(scores), strict=True)
    best_first = sorted(rows, key=lambda row: -row[1].value if row[1] else math.inf)
    by = f"the judge {judge.config.model}, in both orders" if judge else "what their episodes were paid"
    note = (
        f"Each two policies were compared on the same {len(shared):,} tasks by {by}. By Bradley-Terry, whoever is "
        "rated 400 points higher does a task better 10 times of 11. Only differences mean anything; the mean is 1000. "
        "The 95 % intervals come from resampled tasks. A policy has none if its comparisons with each other policy end "
        "alike on all tasks."
    )
    return Ratings(best_first, note + (_judge_note(judge, len(shared) * len(pairs), before) if judge else ""))


def _judge_note(judge: Judge, pairs: int, before: Counter[str]) -> str:
    """Sentences on the pairs that a judge could not compare, and on the cost of the comparisons in its ledger.

    Args:
        pairs: number of pairs that were compared.
        before: how often the ledger held each reason before these comparisons.
    """
    note, figures = "", judge.ledger.figures()
    if reasons := Counter(dict(judge.ledger.reasons())) - before:
        why = "; ".join(f"{number} times {reason}" for reason, number in reasons.most_common())
        note = f" The judge gave no verdict on {reasons.total():,} of {pairs:,} pairs, which are left out: {why}."
    tokens = figures["judge/prompt_tokens"] + figures["judge/generated_tokens"]
    note += f" The comparisons in its ledger took {figures['judge/calls']:,.0f} calls and {tokens:,.0f} tokens"
    price = figures["judge/price"]
    return note + (f", at a price of {price:,.2f}." if price else ".")


def _score_by_outcome(one: Episode, other: Episode) -> float:
    ours, theirs = (one.solved, one.paid), (other.solved, other.paid)
    return 0.5 if ours == theirs else float(ours > theirs)


async def _judge_pairs(
    judge: Judge, episode_pairs: Sequence[Sequence[tuple[Episode, Episode]]]
) -> list[list[float | None]]:
    async def row(pairs: Sequence[tuple[Episode, Episode]]) -> list[float | None]:
        return await asyncio.gather(*(judge.prefer(one.task, one.messages, other.messages) for one, other in pairs))

    return await asyncio.gather(*map(row, episode_pairs))
