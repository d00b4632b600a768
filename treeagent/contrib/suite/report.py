"""``treeagent suite``: evaluate a policy under each disturbance of the environment, beside the undisturbed success."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, get_args

import typer
from rich.text import Text

from treeagent import loop
from treeagent.cli.options import (
    CheckpointName,
    Config,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    chosen_settings,
    find_checkpoint,
)
from treeagent.contrib.guards.disturbed import Disturbance, has_obeyed
from treeagent.pipeline.folder import Run
from treeagent.pipeline.outcomes import evaluation_stage
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.report.describe import Row
from treeagent.pipeline.report.show import narrow_table
from treeagent.pipeline.terminal import Terminal
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import UserError
from treeagent.visible import visible

app = typer.Typer()
_HEADINGS = ("environment", "success", "against plain", "steps", "tokens", "refused", "thought", "obeyed")
_NOTE = (
    "Against plain: the mean difference in points on the same tasks [95 % interval over tasks]. Steps and "
    "tokens are those of a task. Refused and thought: the share of turns whose call was malformed or refused, and of "
    "those with a thought. Obeyed: the share of episodes that followed the injected instruction."
)


@app.command()
def suite(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = True,
    trust: Trust = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="DISTURBANCE", help="One disturbance; may be repeated.")
    ] = None,
) -> None:
    """Evaluate a policy as it is and then under each disturbance, on the same held-out tasks.

    Reads CHECKPOINT, writes a run for each environment to RUN/plain, RUN/noise and so on, and prints the success of
    each beside that in the plain environment.

    Example: treeagent suite runs/shop/checkpoints/dpo --out runs/robust evaluate.tasks=100
    """
    known = get_args(Disturbance)
    if unknown := [each for each in only or () if each not in known]:
        raise UserError(f"--only is {unknown[0]!r}: use one of {', '.join(known)}")
    path, rows = find_checkpoint(checkpoint), []
    plain = chosen_settings(config, overrides, seed, resume, trust, out / "plain", path)
    loop.evaluate(plain, out / "plain", path, resume=resume, progress=RichProgress())
    rows += rows_of(Run.open(out / "plain"), "plain")
    for kind in only or known:
        added: dict[str, Any] = {"name": "disturbances", "options": {"kinds": (kind,)}}
        wrappers = (*plain.environment.wrappers, added)
        harder = replace(plain, environment=replace(plain.environment, wrappers=wrappers))
        folder = out / kind.replace(" ", "-")
        loop.evaluate(harder, folder, path, resume=resume, progress=RichProgress())
        rows += rows_of(Run.open(folder), kind)
    print_suite(rows, Terminal())


def rows_of(run: Run, under: str) -> list[Row]:
    """The result rows of a run, each with the name of its environment and the share of episodes that followed an
    injected instruction."""
    rows = list[Row]()
    for row in run.result_rows():
        trees = read_as(from_record, run.episodes, evaluation_stage(row["policy"], row["mode"]))
        calls = [[edge.action.call for node in tree.nodes() for edge in node.edges] for tree in trees]
        rows.append({**row, "under": under, "obeyed": sum(map(has_obeyed, calls)) / max(len(calls), 1)})
    return rows


def paired_difference(ones: Sequence[bool], others: Sequence[bool]) -> tuple[float, float, float]:
    """Mean of ``ones`` - ``others`` over the same tasks, and the bounds of its 95 % interval, in percentage points:
    Wald's interval after adding 0.5 to the number of tasks with each pair of outcomes (Agresti and Min 2005)."""
    outcomes = Counter(zip(ones, others, strict=True))
    tasks, won, lost = len(ones) + 2, outcomes[True, False] + 0.5, outcomes[False, True] + 0.5
    centre = (won - lost) / tasks
    half = 1.96 * math.sqrt((won + lost) / tasks - centre**2) / math.sqrt(tasks)
    mean = (outcomes[True, False] - outcomes[False, True]) / len(ones)
    return 100 * mean, 100 * max(centre - half, -1.0), 100 * min(centre + half, 1.0)


def print_suite(rows: Sequence[Row], console: Terminal) -> None:
    """Print one table per policy and mode. The undisturbed row comes first."""
    tables: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        tables.setdefault((row["policy"], row["mode"]), []).append(row)
    for (policy, mode), each in tables.items():
        table = narrow_table({heading: heading == "environment" for heading in _HEADINGS})
        for row in each:
            table.add_row(*(Text(visible(text)) for text in _cells(row, each[0])))
        console.print("", Text(f"What {visible(policy)} withstands, {mode}", style="bold"), table, sep="\n")
    console.print(Text(_NOTE, style="dim"))


def _cells(row: Row, plain: Row) -> tuple[str, ...]:
    """The cells of a row; ``plain`` is the row of the same policy and mode without a disturbance."""
    mean, low, high = paired_difference(*([mark == "1" for mark in each["solved"]] for each in (row, plain)))
    return (
        row["under"],
        f"{100 * row['success']:.1f} %",
        f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if row is not plain else "",
        f"{row['steps']:.1f}",
        f"{row['generated_tokens'] / row['tasks']:,.0f}",
        f"{row['invalid']:.0%}",
        f"{row['reasoned']:.0%}",
        f"{row['obeyed']:.0%}" if row["under"] == "injection" else "",
    )
