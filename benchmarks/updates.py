"""Ways to learn from the same trees, with and without their safeguards.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies to start from
    .venv/bin/python -m benchmarks.updates --seeds 0 1 2

Where episodes are long and rarely succeed:

    .venv/bin/python -m benchmarks.quickstart --config envs/tireworld
    .venv/bin/python -m benchmarks.updates --config envs/tireworld --runs runs/tireworld \\
        --name updates_tireworld --out runs/updates_tireworld

How many steps does GRPO on a tree's advantages need to be as good as flat GRPO at its best, with two learning rates?

    .venv/bin/python -m benchmarks.updates --variants grpo grpo-no-anchor chains-grpo --name updates_grpo \\
        --out runs/updates_grpo --set update.grpo.max_steps=400 update.grpo.validate_every=20
    .venv/bin/python -m benchmarks.updates --variants grpo grpo-no-anchor chains-grpo --name updates_grpo_low \\
        --out runs/updates_grpo_low \\
        --set update.grpo.learning_rate=2e-4 update.grpo.max_steps=100 update.grpo.validate_every=5

Every arm tuned alike, at the same learning rates (``benchmarks.grid``):

    .venv/bin/python -m benchmarks.updates --config booking --runs runs/booking --name updates_booking \\
        --out runs/updates_booking --grid 5e-4 1e-3 2e-3

The trees of a seed are collected once, by the recipe, so that all arms learn from the same search. If the start's own
run searched with the same settings, its trees are taken. Two controls learn from independent episodes of the same tasks
under the same limits: "chains-rft" imitates all of their distinct successes (RFT, Yuan et al. 2023), and "chains-grpo"
is flat GRPO (Shao et al. 2024). Agent Q's table, each policy alone and with tree search:

    .venv/bin/python -m benchmarks.updates --config quickstart --runs runs/quickstart --name agent_q \\
        --out runs/agent_q --modes greedy mcts --variants chains-rft chains-dpo agent-q dpo --seeds 0 1 2 3 4

Rows already recorded are kept, and unfinished runs are resumed. Validation tasks choose which weights each update
keeps. ``--set`` wins over the settings of a variant: with an anchor set, "chains-grpo" has it too.
"""

import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: each process has one core

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.command import limits_of, own_tasks, record_of, search_figures, settings_of, start_of, starting
from benchmarks.grid import tuned
from benchmarks.record import Row, digest
from treeagent.config import Method, Mode, RunConfig, load_config
from treeagent.pipeline.collect import collect
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import COLLECTED, Run, changed_settings
from treeagent.pipeline.opening import fit_to_machine
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.update import TrainJob, learn

QUESTION = "Which update of the same trees leads to the highest greedy success?"
PLAIN = ("update.dpo.loss_type=['sigmoid']", "update.dpo.loss_weights=[1.0]")
BARE = ("update.grpo.anchor=0.0",)


@dataclass(frozen=True)
class Variant:
    """One way of learning: updates that follow one another, and their settings. A variant with several updates goes on
    from the checkpoint of the variant that its name begins with, such as "rft" for "rft-dpo"."""

    methods: tuple[Method, ...]
    overrides: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    """Settings of the search whose trees it learns from, in place of the recipe's."""

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.overrides, *self.search)


CHAIN_SEARCH = ("search.method=best_of_n", "search.limits.simulations=1000")
"""Sample as many episodes of a task as its other limits allow, as in configs/baselines."""
CRITIC_SEARCH = ("search.method=critic", "search.options={weight=0.5}")
"""Agent Q's search: the policy's own word, as critic, is half of the prior of an action."""
FLAT_GRPO = (
    "update.advantages.kind=grpo",
    "update.grpo.loss_type=grpo",
    "update.grpo.epsilon_high=0.2",
    "update.grpo.beta=0.04",
)
"""The update of configs/baselines/flat_grpo.toml."""
TRAJECTORY = ("update.pairs.rule=trajectory", "update.dpo.batch_size=16")
"""One pair of whole paths a task."""
FOUND = ("update.targets.kind=found",)
PATHS = ("update.imitation.what=paths",)
VARIANTS: Mapping[str, Variant] = {
    "rft": Variant(("rft",), PATHS),
    "chains-rft": Variant(("rft",), (*PATHS, "update.imitation.paths_per_tree=1000"), CHAIN_SEARCH),
    "chains-dpo": Variant(("dpo",), TRAJECTORY, CHAIN_SEARCH),
    "chains-grpo": Variant(("grpo",), (*FLAT_GRPO, *BARE), CHAIN_SEARCH),
    "chains-grpo-anchor": Variant(("grpo",), FLAT_GRPO, CHAIN_SEARCH),  # imitates successes, as the recipe's "grpo"
    "agent-q": Variant(("dpo",), ("update.pairs.rule=all",), CRITIC_SEARCH),
    "states": Variant(("rft",)),
    "distil": Variant(("distil",)),
    "distil-visits": Variant(("distil",), ("update.targets.kind=visits",)),
    "awr": Variant(("distil",), ("update.targets.kind=weighted",)),
    "found": Variant(("distil",), FOUND),
    "dpo": Variant(("dpo",)),
    "dpo-trajectory": Variant(("dpo",), TRAJECTORY),
    # No path returns 2, so that the imitation term holds the chosen actions alone.
    "dpo-chosen-alone": Variant(("dpo",), ("update.imitation.min_return=2.0",)),
    "dpo-every-pair": Variant(("dpo",), ("update.pairs.rule=all",)),
    "dpo-sigmoid-alone": Variant(("dpo",), PLAIN),
    "grpo": Variant(("grpo",)),
    "grpo-no-anchor": Variant(("grpo",), BARE),
    "grpo-treerl": Variant(("grpo",), ("update.advantages.kind=treerl",)),
    "grpo-gigpo": Variant(("grpo",), ("update.advantages.kind=gigpo",)),
    "grpo-tree": Variant(("grpo",), ("update.advantages.kind=tree_grpo",)),
    "grpo-outcomes": Variant(("grpo",), ("update.advantages.kind=grpo",)),
    "grpo-rloo": Variant(("grpo",), ("update.advantages.kind=rloo",)),
    "grpo-gae": Variant(("grpo",), ("update.advantages.kind=gae",)),
    "grpo-simpletir": Variant(("grpo",), ("update.advantages.kind=simpletir",)),
    "grpo-aspo": Variant(("grpo",), ("update.advantages.kind=aspo",)),
    "dpo-grpo": Variant(("dpo", "grpo")),
    "rft-dpo": Variant(("rft", "dpo"), PATHS),
    "rft-grpo": Variant(("rft", "grpo"), PATHS),
    "states-dpo": Variant(("rft", "dpo")),
    "states-grpo": Variant(("rft", "grpo")),
}


def config_of(recipe: str, seed: int, overrides: Sequence[str]) -> RunConfig:
    """The settings of a seed's run, which evaluates greedily on the seed's own test tasks."""
    file, chosen = find_recipe(recipe), ['evaluate.modes=["greedy"]', *overrides]
    return load_config(file, [*chosen, own_tasks(seed, load_config(file, chosen).evaluate.tasks)], seed=seed)


def settings_digest(recipe: str, start: Path, overrides: Sequence[str], methods: Sequence[str] = ()) -> str:
    """Digest of an arm: its settings, its updates with the rates of a grid, and the settings of the run that it starts
    from, without the seed."""
    return digest(
        {
            "run": settings_of(config_of(recipe, 0, overrides)),
            "start": settings_of(Run.open(start.parents[1]).config),
            "methods": methods,
        }
    )


@dataclass(frozen=True)
class Job:
    """The variants of a seed that are to be trained from one start and its trees."""

    recipe: str
    seed: int
    names: Sequence[str]
    start: Path
    out: Path
    overrides: Sequence[str]
    modes: Sequence[Mode]
    workers: int
    """0 leaves the number to the machine."""
    rates: Sequence[float] = ()
    """Learning rates at which each variant is trained; none: its recipe's."""

    def settings(self, overrides: Sequence[str]) -> RunConfig:
        config = replace(config_of(self.recipe, self.seed, [*overrides, *self.overrides]), workers=self.workers)
        return fit_to_machine(config, self.start)[0]


def run(job: Job) -> list[Row]:
    """Train the variants. Returns their rows and those of the start."""
    rows: list[Row] = []
    for folder, search in (("", ()), ("chains", CHAIN_SEARCH), ("critic", CRITIC_SEARCH)):
        chosen = [name for name in job.names if VARIANTS[name].search == search]
        if chosen:
            config = job.settings(search)
            with Run.create(job.out / f"{folder}seed{job.seed}", config, resume=True) as shared_run:
                _take_trees(job.start, shared_run)
                collect(config, shared_run, QuietProgress(), job.start)
                if job.rates and not search:
                    [row] = evaluate(config, shared_run, QuietProgress(), [(job.start, "greedy")])
                    plain = settings_digest(job.recipe, job.start, job.overrides)
                    rows.append(_row("before", job.seed, plain, shared_run, row, {}))
                rows += _rows(job, chosen, shared_run)
    return rows


def _take_trees(start: Path, run: Run) -> None:
    """Copy the trees of the run that made ``start``, unless it searched with other settings."""
    source = Run.open(start.parents[1])
    after_search = ("update.", "evaluate.", "warm_start.")
    other = [key for key in changed_settings(source.config, run.config) if not key.startswith(after_search)]
    if other or not source.is_done(COLLECTED) or run.is_done(COLLECTED):
        return
    run.record_checkpoint(COLLECTED, start)
    for file in source.trees.glob(f"{COLLECTED}*"):
        shutil.copy(file, run.trees)
    run.finish(COLLECTED, source.facts(COLLECTED))


def _rows(job: Job, names: Sequence[str], shared_run: Run) -> Iterator[Row]:
    progress, start = QuietProgress(), job.start
    plain = settings_digest(job.recipe, start, job.overrides)
    for name in names:
        variant, checkpoint = VARIANTS[name], start
        settings = job.settings(variant.settings)
        learnt = settings_digest(
            job.recipe, start, [*variant.settings, *job.overrides], (*variant.methods, *map(str, job.rates))
        )
        if job.rates:
            [method] = variant.methods
            figures, row = tuned(settings, method, shared_run, start, name, job.rates)
            yield _row(name, job.seed, learnt, shared_run, row, figures)
            print(f"seed {job.seed} {name}: {100 * row['success']:.1f} %", flush=True)
            continue
        before_name = name.split("-")[: len(variant.methods) - 1]
        for written, method in zip((*before_name, name), variant.methods, strict=True):
            out = shared_run.checkpoints / written
            job_of = TrainJob(settings, checkpoint, method, shared_run.trees, [COLLECTED], out)
            [checkpoint] = learn(settings, shared_run, progress, [job_of])
        policies = (checkpoint,) if variant.search else (start, checkpoint)
        asked = [(policy, mode) for mode in job.modes for policy in policies]
        found = evaluate(shared_run.config, shared_run, progress, asked)
        figures = validation_figures(shared_run.metrics(), name)
        for (policy, mode), row in zip(asked, found, strict=True):
            if policy == checkpoint:
                yield _row(arm_of(name, mode), job.seed, learnt, shared_run, row, figures)
                print(f"seed {job.seed} {arm_of(name, mode)}: {100 * row['success']:.1f} %", flush=True)
            else:
                yield _row(arm_of("before", mode), job.seed, plain, shared_run, row, {})


def validation_figures(metrics: Iterable[Mapping[str, Any]], stage: str) -> dict[str, float]:
    """An update's success on validation tasks: the best, the last, and after each validated step. Step 0 is the policy
    before the update."""
    curve = {row["step"]: row["validation"] for row in metrics if row["stage"] == stage and "validation" in row}
    if not curve:
        return {}
    steps = {f"validation at step {step}": value for step, value in curve.items()}
    return {"best validation": max(curve.values()), "last validation": curve[max(curve)], **steps}


def arm_of(name: str, mode: Mode) -> str:
    return name if mode == "greedy" else f"{name}, {mode}"


def _row(
    arm: str, seed: int, settings: str, shared_run: Run, row: Mapping[str, Any], figures: Mapping[str, float]
) -> Row:
    return Row(
        arm,
        seed,
        settings,
        first_task=shared_run.config.evaluate.first_task,
        solved=row["solved"],
        environment_steps=row["environment_steps"],
        generated_tokens=row["generated_tokens"],
        seconds=row["seconds"],
        figures={**figures, **search_figures(row)},
    )


def main() -> None:
    options = starting(__doc__, "updates", out="runs/updates")
    options.add_argument("--config", default="adapt", help="a recipe's name or a TOML file")
    options.add_argument("--variants", nargs="+", choices=list(VARIANTS))
    options.add_argument("--grid", nargs="+", type=float, default=[], help="learning rates of every variant")
    options.add_argument("--modes", nargs="+", default=["greedy"], help="modes of evaluation")
    options.add_argument(
        "--processes", type=int, default=2, help="seeds side by side, a core each; one seed takes all cores"
    )
    arguments = options.parse_args()
    config = config_of(arguments.config, 0, arguments.set)
    single = [name for name, variant in VARIANTS.items() if len(variant.methods) == 1]
    names = arguments.variants or (single if arguments.grid else list(VARIANTS))
    with (
        record_of(arguments, QUESTION, **limits_of(config)) as record,
        ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool,
    ):
        waiting = []
        for seed in arguments.seeds:
            start = start_of(arguments.runs, seed)
            missing = list[str]()
            for name in names:
                variant = VARIANTS[name]
                settings_hash = settings_digest(
                    arguments.config,
                    start,
                    [*variant.settings, *arguments.set],
                    (*variant.methods, *map(str, arguments.grid)),
                )
                if not all(record.has(arm_of(name, mode), seed, settings_hash) for mode in arguments.modes):
                    missing.append(name)
            if missing:
                workers = 1 if arguments.processes > 1 else 0
                chosen = (arguments.out, arguments.set, arguments.modes, workers, arguments.grid)
                waiting.append(pool.submit(run, Job(arguments.config, seed, missing, start, *chosen)))
        for done in as_completed(waiting):
            for row in done.result():
                if not record.has(row.arm, row.seed, row.settings):
                    record.add(row)


if __name__ == "__main__":
    main()
