"""One round of search-and-adapt: choose tasks, search them, learn from the trees, log figures and raise alarms. A share
of the trees may grow in a world model, which is refitted every round and whose audit limits the share."""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.pipeline.alarms import alarms, imagination_alarms, training_alarms, value_alarms
from treeagent.pipeline.collect import collect
from treeagent.pipeline.folder import COLLECTED, LINKED, Run
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.recipes import find_policy
from treeagent.pipeline.trees import read_trees, stored_trees
from treeagent.pipeline.update import TrainJob, learn
from treeagent.pipeline.warm_start import warm_start
from treeagent.pipeline.world import audit_world, claims_kept, fit, imagined_trees
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.figures import return_spread, tree_figures
from treeagent.views.signal import ValueSignal, signal_figures

_COUNTED = ("environment_steps", "imagined_steps", "generated_tokens", "simulations")


@dataclass(slots=True)
class RoundHistory:
    """The rounds so far."""

    start: Path
    """The checkpoint before the first round."""
    figures: list[dict[str, float]] = field(default_factory=list)
    """``tree_figures`` of each round, and ``validation`` if its update was validated."""
    policies: list[Path] = field(default_factory=list)
    """The checkpoint after each round; one that learnt nothing repeats that of the round before."""
    explained: list[float] = field(default_factory=list)
    """The explained variance of the value head after each round that learnt something."""

    @property
    def best(self) -> Path:
        """The checkpoint with the highest validation success (0 without validation), of equals the last round's, else
        the earliest."""
        scores = dict[Path, float]()
        for policy, figures in zip(self.policies, self.figures, strict=True):
            scores.setdefault(policy, figures.get("validation", 0.0))  # a later round that repeats it did not validate
        return max(scores, key=lambda policy: (scores[policy], policy == self.policies[-1]))


def _round_name(number: int) -> str:
    """The name of a round's trees, and of the stage that searches them. The first world model learns from round 0."""
    return f"{COLLECTED}-{number}"


def first_policy(config: RunConfig, run: Run, progress: Progress, checkpoint: Path | None) -> Path:
    """The policy that a run starts from: ``checkpoint``, or the one that the run was begun with, or
    ``warm_start.checkpoint``, or a warm start."""
    checkpoint = checkpoint or run.recorded_checkpoint("start")
    if checkpoint is None and config.warm_start.checkpoint is not None:
        checkpoint = find_policy(config.warm_start.checkpoint)
    if checkpoint:
        if run.recorded_checkpoint("start") is None and run.is_done("warm_start"):
            raise UserError(
                f"{run.path} was begun with a warm start, not with {checkpoint}: leave the checkpoint out, or choose "
                "another --out"
            )
        run.record_checkpoint("start", checkpoint)
        start = checkpoint
        if re.fullmatch(r"round-\d+-\w+", start.name):  # of another run, with a name that a round of this one takes
            start = run.checkpoints / f"{LINKED}{checkpoint.name}"
            if not start.is_symlink():
                start.symlink_to(checkpoint.resolve(), target_is_directory=True)
        return start
    return warm_start(config, run, progress)


def begin(config: RunConfig, run: Run, progress: Progress, checkpoint: Path | None) -> Path:
    """Make or find the first policy, and search the tasks that a world model of the first round learns from."""
    start = first_policy(config, run, progress, checkpoint)
    if config.adapt.imagined_in(1):
        collect(config, run, progress, start, _round_name(0), range(config.adapt.seed_tasks))
    return start


def audit_before_round(config: RunConfig, run: Run, progress: Progress, number: int) -> dict[str, float]:
    """Refit and audit the world model. Returns the share of trees to grow in it (``imagined``) and the audit's
    figures; nothing if the settings ask for no imagined trees in this round."""
    requested, stage = config.adapt.imagined_in(number), f"audit-{number}"
    if not requested:
        return {}
    if not run.is_done(stage):
        earlier = (_world_folder(run, each) for each in range(number - 1, 0, -1))
        last = next((out for out in earlier if run.is_done(out.name)), None)
        audit = audit_world(config, run, fit(config, run, progress, _world_folder(run, number), last))
        figures = {name: getattr(audit, name) for name in ("lambda_cap", "optimism", "wrong_episodes", "wrong_unseen")}
        errors = {name: getattr(audit.overall, name) for name in ("reward_error", "transition_error")}
        run.finish(stage, {"imagined": min(requested, audit.lambda_cap), **figures, **errors})
    return run.facts(stage)


def _world_folder(run: Run, number: int) -> Path:
    return run.checkpoints / f"world-{number}"


def search_round(
    config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int, audit: Mapping[str, float]
) -> None:
    """Choose a round's tasks, and search them in the environment and, as the audit allows, in the world model."""
    new, again = choose_tasks(_spreads(run, number), config.collect.tasks, config.adapt.curriculum)
    places = [*again, *new]
    draw = random.Random(derive_seed(config.seed, imagined_trees(number)))
    imagined = set(draw.sample(places, _part(audit.get("imagined", 0.0), len(places))))
    real = [place for place in places if place not in imagined]
    collect(config, run, progress, checkpoint, _round_name(number), real)
    dreamt, world = [place for place in places if place in imagined], _world_folder(run, number)
    collect(config, run, progress, checkpoint, imagined_trees(number), dreamt, world)


def choose_tasks(spreads: Mapping[int, float], count: int, share: float) -> tuple[list[int], list[int]]:
    """Choose the tasks of the next round, by their indices in the training split: (new, again). Those of the largest
    ``spreads`` (standard deviation of a tree's returns) are repeated, at most ``share`` of ``count`` (DreamGym)."""
    varying = [place for place in sorted(spreads, key=lambda each: -spreads[each]) if spreads[place]]
    again = sorted(varying[: _part(share, count)])
    first = 1 + max(spreads, default=-1)
    return list(range(first, first + count - len(again))), again


def _part(share: float, count: int) -> int:
    """``share`` of ``count``, rounded down; first to six decimals, because 0.29 * 100 < 29 in floating point."""
    return math.floor(round(share * count, 6))


def _spreads(run: Run, number: int) -> dict[int, float]:
    """The spread of the returns in the last search of each task before a round, by the task's index in the training
    split. A search in the environment counts before one in the world model."""
    names = [make(earlier) for make in (imagined_trees, _round_name) for earlier in range(number)]
    trees = (tree for name in names for tree in stored_trees(run.trees, name))
    return {tree.place: return_spread(tree) for tree in trees if tree.place is not None}


def update_round(config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int) -> Path:
    """Run the updates of a round, each from the checkpoint of the one before. Returns the last checkpoint."""
    names = names_to_learn_from(config, run, number)
    for method in config.adapt.methods:
        out = run.checkpoints / f"round-{number}-{method}"
        if "skipped" in run.stages().get(out.name, {}):
            continue
        try:
            [checkpoint] = learn(config, run, progress, [TrainJob(config, checkpoint, method, run.trees, names, out)])
        except NothingToLearn as reason:
            sentence = f"round {number} learns nothing by {method}: {reason}"
            progress.warn(sentence)
            run.finish(out.name, {"skipped": True, "alarms": [sentence]})
    return checkpoint


def names_to_learn_from(config: RunConfig, run: Run, number: int) -> list[str]:
    """Names of the trees that a round learns from, newest first: its own and those of ``adapt.replay`` before it."""
    rounds = range(number, max(number - config.adapt.replay, 0) - 1, -1)
    names = (name for each in rounds for name in (_round_name(each), imagined_trees(each)))
    return [name for name in names if run.is_done(name)]


def finish_round(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updated: Path,
    number: int,
    audit: Mapping[str, float],
    history: RoundHistory,
) -> None:
    """Log a round's figures, add them to ``history``, and raise the alarms that follow."""
    stages, figures = run.stages(), tree_figures(read_trees(run.trees, [_round_name(number)]))
    if updated not in history.policies:
        learnt = stages.get(updated.name, {})
        if (best := learnt.get("update", {}).get("best_validation")) is not None:
            figures["validation"] = best
        if "explained_variance" in learnt.get("value", {}):
            history.explained.append(learnt["value"]["explained_variance"])
    history.figures.append(figures)
    history.policies.append(updated)
    imagined = tree_figures(read_trees(run.trees, [imagined_trees(number)]))
    others = {f"imagined/{name}": figure for name, figure in imagined.items()}
    if (cr := claims_kept(run, number)) is not None:
        others["cr"] = cr
    signal = signal_figures(ValueSignal(**row) for row in stages.get(_round_name(number), {}).get("value_signal", ()))
    searched = [name for each in range(number + 1) for name in (_round_name(each), imagined_trees(each))]
    spent = {key: sum(stages[name][key] for name in searched if name in stages) for key in _COUNTED}
    run.log("adapt", {"step": number, **figures, **signal, **spent, **audit, **others})
    updates: dict[str, list[dict[str, float]]] = {f"round-{number}-{method}": [] for method in config.adapt.methods}
    for row in run.metrics():
        if row["stage"] in updates:
            updates[row["stage"]].append(row)
    sentences = [*alarms(history.figures), *chain.from_iterable(map(training_alarms, updates.values()))]
    if len(history.explained) > 1:  # a head fitted to few trees may explain nothing for one round, but not for two
        sentences += value_alarms(history.explained[-2:])
    if audit:
        sentences += imagination_alarms(config.adapt.imagined_in(number), audit["lambda_cap"])
    raised = [f"round {number}: {sentence}" for sentence in sentences]
    for sentence in raised:
        progress.warn(sentence)
    run.finish(f"alarms-{number}", {"alarms": raised})
