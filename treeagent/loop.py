"""The programs of treeagent: one pass of tree search and learning, several rounds of it, and each stage alone.

    import treeagent

    config = treeagent.load_config("quickstart", ["collect.tasks=100"])
    treeagent.quickstart(config, "runs/booking")
    treeagent.collect(config, "runs/more", "runs/booking/checkpoints/base")
    policy = treeagent.update(config, "runs/more", "runs/booking/checkpoints/base", "dpo")
    rows = treeagent.evaluate(config, "runs/more", policy)

A run consists of stages. Each stage is a function of the settings, the run's seed and the files on disk, and records in
the run's folder that it is done. A run that was killed therefore continues where it stopped, and ends with the same
result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from treeagent import config as settings
from treeagent.config import Method, RunConfig
from treeagent.pipeline import collect as collecting
from treeagent.pipeline import evaluate as evaluating
from treeagent.pipeline import update as updating
from treeagent.pipeline.folder import COLLECTED, Run, RunError
from treeagent.pipeline.opening import Use, opened, require_whole_vocabulary
from treeagent.pipeline.outcomes import Row
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.recipes import find_policy, find_recipe
from treeagent.pipeline.report.page import report
from treeagent.pipeline.rounds import (
    RoundHistory,
    audit_before_round,
    begin,
    finish_round,
    first_policy,
    search_round,
    update_round,
)
from treeagent.pipeline.update import TrainJob
from treeagent.store import shard_names


class How(TypedDict, total=False):
    """What every program takes besides its settings and the run's folder ``out``."""

    resume: bool
    """Whether a run that is there already is continued; by default true."""
    progress: Progress | None
    """Where to show the progress; by default nowhere."""


def load_config(recipe: str | Path | None = None, overrides: Sequence[str] = (), seed: int | None = None) -> RunConfig:
    """The settings of a recipe, such as "quickstart", or of a TOML file, or the defaults, changed by overrides such as
    "collect.tasks=32"."""
    return settings.load_config(None if recipe is None else find_recipe(str(recipe)), overrides, seed=seed)


def quickstart(
    config: RunConfig, out: str | Path, checkpoint: str | Path | None = None, **how: Unpack[How]
) -> list[Row]:
    """Search training tasks, update once with each method, and compare all policies.

    Starts from ``checkpoint`` or ``warm_start.checkpoint``; by default where the run was begun, or else from a warm
    start. Returns the rows of RUN/results.json: the base policy in every mode of ``evaluate.modes``, which shows what
    search adds; the updated policies in the first mode, which shows what learning adds; and the updated policy that
    validation chose in the last mode, which shows both.
    """
    given, warm = _start(config, checkpoint, out, how)
    uses: list[Use] = [*warm, "collect", "update", "evaluate"]
    with opened(config, out, uses, methods=config.update.methods, checkpoint=given, **how) as (run, shown):
        config, modes, others = run.config, run.config.evaluate.modes, list[TrainJob]()
        start = first_policy(config, run, shown, given)
        collecting.collect(config, run, shown, start)
        base = updating.fit_base(config, run, shown, start)
        if config.update.control:
            others = [updating.control(config, run, shown, start, base)]
        updated = updating.update(config, run, shown, base, config.update.methods, others=others)
        best = max(updated, key=lambda each: run.facts(each.name)["update"]["best_validation"] or 0.0, default=base)
        evaluations = [
            *((base, mode) for mode in modes),
            *((policy, modes[0]) for policy in updated),
            (best, modes[-1]),
        ]
        rows = evaluating.evaluate(config, run, shown, list(dict.fromkeys(evaluations)))
        report(run)
        return rows


def train(config: RunConfig, out: str | Path, checkpoint: str | Path | None = None, **how: Unpack[How]) -> list[Row]:
    """Search-and-adapt: search with the current policy, learn from the trees, and continue with the better policy.

    A share of each round's trees may grow in a world model, as far as its audit allows (``adapt.imagined``). Starts
    from ``checkpoint`` or ``warm_start.checkpoint``; by default where the run was begun, or else from a warm start.
    Returns the rows of ``compare``.
    """
    given, warm = _start(config, checkpoint, out, how)
    uses: list[Use] = [*warm, "adapt", "update", "evaluate"]
    with opened(config, out, uses, methods=config.adapt.methods, checkpoint=given, **how) as (run, shown):
        config = run.config
        start = policy = begin(config, run, shown, given)
        history = RoundHistory(start)
        for number in range(1, config.adapt.rounds + 1):
            audit = audit_before_round(config, run, shown, number)
            search_round(config, run, shown, policy, number, audit)
            policy = update_round(config, run, shown, policy, number)
            finish_round(config, run, shown, policy, number, audit, history)
        return compare(config, run, shown, history)


def _start(
    config: RunConfig, checkpoint: str | Path | None, out: str | Path, how: How
) -> tuple[Path | None, list[Literal["warm_start"]]]:
    """The policy to start from, if it is given: ``checkpoint``, or for a new run ``warm_start.checkpoint``; and the
    warm start, if a new run needs one. A run that is continued has recorded its start."""
    begun = how.get("resume", True) and (Path(out) / "config.toml").is_file()
    name = checkpoint or (None if begun else config.warm_start.checkpoint)
    return (None, [] if begun else ["warm_start"]) if name is None else (find_policy(str(name)), [])


def compare(config: RunConfig, run: Run, progress: Progress, history: RoundHistory) -> list[Row]:
    """Evaluate the first and the best policy of all rounds in every mode of ``evaluate.modes``, and the others in
    greedy mode if that is one of them."""
    evaluations = [
        (policy, mode)
        for policy in dict.fromkeys((history.start, *history.policies))
        for mode in config.evaluate.modes
        if mode == "greedy" or policy in (history.start, history.best)
    ]
    rows = evaluating.evaluate(config, run, progress, evaluations)
    run.finish("adapt", {"rounds": len(history.figures), "best": history.best.name})
    report(run)
    return rows


def collect(config: RunConfig, out: str | Path, checkpoint: str | Path, **how: Unpack[How]) -> Path:
    """Search ``collect.tasks`` training tasks with a policy, one tree each. Returns the folder of the trees."""
    start = Path(checkpoint)
    with opened(config, out, ["collect"], checkpoint=start, **how) as (run, shown):
        collecting.collect(run.config, run, shown, start)
        return run.trees


def update(
    config: RunConfig,
    out: str | Path,
    checkpoint: str | Path,
    method: Method,
    trees: str | Path | None = None,
    **how: Unpack[How],
) -> Path:
    """Update a policy by one method, from the trees of the run ``trees``, by default of ``out``. Returns the folder of
    the new checkpoint."""
    start, source = Path(checkpoint), Path(out if trees is None else trees)
    if not any(name.startswith(COLLECTED) for name in shard_names(source / "trees")):
        raise RunError(f"{source} holds no trees: make some with treeagent collect CHECKPOINT --out {source}")
    lender = None if trees is None else Run.open(source)
    if lender is not None:
        require_whole_vocabulary(lender.config, [method])
    with opened(config, out, ["update"], methods=[method], checkpoint=start, **how) as (run, shown):
        return updating.update(run.config, run, shown, start, [method], lender)[0]


def evaluate(config: RunConfig, out: str | Path, checkpoint: str | Path, **how: Unpack[How]) -> list[Row]:
    """Play the held-out tasks in every mode of ``evaluate.modes``. Returns one row a mode, as in RUN/results.json."""
    policy = Path(checkpoint)
    with opened(config, out, ["evaluate"], checkpoint=policy, **how) as (run, shown):
        return evaluating.evaluate(run.config, run, shown, [(policy, mode) for mode in run.config.evaluate.modes])
