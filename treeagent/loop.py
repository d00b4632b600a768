"""The two main programs of treeagent: one pass of tree search and learning, and several rounds of it.

A run consists of stages. Each stage is a function of the settings, the run's seed and the files on disk, and records in
the run's folder that it is done. A run that was killed therefore continues where it stopped, and ends with the same
result.
"""

from pathlib import Path

from treeagent.config import RunConfig
from treeagent.pipeline.collect import collect
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import Run
from treeagent.pipeline.opening import Use, opened
from treeagent.pipeline.outcomes import Row
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.report.page import report
from treeagent.pipeline.rounds import (
    RoundHistory,
    audit_before_round,
    begin,
    finish_round,
    search_round,
    update_round,
)
from treeagent.pipeline.update import fit_base, update
from treeagent.pipeline.warm_start import warm_start


def quickstart(
    config: RunConfig, out: str | Path, *, resume: bool = True, progress: Progress | None = None
) -> list[Row]:
    """Imitate demonstrations, search training tasks, update once with each method, and compare all policies.

    Args:
        out: the run's folder.
        resume: whether a run that is there already is continued.
        progress: where to show the progress; by default nowhere.

    Returns:
        the rows of RUN/results.json: the base policy in every mode of ``evaluate.modes``, and the updated policies in
        the first mode only.
    """
    uses: list[Use] = ["warm_start", "collect", "update", "evaluate"]
    with opened(config, out, uses, methods=config.update.methods, resume=resume, progress=progress) as (run, shown):
        config, modes = run.config, config.evaluate.modes
        warm = warm_start(config, run, shown)
        collect(config, run, shown, warm)
        base = fit_base(config, run, shown, warm)
        updated = update(config, run, shown, base, config.update.methods)
        # The modes of the base policy show what search adds. The updated policies, in the first mode, show what
        # learning adds.
        evaluations = [*((base, mode) for mode in modes), *((policy, modes[0]) for policy in updated)]
        rows = evaluate(config, run, shown, evaluations)
        report(run)
        return rows


def train(
    config: RunConfig,
    out: str | Path,
    checkpoint: str | Path | None = None,
    *,
    resume: bool = True,
    progress: Progress | None = None,
) -> list[Row]:
    """Search-and-adapt: search with the current policy, learn from the trees, and continue with the better policy.

    A share of each round's trees may grow in a world model, as far as its audit allows (``adapt.imagined``).

    Args:
        out: the run's folder.
        checkpoint: where to start; by default where the run was begun, or else from a warm start.
        resume: whether a run that is there already is continued.
        progress: where to show the progress; by default nowhere.

    Returns:
        rows for the first and the best policy in every mode of ``evaluate.modes``, and for all others in greedy mode if
        that is one of these modes.
    """
    given = None if checkpoint is None else Path(checkpoint)
    uses: list[Use] = ["adapt", "update", "evaluate"]
    if given is None and not (resume and (Path(out) / "config.toml").is_file()):  # a resumed run records its start
        uses.insert(0, "warm_start")
    with opened(
        config, out, uses, methods=config.adapt.methods, checkpoint=given, resume=resume, progress=progress
    ) as (run, shown):
        config = run.config
        start = policy = begin(config, run, shown, given)
        history = RoundHistory(start)
        for number in range(1, config.adapt.rounds + 1):
            audit = audit_before_round(config, run, shown, number)
            search_round(config, run, shown, policy, number, audit)
            policy = update_round(config, run, shown, policy, number)
            finish_round(config, run, shown, policy, number, audit, history)
        return compare(config, run, shown, history)


def compare(config: RunConfig, run: Run, progress: Progress, history: RoundHistory) -> list[Row]:
    """Evaluate the policies of all rounds, as the end of ``train``."""
    evaluations = [
        (policy, mode)
        for policy in dict.fromkeys((history.start, *history.policies))
        for mode in config.evaluate.modes
        if mode == "greedy" or policy in (history.start, history.best)
    ]
    rows = evaluate(config, run, progress, evaluations)
    run.finish("adapt", {"rounds": len(history.figures), "best": history.best.name})
    report(run)
    return rows
