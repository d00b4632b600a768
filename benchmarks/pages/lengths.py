"""Success by the length of a task in the quickstart's store: the number of steps that its demonstrator takes."""

import random
import statistics
from collections.abc import Sequence
from functools import cache

from benchmarks.estimates import Estimate, estimate
from benchmarks.pages.tables import decimal, markdown, spread
from benchmarks.record import Result, Row
from treeagent.config import load_config
from treeagent.pipeline.build import environment
from treeagent.pipeline.recipes import find_recipe

_GROUPS = {"4 steps": range(1, 5), "5": range(5, 6), "6": range(6, 7), "7 to 10": range(7, 11), "more": range(11, 99)}


def length_table(shown: Sequence[tuple[Result, str, str]]) -> str:
    """A table with a line per group of lengths: its share of the test tasks, and the success of each arm in it, in %.

    Args:
        shown: result files, their arms, and the headings of the arms' columns.
    """
    lines = []
    for label, lengths in _GROUPS.items():
        shares = [statistics.fmean(_length(place) in lengths for place in _places(row)) for row in shown[0][0].rows]
        estimates = [_success(result, arm, lengths) for result, arm, _ in shown]
        found = [spread(each, digits=0) if each else "" for each in estimates]
        lines.append([label, decimal(100 * statistics.fmean(shares), 0), *found])
    return markdown(["the demonstrator takes", "of the tasks, %", *(head for _, _, head in shown)], lines)


def _success(result: Result, arm: str, lengths: range) -> Estimate | None:
    """The success in % of an arm in the tasks of these lengths, over the seeds that have such tasks; None without."""
    values = []
    for row in result.of(arm).values():
        solved = [
            mark == "1" for place, mark in zip(_places(row), row.solved, strict=True) if _length(place) in lengths
        ]
        if solved:
            values.append(100 * statistics.fmean(solved))
    return estimate(values) if values else None


def _places(row: Row) -> range:
    return range(row.first_task, row.first_task + row.tasks)


@cache
def _length(place: int) -> int:
    """The steps of the demonstrator, without errors, in the test task at ``place``."""
    env = environment(load_config(find_recipe("quickstart")))
    [task] = env.tasks("test", 1, place)
    env.reset(seed=0, options={"task": task})
    demonstrator, rng, steps, over = env.demonstrator(noise=0.0), random.Random(0), 0, False
    assert demonstrator is not None
    while not over:
        _, _, terminated, truncated, _ = env.step(demonstrator.act(rng)[1])
        steps, over = steps + 1, terminated or truncated
    return steps
