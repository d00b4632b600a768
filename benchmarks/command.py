"""What the benchmarks share: command-line options, settings that give every seed its own test tasks, repetitions, the
memory of a process."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from benchmarks.record import RESULTS, Record, Row, digest, recording
from treeagent.config import RunConfig, flat_settings
from treeagent.pipeline.folder import Run

Figures = Mapping[str, Mapping[str, float]]
"""Figures of each arm: arm -> name -> number."""
SEEDED = ("seed", "workers", "mirror", "evaluate.first_task")
"""Settings left out of digests: they differ between the seeds of an arm, or do not affect results."""


_RESOLVED = {
    ("policy.cache_bytes", "0"): "1073741824",
    ("training.precision", "'auto'"): "'float32'",
    **{(f"update.{name}.learning_rate", "None"): "0.0001" for name in ("rft", "distil", "reward")},
    **{(f"update.{name}.learning_rate", "None"): "2e-05" for name in ("dpo", "grpo")},
}
"""For settings, by key and unresolved value, what a small model on a CPU resolves them to."""


def parser(doc: str | None, name: str, seeds: Sequence[int] = (0, 1, 2)) -> argparse.ArgumentParser:
    """A parser with ``--seeds``, ``--name`` and ``--results``; ``doc`` is the module's docstring."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if seeds:
        result.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    result.add_argument("--name", default=name, help="of the result file")
    result.add_argument("--results", type=Path, default=RESULTS, help="folder of the result file")
    return result


def repeating(doc: str | None, name: str, rounds: int) -> argparse.ArgumentParser:
    """A parser for a speed benchmark; ``--rounds`` is the number of repetitions."""
    result = parser(doc, name, seeds=())
    result.add_argument("--rounds", type=int, default=rounds, help="repetitions, both sides in turns")
    return result


def starting(doc: str | None, name: str, out: str = "") -> argparse.ArgumentParser:
    """A parser for a benchmark that starts from the policies of ``benchmarks.quickstart``."""
    result = parser(doc, name)
    result.add_argument("--runs", type=Path, default=Path("runs/store_short"), help="where benchmarks.quickstart wrote")
    if out:
        result.add_argument("--out", type=Path, default=Path(out), help="folder of this benchmark's own runs")
        result.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every arm")
    return result


def record_of(arguments: argparse.Namespace, question: str, **budgets: float) -> AbstractContextManager[Record]:
    """Open the result file that the options name."""
    return recording(arguments.name, question, budgets, arguments.results)


def own_tasks(seed: int, tasks: int) -> str:
    """The setting that makes a seed evaluate on test tasks ``seed · tasks`` to ``(seed + 1) · tasks - 1``."""
    return f"evaluate.first_task={seed * tasks}"


def settings_of(config: RunConfig) -> dict[str, object]:
    """All settings that affect results, except the seed; the input of a digest. What a small model on a CPU resolves
    them to is written in place of the settings ``_RESOLVED``."""
    settings: dict[str, object] = {
        key: repr(value) for key, value in flat_settings(config).items() if key not in SEEDED
    }
    return settings | {key: value for (key, unset), value in _RESOLVED.items() if settings.get(key) == unset}


def limits_of(config: RunConfig) -> dict[str, float]:
    """The search limits of one task, by name; limits that are not set are left out."""
    return {name: value for name, value in asdict(config.search.limits).items() if value is not None}


def start_of(runs: Path, seed: int, checkpoint: str = "warm") -> Path:
    """A checkpoint of one seed's run of ``benchmarks.quickstart``. A run that was given its first policy calls it
    "base" instead of "warm".

    Raises:
        RunError: there is no such run.
    """
    found = Run.open(runs / f"seed{seed}").checkpoints / checkpoint
    return found if found.exists() else found.with_name("base")


def options_digest(arguments: argparse.Namespace, *without: str) -> str:
    """The digest of all options except those that name files, seeds and repetitions."""
    left_out = {"name", "results", "rounds", "seeds", "only", "part", *without}
    return digest({key: repr(value) for key, value in vars(arguments).items() if key not in left_out})


def add_rounds(
    record: Record, rounds: int, settings: str, arms: Sequence[str], measure: Callable[[int], Figures]
) -> None:
    """Measure repetitions in which the arms take turns, and record them. Repetitions already recorded are skipped.

    Args:
        measure: maps the number of a repetition to the figures of each arm.
    """
    for number in range(rounds):
        if not all(record.has(arm, number, settings) for arm in arms):
            for arm, figures in measure(number).items():
                record.add(Row(arm, number, settings, figures=figures))
                listed = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
                print(f"{number}: {arm}: {listed}", flush=True)


def memory(what: Literal["VmRSS", "VmHWM"]) -> float:
    """Resident memory of this process in MiB, as Linux reports it: current ("VmRSS") or peak ("VmHWM"). The peak of
    ``resource.getrusage`` would not do: a new process starts with the memory of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(what))


def search_figures(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Of a row of results: the share of tasks for which search found a success, and the share of these that it took."""
    return {name: row[name] for name in ("found", "taken") if name in row}
