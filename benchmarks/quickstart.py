"""README's table: the quickstart over several seeds, with what each of its claims comes to.

    .venv/bin/python benchmarks/quickstart.py --seeds 0 1 2

Runs that are there already are read, unfinished ones resumed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treeagent.run.outcomes import wilson_interval

Row = dict[str, Any]


def run(seed: int, config: Path, out: Path) -> tuple[list[Row], float | None]:
    """Results of one seed, and the seconds it took (None where it was there already)."""
    folder = out / f"seed{seed}"
    seconds = None
    if not (folder / "report.html").exists():
        started = time.perf_counter()
        command = ["treeagent", "quickstart", "--config", config, "--out", folder, "--seed", seed, "--resume"]
        subprocess.run([Path(sys.executable).parent / str(command[0]), *map(str, command[1:])], check=True)
        seconds = time.perf_counter() - started
    rows: list[Row] = json.loads((folder / "results.json").read_text())
    return rows, seconds


def table(runs: Sequence[Sequence[Row]]) -> str:
    """One line per (policy, mode): success of each seed, pooled with its 95 % interval, and budgets per task."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for rows in runs:
        for row in rows:
            grouped[row["policy"], row["mode"]].append(row)
    lines = [
        "| policy | mode | success, pooled | 95 % | by seed | reward | env steps / task | tokens / task |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (policy, mode), rows in grouped.items():
        tasks = sum(row["tasks"] for row in rows)
        successes = round(sum(row["success"] * row["tasks"] for row in rows))
        low, high = wilson_interval(successes, tasks)
        seeds = " ".join(f"{100 * row['success']:.0f}" for row in rows)
        lines.append(
            f"| {policy} | {mode} | {100 * successes / tasks:.1f} | {100 * low:.0f} to {100 * high:.0f} | {seeds} "
            f"| {statistics.mean(row['reward'] for row in rows):.2f} "
            f"| {sum(row['environment_steps'] for row in rows) / tasks:.1f} "
            f"| {sum(row['generated_tokens'] for row in rows) / tasks:.0f} |"
        )
    return "\n".join(lines)


def claims(rows: Sequence[Row]) -> dict[str, float]:
    """The ratios that the quickstart is about, for one seed."""
    success = {(row["policy"], row["mode"]): row["success"] for row in rows}
    base = success["base", "greedy"]
    updated = {policy for policy, _ in success} - {"base"}
    return {
        "base + search / base greedy": success["base", "mcts"] / base,
        "best updated greedy / base greedy": max(success[policy, "greedy"] for policy in updated) / base,
        "best updated + search": max(success[policy, "mcts"] for policy in updated),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    arguments = parser.parse_args()
    finished = [run(seed, arguments.config, arguments.out) for seed in arguments.seeds]
    print(table([rows for rows, _ in finished]))
    print()
    for seed, (rows, seconds) in zip(arguments.seeds, finished, strict=True):
        said = ", ".join(f"{name} {value:.2f}" for name, value in claims(rows).items())
        print(f"seed {seed}: {said}" + (f", {seconds:.0f} s" if seconds else ""))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"largest process: {peak:.1f} GiB")


if __name__ == "__main__":
    main()
