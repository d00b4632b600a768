"""Search-and-adapt recipes that start from the same policy, under the same budget per task.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies to start from
    .venv/bin/python -m benchmarks.learning --seeds 0 1 2

In another environment, whose config sets only the environment and how the policy samples:

    .venv/bin/python -m benchmarks.quickstart --config envs/blocks
    .venv/bin/python -m benchmarks.learning --environment configs/envs/blocks.toml --runs runs/blocks \\
        --name learning_blocks --out runs/learning_blocks --recipes adapt --set collect.tasks=500 \\
        update.rft.max_steps=300 update.rft.validate_every=50 'search.limits={simulations=200, generated_tokens=800}'

Rows already recorded are kept, and unfinished runs are resumed. Each row shows the round that validation chose.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.command import limits_of, own_tasks, record_of, settings_of, start_of, starting
from benchmarks.record import Record, Row, digest
from treeagent.config import load_config
from treeagent.pipeline.folder import Run

QUESTION = "Which recipe of rounds learns most, under the same limits a task?"
CONFIGS = Path(__file__).parent.parent / "configs"
RECIPES = ("adapt", *sorted(path.stem for path in (CONFIGS / "baselines").glob("*.toml")))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Learnt:
    """The result of one recipe from one start: rows of ``results.json``, all of greedy play."""

    before: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    """One row after each round. A round whose updates were refused repeats the row before it."""
    best: Mapping[str, Any]
    """The row of the round that validation chose."""
    settings: str
    first_task: int
    spent: Sequence[tuple[float, float]]
    """Environment steps and generated tokens that collection had used by the end of each round."""
    seconds: float
    """Seconds of the whole run; 0 if it was not made in one go."""

    def row(self, arm: str, seed: int, **figures: float) -> Row:
        """The row of an arm: its best round, and what it spent."""
        by_round = {f"round {number}": row["success"] for number, row in enumerate(self.rounds, 1)}
        return Row(
            arm,
            seed,
            self.settings,
            first_task=self.first_task,
            solved=self.best["solved"],
            environment_steps=self.spent[-1][0],
            generated_tokens=self.spent[-1][1],
            seconds=self.seconds,
            figures=by_round | figures,
        )

    def after(self, number: int) -> "Learnt":
        """The same, as if round ``number`` had been the last and validation had chosen it."""
        return replace(self, rounds=self.rounds[:number], best=self.rounds[number - 1], spent=self.spent[:number])

    def start_row(self, seed: int, start: str) -> Row:
        """The row of the policy before learning. ``start`` is the digest of the settings that produced it."""
        return Row("before", seed, start, first_task=self.first_task, solved=self.before["solved"])


def settings_of_place(environment: Path) -> list[str]:
    """The environment and sampling settings of a config, as overrides of another config."""
    config = load_config(environment)
    environment_config, policy = config.environment, config.policy
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment_config.options.items())
    return [
        f"environment.name={environment_config.name}",
        f"environment.options={{ {options} }}",
        f"environment.max_steps={environment_config.max_steps}",
        f"policy.temperature={policy.temperature}",
        f"policy.max_new_tokens={policy.max_new_tokens}",
    ]


def recipe_path(recipe: str) -> Path:
    return CONFIGS / f"{recipe}.toml" if recipe == "adapt" else CONFIGS / "baselines" / f"{recipe}.toml"


def arguments_of(config: Path, seed: int, overrides: Sequence[str]) -> list[str]:
    """The overrides of one run of ``train``, which evaluates on the seed's own test tasks."""
    chosen = ["workers=1", 'evaluate.modes=["greedy"]', *overrides]
    return [f"seed={seed}", own_tasks(seed, load_config(config, chosen).evaluate.tasks), *chosen]


def settings_digest(config: Path, overrides: Sequence[str], start: Path) -> str:
    """Digest of a run of ``train``: its settings and those of the run that it starts from, without the seed."""
    start_settings = settings_of(Run.open(start.parents[1]).config)
    return digest(
        {"run": settings_of(load_config(config, arguments_of(config, 0, overrides))), "start": start_settings}
    )


def train(config: Path, seed: int, start: Path, folder: Path, overrides: Sequence[str]) -> Learnt:
    """Make or finish one run of ``treeagent train`` on one core."""
    seconds, resumed = 0.0, folder.exists()
    if not (folder / "report.html").exists():
        started = time.perf_counter()
        settings = arguments_of(config, seed, overrides)
        command = ["train", start, "--config", config, "--out", folder, "--resume", *settings]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("wb") as file:
            subprocess.run(
                [sys.executable, "-m", "treeagent", *map(str, command)],
                check=True,
                stdout=file,
                stderr=file,
                env=os.environ | ONE_THREAD,
            )
        seconds = 0.0 if resumed else time.perf_counter() - started
    finished = Run.open(folder)
    greedy = {row["policy"]: row for row in finished.result_rows() if row["mode"] == "greedy"}
    adapted = [row for row in finished.metrics() if row["stage"] == "adapt"]
    rounds = [greedy[start.name]]
    for number in range(1, finished.facts("adapt")["rounds"] + 1):
        after = [row for policy, row in greedy.items() if policy.startswith(f"round-{number}-")]
        rounds.append(after[-1] if after else rounds[-1])
    return Learnt(
        before=greedy[start.name],
        rounds=rounds[1:],
        best=greedy[finished.facts("adapt")["best"]],
        settings=settings_digest(config, overrides, start),
        first_task=finished.config.evaluate.first_task,
        spent=[(row["environment_steps"], row["generated_tokens"]) for row in adapted],
        seconds=seconds,
    )


def add_start(record: Record, seed: int, learnt: Learnt, start: Path) -> None:
    """Record the row of the policy before learning, once per seed."""
    tasks = {"tasks": len(learnt.before["solved"])}
    settings_hash = digest(settings_of(Run.open(start.parents[1]).config) | tasks)
    if not record.has("before", seed, settings_hash):
        record.add(learnt.start_row(seed, settings_hash))


def record_runs(record: Record, waiting: Mapping[Future[Learnt], tuple[str, int]], starts: Mapping[int, Path]) -> None:
    """Record the runs of several arms and seeds as they end.

    Args:
        waiting: the arm and the seed of each run.
        starts: the policy that each seed starts from.
    """
    for done in as_completed(waiting):
        arm, seed = waiting[done]
        learnt = done.result()
        add_start(record, seed, learnt, starts[seed])
        record.add(learnt.row(arm, seed))
        print(f"seed {seed} {arm}: {100 * learnt.best['success']:.1f} %", flush=True)


def main() -> None:
    options = starting(__doc__, "learning", out="runs/learning")
    options.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    options.add_argument("--environment", type=Path, help="a config of another environment than the store")
    options.add_argument("--processes", type=int, default=2, help="runs side by side, a core each")
    arguments = options.parse_args()
    overrides = [*(settings_of_place(arguments.environment) if arguments.environment else ()), *arguments.set]
    starts = {seed: start_of(arguments.runs, seed) for seed in arguments.seeds}
    limits = limits_of(load_config(recipe_path("adapt"), overrides))
    with record_of(arguments, QUESTION, **limits) as record, ThreadPoolExecutor(arguments.processes) as pool:
        waiting = {
            pool.submit(
                train, recipe_path(recipe), seed, start, arguments.out / recipe / f"seed{seed}", overrides
            ): (recipe, seed)
            for seed, start in starts.items()
            for recipe in arguments.recipes
            if not record.has(recipe, seed, settings_digest(recipe_path(recipe), overrides, start))
        }  # fmt: skip
        record_runs(record, waiting, starts)


if __name__ == "__main__":
    main()
