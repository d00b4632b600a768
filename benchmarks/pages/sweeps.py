"""Numbers of ``benchmarks.sweep``: success by horizon, and from which horizon on search beats independent samples."""

import math
import statistics
from collections.abc import Sequence

from benchmarks.estimates import Estimate, difference, estimate, figure, mean
from benchmarks.pages.tables import Grid, decimal, has, markdown, spread
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
    """The sizes at which both tree search and best-of-N were measured, the shortest horizon first."""
    sizes_by_way = [
        {arm.split(", ")[1] for arm in result.arms if arm.startswith(f"{way}, ")} for way in (_SEARCH, _CONTROL)
    ]
    return sorted(sizes_by_way[0] & sizes_by_way[1], key=lambda size: horizon(result, size))


def horizon(result: Result, size: str) -> float:
    """H: the mean number of actions that the planner takes at a size, including "finish", to one decimal."""
    return round(statistics.fmean(row.figures["horizon"] for row in result.rows if f", {size}, " in row.arm), 1)


def step_chance(result: Result, size: str, tokens: str) -> float:
    """q = p^(1/H), the chance of a right action at each of H decisions. p is the mean share of sampled episodes that
    succeed."""
    rows = _rows(result, _CONTROL, size, tokens)
    share, steps = (statistics.fmean(row.figures[name] for row in rows) for name in ("p", "horizon"))
    return math.pow(share, 1 / steps)


def sweep_table(result: Result, tokens: str) -> str:
    """A table with a line per rung: its name, horizon, p, q and the crossing that q predicts, AUC of V among siblings,
    success of each search method, and how often a success was found."""
    ways = _methods_at_all_sizes(result, tokens)
    searches = [way for way in (_CONTROL, _SEARCH, "mcts_legal") if way in ways]
    lines = []
    for size in sweep_sizes(result):
        p = estimate([100 * row.figures["p"] for row in _rows(result, _CONTROL, size, tokens)])
        q = step_chance(result, size, tokens)
        line = [size, f"{horizon(result, size):g}", spread(p), decimal(q, 2) if q else ""]
        line.append(decimal(predicted_crossing(result, tokens, [size])) if q else "")
        line.append(_mean(result, _SEARCH, size, tokens, "value_siblings"))
        line += [spread(mean(result, f"{way}, {size}, {tokens}"), digits=0) for way in ways]
        lines.append([*line, *(_mean(result, way, size, tokens, "found") for way in searches)])
    head = ["tasks", "H", "p, %", "q", "crossing predicted", "V of siblings, AUC", *(f"{way}, %" for way in ways)]
    return markdown([*head, *(f"{way} found, share" for way in searches)], lines)


def limits_table(result: Result, tokens: str, limits: Sequence[str] = ("at 50 steps", "at 5 s")) -> str:
    """A table with a line per size and limit: the success of each search method after it had spent that much.

    Args:
        limits: names of figures of the rows, such as "at 50 steps".
    """
    ways = [way for way in _methods_at_all_sizes(result, tokens) if way != "greedy"]
    lines = []
    for size in sweep_sizes(result):
        for limit in limits:
            found = [mean(result, f"{way}, {size}, {tokens}", figure(limit)) for way in ways]
            cells = [spread(estimate([100 * value for value in each.values]), digits=0) for each in found]
            lines.append([f"{horizon(result, size):g}", limit, *cells])
    return markdown(["H", "limit", *(f"{way}, %" for way in ways)], lines)


def predicted_crossing(result: Result, tokens: str, sizes: Sequence[str]) -> float:
    """The horizon H at which the token limit pays for one success of independent samples: q(H)^H T / (t H) = 1. T is
    the token limit and t the tokens per action. Up to this horizon sampling succeeds, and beyond it its success falls
    like q^H.

    t and q are measured at ``sizes``. At several sizes, ln q(H) is the line through their ln q (least squares), since q
    falls where longer tasks are also harder. At one size q is constant.
    """
    rows = [row for size in sizes for row in _rows(result, _CONTROL, size, tokens)]
    actions = rows[0].figures["tokens"] / statistics.fmean(row.generated_tokens / row.environment_steps for row in rows)
    horizons = [horizon(result, size) for size in sizes]
    logs = [math.log(step_chance(result, size, tokens)) for size in sizes]
    slope = min(statistics.linear_regression(horizons, logs).slope, 0.0) if len(sizes) > 1 else 0.0
    start = statistics.fmean(logs) - slope * statistics.fmean(horizons)
    low, high = 0.0, actions  # at ``high`` the limit pays for one sample, which succeeds with probability q^H ≤ 1
    while high - low > 1e-3:
        middle = (low + high) / 2
        pays = math.exp(min(start + slope * middle, 0.0) * middle) * actions > middle
        low, high = (middle, high) if pays else (low, middle)
    return low


def sizes_where(result: Result, tokens: str, verdict: str, way: str = _SEARCH, control: str = _CONTROL) -> list[str]:
    """The sizes at which a search method solves "more" or "less" than the control, or the two are "level", by the
    interval of their paired difference."""
    return [
        size
        for size in sweep_sizes(result)
        if difference(result, f"{way}, {size}, {tokens}", f"{control}, {size}, {tokens}").verdict == verdict
    ]


def success_words(
    result: Result,
    tokens: str,
    way: str = _SEARCH,
    name: str = "tree search",
    control: str = _CONTROL,
    control_name: str = "best-of-N",
) -> str:
    """Sentences that say at which horizons a search method solves more, less or as much as the control. Empty if the
    method was not measured at all sizes."""
    if way not in _methods_at_all_sizes(result, tokens):
        return ""

    def solved(sizes: Sequence[str]) -> str:
        arms = {size: (f"{way}, {size}, {tokens}", f"{control}, {size}, {tokens}") for size in sizes}
        means = {size: [spread(mean(result, arm), digits=0) for arm in both] for size, both in arms.items()}
        return _listed(
            [
                f"{found} % of the tasks that take {horizon(result, size):g} decisions ({control_name} {other} %)"
                for size, (found, other) in means.items()
            ]
        )

    more, less, level = (sizes_where(result, tokens, verdict, way, control) for verdict in ("more", "less", "level"))
    subject = name[0].upper() + name[1:]
    sentences = [f"Within {tokens}, {name} solves {solved(more)}."] if more else []
    if less:
        elsewhere = "elsewhere" if more else f"within {tokens}"
        sentences.append(f"{subject} solves fewer than {control_name} {elsewhere}: {solved(less)}.")
    if level:
        horizons = _listed([f"{horizon(result, size):g}" for size in level])
        sentences.append(f"At {horizons} decisions {name} and {control_name} are level.")
    return " ".join(sentences)


def prediction_words(result: Result, tokens: str, way: str = _SEARCH, name: str = "tree search") -> str:
    """Sentences that compare the horizon from which on tree search should win, by ``predicted_crossing`` at the two
    shortest horizons, with those at which a search method does. Empty if there is no prediction."""
    shortest = [size for size in sweep_sizes(result) if step_chance(result, size, tokens)][:2]
    if not shortest:
        return ""
    predicted, constant = (decimal(predicted_crossing(result, tokens, sizes)) for sizes in (shortest, shortest[:1]))
    known, more = (
        _listed([f"{horizon(result, size):g}" for size in sizes])
        for sizes in (shortest, sizes_where(result, tokens, "more", way))
    )
    return " ".join(
        [
            "Tree search should win once best-of-N can expect less than one success within the limit.",
            f"A line through the chances of a right decision at {known} decisions predicts this from {predicted} "
            "decisions on.",
            f"Measured: {name} leads at {more} decisions." if more else f"Measured: {name} has no clear lead.",
            f"If the chance did not fall with the horizon, the prediction would be {constant}.",
        ]
    )


def _listed(parts: Sequence[str]) -> str:
    if not parts:
        return ""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _methods_at_all_sizes(result: Result, tokens: str) -> list[str]:
    """The search methods that were measured at every size."""
    ways = dict.fromkeys(arm.split(", ")[0] for arm in result.arms)
    return [way for way in ways if has(result, *(f"{way}, {size}, {tokens}" for size in sweep_sizes(result)))]


def _rows(result: Result, way: str, size: str, tokens: str) -> Sequence[Row]:
    return list(result.of(f"{way}, {size}, {tokens}").values())


def _mean(result: Result, way: str, size: str, tokens: str, name: str) -> str:
    known = [row.figures[name] for row in _rows(result, way, size, tokens) if name in row.figures]
    return decimal(statistics.fmean(known), 2) if known else ""
