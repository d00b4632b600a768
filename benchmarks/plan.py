"""How accurate the cost plan of docs/scale.md is: three small runs are planned, then made, and both are compared.

    python -m benchmarks.plan
    python -m benchmarks.plan --only frozenlake

Each recipe is shortened to a run of a few minutes on two cores. Its plan is measured right before the run on the same
machine, which should run nothing else. Tokens and steps do not depend on the machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import parser, record_of, settings_of
from benchmarks.record import Record, Row, digest
from treeagent import loop
from treeagent.config import load_config
from treeagent.contrib.plan.cost import StageCost, stage_costs
from treeagent.contrib.plan.measure import measure
from treeagent.contrib.plan.report import sum_rounds
from treeagent.contrib.plan.times import TIMES, TimedProgress, run_costs
from treeagent.pipeline.folder import Run
from treeagent.pipeline.machine import fit_to_machine
from treeagent.pipeline.processes import shared_workers
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.recipes import find_recipe

QUESTION = "How near is a plan of costs to what the run then takes?"
RECIPES = {
    "quickstart": (
        "quickstart",
        "warm_start.episodes=4000",
        "warm_start.training.max_steps=600",
        "collect.tasks=200",
        "update.rft.max_steps=100",
        "update.dpo.max_steps=40",
        "update.grpo.max_steps=60",
        "update.validation_tasks=60",
        "evaluate.tasks=60",
    ),
    "frozenlake": (
        "envs/frozenlake",
        "warm_start.episodes=2000",
        "collect.tasks=200",
        "update.rft.max_steps=60",
        "update.dpo.max_steps=40",
        "update.grpo.max_steps=60",
        "update.validation_tasks=60",
        "evaluate.tasks=80",
    ),
    "planning": (
        "planning",
        "warm_start.episodes=1500",
        "warm_start.training.max_steps=200",
        "collect.tasks=60",
        "update.rft.max_steps=40",
        "update.validation_tasks=40",
        "evaluate.tasks=40",
    ),
}
"""For each arm, the recipe and the overrides that shorten it."""
_KEYS = ("generated_tokens", "trained_tokens", "environment_steps", "seconds")


def main(arguments: Sequence[str]) -> None:
    argument_parser = parser(__doc__, "plan", seeds=(0,))
    argument_parser.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES), help="recipes")
    argument_parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every arm")
    options = argument_parser.parse_args(arguments)
    with record_of(options, QUESTION) as record:
        for arm in options.only:
            for seed in options.seeds:
                _compare(record, arm, seed, options)


def _compare(record: Record, arm: str, seed: int, options: argparse.Namespace) -> None:
    recipe, *overrides = RECIPES[arm]
    config = load_config(find_recipe(recipe), [*overrides, *options.set], seed=seed)
    settings = digest(settings_of(config))
    if record.has(arm, seed, settings):
        return
    config, _ = fit_to_machine(config)
    planned = {
        each.name: each
        for each in sum_rounds(stage_costs(config, "quickstart", measure(config, "quickstart", RichProgress())))
    }
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", config, resume=False) as run:
        progress = TimedProgress(RichProgress(), run.path / TIMES)
        with shared_workers(config):
            loop.quickstart(config, run, progress)
        progress.write()
        took = run_costs(run)
    figures = compare_costs(planned, took)
    record.add(Row(arm, seed, settings, seconds=sum(each.seconds for each in took.values()), figures=figures))
    print(f"{arm}, seed {seed}: {figures['seconds ratio']:.2f} of the time that the run took", flush=True)


def compare_costs(planned: dict[str, StageCost], took: dict[str, StageCost]) -> dict[str, float]:
    """Planned and measured figures of each stage, such as "search seconds planned", and for the whole run the ratio of
    planned to measured. Ratios leave out what a run does not record: the tokens of validations and of GRPO."""
    figures = dict[str, float]()
    for key in _KEYS:
        known = [name for name in planned if name in took and (key == "seconds" or getattr(took[name], key))]
        known = [name for name in known if key == "seconds" or name != "updates"]
        for name in known:
            figures[f"{name} {key} planned"] = getattr(planned[name], key)
            figures[f"{name} {key} taken"] = getattr(took[name], key)
        total = sum(getattr(took[name], key) for name in known)
        if total:
            figures[f"{key} ratio"] = sum(getattr(planned[name], key) for name in known) / total
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
