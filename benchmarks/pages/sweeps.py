"""Numbers of ``benchmarks.sweep``: success by horizon, and from which horizon on search beats independent samples."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.estimates import Estimate, difference, mean
from benchmarks.pages.tables import markdown, whole
from benchmarks.record import Result

TOKENS = "800 tokens"
Grid = Mapping[str, Mapping[str, Mapping[float, Estimate]]]
"""Success in %: panel of a figure -> search method -> position on the horizontal axis -> estimate."""


def horizon(result: Result, size: str) -> float:
    """H: the mean number of actions that the planner takes at a size, including "finish", to one decimal."""
    return round(statistics.fmean(row.figures["horizon"] for row in result.rows if f", {size}, " in row.arm), 1)


def sizes(result: Result, way: str = "mcts", tokens: str = TOKENS) -> list[str]:
    """The sizes at which a search method was measured, the shortest horizon first."""
    found = [arm.split(", ")[1] for arm in result.arms if arm.startswith(f"{way}, ") and arm.endswith(tokens)]
    return sorted(found, key=lambda size: horizon(result, size))


def sizes_where(result: Result, verdict: str, way: str = "mcts", control: str = "best_of_n") -> list[str]:
    """The sizes at which a search method solves "more" or "less" than the control, or the two are "level", by the
    interval of their paired difference."""
    return [
        size
        for size in sizes(result, way)
        if difference(result, f"{way}, {size}, {TOKENS}", f"{control}, {size}, {TOKENS}").verdict == verdict
    ]


def span(values: list[float], digits: int = 1) -> str:
    """The least and the greatest of some numbers, such as "1.2 to 5.5"."""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def factors(result: Result, way: str = "mcts", control: str = "best_of_n") -> str:
    """How many times as many tasks a search method solves as the control, over the sizes at which it solves more."""
    ahead = sizes_where(result, "more", way, control)
    arms = [(f"{way}, {size}, {TOKENS}", f"{control}, {size}, {TOKENS}") for size in ahead]
    return span([mean(result, one).mean / mean(result, other).mean for one, other in arms])


def step_share(result: Result, way: str = "mcts", control: str = "best_of_n") -> str:
    """The environment steps of a search method as a share of the control's, over the sizes at which it solves more."""
    shares = []
    for size in sizes_where(result, "more", way, control):
        ours, theirs = (
            statistics.fmean(row.environment_steps for row in result.of(f"{each}, {size}, {TOKENS}").values())
            for each in (way, control)
        )
        shares.append(ours / theirs)
    return f"{statistics.fmean(shares):.2f}"


def horizon_table(result: Result, ways: Mapping[str, str], leave_out: Sequence[str] = ()) -> str:
    """A table with a line per horizon and a column per search method, in whole per cent.

    Args:
        ways: heading of each column, and the method that it shows.
        leave_out: sizes that the table does not show.
    """
    lines = [
        [f"{horizon(result, size):.0f}", *(whole(result, f"{way}, {size}, {TOKENS}") for way in ways.values())]
        for size in sizes(result)
        if size not in leave_out
    ]
    return markdown(["decisions", *ways], lines)


def curves_of(result: Result, ways: Mapping[str, str]) -> Grid:
    """Success in % by horizon, as one panel: a curve for each of ``ways``, by its name."""
    panel = {
        name: {horizon(result, size): mean(result, f"{way}, {size}, {TOKENS}") for size in sizes(result, way)}
        for name, way in ways.items()
    }
    return {f"at most {TOKENS} a task": panel}
