"""Search-and-adapt: search with the policy as it is, learn from the trees, go on with the better policy.

Every round is a few recorded stages, each a function of what is on disk and of the run's seed: a killed run, continued,
ends as one that never was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from treeagent.config import RunConfig
from treeagent.health import alarms, return_spread, solved, training_alarms, tree_figures
from treeagent.jobs import WaveJob, environment, read_trees
from treeagent.loop import Row, learn, measure, report, search_waves, warm_start, waves
from treeagent.progress import Progress
from treeagent.run import COLLECTED, Run
from treeagent.search.limits import Limits
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Refused


@dataclass(frozen=True, slots=True)
class Searched:
    """What the last search of a task has shown."""

    spread: float
    """Standard deviation of its returns."""
    solved: bool


def adapt(config: RunConfig, run: Run, progress: Progress, checkpoint: Path | None = None) -> list[Row]:
    """Rounds of search and update, from ``checkpoint`` or from a warm start; then the first and the best policy in
    every mode of ``evaluate.modes``, all others greedily.

    Raises:
        ValueError: the environment has too few training tasks for so many rounds.
    """
    settings = config.adapt
    environment(config).tasks(
        "train", 1, settings.rounds * config.collect.tasks - 1
    )  # fails now rather than in the last round
    start = current = checkpoint or warm_start(config, run, progress)
    course: list[dict[str, float]] = []
    scores: dict[Path, float] = {}
    for number in range(1, settings.rounds + 1):
        _collect(config, run, progress, current, number)
        names = [_name(earlier) for earlier in range(number, max(number - settings.replay, 1) - 1, -1)]
        updated = _update(config, run, progress, current, number, names)
        figures = tree_figures(read_trees(run.trees, names[:1])) | _score(run, updated)
        course.append(figures)
        run.log("adapt", {"step": number, **figures, **_spent(run, number)})
        _warn(run, progress, course, number)
        current = updated
        scores[current] = figures.get("validation", 0.0)
        if settings.patience and _stale(list(scores.values())) >= settings.patience:
            break
    best = max(scores, key=lambda each: (scores[each], each == current))
    modes = config.evaluate.modes
    wanted = [(each, mode) for each in dict.fromkeys((start, *scores)) for mode in modes]
    rows = measure(
        config, run, progress, [(each, mode) for each, mode in wanted if mode == "greedy" or each in (start, best)]
    )
    run.finish("adapt", {"rounds": len(course), "best": best.name})
    report(config, run, rows)
    return rows


def choose_tasks(searched: dict[int, Searched], count: int, share: float) -> tuple[list[int], list[int], list[int]]:
    """Tasks of the next round: new ones, those to search again, and of these apart the ones that no search solved.

    A task is worth another search in proportion to how much its returns differ (the variance of a group of rollouts is
    DreamGym's measure of a task's value): at most ``share`` of ``count`` are searched again, those of widest spread.
    """
    promising = [place for place in sorted(searched, key=lambda each: -searched[each].spread) if searched[place].spread]
    again = promising[: int(share * count)]
    first = 1 + max(searched, default=-1)
    new = list(range(first, first + count - len(again)))
    return (
        new,
        sorted(place for place in again if searched[place].solved),
        sorted(place for place in again if not searched[place].solved),
    )


def scaled(limits: Limits, factor: float) -> Limits:
    """All limits times ``factor``."""
    given = {each.name: getattr(limits, each.name) for each in fields(limits)}
    return Limits(**{name: None if value is None else type(value)(factor * value) for name, value in given.items()})


def _name(number: int) -> str:
    """Of a round's shards, and of the stage that searches them."""
    return f"{COLLECTED}-{number}"


def _collect(config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int) -> None:
    if run.is_done(_name(number)):
        return
    searched: dict[int, Searched] = {}
    for earlier in range(1, number):
        searched.update(_what_was_searched(run, earlier))
    new, again, hard = choose_tasks(searched, config.collect.tasks, config.adapt.curriculum)
    search = replace(config.search, limits=scaled(config.search.limits, config.adapt.effort))
    jobs: list[WaveJob] = []
    for settings, tasks in ((config, [*again, *new]), (replace(config, search=search), hard)):
        jobs += waves(settings, run, checkpoint, _name(number), tasks, first=len(jobs))
    search_waves(config, run, progress, jobs)


def _what_was_searched(run: Run, number: int) -> Iterator[tuple[int, Searched]]:
    """By place in the training split, what a round's trees show of each task."""
    name = _name(number)
    for index, places in enumerate(run.facts(name)["waves"]):
        for place, tree in zip(places, read_as(from_record, run.trees, name, index), strict=True):
            yield place, Searched(return_spread(tree), solved(tree))


def _update(
    config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int, names: Sequence[str]
) -> Path:
    """The round's updates, one on the other's weights. One that finds nothing to learn leaves the policy as it is."""
    for method in config.adapt.methods:
        out = run.checkpoints / f"round-{number}-{method}"
        if "skipped" in run.stages().get(out.name, {}):
            continue
        try:
            [checkpoint] = learn(config, run, progress, [(checkpoint, method, out)], names)
        except Refused as reason:
            progress.warn(f"round {number} learns nothing by {method}: {reason}")
            run.finish(out.name, {"skipped": str(reason)})
    return checkpoint


def _score(run: Run, checkpoint: Path) -> dict[str, float]:
    """Greedy success on the validation tasks of the weights that the round's last update kept."""
    update: dict[str, Any] = run.stages().get(checkpoint.name, {}).get("update", {})
    validation = update.get("best_validation")
    return {} if validation is None else {"validation": validation}


def _spent(run: Run, number: int) -> dict[str, float]:
    """What searching has cost so far."""
    facts = [run.facts(_name(each)) for each in range(1, number + 1)]
    counted = ("environment_steps", "generated_tokens", "simulations")
    return {name: sum(each[name] for each in facts) for name in counted}


def _warn(run: Run, progress: Progress, course: Sequence[dict[str, float]], number: int) -> None:
    trained = [row for row in run.metrics() if str(row["stage"]).startswith(f"round-{number}-")]
    for sentence in [*alarms(course), *training_alarms(trained)]:
        progress.warn(f"round {number}: {sentence}")


def _stale(scores: Sequence[float]) -> int:
    """Rounds since the best one."""
    return len(scores) - 1 - scores.index(max(scores))
