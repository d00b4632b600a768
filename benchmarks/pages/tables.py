"""Numbers of a result file as words and as Markdown tables."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.estimates import Estimate, difference, estimate, mean, paired, percent
from benchmarks.record import Result, Session

BY_SUM = frozenset(("imagined_plans", "quickstart_llm", "tireworld_llm"))
"""Results measured while evaluation ranked ends by V + λ Σ log π, before it took the mean over turns."""
RETIRED = frozenset(
    (
        "constants_toolbox",
        "rewards_toolbox",
        "sweep_sokoban",
        "sweep_textworld",
        "toolbox",
        "updates_toolbox",
    )
)
"""Results of worlds that were removed since."""


def whole(result: Result, arm: str) -> str:
    """An arm's mean success in whole per cent."""
    return f"{mean(result, arm).mean:.0f}"


def day(result: Result) -> str:
    """The date of a measurement, and its commit."""
    return f"{result.sessions[-1].date[:10]}, {result.sessions[-1].commit[:7]}"


def brief(result: Result, arms: Mapping[str, str], *, steps: bool = True) -> str:
    """A small table in whole numbers: success in % and environment steps a task.

    Args:
        arms: the name of each row, and the arm that it shows.
        steps: whether to show the environment steps.
    """
    lines = []
    for name, arm in arms.items():
        taken = statistics.fmean(row.environment_steps / row.tasks for row in result.of(arm).values())
        lines.append([name, whole(result, arm), *([f"{taken:.0f}"] if steps else [])])
    return markdown(["", "success, %", *(["steps a task"] if steps else [])], lines)


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


def times(result: Result, arm: str, control: str, of: str) -> str:
    """The ratio of an arm's cost to a control's, averaged over seeds. ``of`` is the name of a row's field."""
    pairs = paired(result.of(arm), result.of(control))
    return f"{statistics.fmean(getattr(one, of) / getattr(other, of) for one, other in pairs):.2f} ×"


def success_ratio(result: Result, arm: str, control: str) -> str:
    """How many times as many tasks an arm solves as a control; empty if the control solves none."""
    ours, theirs = (statistics.fmean(row.success for row in result.of(each).values()) for each in (arm, control))
    return f"{ours / theirs:.1f} ×" if theirs else ""


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
    if result.name in BY_SUM:
        sentences.append("Search ranked ends by an earlier rule (the sum of log π over a path, not its mean).")
    return " ".join(sentences)


def measured(result: Result) -> str:
    """A sentence: how long a result took, where, by which command and which code."""
    sentence = f"Measured in {_duration(result.seconds)} on {_joined_distinct(map(_machine_name, result.sessions))}"
    told = " and ".join(f"`{command}`" for command in commands(result.sessions))
    return f"{sentence}, by {told}, commit {_joined_distinct(map(_commit, result.sessions))}."


def commands(sessions: Iterable[Session]) -> list[str]:
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
