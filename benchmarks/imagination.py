"""Table of imagined experience: what a policy learns from trees that grew in a world model, beside real ones.

    .venv/bin/python benchmarks/quickstart.py --seeds 0 1 2      # trains the policies to start from
    .venv/bin/python benchmarks/imagination.py --seeds 0 1 2

Every arm has the tasks, limits and updates of configs/sim_to_real.toml, starts from the same warm policy, and keeps the
last step of its update, so that no validation in the environment chooses among them. Runs that are there already are
read, unfinished ones resumed.
"""

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learning import Learnt, pooled, train

from treeagent.run import Run

CONFIG = Path(__file__).parent.parent / "configs" / "sim_to_real.toml"
ALIKE = ("adapt.rounds=1", "update.rft.validate_every=150")
TRUSTING = ("adapt.imagined=1.0", "world.verify_steps=0", "world.noise=1.0")
"""Imagination alone, taken at its word."""
ARMS: Mapping[str, Sequence[str]] = {
    "real": ("adapt.imagined=0.0",),
    "imagined": TRUSTING,
    "imagined, 1/16 real": (*TRUSTING, "adapt.imagined=0.9375"),
    "imagined, verified": ("adapt.imagined=1.0", "world.noise=1.0"),
    "as the audit allows": ("adapt.imagined=1.0",),
    "imagined, no reasoning": (*TRUSTING, "world.reasoning=false"),
    "imagined, no retrieval": (*TRUSTING, "world.examples=0"),
}


@dataclass(frozen=True)
class Arm:
    """What one arm made of one start."""

    learnt: Learnt
    audit: Mapping[str, float]
    """Empty where nothing was imagined."""
    seed_steps: int
    """Of the environment, for the world model to learn from."""
    real_steps: int
    """Of the environment after that."""
    imagined_steps: int


def run(arm: str, seed: int, start: Path, out: Path, overrides: Sequence[str]) -> Arm:
    folder = out / re.sub(r"\W+", "-", arm) / f"seed{seed}"
    learnt = train(CONFIG, seed, start, folder, [*ALIKE, *ARMS[arm], *overrides])
    finished = Run.open(folder)
    stages = finished.stages()
    spent = [row for row in finished.metrics() if row["stage"] == "adapt"][-1]
    seeding = stages.get("collect-0", {}).get("environment_steps", 0)
    audit = folder / "fidelity.json"
    return Arm(
        learnt,
        json.loads(audit.read_text()) | {"share": stages["audit-1"]["imagined"]} if audit.exists() else {},
        seeding,
        spent["environment_steps"] - seeding,
        spent["imagined_steps"],
    )


def table(arms: Mapping[str, Sequence[Arm]]) -> str:
    """Gains in points of held-out greedy success, pooled over seeds, and against the real arm's."""
    lines = [
        "| trees | greedy before | after | 95 % | by seed | gain | ÷ real | share imagined | env steps: seed, after "
        "| imagined steps | exact | reward right | returns wrong |",
        f"|{'---|' * 13}",
    ]
    gains = {name: statistics.mean(arm.learnt.best - arm.learnt.before for arm in arms[name]) for name in arms}
    for name, several in arms.items():
        ratio = f"{gains[name] / gains['real']:.2f}" if gains.get("real", 0) > 0 else ""

        def mean(figure: str, several: Sequence[Arm] = several) -> str:
            return " ".join(f"{100 * arm.audit[figure]:.0f}" for arm in several if arm.audit) or "-"

        lines.append(
            f"| {name} | {100 * statistics.mean(arm.learnt.before for arm in several):.1f} "
            f"| {pooled([arm.learnt.best for arm in several], [arm.learnt.tasks for arm in several])} "
            f"| {100 * gains[name]:+.1f} | {ratio} "
            f"| {mean('share')} | {statistics.mean(arm.seed_steps for arm in several):,.0f}, "
            f"{statistics.mean(arm.real_steps for arm in several):,.0f} "
            f"| {statistics.mean(arm.imagined_steps for arm in several):,.0f} "
            f"| {mean('observation_exact')} | {mean('reward_accuracy')} | {mean('wrong_returns')} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument(
        "--starts", type=Path, default=Path("runs/benchmark"), help="where benchmarks/quickstart.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/imagination"))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every arm")
    arguments = parser.parse_args()
    found: dict[str, list[Arm]] = {}
    for seed in arguments.seeds:
        for arm in arguments.arms:
            start = arguments.starts / f"seed{seed}" / "checkpoints" / "warm"
            found.setdefault(arm, []).append(run(arm, seed, start, arguments.out, arguments.set))
            print(table(found), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
