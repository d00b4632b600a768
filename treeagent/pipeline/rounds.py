"""One round of search-and-adapt: choose tasks, search them, learn from the trees, log figures and raise alarms.

A share of the trees may grow in a world model. It is refitted every round, and its audit limits the share. A share of
the tasks may be harder variations of solved tasks.
"""

import math
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.contrib.curriculum.stages import choose_stage, curriculum_figures, round_stage
from treeagent.pipeline.alarms import alarms, imagination_alarms, training_alarms, value_alarms
from treeagent.pipeline.build import environment, variations
from treeagent.pipeline.collect import BatchJob, batches, search_batches
from treeagent.pipeline.folder import COLLECTED, Run, RunError, checkpoint_name
from treeagent.pipeline.imagination import make_encoder
from treeagent.pipeline.index import append, tree_rows, write_trees
from treeagent.pipeline.processes import Workers
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import constrain, learn
from treeagent.pipeline.warm_start import warm_start
from treeagent.pipeline.world import claims_kept, fit, imagined_trees
from treeagent.pipeline.world_audit import audit_world
from treeagent.search.node import accuracy
from treeagent.search.record import from_record
from treeagent.store import read_as, shards, write_atomic
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.figures import tree_figures
from treeagent.views.signal import ValueSignal, signal_figures


@dataclass(frozen=True, slots=True)
class Searched:
    """Figures of the last search of a task."""

    spread: float
    """Standard deviation of the returns in its tree."""
    accuracy: float
    """Share of the finished paths that succeed: the undiscounted return is at least 1."""


@dataclass(slots=True)
class RoundHistory:
    """The rounds so far, one entry per round."""

    start: Path
    """The checkpoint before the first round."""
    figures: list[dict[str, float]] = field(default_factory=list)
    """``tree_figures`` of each round, and ``validation`` if its update was validated."""
    policies: list[Path] = field(default_factory=list)
    """The checkpoint after each round. A round that learnt nothing repeats the checkpoint of the round before."""
    explained: list[float] = field(default_factory=list)
    """The explained variance of the value head, one entry for each round that learnt something."""

    @property
    def best(self) -> Path:
        """The checkpoint with the highest validation success; a checkpoint that was not validated counts as 0. Among
        equals, the last round's checkpoint wins, else the earliest."""
        scores = dict[Path, float]()
        for policy, figures in zip(self.policies, self.figures, strict=True):
            scores.setdefault(policy, figures.get("validation", 0.0))  # a later round that repeats it did not validate
        return max(scores, key=lambda policy: (scores[policy], policy == self.policies[-1]))


def begin(config: RunConfig, run: Run, progress: Progress, checkpoint: Path | None) -> Path:
    """Check the settings of all rounds and make the first policy. If the first round grows trees in a world model, also
    search the tasks that the first world model learns from. Raises as ``loop.train``."""
    settings, env = config.adapt, environment(config)
    if settings.imagined_in(1) and env.origin == "imagined":
        raise UserError(
            f"adapt.imagined is {settings.imagined}, but environment {config.environment.name!r} is imagined itself: "
            "set it to 0, or give the real environment"
        )
    if settings.variations and not any(variations(config, env, task) for task in env.tasks("train", 20)):
        raise UserError(
            f"adapt.variations is {settings.variations}, but environment {config.environment.name!r} offers no harder "
            "variations of its tasks: set it to 0, or give the environment Env.variations"
        )
    checkpoint = checkpoint or run.recorded_checkpoint("start")
    if checkpoint:
        if run.recorded_checkpoint("start") is None and run.is_done("warm_start"):
            raise UserError(
                f"{run.path} was begun with a warm start, not with {checkpoint}: leave the checkpoint out, or choose "
                "another --out"
            )
        run.record_checkpoint("start", checkpoint)
    start = _link_with_own_name(checkpoint, run) if checkpoint else warm_start(config, run, progress)
    if settings.imagines:
        make_encoder(config, _world_folder(run, 1))  # an encoder that cannot be loaded fails here, before any search
    if settings.imagined_in(1):
        jobs = batches(config, run, start, _round_name(0), range(settings.seed_tasks))
        search_batches(config, run, progress, jobs, reserved=settings.rounds * config.collect.tasks)
    return start


def _link_with_own_name(start: Path, run: Run) -> Path:
    """The checkpoint to start from. If a round of another run made it, this is a symbolic link to it with another name:
    a round of ``run`` may make a checkpoint of the same name, and evaluations and tables tell policies apart by these
    names."""
    if not re.fullmatch(r"round-\d+-\w+", start.name):
        return start
    link = run.checkpoints / f"start-{start.name}"
    if not link.is_symlink():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(start.resolve(), target_is_directory=True)
    return link


def names_to_learn_from(config: RunConfig, run: Run, number: int) -> list[str]:
    """The names of the stored trees that a round learns from, newest first: those of the round itself and of the
    ``adapt.replay`` rounds before it."""
    rounds = range(number, max(number - config.adapt.replay, 0) - 1, -1)
    names = (name for each in rounds for name in (_round_name(each), imagined_trees(each), _varied_name(each)))
    return [name for name in names if run.is_done(name)]


def warn_failed(progress: Progress, number: int, error: Exception) -> None:
    """Warn that the updates of a round failed while the next round is being searched."""
    progress.warn(f"the updates of round {number} failed; the run ends when the search in progress is done: {error}")


def mean_age(run: Run, names: Collection[str], policies: Sequence[Path]) -> float | None:
    """Mean age of the stored trees with these names, in rounds: how far the policy that grew a tree lies behind the
    last of ``policies``. None without trees.

    Args:
        policies: all policies so far, oldest first.
    """
    ages = {checkpoint_name(policy, run.path): age for age, policy in enumerate(reversed(policies))}
    tree_ages = [ages[row.policy] for name in names for row in tree_rows(run.trees, name) if row.policy in ages]
    return sum(tree_ages) / len(tree_ages) if tree_ages else None


def finish_round(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updated: Path,
    number: int,
    audit: Mapping[str, float],
    history: RoundHistory,
) -> None:
    """Log the figures of a round, add them to ``history``, and raise the alarms that follow from the rounds so far."""
    figures = tree_figures(read_trees(run.trees, [_round_name(number)]))
    learnt = run.stages().get(updated.name, {})
    best_validation = learnt.get("update", {}).get("best_validation")
    if best_validation is not None and updated not in history.policies:
        figures["validation"] = best_validation
    figures |= curriculum_figures(run, number)
    history.figures.append(figures)
    policies = list(dict.fromkeys((history.start, *history.policies)))
    if (age := mean_age(run, names_to_learn_from(config, run, number), policies)) is not None:
        figures["age"] = age
    if updated not in history.policies and "explained_variance" in learnt.get("value", {}):
        history.explained.append(learnt["value"]["explained_variance"])
    history.policies.append(updated)
    imagined = tree_figures(read_trees(run.trees, [imagined_trees(number)]))
    others = {f"imagined/{name}": figure for name, figure in imagined.items()}
    if (cr := claims_kept(run, number)) is not None:
        others["cr"] = cr
    if varied := run.stages().get(_varied_name(number)):
        others["variations_kept"] = varied["kept"] / varied["variations"]
    collected = run.stages().get(_round_name(number), {})
    signal = signal_figures(ValueSignal(**row) for row in collected.get("value_signal", ()))
    run.log("adapt", {"step": number, **figures, **signal, **_spent(run, number), **audit, **others})
    updates: dict[str, list[dict[str, float]]] = {f"round-{number}-{method}": [] for method in config.adapt.methods}
    for row in run.metrics():
        if row["stage"] in updates:
            updates[row["stage"]].append(row)
    # Success on tasks of different stages cannot be compared.
    stage = figures.get("curriculum_stage")
    comparable = [each for each in history.figures if each.get("curriculum_stage") == stage]
    sentences = [*alarms(comparable), *chain.from_iterable(map(training_alarms, updates.values()))]
    if len(history.explained) > 1:  # a head fitted to few trees may explain nothing for one round, but not for two
        sentences += value_alarms(history.explained[-2:])
    if audit:
        sentences += imagination_alarms(config.adapt.imagined_in(number), audit["lambda_cap"])
    raised = [f"round {number}: {sentence}" for sentence in sentences]
    for sentence in raised:
        progress.warn(sentence)
    run.finish(f"alarms-{number}", {"alarms": raised})


def choose_tasks(searched: dict[int, Searched], count: int, share: float) -> tuple[list[int], list[int]]:
    """Choose the tasks of the next round. Returns their indices in the training split: (new, again). The tasks in
    ``again`` are searched once more.

    The more the returns of a task differ, the more another search of it can teach (DreamGym measures a task's value by
    the variance of its rollouts). So the tasks of the largest spread are repeated, at most ``share`` of ``count``.
    """
    varying = [place for place in sorted(searched, key=lambda each: -searched[each].spread) if searched[place].spread]
    again = sorted(varying[: part(share, count)])
    first = 1 + max(searched, default=-1)
    return list(range(first, first + count - len(again))), again


def choose_variants(
    searched: Mapping[int, Searched], variants: Mapping[int, Sequence[int]], count: int, turn: int
) -> list[tuple[int, int]]:
    """Choose at most ``count`` harder variations to search. Returns pairs (index of the task in the training split,
    number of the variation).

    They are variations of solved tasks, in order of decreasing spread. Successive values of ``turn`` take a task's
    ``variants`` in turn.
    """
    solved = [place for place in variants if variants[place] and searched[place].spread and searched[place].accuracy]
    solved.sort(key=lambda place: (-searched[place].spread, place))
    return [(place, variants[place][turn % len(variants[place])]) for place in solved[:count]]


def is_worth_learning(before: float, after: float) -> bool:
    """Whether a variation is harder than its task, yet solvable, so that it is learnt from (DreamGym's curriculum).
    ``before`` is the accuracy on the task, ``after`` the accuracy on the variation."""
    return 0 < after < before


def part(share: float, count: int) -> int:
    """``share`` of ``count``, rounded down. The product is first rounded to six decimals, because 0.29 * 100 is less
    than 29 in floating point."""
    return math.floor(round(share * count, 6))


def scheduled_config(config: RunConfig, run: Run, number: int) -> RunConfig:
    """The settings of round ``number``, with the weights of reward components that its stage and ``rewards.schedule``
    give it."""
    stage = round_stage(run, number)
    rewards = config.rewards if stage is None else config.at_stage(stage).rewards
    return replace(config, rewards=rewards.at((number - 1) / max(config.adapt.rounds - 1, 1)))


def _round_name(number: int) -> str:
    """The name of a round's trees, and of the stage that searches them. The first world model learns from round 0."""
    return f"{COLLECTED}-{number}"


def _varied_name(number: int) -> str:
    """The name of the trees of those variations that are learnt from; ``_all_varied_name`` names those of all searched
    variations."""
    return f"{_round_name(number)}-varied"


def audit_before_round(config: RunConfig, run: Run, progress: Progress, number: int) -> dict[str, float]:
    """Refit and audit the world model on the real steps so far. Returns the share of trees to grow in it (``imagined``)
    and the figures of the audit; empty if the settings ask for no imagined trees in this round."""
    requested = config.adapt.imagined_in(number)
    if not requested:
        return {}
    stage = f"audit-{number}"
    if not run.is_done(stage):
        last = next(
            (out for each in range(number - 1, 0, -1) if run.is_done((out := _world_folder(run, each)).name)), None
        )
        world = fit(config, run, progress, _world_folder(run, number), last)
        audit = audit_world(config, run, world)
        figures = {name: getattr(audit, name) for name in ("lambda_cap", "optimism", "wrong_episodes")}
        errors = {name: getattr(audit.overall, name) for name in ("reward_error", "transition_error")}
        run.finish(stage, {"imagined": min(requested, audit.lambda_cap), **figures, **errors})
    return run.facts(stage)


def _world_folder(run: Run, number: int) -> Path:
    return run.checkpoints / f"world-{number}"


def search_round(
    config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int, audit: Mapping[str, float]
) -> None:
    """Choose the tasks of a round, and search them in the environment and in the world model.

    Args:
        audit: what ``audit_before_round`` returned for this round.
    """
    choose_stage(config, run, progress, checkpoint, number)
    config, stage = scheduled_config(config, run, number), round_stage(run, number)
    tasks_of = None if stage is None else config.at_stage(stage).environment
    newest = run.newest if config.adapt.refresh else None
    searched, all_searched = _searched_tasks(run, number)
    varied = _chosen_variants(config, searched, number)
    new, again = choose_tasks(all_searched, config.collect.tasks - len(varied), config.adapt.curriculum)
    places = [*again, *new]
    draw = random.Random(derive_seed(config.seed, imagined_trees(number)))
    imagined = set(draw.sample(places, part(audit.get("imagined", 0.0), len(places))))

    def jobs(name: str, selected: Sequence[int]) -> list[BatchJob]:
        made = batches(config, run, checkpoint, name, selected)
        return [replace(job, tasks_of=tasks_of, newest=newest) for job in made]

    real_jobs = jobs(_round_name(number), [place for place in places if place not in imagined])
    later = (config.adapt.rounds - number) * config.collect.tasks
    search_batches(config, run, progress, real_jobs, free=1 + max([*places, *all_searched]), reserved=later)
    # Verification leaves many imagined trees with a single path, so equal returns there do not call for more tasks.
    once = replace(config, collect=replace(config.collect, resample=0))
    imagined_places = [place for place in places if place in imagined]
    imagined_jobs = [
        replace(job, world=_world_folder(run, number)) for job in jobs(imagined_trees(number), imagined_places)
    ]
    search_batches(once, run, progress, imagined_jobs)
    _search_variations(once, run, progress, checkpoint, number, varied, searched)


def _searched_tasks(run: Run, number: int) -> tuple[dict[int, Searched], dict[int, Searched]]:
    """The figures of the last search of each task before a round, keyed by the task's index in the training split:
    (tasks searched in the environment, all tasks). For a task that was searched in both, the search in the environment
    counts. With ``adapt.stages``, only rounds of the same stage count, because the index means another task in others.

    Raises:
        RunError: an older version wrote a tree without the index of its task.
    """
    real: dict[int, Searched] = {}
    imagined: dict[int, Searched] = {}
    stage = round_stage(run, number)
    for earlier in range(number):
        if round_stage(run, earlier) != stage:
            continue
        real.update(_search_figures(run, _round_name(earlier)))
        imagined.update(_search_figures(run, imagined_trees(earlier)))
    return real, imagined | real


def _search_figures(run: Run, name: str) -> Iterator[tuple[int, Searched]]:
    """The index of the task of each stored tree with this name, and the figures of that search."""
    for row in tree_rows(run.trees, name):
        if row.place is None:
            raise RunError(
                f"the tree of task {row.task} in {name} does not tell its task's place, because an older version of "
                "treeagent wrote it: begin the run anew"
            )
        yield row.place, Searched(row.spread, row.accuracy)


def _chosen_variants(config: RunConfig, searched: Mapping[int, Searched], number: int) -> list[tuple[int, int]]:
    """Choose the round's harder variations (``choose_variants``), leaving out those with the prompt of a validation or
    test task."""
    count = part(config.adapt.variations, config.collect.tasks)
    if not count:
        return []
    env = environment(config)
    test = config.evaluate
    held_out_tasks = chain(
        env.tasks("validation", config.update.validation_tasks), env.tasks("test", test.tasks, test.first_task)
    )
    held_out = {task.prompt for task in held_out_tasks}
    offered = {
        place: [variant for variant, task in enumerate(variations(config, env, base)) if task.prompt not in held_out]
        for place in searched
        for base in env.tasks("train", 1, place)
    }
    return choose_variants(searched, offered, count, number)


def _search_variations(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    number: int,
    varied: Sequence[tuple[int, int]],
    searched: Mapping[int, Searched],
) -> None:
    """Search harder variations, and keep the trees of those that prove harder than their task, yet solvable."""
    all_name, kept_name = _all_varied_name(number), _varied_name(number)
    if not varied or (run.is_done(kept_name) and shards(run.trees, kept_name)):
        return
    variants = iter([variant for _, variant in varied])
    jobs = batches(config, run, checkpoint, all_name, [place for place, _ in varied])
    newest = run.newest if config.adapt.refresh else None
    jobs = [replace(job, variants=[next(variants) for _ in job.tasks], newest=newest) for job in jobs]
    search_batches(config, run, progress, jobs)
    kept = [
        (place, tree)
        for (place, _), tree in zip(varied, read_as(from_record, run.trees, all_name), strict=True)
        if is_worth_learning(searched[place].accuracy, accuracy(tree))
    ]
    append(run.trees, kept_name, write_trees(run.trees, kept_name, 0, (tree for _, tree in kept)))
    env = environment(config)
    bases = [task.id for place, _ in kept for task in env.tasks("train", 1, place)]
    run.finish(kept_name, {"variations": len(varied), "kept": len(kept), "bases": bases})


def _all_varied_name(number: int) -> str:
    return f"vary-{number}"


def update_round(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    number: int,
    names: Sequence[str],
    worker: Workers | None = None,
) -> Path:
    """Run the updates of a round, each starting from the checkpoint of the one before. An update that finds nothing to
    learn leaves the policy as it is. Returns the last checkpoint.

    Args:
        worker: as for ``learn``.

    Raises:
        UserError: a setting is wrong. The run can be resumed once it is corrected.
    """
    config = scheduled_config(config, run, number)
    before = run.stages().get(f"constraints-{number - 1}", {}).get("multipliers", {})
    multipliers = constrain(config, run, f"constraints-{number}", run.trees, [_round_name(number)], before)
    for method in config.adapt.methods:
        out = run.checkpoints / f"round-{number}-{method}"
        if "skipped" in run.stages().get(out.name, {}):
            continue
        try:
            [checkpoint] = learn(
                config,
                run,
                progress,
                [(checkpoint, method, out)],
                names,
                multipliers=multipliers,
                process_weight=config.search.process_weight,
                worker=worker,
            )
        except NothingToLearn as reason:
            sentence = f"round {number} learns nothing by {method}: {reason}"
            progress.warn(sentence)
            run.finish(out.name, {"skipped": True, "alarms": [sentence]})
    if config.adapt.refresh and checkpoint.parent == run.checkpoints:
        write_atomic(run.newest, checkpoint_name(checkpoint, run.path).encode())
    return checkpoint


def _spent(run: Run, number: int) -> dict[str, float]:
    """What search has cost up to this round, including the trees for the first world model."""
    names = [
        name for each in range(number + 1) for name in (_round_name(each), imagined_trees(each), _all_varied_name(each))
    ]
    facts = [stage_facts for name, stage_facts in run.stages().items() if name in names]
    counted = ("environment_steps", "imagined_steps", "generated_tokens", "simulations")
    return {name: sum(each[name] for each in facts) for name in counted}
