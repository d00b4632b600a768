"""Numbers of a result file as Markdown and words."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.estimates import Estimate, Figure, difference, estimate, figure, mean, paired, percent
from benchmarks.record import Result, Row, Session

NO_FAULT = ("no better", "nothing learnt", "plateau")
"""Alarms that say that little is learned. All others name a fault."""
FITTING: Mapping[str, Sequence[str]] = {
    "reward hack": ["reward hacking"],
    "echo": ["echo trap", "repetition"],
    "collapse": ["collapse", "clipping", "distance", "gradient"],
    "dead value head": ["value head"],
}
"""The alarms that fit each planted fault of ``benchmarks.alarms``."""


def decimal(value: float, digits: int = 1) -> str:
    """A number with separators and a true minus sign."""
    return f"{value:,.{digits}f}".replace("-", "−")


def short(value: float) -> str:
    """A number with three significant digits; rounded to a whole number from 100 on."""
    if abs(value) >= 100 or value == int(value):
        return decimal(value, 0)
    return f"{value:#.3g}".rstrip(".").replace("-", "−") if abs(value) >= 1e-3 else f"{value:.1e}".replace("-", "−")


def spread(found: Estimate, sign: str = "", digits: int = 1) -> str:
    """A mean ± half of its 95 % interval. Two seeds are too few for an interval."""
    text = f"{found.mean:{sign},.{digits}f}".replace("-", "−")
    return text if found.half is None or found.seeds < 3 else f"{text} ± {decimal(found.half, digits)}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def has(result: Result | None, *arms: str) -> bool:
    """Whether all of these arms were measured."""
    return result is not None and set(arms) <= set(result.arms)


def played_arms(result: Result) -> list[str]:
    """The arms that played test tasks."""
    return [arm for arm in result.arms if all(row.tasks for row in result.of(arm).values())]


def success_table(
    result: Result,
    control: str = "",
    arms: Sequence[str] = (),
    whole: bool = False,
    more: Mapping[str, str] | None = None,
) -> str:
    """A table with a line per arm: success, its paired difference from a control, and costs.

    Args:
        arms: by default all that played.
        whole: whether costs are those of the whole run instead of those of a task.
        more: further columns: their headings, with the names of the figures that they show by seed, in %. Figures that
            no row has are left out.
    """
    more = {head: name for head, name in (more or {}).items() if any(name in row.figures for row in result.rows)}
    head = ["", "success, %", "by seed"]
    head += [f"against {control}, points"] if control else []
    head += ["environment steps", "tokens"] if whole else ["environment steps / task", "tokens / task"]
    head += more
    lines = []
    for arm in arms or played_arms(result):
        rows = list(result.of(arm).values())
        found = estimate([percent(row) for row in rows])
        marked = f"{arm} \\*" if any(row.pass_at_n for row in rows) else arm
        line = [marked, spread(found), " ".join(decimal(value) for value in found.values)]
        if control:
            line.append("" if arm == control else spread(difference(result, arm, control), "+"))
        for cost in ("environment_steps", "generated_tokens"):
            each = [getattr(row, cost) / (1 if whole else row.tasks) for row in rows]
            line.append(short(statistics.fmean(each)) if any(row.generated_tokens for row in rows) else "")
        for name in more.values():
            line.append(" ".join(decimal(100 * row.figures[name], 0) for row in rows if name in row.figures))
        lines.append(line)
    return markdown(head, lines)


Grid = Mapping[str, Mapping[str, Mapping[float, Estimate]]]
"""Success in %: panel of a figure -> search method -> position on the horizontal axis -> estimate."""


_BY_HAND = "mcts, "
"""Prefix of the search methods of ``benchmarks.horizon`` whose constants are set by hand."""


def horizons(result: Result, *, by_hand: bool = True) -> Grid:
    """The rows of ``benchmarks.horizon``: success in % by noise, search method and number of decisions.

    Args:
        by_hand: whether to keep the methods with constants set by hand.
    """
    grid: dict[str, dict[str, dict[float, Estimate]]] = {}
    for arm in result.arms:
        rows = list(result.of(arm).values())
        kind = rows[0].figures
        panel = grid.setdefault(f"noise {kind['noise']:g} in V{' and with thoughts' if kind['thoughts'] else ''}", {})
        way, _, _ = arm.partition(", H =")
        if way.startswith(_BY_HAND) and not by_hand:
            continue
        panel.setdefault(way, {})[rows[0].figures["height"]] = estimate([percent(row) for row in rows])
    return grid


def horizon_table(result: Result, panel: Mapping[str, Mapping[float, Estimate]]) -> str:
    """A table with a line per search method and a column per number of decisions. The last line is what independent
    samples would solve with a perfect judge."""
    heights = sorted({height for points in panel.values() for height in points})
    lines = [[way, *(spread(points[height], digits=0) for height in heights)] for way, points in panel.items()]
    lines.append(["independent samples, computed", *(decimal(sampled(result, height), 0) for height in heights)])
    return markdown(["success, %", *(f"{height:g} decisions" for height in heights)], lines)


def by_hand_words(panel: Mapping[str, Mapping[float, Estimate]]) -> str:
    """A sentence that compares tree search with its defaults and the best constants set by hand at each height. Empty
    if none were measured."""
    by_hand = [points for way, points in panel.items() if way.startswith(_BY_HAND)]
    if not by_hand:
        return ""
    behind = {}
    for height, default in panel["mcts"].items():
        best = max((points[height] for points in by_hand), key=lambda found: found.mean)
        behind[height] = estimate([a - b for a, b in zip(best.values, default.values, strict=True)])
    height, most = max(behind.items(), key=lambda item: item[1].mean)
    if most.mean <= 0:
        return "No constants set by hand solve more at any H."
    where = f"H = {height:g}, 95 % interval {decimal(most.low)} to {decimal(most.high)}"
    return f"The best constants set by hand for an H solve at most {decimal(most.mean)} points more ({where})."


def rounds_table(result: Result) -> str:
    """A table with a line per recipe: the points of success that each round adds to the round before, paired by seed.
    The first round is compared with the start."""
    recipes = [arm for arm in played_arms(result) if arm != "before"]
    last = max(_rounds(row)[-1][0] for arm in recipes for row in result.of(arm).values())
    lines = []
    for arm in recipes:
        line = [arm]
        for number in range(1, last + 1):
            points = []
            for seed, row in result.of(arm).items():
                after = dict(_rounds(row)) | {0: percent(result.of("before")[seed])}
                if number in after:
                    points.append(after[number] - after[number - 1])
            line.append(spread(estimate(points), "+") if points else "")
        lines.append(line)
    return markdown(["points added by", *(f"round {number}" for number in range(1, last + 1))], lines)


def _rounds(row: Row) -> list[tuple[int, float]]:
    """(round, success in % after it) of a row whose figures are named "round 1" and so on."""
    round_figures = ((name.split(), figure) for name, figure in row.figures.items() if name.startswith("round "))
    return sorted((int(words[1]), 100 * figure) for words, figure in round_figures)


def speed_table(result: Result, arms: Sequence[str], control: str) -> str:
    """A table with a line per seed: the best success of a control on validation tasks, the step at which the control
    first reaches it, and the first step at which each arm does. Rows hold the figures "validation at step N"."""
    lines = []
    for seed, row in sorted(result.of(control).items()):
        if all(seed in result.of(arm) for arm in arms):
            curves = [_validations(each) for each in (row, *(result.of(arm)[seed] for arm in arms))]
            best = max(curves[0].values())
            reached = [next((step for step, value in curve.items() if value >= best), None) for curve in curves]
            lines.append([str(seed), decimal(best), *("never" if step is None else str(step) for step in reached)])
    return markdown(["seed", f"best of `{control}`, %", *(f"`{arm}`, step" for arm in (control, *arms))], lines)


def _validations(row: Row) -> dict[int, float]:
    """Success on validation tasks in % by the step of an update."""
    prefix = "validation at step "
    return dict(sorted((int(n.removeprefix(prefix)), 100 * f) for n, f in row.figures.items() if n.startswith(prefix)))


def gains(result: Result, arm: str, control: str) -> str:
    """A sentence: how many points the success of an arm and of a control differs from that of the arm "before"."""
    gain, other = (spread(difference(result, each, "before"), "+") for each in (arm, control))
    return f"The difference from the policy before is {gain} points with `{arm}` and {other} points with `{control}`."


def kept_none(result: Result) -> str:
    """A sentence that names the updates of which validation kept no step: their policy solves the same tasks as the one
    before them. Empty if there are none. An arm such as "rft-dpo" continues from the arm "rft"."""
    parts = list[str]()
    for arm in (each for each in played_arms(result) if each != "before"):
        first, _, second = arm.partition("-")
        for start in ("before", first) if second in ("dpo", "grpo") else ("before",):
            if not has(result, start):
                continue
            pairs = paired(result.of(arm), result.of(start))
            if same := sum(one.solved == other.solved for one, other in pairs):
                parts.append(f"`{arm}` (as `{start}`, {same} of {len(pairs)} seeds)")
    if not parts:
        return ""
    return f"In some runs no step did better on validation tasks than the policy before it: {', '.join(parts)}."


def budgets(result: Result) -> Grid:
    """The rows of ``benchmarks.budgets``: success in % by policy, search method and tokens."""
    grid: dict[str, dict[str, dict[float, Estimate]]] = {}
    for arm in result.arms:
        policy, way, _ = arm.split(", ")
        rows = list(result.of(arm).values())
        found = estimate([percent(row) for row in rows])
        grid.setdefault(policy, {}).setdefault(way, {})[rows[0].figures["tokens"]] = found
    return grid


def robustness_table(result: Result) -> str:
    """A table with a line per disturbance: for each policy and mode the success, and its paired difference from play
    without a disturbance."""
    parts = [arm.rsplit(", ", 1) for arm in result.arms]
    players, kinds = list(dict.fromkeys(who for who, _ in parts)), list(dict.fromkeys(kind for _, kind in parts))
    lines = []
    for kind in kinds:
        line = [kind]
        for who in players:
            arm, plain = f"{who}, {kind}", f"{who}, {kinds[0]}"
            lost = "" if arm == plain else f" ({spread(difference(result, arm, plain), '+')})"
            line.append(spread(mean(result, arm)) + lost)
        lines.append(line)
    return markdown(["success, % (against plain, points)", *players], lines)


def sampled(result: Result, height: float) -> float:
    """1 - (1 - q^H)^N in %: how often at least one of N episodes succeeds. N is what the token budget allows."""
    q = result.rows[0].figures["q"]
    episodes = result.budgets["generated_tokens"] / (result.rows[0].figures["tokens"] * height)
    return 100 * (1 - math.pow(1 - math.pow(q, height), episodes))


def crossing(panel: Mapping[str, Mapping[float, Estimate]], way: str, control: str) -> float | None:
    """The smallest number of decisions at which one search method solves more than a control and their intervals do not
    overlap; None if there is none."""
    crossed_heights = [
        height
        for height in sorted(panel[way])
        if panel[way][height].low > panel[control][height].high
    ]  # fmt: skip
    return crossed_heights[0] if crossed_heights else None


def figures_table(result: Result, names: Sequence[str] = (), arms: Sequence[str] = ()) -> str:
    """A table with a line per arm: the mean of each further figure ± half of its 95 % interval over the repetitions."""
    columns = names or list(dict.fromkeys(name for row in result.rows for name in row.figures))
    lines = []
    for arm in arms or result.arms:
        rows = list(result.of(arm).values())
        line = [arm]
        for name in columns:
            values = [row.figures[name] for row in rows if name in row.figures]
            line.append(_with_half_width(estimate(values)) if values else "")
        lines.append(line)
    return markdown(["", *columns], lines)


def _with_half_width(found: Estimate) -> str:
    return short(found.mean) if not found.half or found.seeds < 3 else f"{short(found.mean)} ± {short(found.half)}"


def against(result: Result, arm: str, control: str, called: str = "") -> str:
    """Part of a sentence: how an arm's success compares with a control's.

    Args:
        called: the control's name in the sentence.
    """
    gain, name = difference(result, arm, control), called or f"`{control}`"
    if gain.seeds < 3:  # the interval of two equal differences is a point
        seeds = "one seed" if gain.seeds == 1 else f"{gain.seeds} seeds"
        side = "above" if gain.mean >= 0 else "below"
        return f"{decimal(abs(gain.mean))} points {side} {name} ({seeds}, too few for an interval)"
    interval = f"{decimal(gain.low)} to {decimal(gain.high)}, {gain.seeds} seeds"
    if gain.verdict == "level":
        return f"level with {name} ({spread(gain, '+').partition(' ')[0]} points, 95 % interval {interval})"
    return f"{decimal(abs(gain.mean))} points {gain.verdict} than {name} (95 % interval {interval})"


def within(result: Result, budget: str = "generated_tokens", slack: float = 1.1) -> list[str]:
    """The arms whose mean cost per task is between half of the common limit and 10 % above it. A batch of model calls
    may exceed a limit, and greedy play does not spend it."""
    limit, arms = result.budgets[budget], list[str]()
    for arm in played_arms(result):
        mean_spent = statistics.fmean(getattr(row, budget) / row.tasks for row in result.of(arm).values())
        if limit / 2 <= mean_spent <= slack * limit:
            arms.append(arm)
    return arms


def best(result: Result, arms: Sequence[str] = ()) -> str:
    """The arm with the highest mean success."""
    return max(arms or played_arms(result), key=lambda arm: mean(result, arm).mean)


def level_with(result: Result, arm: str, arms: Sequence[str] = ()) -> list[str]:
    """The other arms whose paired difference from an arm has an interval that includes 0."""
    others = [other for other in arms or played_arms(result) if other != arm]
    return [other for other in others if difference(result, other, arm).verdict == "level"]


def false_alarms(result: Result) -> str:
    """In how many healthy runs an alarm reported a fault, as "count of runs"."""
    rows = result.of("healthy").values()
    return f"{sum(bool(_alarms(row) - set(NO_FAULT)) for row in rows)} of {len(rows)}"


def by_round(result: Result, arm: str, name: str) -> str:
    """The mean of a figure in each round of an arm's runs, in %."""
    means, number = list[str](), 1
    while all(f"{name} in round {number}" in row.figures for row in result.of(arm).values()):
        each = [row.figures[f"{name} in round {number}"] for row in result.of(arm).values()]
        means.append(decimal(100 * statistics.fmean(each)))
        number += 1
    return ", ".join(means)


def missed(result: Result, fault: str) -> str:
    """In how many runs with a planted fault no fitting alarm was raised, as "count of runs"."""
    rows = result.of(fault).values()
    return f"{sum(_alarms(row).isdisjoint(FITTING[fault]) for row in rows)} of {len(rows)}"


def alarm_table(result: Result) -> str:
    """A table with a line per alarm: how many runs of each arm raised it, and the mean of the first rounds in which
    they did."""
    lines = []
    for kind in sorted(
        {kind for row in result.rows for kind in _alarms(row)}, key=lambda kind: (kind in NO_FAULT, kind)
    ):
        line = [kind]
        for arm in result.arms:
            rounds = [row.figures[kind] for row in result.of(arm).values() if kind in row.figures]
            line.append(f"{len(rounds)}, round {short(statistics.fmean(rounds))}" if rounds else "0")
        lines.append(line)
    lines.append(["runs", *(str(len(result.of(arm))) for arm in result.arms)])
    return markdown(["", *result.arms], lines)


def _alarms(row: Row) -> set[str]:
    """The alarms of a run. Its other figures have the name of a round, such as "success in round 1"."""
    return {name for name in row.figures if " in round " not in name}


def times(result: Result, arm: str, control: str, of: str) -> str:
    """The ratio of an arm's cost to a control's, averaged over seeds. ``of`` is the name of a row's field."""
    pairs = paired(result.of(arm), result.of(control))
    return f"{statistics.fmean(getattr(one, of) / getattr(other, of) for one, other in pairs):.2f} ×"


def success_ratio(result: Result, arm: str, control: str) -> str:
    """How many times as many tasks an arm solves as a control; empty if the control solves none."""
    ours, theirs = (statistics.fmean(row.success for row in result.of(each).values()) for each in (arm, control))
    return f"{ours / theirs:.1f} ×" if theirs else ""


def names(arms: Sequence[str]) -> str:
    """Names of arms, joined for a sentence."""
    *first, last = (f"`{arm}`" for arm in arms)
    return f"{', '.join(first)} and {last}" if first else last


def caption(result: Result, split: str = "held-out") -> str:
    """The caption of a table: seeds and tasks, limits, and how the result was measured."""
    return f"{played(result, split)} {measured(result)}"


def played(result: Result, split: str = "held-out") -> str:
    """Sentences: the seeds and tasks of a result, what its intervals are, and the limits of a task.

    Args:
        split: what kind of tasks they are.
    """
    tasks = sorted({row.tasks for row in result.rows if row.tasks})
    count = len(result.seeds)
    parts = []
    if tasks:
        firsts = {(row.seed, row.first_task) for row in result.rows if row.tasks}
        own = len({first for _, first in firsts}) == len(firsts)
        each = f"{' or '.join(map(str, tasks))} {split} tasks"
        whose = f"each with its own {each}" if own and count > 1 else f"{each} a seed"
        parts.append(f"{count} seed{'s' * (count != 1)}, {whose}")
    else:
        parts.append(f"{count} repetition{'s' * (count != 1)}")
    if count > 2:
        parts.append(f"mean ± half of the 95 % t-interval over the {'seeds' if tasks else 'repetitions'}")
    elif count == 2:
        parts.append("mean of both, too few for an interval")
    limits = [f"{decimal(value, 0)} {name.replace('_', ' ')}" for name, value in result.budgets.items()]
    if limits:
        parts.append(f"limit of a task: {', '.join(limits)}")
    sentences = [f"{'; '.join(parts)}."]
    if any(row.pass_at_n for row in result.rows):
        sentences.append("Searches are pass@N (\\*): only a success ends an episode, so the end reveals the success.")
    if result.name in _BY_SUM:
        sentences.append(_RULE_BY_SUM)
    return " ".join(sentences)


_BY_SUM = frozenset(("imagined_plans", "quickstart_llm", "tireworld_llm"))
"""Results measured while evaluation ranked ends by V + λ Σ log π, before it took the mean over turns."""
_RULE_BY_SUM = "Search ranked ends by V + λ Σ log π, with the sum over the turns of a path; today it takes their mean."


def measured(result: Result) -> str:
    """A sentence: how long a result took, where, by which command and which code."""
    sentence = f"Measured in {_duration(result.seconds)} on {_joined_distinct(map(_machine_name, result.sessions))}"
    commands = " and ".join(f"`{command}`" for command in _commands(result.sessions))
    return f"{sentence}, by {commands}, commit {_joined_distinct(map(_commit, result.sessions))}."


def _commands(sessions: Iterable[Session]) -> list[str]:
    """The commands of all sessions, without options that do not affect results. Commands that differ only in their
    seeds are merged."""
    seeds: dict[str, set[int]] = {}
    for session in sessions:
        command = re.sub(r" --(results|processes) \S+", "", session.command)
        found = re.search(r" --seeds((?: \d+)+)", command)
        same = command if found is None else command.replace(found.group(), " --seeds", 1)
        seeds.setdefault(same, set()).update(map(int, found[1].split()) if found else ())
    return [
        same.replace(" --seeds", " ".join([" --seeds", *map(str, sorted(each))]), 1) if each else same
        for same, each in seeds.items()
    ]


def _machine_name(session: Session) -> str:
    return str(session.machine)


def _commit(session: Session) -> str:
    return f"{session.commit[:7]}{' with changes' * session.dirty}"


def _joined_distinct(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 36000
        else f"{seconds / 3600:.0f} h"
    )


def figure_estimates(result: Result, of: str = "", arms: Sequence[str] = ()) -> dict[str, Estimate]:
    """The mean of each arm: success in %, or the further figure ``of``."""
    chosen: Figure = figure(of) if of else percent
    chosen_arms = arms or (
        played_arms(result) if not of else [arm for arm in result.arms if _all_have(result, arm, of)]
    )
    return {arm: mean(result, arm, chosen) for arm in chosen_arms}


def _all_have(result: Result, arm: str, name: str) -> bool:
    rows: Sequence[Row] = list(result.of(arm).values())
    return all(name in row.figures for row in rows)
