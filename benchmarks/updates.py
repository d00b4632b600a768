"""What each way of learning makes of the same trees, and what it would do without care.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies to start from
    .venv/bin/python -m benchmarks.updates --seeds 0 1 2

A seed's trees are collected once, as configs/adapt.toml says. The control "chains-rft" learns from independent episodes
of the same tasks under the same limits, all of their distinct successes (RFT, Yuan et al. 2023). Rows that are there
already are kept, unfinished runs resumed. Validation tasks choose the weights of each update.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a process a core

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.command import limits_of, own_tasks, record_of, settings_of, start_of, starting
from benchmarks.record import Row, digest
from treeagent.config import Method, RunConfig, load_config
from treeagent.run.folder import COLLECTED, Run
from treeagent.run.progress import QuietProgress
from treeagent.stages.evaluate import measure
from treeagent.stages.search import collect
from treeagent.stages.update import learn

QUESTION = "Which update of the same trees leads to the highest greedy success?"
ADAPT = Path(__file__).parent.parent / "configs" / "adapt.toml"
PLAIN = ("update.dpo.loss_type=['sigmoid']", "update.dpo.loss_weights=[1.0]")
BARE = ("update.grpo.anchor=0.0",)


@dataclass(frozen=True)
class Variant:
    """One way of learning: its updates one on the other, with settings of its own. Of several, the earlier ones are
    those of the variant that its name begins with, whose checkpoint it goes on from."""

    methods: tuple[Method, ...]
    overrides: tuple[str, ...] = ()


CHAINS = "chains"
"""Begins the names of variants that learn from independent episodes in place of trees."""
CHAIN_SEARCH = ("search.method=best_of_n", "search.limits.simulations=1000")
"""As many episodes of a task as its other limits allow, as in configs/baselines."""
PATHS = ("update.imitation.what=paths",)
VARIANTS: Mapping[str, Variant] = {
    "rft": Variant(("rft",), PATHS),
    "chains-rft": Variant(("rft",), (*PATHS, "update.imitation.paths_per_tree=1000", *CHAIN_SEARCH)),
    "states": Variant(("rft",)),
    "distil": Variant(("distil",)),
    "distil-visits": Variant(("distil",), ("update.targets.kind=visits",)),
    "dpo": Variant(("dpo",)),
    "dpo-every-pair": Variant(("dpo",), ("update.pairs.rule=all",)),
    "dpo-sigmoid-alone": Variant(("dpo",), PLAIN),
    "grpo": Variant(("grpo",)),
    "grpo-no-anchor": Variant(("grpo",), BARE),
    "grpo-treerl": Variant(("grpo",), ("update.advantages.kind=treerl",)),
    "dpo-grpo": Variant(("dpo", "grpo")),
    "rft-dpo": Variant(("rft", "dpo"), PATHS),
    "rft-grpo": Variant(("rft", "grpo"), PATHS),
    "states-dpo": Variant(("rft", "dpo")),
    "states-grpo": Variant(("rft", "grpo")),
}


def config_of(seed: int, overrides: Sequence[str]) -> RunConfig:
    """The settings of a seed, which evaluates greedily on its own test tasks."""
    chosen = ["workers=1", 'evaluate.modes=["greedy"]', *overrides]
    return load_config(ADAPT, [*chosen, own_tasks(seed, load_config(ADAPT, chosen).evaluate.tasks)], seed=seed)


def settings_digest(start: Path, overrides: Sequence[str], methods: Sequence[Method] = ()) -> str:
    """Of an arm: its settings and updates, and the settings of the run that it starts from, without the seed."""
    return digest(
        {
            "run": settings_of(config_of(0, overrides)),
            "start": settings_of(Run.open(start.parents[1]).config),
            "methods": methods,
        }
    )


def run(seed: int, names: Sequence[str], start: Path, out: Path, overrides: Sequence[str]) -> list[Row]:
    """The rows of a start, and of every variant learnt from it and the same trees."""
    rows: list[Row] = []
    for chains in (False, True):
        wanted = [name for name in names if name.startswith(CHAINS) == chains]
        if wanted:
            config = config_of(seed, [*overrides, *(CHAIN_SEARCH if chains else ())])
            with Run.create(out / f"{CHAINS if chains else ''}seed{seed}", config, resume=True) as kept:
                collect(config, kept, QuietProgress(), start)
                rows += _rows(seed, wanted, start, kept, overrides)
    return rows


def _rows(seed: int, names: Sequence[str], start: Path, kept: Run, overrides: Sequence[str]) -> Iterator[Row]:
    progress = QuietProgress()
    for name in names:
        variant, checkpoint = VARIANTS[name], start
        wanted = [*variant.overrides, *overrides]
        settings = config_of(seed, wanted)
        before_name = name.split("-")[: len(variant.methods) - 1]
        for written, method in zip((*before_name, name), variant.methods, strict=True):
            [checkpoint] = learn(
                settings, kept, progress, [(checkpoint, method, kept.checkpoints / written)], [COLLECTED]
            )
        before, after = measure(kept.config, kept, progress, [(start, "greedy"), (checkpoint, "greedy")])
        validations = [row["validation"] for row in kept.metrics() if row["stage"] == name and "validation" in row]
        figures = {"best validation": max(validations), "last validation": validations[-1]} if validations else {}
        if not name.startswith(CHAINS):
            yield _row("before", seed, settings_digest(start, overrides), kept, before, {})
        yield _row(name, seed, settings_digest(start, wanted, variant.methods), kept, after, figures)
        print(f"seed {seed} {name}: {100 * after['success']:.1f} %", flush=True)


def _row(arm: str, seed: int, settings: str, kept: Run, row: Mapping[str, Any], figures: Mapping[str, float]) -> Row:
    return Row(
        arm,
        seed,
        settings,
        first_task=kept.config.evaluate.first_task,
        solved=row["solved"],
        environment_steps=row["environment_steps"],
        generated_tokens=row["generated_tokens"],
        seconds=row["seconds"],
        figures=figures,
    )


def main() -> None:
    options = starting(__doc__, "updates", out="runs/updates")
    options.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options.add_argument("--processes", type=int, default=2, help="seeds side by side, a core each")
    asked = options.parse_args()
    with (
        record_of(asked, QUESTION, **limits_of(config_of(0, asked.set))) as record,
        ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool,
    ):
        waiting = []
        for seed in asked.seeds:
            start = start_of(asked.runs, seed)
            missing = [
                name
                for name in asked.variants
                if not record.has(
                    name, seed, settings_digest(start, [*VARIANTS[name].overrides, *asked.set], VARIANTS[name].methods)
                )
            ]
            if missing:
                waiting.append(pool.submit(run, seed, missing, start, asked.out, asked.set))
        for done in as_completed(waiting):
            for row in done.result():
                if not record.has(row.arm, row.seed, row.settings):
                    record.add(row)


if __name__ == "__main__":
    main()
