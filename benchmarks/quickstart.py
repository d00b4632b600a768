"""README's result block: the quickstart over several seeds, as a Markdown table made from result files alone.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2 --readme README.md

A run that is finished is only read; one that is missing or unfinished is made or resumed first.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Kind = tuple[str, str]
"""Policy and mode of a row."""

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantile of Student's t with 1 to 9 degrees of freedom."""


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % t-interval of a mean; None of a single value, which has none.

    Raises:
        ValueError: there are more than ten values.
    """
    if len(values) < 2:
        return None
    if len(values) > len(_T_975) + 1:
        raise ValueError(f"{len(values)} seeds are given, but intervals are known for at most {len(_T_975) + 1}")
    return _T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))


def table(runs: Sequence[Sequence[Row]]) -> str:
    """One line for each policy and mode: success, its gain over the first row's of the same seed, and costs a task.

    Args:
        runs: the rows of ``results.json`` of each seed, of the same policies and modes.

    Raises:
        ValueError: the runs differ in policies and modes, or in tasks.
    """
    by_kind: list[dict[Kind, Row]] = [{(row["policy"], row["mode"]): row for row in rows} for rows in runs]
    kinds = list(by_kind[0])
    if any(list(found) != kinds for found in by_kind) or len({row["tasks"] for rows in runs for row in rows}) > 1:
        raise ValueError("the seeds' results differ in policies, modes or tasks: make them by one recipe")
    lines = [
        "| policy | mode | success, % | gain, points | by seed | environment steps / task | tokens / task |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        rows = [found[kind] for found in by_kind]
        shares = [100 * row["success"] for row in rows]
        gains = [share - 100 * found[kinds[0]]["success"] for share, found in zip(shares, by_kind, strict=True)]
        costs = [
            statistics.mean(row[key] / row["tasks"] for row in rows)
            for key in ("environment_steps", "generated_tokens")
        ]
        gain = "" if kind == kinds[0] else _with_interval(gains, "+")
        seeds = " ".join(f"{share:.1f}" for share in shares)
        lines.append(
            f"| {kind[0]} | {kind[1]} | {_with_interval(shares)} | {gain} | {seeds} | {costs[0]:.1f} | {costs[1]:.0f} |"
        )
    return "\n".join(lines)


def caption(runs: Sequence[Sequence[Row]]) -> str:
    """What the table's figures are."""
    tasks, seeds = runs[0][0]["tasks"], len(runs)
    limits = {row["token_limit"] for rows in runs for row in rows if "token_limit" in row}
    told = f"{tasks} held-out tasks, {seeds} seed{'s' * (seeds != 1)}"
    if seeds > 1:
        told += ": mean ± half of the 95 % t-interval over seeds; the gain is over the first row, paired by seed"
    if len(limits) == 1:
        told += f". Searches stop at {limits.pop()} generated tokens a task, best-of-N and tree search alike"
    return told + "."


def with_block(page: str, block: str) -> str:
    """A page whose lines between its marks of results are replaced by ``block``."""
    before, begin, rest = page.partition("<!-- results:begin -->\n")
    _, end, after = rest.partition("<!-- results:end -->")
    return f"{before}{begin}{block}\n{end}{after}"


def _with_interval(values: Sequence[float], sign: str = "") -> str:
    half = interval(values)
    mean = f"{statistics.mean(values):{sign}.1f}"
    return mean if half is None else f"{mean} ± {half:.1f}"


def run(seed: int, config: str, out: Path) -> tuple[list[Row], Mapping[str, float] | None]:
    """Results of one seed; seconds and peak memory in GiB of the run, or None where it was finished already."""
    folder = out / f"seed{seed}"
    cost = None
    if not (folder / "report.html").exists():
        arguments = ["quickstart", "--config", config, "--out", str(folder), "--seed", str(seed), "--resume"]
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "treeagent", *arguments])
        peak = _PeakMemory(process.pid)
        if code := process.wait():
            raise SystemExit(code)
        cost = {"seconds": time.perf_counter() - started, "peak_gib": peak.gib}
    rows: list[Row] = json.loads((folder / "results.json").read_text())
    return rows, cost


class _PeakMemory:
    """Largest memory that a process and its descendants took together, looked at every second (Linux).

    Pages that processes share are counted by their part (PSS).
    """

    def __init__(self, process: int) -> None:
        self.gib = 0.0
        self._process = process
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._process}").exists():
            kib = sum(map(_proportional_kib, _family(self._process)))
            self.gib = max(self.gib, kib / 2**20)
            time.sleep(1)


def _family(process: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:  # it has ended
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    family = [process]
    for member in family:  # which grows meanwhile
        family += parents.get(member, [])
    return family


def _proportional_kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", default="quickstart", help="a recipe's name or a TOML file")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"), help="folder of the runs seed0, seed1, ...")
    parser.add_argument("--readme", type=Path, help="page whose block between the marks of results is replaced")
    arguments = parser.parse_args()
    finished = [run(seed, arguments.config, arguments.out) for seed in arguments.seeds]
    results = [rows for rows, _ in finished]
    block = f"{table(results)}\n\n{caption(results)}"
    print(block)
    if arguments.readme:
        command = f"`python -m benchmarks.quickstart --seeds {' '.join(map(str, arguments.seeds))}`"
        arguments.readme.write_text(with_block(arguments.readme.read_text(), f"{block} Made by {command}."))
    for seed, (_, cost) in zip(arguments.seeds, finished, strict=True):
        if cost:
            print(f"seed {seed}: {cost['seconds']:.0f} s, at most {cost['peak_gib']:.1f} GiB", file=sys.stderr)


if __name__ == "__main__":
    main()
