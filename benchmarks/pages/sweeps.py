"""Numbers of ``benchmarks.sweep``: success by horizon, and from which horizon on search beats independent samples."""

import re
import statistics
from collections.abc import Sequence

from benchmarks.estimates import Estimate, difference, estimate, figure, mean
from benchmarks.pages.tables import Grid, decimal, markdown, spread
from benchmarks.record import Result, Row

_SEARCH, _CONTROL = "mcts", "best_of_n"


def sweep(result: Result) -> Grid:
    """Success in % by limit of tokens, way of searching and horizon."""
    grid: dict[str, dict[str, dict[float, Estimate]]] = {}
    for arm in result.arms:
        way, size, tokens = arm.split(", ")
        grid.setdefault(tokens, {}).setdefault(way, {})[horizon(result, size)] = mean(result, arm)
    return grid


def sweep_sizes(result: Result) -> list[str]:
    """The sizes, the shortest horizon first."""
    sizes = dict.fromkeys(arm.split(", ")[1] for arm in result.arms)
    return sorted(sizes, key=lambda size: horizon(result, size))


def horizon(result: Result, size: str) -> float:
    """H: how many actions the planner takes at a size on average, "finish" included, to one decimal."""
    return round(statistics.fmean(row.figures["horizon"] for row in result.rows if f", {size}, " in row.arm), 1)


def step_chance(result: Result, size: str, tokens: str) -> Estimate:
    """q = p^(1/H), the chance of a right action at each of H decisions, p being the share of sampled episodes that
    succeed."""
    rows = _rows(result, _CONTROL, size, tokens)
    return estimate([row.figures["p"] ** (1 / row.figures["horizon"]) for row in rows])


def sweep_table(result: Result, tokens: str) -> str:
    """A line a size: horizon, p and q, what V tells of siblings, and the success of each way of searching."""
    ways = list(sweep(result)[tokens])
    lines = []
    for size in sweep_sizes(result):
        p = estimate([100 * row.figures["p"] for row in _rows(result, _CONTROL, size, tokens)])
        told = [row.figures.get("value_siblings") for row in _rows(result, _SEARCH, size, tokens)]
        known = [value for value in told if value is not None]
        q = decimal(step_chance(result, size, tokens).mean, 3) if p.mean else ""
        line = [f"{horizon(result, size):g}", spread(p), q]
        line.append(decimal(statistics.fmean(known), 2) if known else "")
        lines.append([*line, *(spread(mean(result, f"{way}, {size}, {tokens}"), digits=0) for way in ways)])
    return markdown(["H", "p, %", "q", "V of siblings, AUC", *(f"{way}, %" for way in ways)], lines)


def limits_table(result: Result, tokens: str) -> str:
    """A line a size and another limit: what the searches had solved when they had spent so much."""
    names = [name for name in result.rows[-1].figures if name.startswith("at ")]
    ways = [way for way in sweep(result)[tokens] if way != "greedy"]
    lines = []
    for size in sweep_sizes(result):
        for name in sorted(names, key=lambda name: (name[-1], float(re.sub("[^0-9.]", "", name)))):
            found = [mean(result, f"{way}, {size}, {tokens}", figure(name)) for way in ways]
            shown = [spread(estimate([100 * value for value in each.values]), digits=0) for each in found]
            lines.append([f"{horizon(result, size):g}", name, *shown])
    return markdown(["H", "limit", *(f"{way}, %" for way in ways)], lines)


def predicted_crossing(result: Result, tokens: str) -> float:
    """The horizon H at which the limit pays for one success of independent samples: q^H T / (t H) = 1, T being the
    limit of tokens and t the tokens of an action. Before it sampling succeeds, and beyond it its success falls like
    q^H.

    q and t are those of the shortest horizon alone.
    """
    size = sweep_sizes(result)[0]
    q, rows = step_chance(result, size, tokens).mean, _rows(result, _CONTROL, size, tokens)
    actions = rows[0].figures["tokens"] / statistics.fmean(row.generated_tokens / row.environment_steps for row in rows)
    low, high = 0.0, actions  # of which q^high · actions / high, at most 1, is the chance of a single sample
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if q**middle * actions > middle else (low, middle)
    return low


def measured_crossing(result: Result, tokens: str) -> float | None:
    """The shortest horizon from which on tree search solves more than best-of-N, by the interval of their paired
    difference; None where the longest one is not among them."""
    found = None
    for size in reversed(sweep_sizes(result)):
        if difference(result, f"{_SEARCH}, {size}, {tokens}", f"{_CONTROL}, {size}, {tokens}").verdict != "more":
            break
        found = horizon(result, size)
    return found


def crossing_words(result: Result, tokens: str) -> str:
    """The measured crossing beside the predicted one, as a sentence."""
    found, expected = measured_crossing(result, tokens), predicted_crossing(result, tokens)
    told = f"predicted from q at the shortest horizon: {decimal(expected)}"
    if found is None:
        return f"At {tokens}, tree search solves no more than best-of-N at the longest horizon ({told})."
    return f"At {tokens}, tree search solves more than best-of-N from {decimal(found)} decisions on ({told})."


def _rows(result: Result, way: str, size: str, tokens: str) -> Sequence[Row]:
    return list(result.of(f"{way}, {size}, {tokens}").values())
