"""README's table of learning signals: search-and-adapt recipes from the same start, under the same budget a task.

    .venv/bin/python benchmarks/quickstart.py --config store --seeds 0 1 2  # trains the policies to start from
    .venv/bin/python benchmarks/learning.py --seeds 0 1 2

In another environment, whose config is used for what the environment and the policy are:

    .venv/bin/python benchmarks/quickstart.py --config configs/envs/frozenlake.toml --out runs/frozenlake
    .venv/bin/python benchmarks/learning.py --environment configs/envs/frozenlake.toml \\
        --starts runs/frozenlake --out runs/learning-frozenlake

Runs that are there already are read, unfinished ones resumed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from treeagent.config import load_config
from treeagent.run.folder import Run
from treeagent.run.outcomes import wilson_interval

CONFIGS = Path(__file__).parent.parent / "configs"
RECIPES = ("adapt", *sorted(path.stem for path in (CONFIGS / "baselines").glob("*.toml")))


@dataclass(frozen=True)
class Learnt:
    """What one recipe made of one start."""

    before: float
    """Greedy success on held-out tasks."""
    rounds: Sequence[float]
    """The same after each round."""
    best: float
    """The same of the round that validation chose."""
    tasks: int
    environment_steps: float
    generated_tokens: float


def settings_of(environment: Path) -> list[str]:
    """What a config says of its environment and of how its policy samples, as overrides of another."""
    config = load_config(environment)
    place, policy = config.environment, config.policy
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in place.options.items())
    return [
        f"environment.name={place.name}",
        f"environment.options={{ {options} }}",
        f"environment.max_steps={place.max_steps}",
        f"policy.temperature={policy.temperature}",
        f"policy.max_new_tokens={policy.max_new_tokens}",
    ]


def run(recipe: str, seed: int, start: Path, out: Path, overrides: Sequence[str]) -> Learnt:
    """One recipe from one start."""
    config = CONFIGS / f"{recipe}.toml" if recipe == "adapt" else CONFIGS / "baselines" / f"{recipe}.toml"
    return train(config, seed, start, out / recipe / f"seed{seed}", overrides)


def train(config: Path, seed: int, start: Path, folder: Path, overrides: Sequence[str]) -> Learnt:
    """One run of ``treeagent train``, on one core."""
    if not (folder / "report.html").exists():
        command = ["train", start, "--config", config, "--out", folder, "--resume", *arguments_of(seed, overrides)]
        treeagent = Path(sys.executable).parent / "treeagent"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("wb") as file:
            subprocess.run(
                [treeagent, *map(str, command)],
                check=True,
                stdout=file,
                stderr=file,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
    rows = json.loads((folder / "results.json").read_text())
    greedy = {row["policy"]: row["success"] for row in rows if row["mode"] == "greedy"}
    finished = Run.open(folder)
    spent = [row for row in finished.metrics() if row["stage"] == "adapt"][-1]
    rounds = [greedy[start.name]]
    for number in range(1, finished.facts("adapt")["rounds"] + 1):  # one whose updates were refused leaves what was
        after = [success for policy, success in greedy.items() if policy.startswith(f"round-{number}-")]
        rounds.append(after[-1] if after else rounds[-1])
    return Learnt(
        before=greedy[start.name],
        rounds=rounds[1:],
        best=greedy[finished.facts("adapt")["best"]],
        tasks=rows[0]["tasks"],
        environment_steps=spent["environment_steps"],
        generated_tokens=spent["generated_tokens"],
    )


def arguments_of(seed: int, overrides: Sequence[str]) -> list[str]:
    """The settings of one run of ``train``."""
    return [f"seed={seed}", "workers=1", 'evaluate.modes=["greedy"]', *overrides]


def pooled(success: Sequence[float], tasks: Sequence[int]) -> str:
    """Success over several seeds with its interval, and of each seed, as three cells in %."""
    successes = round(sum(share * count for share, count in zip(success, tasks, strict=True)))
    low, high = wilson_interval(successes, sum(tasks))
    by_seed = " ".join(f"{100 * share:.0f}" for share in success)
    return f"{100 * successes / sum(tasks):.1f} | {100 * low:.0f} to {100 * high:.0f} | {by_seed}"


def table(learnt: dict[str, list[Learnt]]) -> str:
    """A line per recipe; gains in points of held-out greedy success, pooled over seeds, and against two controls."""
    gains = {recipe: statistics.mean(one.best - one.before for one in several) for recipe, several in learnt.items()}
    lines = [
        "| recipe | greedy before | best round | 95 % | by seed | by round "
        "| gain | ÷ flat GRPO | ÷ RFT | env steps | tokens |",
        f"|{'---|' * 11}",
    ]
    for recipe, several in learnt.items():
        by_round = [statistics.mean(values) for values in zip(*(one.rounds for one in several), strict=False)]
        ratios = [
            f"{gains[recipe] / gains[control]:.2f}" if gains.get(control, 0) > 0 else ""
            for control in ("flat_grpo", "rft")
        ]
        lines.append(
            f"| {recipe} | {100 * statistics.mean(one.before for one in several):.1f} "
            f"| {pooled([one.best for one in several], [one.tasks for one in several])} "
            f"| {' '.join(f'{100 * value:.0f}' for value in by_round)} | {100 * gains[recipe]:+.1f} "
            f"| {ratios[0]} | {ratios[1]} "
            f"| {statistics.mean(one.environment_steps for one in several):,.0f} "
            f"| {statistics.mean(one.generated_tokens for one in several):,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--starts", type=Path, default=Path("runs/benchmark"), help="where benchmarks/quickstart.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--environment", type=Path, help="a config of another environment than the store")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every recipe")
    parser.add_argument("--processes", type=int, default=2, help="runs side by side, a core each")
    arguments = parser.parse_args()
    overrides = [*(settings_of(arguments.environment) if arguments.environment else ()), *arguments.set]
    wanted = [(recipe, seed) for seed in arguments.seeds for recipe in arguments.recipes]
    with ThreadPoolExecutor(arguments.processes) as pool:
        made = pool.map(
            lambda recipe, seed: run(
                recipe, seed, arguments.starts / f"seed{seed}" / "checkpoints" / "warm", arguments.out, overrides
            ),
            *zip(*wanted, strict=True),
        )
        learnt: dict[str, list[Learnt]] = {recipe: [] for recipe in arguments.recipes}
        for (recipe, _), one in zip(wanted, made, strict=True):
            learnt[recipe].append(one)
            print(table({name: several for name, several in learnt.items() if several}), flush=True)


if __name__ == "__main__":
    main()
