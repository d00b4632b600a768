"""A round of search-and-adapt: which tasks to search, what to learn from, and the figures and alarms of its course.

A share of the trees may grow in a world model, refitted every round, as far as its audit allows; a share of the tasks
may be harder variations of earlier ones.
"""

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.config import RunConfig
from treeagent.envs.base import Env
from treeagent.imagination.load import make_encoder
from treeagent.run.alarms import alarms, imagination_alarms, training_alarms
from treeagent.run.folder import COLLECTED, Run
from treeagent.run.progress import Progress
from treeagent.run.trees import read_trees
from treeagent.search.limits import Limits
from treeagent.search.node import accuracy, return_spread
from treeagent.search.record import from_record, to_record
from treeagent.stages.audit import audit_world
from treeagent.stages.build import environment, variations
from treeagent.stages.improvement import change, scorer
from treeagent.stages.search import BatchJob, batches, search_batches
from treeagent.stages.update import learn, refuse_held
from treeagent.stages.warm_start import warm_start
from treeagent.stages.world import fit, imagined_trees
from treeagent.store import read_as, shards, write_shard
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.figures import tree_figures
from treeagent.world_model.fidelity import improvement_bound


@dataclass(frozen=True, slots=True)
class Searched:
    """What the last search of a task has shown."""

    spread: float
    """Standard deviation of its returns."""
    accuracy: float
    """Share of finished paths that returned 1."""


@dataclass(slots=True)
class Course:
    """What the rounds so far have come to, one entry a round."""

    figures: list[dict[str, float]] = field(default_factory=list)
    """``tree_figures`` of each round, with ``validation`` where its update was validated."""
    policies: list[Path] = field(default_factory=list)
    """The checkpoint after each round; the same twice where a round learnt nothing."""

    @property
    def scores(self) -> list[float]:
        """Validation of each round, 0 where there was none."""
        return [figures.get("validation", 0.0) for figures in self.figures]

    @property
    def best(self) -> Path:
        """The checkpoint of highest validation; of equal ones the last policy, then the first."""
        last = dict(zip(self.policies, self.scores, strict=True))
        return max(last, key=lambda policy: (last[policy], policy == self.policies[-1]))


def begin(config: RunConfig, run: Run, progress: Progress, checkpoint: Path | None) -> Path:
    """Check what the rounds will need, and make the policy that they begin with. Where the first round imagines, also
    search the tasks that the first world model learns from.

    Raises:
        UserError, ValueError: as ``loop.train``.
    """
    settings = config.adapt
    refuse_held(config, settings.methods)
    _check_tasks(config)  # fails now rather than in the last round
    checkpoint = checkpoint or run.taken("start")
    if checkpoint:
        run.take("start", checkpoint)
    start = checkpoint or warm_start(config, run, progress)
    if settings.imagines:
        make_encoder(config, _world_folder(run, 1))  # fails now rather than after a search
    if settings.imagined_in(1):
        search_batches(config, run, progress, batches(config, run, start, _round_name(0), range(settings.seed_tasks)))
    return start


def names_to_learn_from(config: RunConfig, run: Run, number: int) -> list[str]:
    """Names of the shards of a round and of the ``adapt.replay`` rounds before it, the newest first."""
    first = max(number - config.adapt.replay, 0)
    return [name for earlier in range(number, first - 1, -1) for name in _round_parts(run, earlier)]


def finish_round(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updated: Path,
    number: int,
    audit: Mapping[str, float],
    course: Course,
) -> None:
    """Log the figures of a round, add them to the course, and raise the alarms that it gives."""
    figures = tree_figures(read_trees(run.trees, [_round_name(number)])) | _validation(run, updated)
    believed = tree_figures(read_trees(run.trees, [imagined_trees(number)]))
    imagined = {f"imagined/{name}": figure for name, figure in believed.items()}
    imagined |= _kept(run, number) | _guarantee(config, run, updated, number, audit)
    course.figures.append(figures)
    course.policies.append(updated)
    run.log("adapt", {"step": number, **figures, **_spent(run, number), **audit, **imagined})
    _warn(config, run, progress, course.figures, number, audit)


def choose_tasks(searched: dict[int, Searched], count: int, share: float) -> tuple[list[int], list[int], list[int]]:
    """Tasks of the next round: new ones, those to search again, and of these apart the ones that no search solved.

    A task is worth another search in proportion to how much its returns differ (the variance of a group of rollouts is
    DreamGym's measure of a task's value): at most ``share`` of ``count`` are searched again, those of widest spread.
    """
    promising = [place for place in sorted(searched, key=lambda each: -searched[each].spread) if searched[place].spread]
    again = promising[: part(share, count)]
    first = 1 + max(searched, default=-1)
    new = list(range(first, first + count - len(again)))
    return (
        new,
        sorted(place for place in again if searched[place].accuracy),
        sorted(place for place in again if not searched[place].accuracy),
    )


def choose_variants(
    searched: Mapping[int, Searched], variants: Mapping[int, Sequence[int]], count: int, turn: int
) -> list[tuple[int, int]]:
    """At most ``count`` variations to search, each as the place of its task and its number, one of the task's
    ``variants``: of solved tasks, those of widest spread first. Every ``turn`` takes the next variation of a task."""
    solved = [place for place in variants if variants[place] and searched[place].spread and searched[place].accuracy]
    solved.sort(key=lambda place: (-searched[place].spread, place))
    return [(place, variants[place][turn % len(variants[place])]) for place in solved[:count]]


def is_worth_learning(before: float, after: float) -> bool:
    """Whether a variation is to be learned from, given the accuracy on its task and its own: harder, yet solvable
    (DreamGym's curriculum)."""
    return 0 < after < before


def part(share: float, count: int) -> int:
    """``share`` of ``count``, rounded down as in decimals: 0.29 of 100 are 29, though the product of floats is less."""
    return math.floor(round(share * count, 6))


def scaled(limits: Limits, factor: float) -> Limits:
    """All limits times ``factor``."""
    given = {each.name: getattr(limits, each.name) for each in fields(limits)}
    return Limits(**{name: None if value is None else type(value)(factor * value) for name, value in given.items()})


def _check_tasks(config: RunConfig) -> None:
    env, settings = environment(config), config.adapt
    seeding = settings.seed_tasks if settings.imagined_in(1) else 0
    env.tasks("train", 1, settings.rounds * config.collect.tasks + seeding - 1)
    if seeding and env.origin == "imagined":
        raise UserError(
            f"adapt.imagined is {settings.imagined}, but environment {config.environment.name!r} is imagined itself: "
            "set it to 0, or give the real environment"
        )
    if settings.variations and not any(variations(config, env, task) for task in env.tasks("train", 20)):
        raise UserError(
            f"adapt.variations is {settings.variations}, but environment {config.environment.name!r} offers no harder "
            "variations of its tasks: set it to 0, or give the environment Env.variations"
        )


def _round_name(number: int) -> str:
    """Of a round's shards, and of the stage that searches them; number 0 is of what the first world model learns."""
    return f"{COLLECTED}-{number}"


def _varied_name(number: int) -> str:
    """Of variations that are learned from; all that were searched are under another name."""
    return f"{_round_name(number)}-varied"


def _round_parts(run: Run, number: int) -> list[str]:
    """The names of a round's trees."""
    return [name for name in (_round_name(number), imagined_trees(number), _varied_name(number)) if run.is_done(name)]


def audited_share(config: RunConfig, run: Run, progress: Progress, number: int) -> dict[str, float]:
    """Refit and audit the world model on the real steps so far: the share of trees to imagine, and why. Empty where
    none is wanted."""
    wanted = config.adapt.imagined_in(number)
    if not wanted:
        return {}
    stage = f"audit-{number}"
    if not run.is_done(stage):
        last = next(
            (out for each in range(number - 1, 0, -1) if run.is_done((out := _world_folder(run, each)).name)), None
        )
        world = fit(config, run, progress, _world_folder(run, number), last)
        found = audit_world(config, run, world)
        told = {name: getattr(found, name) for name in ("lambda_cap", "optimism", "wrong_episodes")}
        errors = {name: getattr(found.overall, name) for name in ("reward_error", "transition_error")}
        run.finish(stage, {"imagined": min(wanted, found.lambda_cap), **told, **errors})
    return run.facts(stage)


def _world_folder(run: Run, number: int) -> Path:
    return run.checkpoints / f"world-{number}"


def search_round(
    config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int, trust: Mapping[str, float]
) -> None:
    searched, told = _what_was_searched(run, number)
    varied = _variants(config, searched, number)
    new, again, hard = choose_tasks(told, config.collect.tasks - len(varied), config.adapt.curriculum)
    places = [*again, *new, *hard]
    draw = random.Random(derive_seed(config.seed, imagined_trees(number)))
    imagined = set(draw.sample(places, part(trust.get("imagined", 0.0), len(places))))
    real = set(places) - imagined
    # Trees of one path are what verification leaves of many, and no reason to search further tasks.
    once = replace(config, collect=replace(config.collect, resample=0))
    jobs = _jobs(config, run, checkpoint, _round_name(number), [*again, *new], hard, real)
    _search(config, run, progress, jobs, free=1 + max([*places, *told]))
    jobs = _jobs(config, run, checkpoint, imagined_trees(number), [*again, *new], hard, imagined)
    _search(once, run, progress, [replace(job, world=_world_folder(run, number)) for job in jobs])
    _vary(once, run, progress, checkpoint, number, varied, searched)


def _jobs(
    config: RunConfig,
    run: Run,
    checkpoint: Path,
    name: str,
    tasks: Sequence[int],
    hard: Sequence[int],
    of: Collection[int],
) -> list[BatchJob]:
    """Batches over those tasks that are ``of`` this collection, the ``hard`` ones with more effort."""
    patient = replace(config, search=replace(config.search, limits=scaled(config.search.limits, config.adapt.effort)))
    jobs: list[BatchJob] = []
    for settings, places in ((config, tasks), (patient, hard)):
        jobs += batches(settings, run, checkpoint, name, [each for each in places if each in of], first=len(jobs))
    return jobs


def _search(config: RunConfig, run: Run, progress: Progress, jobs: Sequence[BatchJob], free: int = 0) -> None:
    if jobs:
        search_batches(config, run, progress, jobs, free)


def _what_was_searched(run: Run, number: int) -> tuple[dict[int, Searched], dict[int, Searched]]:
    """By place in the training split, what the trees before a round show of each task: those that were searched for
    real, and all, where imagination has the word on the others alone."""
    real: dict[int, Searched] = {}
    imagined: dict[int, Searched] = {}
    for earlier in range(number):
        real.update(_shown(run, _round_name(earlier)))
        imagined.update(_shown(run, imagined_trees(earlier)))
    return real, imagined | real


def _shown(run: Run, name: str) -> Iterator[tuple[int, Searched]]:
    for index, places in enumerate(run.stages().get(name, {}).get("batches", ())):
        for place, tree in zip(places, read_as(from_record, run.trees, name, index), strict=True):
            yield place, Searched(return_spread(tree), accuracy(tree))


def _variants(config: RunConfig, searched: Mapping[int, Searched], number: int) -> list[tuple[int, int]]:
    """The round's harder variations, none of them a task that is held out."""
    count = part(config.adapt.variations, config.collect.tasks)
    if not count:
        return []
    env = environment(config)
    held_out = _held_out(config, env)
    offered = {
        place: [which for which, task in enumerate(variations(config, env, base)) if task.prompt not in held_out]
        for place in searched
        for base in env.tasks("train", 1, place)
    }
    return choose_variants(searched, offered, count, number)


def _held_out(config: RunConfig, env: Env) -> set[str]:
    """Prompts of the tasks that a run validates and evaluates on."""
    kept = chain(env.tasks("validation", config.update.validation_tasks), env.tasks("test", config.evaluate.tasks))
    return {task.prompt for task in kept}


def _vary(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    number: int,
    varied: Sequence[tuple[int, int]],
    searched: Mapping[int, Searched],
) -> None:
    """Search harder variations, and keep as trees to learn from those that turn out harder yet solvable."""
    if not varied or (run.is_done(_varied_name(number)) and shards(run.trees, _varied_name(number))):
        return
    name, size = _all_varied_name(number), config.collect.batch
    jobs = [
        replace(job, variants=[which for _, which in varied[start : start + size]])
        for job, start in zip(
            batches(config, run, checkpoint, name, [place for place, _ in varied]),
            range(0, len(varied), size),
            strict=True,
        )
    ]
    _search(config, run, progress, jobs)
    # A limit of the collection may have left some of them out.
    found = zip(varied, read_trees(run.trees, [name]), strict=False)
    kept = [(place, tree) for (place, _), tree in found if is_worth_learning(searched[place].accuracy, accuracy(tree))]
    write_shard(run.trees, _varied_name(number), 0, (to_record(tree) for _, tree in kept))
    env = environment(config)
    bases = [task.id for place, _ in kept for task in env.tasks("train", 1, place)]
    run.finish(_varied_name(number), {"variations": len(varied), "kept": len(kept), "bases": bases})


def _all_varied_name(number: int) -> str:
    return f"vary-{number}"


def update_round(
    config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int, names: Sequence[str]
) -> Path:
    """The round's updates, one on the other's weights. One that finds nothing to learn leaves the policy as it is.

    Raises:
        UserError: the settings are wrong; the update is not done, and is made once they are mended.
    """
    for method in config.adapt.methods:
        out = run.checkpoints / f"round-{number}-{method}"
        if "skipped" in run.stages().get(out.name, {}):
            continue
        try:
            [checkpoint] = learn(config, run, progress, [(checkpoint, method, out)], names)
        except NothingToLearn as reason:
            sentence = f"round {number} learns nothing by {method}: {reason}"
            progress.warn(sentence)
            run.finish(out.name, {"skipped": True, "alarms": [sentence]})
    return checkpoint


def _validation(run: Run, checkpoint: Path) -> dict[str, float]:
    """Greedy success on the validation tasks of the weights that the round's last update kept."""
    update: dict[str, Any] = run.stages().get(checkpoint.name, {}).get("update", {})
    validation = update.get("best_validation")
    return {} if validation is None else {"validation": validation}


def _spent(run: Run, number: int) -> dict[str, float]:
    """What searching has cost so far, the first world model's steps included."""
    names = [
        name for each in range(number + 1) for name in (_round_name(each), imagined_trees(each), _all_varied_name(each))
    ]
    facts = [found for name, found in run.stages().items() if name in names]
    counted = ("environment_steps", "imagined_steps", "generated_tokens", "simulations")
    return {name: sum(each[name] for each in facts) for name in counted}


def _kept(run: Run, number: int) -> dict[str, float]:
    """CR, the share of a round's imagined successes that kept their word, and the share of variations learned from."""
    imagined, varied = (run.stages().get(name, {}) for name in (imagined_trees(number), _varied_name(number)))
    figures = {"cr": imagined["claims_kept"] / imagined["claims"]} if imagined.get("claims") else {}
    return figures | ({"variations_kept": varied["kept"] / varied["variations"]} if varied else {})


def _guarantee(config: RunConfig, run: Run, updated: Path, number: int, trust: Mapping[str, float]) -> dict[str, float]:
    """What the round's imagined trees guarantee of its update: DreamGym's lower bound and its terms. Empty where none
    grew."""
    stage = f"bound-{number}"
    if run.is_done(imagined_trees(number)) and not run.is_done(stage):
        checkpoint = load_checkpoint(updated, config.policy.dtype, config.policy.device_map)
        score = scorer(checkpoint.model, config.policy.temperature or 1.0)
        low, high = config.environment.returns
        moved, told = change(read_trees(run.trees, [imagined_trees(number)]), score), dict[str, float]()
        if moved is not None:
            found = improvement_bound(
                gain=moved.gain,
                drift=moved.drift,
                reward_error=trust["reward_error"],
                transition_error=trust["transition_error"],
                discount=1 - 1 / config.environment.max_steps,
                reward_max=high - low,
            )
            told = {"bound": found.total} | {f"bound_{name}": term for name, term in asdict(found).items()}
        run.finish(stage, told)
    return run.stages().get(stage, {})


def _warn(
    config: RunConfig,
    run: Run,
    progress: Progress,
    course: Sequence[dict[str, float]],
    number: int,
    trust: Mapping[str, float],
) -> None:
    trained = [row for row in run.metrics() if str(row["stage"]).startswith(f"round-{number}-")]
    trusted = imagination_alarms(config.adapt.imagined_in(number), trust["lambda_cap"]) if trust else []
    raised = [f"round {number}: {sentence}" for sentence in (*alarms(course), *training_alarms(trained), *trusted)]
    for sentence in raised:
        progress.warn(sentence)
    run.finish(f"alarms-{number}", {"alarms": raised})
