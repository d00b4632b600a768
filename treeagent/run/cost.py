"""What a run costs before it is made: formulas of its settings and of a few rates, without torch or a model.

Units: tokens, environment steps, seconds, bytes. Rates come from a short measurement (``stages/measure.py``) or from
the formulas of this module (``modelled``).

Sources: 6 floating-point operations a weight and trained token, 2 a token that is only read (Kaplan et al. 2020,
section 2.1); a step of decoding reads all weights and the keys and values before it once (Pope et al. 2022, section 2);
AdamW keeps two numbers of 4 bytes a trained weight (Loshchilov and Hutter 2019); what a layer keeps for the backward
pass was counted in a Llama layer of transformers, as Korthikanti et al. 2022 (section 4) count it for GPT.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from treeagent.config import Method, Mode, RunConfig, UpdateTraining

Kind = Literal["quickstart", "train"]
STAGES = ("demonstrations", "warm start", "search", "value head", "updates", "evaluation")
"""The stages of a run, in their order."""
_COPIES = 2
"""Copies of the trained weights that a training keeps: the best and the last finite ones."""
_DECODE_SECONDS = 3e-3
"""What a step of decoding takes beside its arithmetic: launches and sampling, derived for one GPU."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Seconds of a job on n items: ``fixed`` + ``each`` n."""

    fixed: float
    each: float

    def __call__(self, items: float) -> float:
        return self.fixed + self.each * items

    @classmethod
    def through(cls, *points: tuple[float, float]) -> "Affine":
        """The line through (items, seconds) of the last two points, whose parts are not negative; through the origin
        where there is one point."""
        (most, last), *before = reversed(points)
        if not before or before[0][0] >= most:
            return cls(0.0, last / most)
        fewer, first = before[0]
        each = min(max((last - first) / (most - fewer), 0.0), last / most)
        return cls(last - each * most, each)


@dataclass(frozen=True, slots=True)
class PlayRate:
    """What a task costs that is searched or played: means over tasks."""

    generated_tokens: float
    environment_steps: float
    seconds: Affine
    """Of a batch of n tasks, while all workers are busy."""


@dataclass(frozen=True, slots=True)
class TrainRate:
    """What an optimiser step costs."""

    step_tokens: float
    step_seconds: float
    steps_per_epoch: float = 0.0
    """Where ``max_steps`` is unset; for an update, by the trees of the whole run."""
    fixed_seconds: float = 0.0
    """Loading, preparing rows, saving, the fit of the value head."""


@dataclass(frozen=True, slots=True)
class Rates:
    """All that ``stage_costs`` needs to know beside the settings."""

    search: PlayRate
    modes: Mapping[Mode, PlayRate]
    updates: Mapping[Method, TrainRate]
    warm: TrainRate | None = None
    """None where the run starts from a checkpoint."""
    demonstration_seconds: Affine = Affine(0.0, 0.0)
    """Of n demonstrations, played and tokenised."""
    demonstration_steps: float = 0.0
    value_seconds: float = 0.0
    """The fit of the base policy's value head."""
    start_seconds: float = 0.0
    """Until the workers are there; during a warm start nobody waits for them."""

    def without_warm_start(self) -> "Rates":
        """Those of a run that starts from a checkpoint."""
        return replace(self, warm=None)


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage of a run costs."""

    name: str
    """One of ``STAGES``."""
    round: int = 0
    """Of search-and-adapt, from 1 on; 0 outside of its rounds."""
    generated_tokens: float = 0.0
    trained_tokens: float = 0.0
    environment_steps: float = 0.0
    seconds: float = 0.0


def stage_costs(config: RunConfig, kind: Kind, rates: Rates) -> list[StageCost]:
    """The stages of a run in their order. Their seconds add up to the run's.

    With ``adapt.lag``, updates count as far as they take longer than the search beside them, as if neither slowed the
    other. Rounds in a world model, variations of tasks, larger limits for unsolved tasks and resampled trees are
    counted as plain searches of ``collect.tasks`` tasks. A training that stops early is counted with all of its steps.
    """
    found = list[StageCost]()
    if rates.warm is not None:
        count, warm = config.warm_start.episodes, rates.warm
        steps = config.warm_start.training.max_steps or config.training.epochs * warm.steps_per_epoch
        found += [
            StageCost(
                "demonstrations",
                environment_steps=count * rates.demonstration_steps,
                seconds=rates.demonstration_seconds(count),
            ),
            StageCost(
                "warm start",
                trained_tokens=steps * warm.step_tokens,
                seconds=warm.fixed_seconds + steps * warm.step_seconds,
            ),
        ]
    if kind == "quickstart":
        found.append(_search(config, rates, 0))
        found.append(StageCost("value head", seconds=rates.value_seconds))
        found.append(_updates(config, rates, config.update.methods, 0, together=True))
        first, *_ = config.evaluate.modes
        played: list[Mode] = [*config.evaluate.modes, *[first] * len(config.update.methods)]
    else:
        for number in range(1, config.adapt.rounds + 1):
            updates = _updates(config, rates, config.adapt.methods, number, together=False)
            if config.adapt.lag and number < config.adapt.rounds:
                beside = _search(config, rates, number + 1).seconds
                updates = replace(updates, seconds=max(updates.seconds - beside, 0.0))
            found += [_search(config, rates, number), updates]
        # The first and the best policy play in every mode, the others greedily; the last round's is taken for the best.
        greedy: list[Mode] = ["greedy"] if "greedy" in config.evaluate.modes else []
        played = [*config.evaluate.modes * 2, *greedy * (config.adapt.rounds - 1)]
    found.append(_evaluation(config, rates, played))
    return found


def _search(config: RunConfig, rates: Rates, number: int) -> StageCost:
    tasks, rate = config.collect.tasks, rates.search
    seconds = makespan([rate.seconds(each) for each in parts(tasks, config.collect.batch)], config.workers)
    return StageCost(
        "search",
        number,
        generated_tokens=tasks * rate.generated_tokens,
        environment_steps=tasks * rate.environment_steps,
        seconds=seconds + (rates.start_seconds if number <= 1 and rates.warm is None else 0.0),
    )


def _updates(config: RunConfig, rates: Rates, methods: Sequence[Method], number: int, *, together: bool) -> StageCost:
    jobs, trained, greedy = list[float](), 0.0, rates.modes["greedy"]
    count = config.update.validation_tasks
    validations = 0
    for method in methods:
        training, rate = _training(config, method), rates.updates[method]
        steps = training.max_steps or math.ceil(config.training.epochs * rate.steps_per_epoch)
        checks = 1 + math.ceil(steps / training.validate_every)
        validations += checks
        trained += steps * rate.step_tokens * config.update.processes
        jobs.append(rate.fixed_seconds + steps * rate.step_seconds + checks * greedy.seconds(count))
    workers = config.workers if together and config.update.processes == 1 else 1
    return StageCost(
        "updates",
        number,
        generated_tokens=validations * count * greedy.generated_tokens,
        trained_tokens=trained,
        environment_steps=validations * count * greedy.environment_steps,
        seconds=makespan(jobs, workers),
    )


def _training(config: RunConfig, method: Method) -> UpdateTraining:
    training: UpdateTraining = getattr(config.update, method)
    return training


def _evaluation(config: RunConfig, rates: Rates, played: Sequence[Mode]) -> StageCost:
    tasks = config.evaluate.tasks
    longest_first = sorted(played, key=lambda mode: mode == "greedy")
    jobs = [rates.modes[mode].seconds(each) for mode in longest_first for each in parts(tasks, config.collect.batch)]
    return StageCost(
        "evaluation",
        generated_tokens=tasks * sum(rates.modes[mode].generated_tokens for mode in played),
        environment_steps=tasks * sum(rates.modes[mode].environment_steps for mode in played),
        seconds=makespan(jobs, config.workers),
    )


def parts(count: int, size: int) -> list[int]:
    """``count`` items in batches of ``size``; the last one may be smaller."""
    return [min(size, count - start) for start in range(0, count, size)]


def makespan(jobs: Sequence[float], workers: int) -> float:
    """Seconds until all jobs are done, each given to the first worker that is free, in their order."""
    free = [0.0] * max(workers, 1)
    for seconds in jobs:
        place = free.index(min(free))
        free[place] += seconds
    return max(free)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a language model on which time and memory depend."""

    weights: int
    trained: int
    """Weights that an update trains: all, or the adapter's."""
    layers: int
    width: int
    """Hidden size."""
    inner: int
    """Width of the feed-forward part (of one expert, times the experts that a token uses)."""
    keys: int
    """Width of the keys of a layer: key-value heads times their width."""
    vocabulary: int
    weight_bytes: int = 4
    """Bytes of a weight where the policy samples."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.layers * self.keys * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do."""

    name: str
    flops: float
    """Floating-point operations a second that a large matrix product reaches."""
    bandwidth: float
    """Bytes a second."""
    memory: float
    """Bytes; 0 where unknown."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an episode looks like, in tokens and steps."""

    root_tokens: float
    turn_tokens: float
    observation_tokens: float
    steps: float

    @property
    def episode_tokens(self) -> float:
        return self.root_tokens + self.steps * (self.turn_tokens + self.observation_tokens)

    @classmethod
    def assumed(cls, config: RunConfig) -> "Shape":
        """Without a measurement. A pretrained model is told the format and the tools, and thinks; a model from scratch
        writes the shortest turns. An episode takes half of the steps that it may take, within
        ``warm_start.max_tokens``."""
        policy, steps = config.policy, max(config.environment.max_steps / 2, 1.0)
        if policy.model is not None:
            return cls(800.0, min(100.0, policy.max_new_tokens), 150.0, steps)
        turn = min(12.0, policy.max_new_tokens)
        episode = config.warm_start.max_tokens * 0.75
        return cls(episode / (steps + 1), turn, max(episode / (steps + 1) - turn, 1.0), steps)


@dataclass(frozen=True, slots=True)
class TreeCost:
    """What the tree of one task costs, from its limits."""

    generated_tokens: float
    encoded_tokens: float
    environment_steps: float


def tree_cost(config: RunConfig, mode: Mode, shape: Shape) -> TreeCost:
    """N trees of S simulations generate N S e K T tokens, where e K T is a simulation's: one candidate of T tokens
    where PUCT widens, K at half of the simulations where every new state gets K. The first limit ends a tree. Each
    simulation takes at most one new step; a sampled episode (best-of-N, chains) takes all of its steps. With a prefix
    cache a tree encodes its root and each observation once."""
    if mode == "greedy":
        steps = shape.steps
        return TreeCost(steps * shape.turn_tokens, shape.root_tokens + steps * shape.observation_tokens, steps)
    search = config.search
    limits = search.limits
    whole_episodes = mode in ("best_of_n", "random_expand")
    widened = mode in ("mcts", "ab_mcts") and search.selection == "puct" and search.widening
    per_simulation = shape.steps if whole_episodes else float(search.widening) if widened else search.candidates / 2
    tokens, steps = per_simulation * shape.turn_tokens, shape.steps if whole_episodes else 1.0
    simulations = config.evaluate.best_of if mode == "best_of_n" else limits.simulations
    bounds = [float(simulations)] if simulations is not None else []
    bounds += [limits.generated_tokens / tokens] if limits.generated_tokens is not None else []
    bounds += [limits.environment_steps / steps] if limits.environment_steps is not None else []
    count = min(bounds, default=0.0)
    return TreeCost(count * tokens, shape.root_tokens + count * steps * shape.observation_tokens, count * steps)


def modelled(config: RunConfig, shape: Shape, size: ModelSize, device: Device, step_seconds: float = 0.0) -> Rates:
    """Rates by formulas alone.

    Args:
        step_seconds: of a step of the environment, in seconds.
    """
    read = 2 * size.weights / device.flops
    batch = min(config.collect.batch, config.collect.tasks)
    rows = min(batch, 128) * (1 if config.search.widening else config.search.candidates)
    pass_seconds = (
        max(
            (size.weights * size.weight_bytes + rows * shape.episode_tokens * size.token_bytes) / device.bandwidth,
            rows * read,
        )
        + _DECODE_SECONDS
    )

    def play(mode: Mode, replays: int = 0) -> PlayRate:
        cost = tree_cost(config, mode, shape)
        steps = cost.environment_steps * (1 + replays)  # as if every step of a tree belonged to a plan that is replayed
        seconds = cost.generated_tokens * pass_seconds / rows + cost.encoded_tokens * read + steps * step_seconds
        return PlayRate(cost.generated_tokens, steps, Affine(0.0, seconds))

    def train(training: object, tokens: float) -> TrainRate:
        rows = getattr(training, "batch_size") * config.training.accumulation  # noqa: B009
        step_tokens = rows * tokens
        recomputed = 8 if config.training.gradient_checkpointing else 6
        per_epoch = config.collect.tasks / rows
        return TrainRate(step_tokens, recomputed * size.weights * step_tokens / device.flops, per_epoch)

    modes: dict[Mode, PlayRate] = {
        mode: play(mode, 0 if mode in ("greedy", "lookahead") else config.evaluate.replays)  # these have one plan
        for mode in {"greedy", *config.evaluate.modes}
    }
    methods: set[Method] = {*config.update.methods, *config.adapt.methods}
    pairs = {"dpo": 2.0}
    episode = min(shape.episode_tokens, config.warm_start.max_tokens)
    warm = train(config.warm_start.training, episode)
    shot = shape.steps * step_seconds
    return Rates(
        search=play(config.search.method),
        modes=modes,
        updates={
            method: train(_training(config, method), pairs.get(method, 1.0) * shape.episode_tokens)
            for method in methods
        },
        warm=TrainRate(
            warm.step_tokens,
            warm.step_seconds,
            config.warm_start.episodes / (config.warm_start.training.batch_size * config.training.accumulation),
        ),
        demonstration_seconds=Affine(0.0, shot),
        demonstration_steps=shape.steps,
        value_seconds=config.update.value_rows * shape.episode_tokens * read,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one process needs at its largest, by part."""

    name: str
    """"search" or the update's method, or "warm start"."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def bytes(self) -> float:
        return sum(self.parts.values())


def search_memory(config: RunConfig, size: ModelSize, whole: float) -> Memory:
    """A worker that searches. Beside an engine or a server, a value head on hidden states reads a second copy of the
    model.

    Args:
        whole: memory of the device in bytes. A vLLM engine takes ``vllm.gpu_memory_utilization`` of it.
    """
    policy = config.policy
    needed: dict[str, float] = {}
    if policy.generator == "local":
        needed["weights"] = size.weights * size.weight_bytes
        needed["keys and values"] = policy.cache_bytes
        needed["logits"] = 128 * size.vocabulary * 4
    elif policy.generator == "vllm":
        needed["engine"] = max(config.vllm.gpu_memory_utilization * whole, size.weights * size.weight_bytes)
    if policy.generator != "local" and config.value_reads == "hidden":
        needed["head's copy of the weights"] = size.weights * size.weight_bytes
        needed["head's keys and values"] = policy.cache_bytes
    return Memory("search", needed)


def training_memory(config: RunConfig, name: str, size: ModelSize, rows: int, row_tokens: float) -> Memory:
    """A process that trains ``rows`` rows of ``row_tokens`` tokens in a forward pass.

    Weights that are all trained are in 4 bytes; beside an adapter the others keep their own number format. A training
    keeps gradients, AdamW's two moments and two copies of what is trained. A layer keeps about 10 vectors of the hidden
    size, 4 of the inner one and 4 of the keys' for each token; with checkpointing it keeps its input alone, and one
    layer at a time is computed again. The language-model head is computed in blocks of tokens (TRL's fused head).
    """
    adapted = size.trained < size.weights
    number = 2 if config.training.precision == "bfloat16" else 4
    tokens = rows * row_tokens
    layer = (10 * size.width + 4 * size.inner + 4 * size.keys) * number
    kept = size.layers * size.width * number + layer if config.training.gradient_checkpointing else size.layers * layer
    return Memory(
        name,
        {
            "weights": size.weights * (size.weight_bytes if adapted else 4),
            "gradients": 4 * size.trained,
            "optimiser": 8 * size.trained,
            "copies of trained weights": 4 * _COPIES * size.trained,
            "activations": tokens * kept,
        },
    )


def needed(
    config: RunConfig, kind: Kind, size: ModelSize, rates: Rates, whole: float = 0.0
) -> list[tuple[Memory, int]]:
    """What the processes of a run need that are on one device at a time, and how many of each there are. Workers of a
    CPU share its memory; on GPUs, each is taken to have its own.

    Args:
        whole: as of ``search_memory``.
    """
    on_cpu = config.policy.device_map in (None, "cpu") and config.engine == "local"
    searching = search_memory(config, size, whole)
    found = [(searching, config.workers if on_cpu else 1)] if searching.parts else []  # else a server holds it all
    accumulation = config.training.accumulation
    if rates.warm is not None:
        rows = config.warm_start.training.batch_size
        tokens = rates.warm.step_tokens / (rows * accumulation)
        found.append((training_memory(config, "warm start", size, rows, tokens), 1))
    methods = config.update.methods if kind == "quickstart" else config.adapt.methods
    together = min(config.workers, len(methods)) if on_cpu and kind == "quickstart" else 1
    for method in methods:
        rows, rate = _training(config, method).batch_size, rates.updates[method]
        memory = training_memory(config, method, size, rows, rate.step_tokens / (rows * accumulation))
        found.append((memory, together))
    return found


def fitting(config: RunConfig, memory: Callable[[RunConfig], float], room: float, table: str) -> list[str]:
    """The settings under which a training fits into ``room`` bytes, those that change nothing of the result first;
    empty where nothing here helps.

    Args:
        memory: bytes that the training needs under some settings.
        table: dotted key of the training's own settings, such as "update.rft".
    """
    chosen = dict[str, Any]()
    section, name = table.rsplit(".", 1)

    def changed() -> RunConfig:
        training = replace(
            config.training,
            **{key.removeprefix("training."): value for key, value in chosen.items() if key.startswith("training.")},
        )
        outer = getattr(config, section)
        own = getattr(outer, name)
        rows = chosen.get(f"{table}.batch_size", own.batch_size)
        return replace(config, training=training, **{section: replace(outer, **{name: replace(own, batch_size=rows)})})

    def fits() -> bool:
        return memory(changed()) <= room

    rows, accumulation = getattr(getattr(config, section), name).batch_size, config.training.accumulation
    if not config.training.gradient_checkpointing:
        chosen["training.gradient_checkpointing"] = True
    least = 2 if name == "grpo" else 1
    while not fits() and rows // 2 >= least and rows % 2 == 0:
        rows, accumulation = rows // 2, accumulation * 2
        chosen |= {f"{table}.batch_size": rows, "training.accumulation": accumulation}
    if not fits() and config.training.precision == "float32":
        chosen["training.precision"] = "bfloat16"
    if not fits():
        return []
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()]


def priced(stages: Sequence[StageCost], per_hour: float) -> tuple[float, float]:
    """Hours of a run, and their price at ``per_hour`` for all of its machines together."""
    hours = sum(stage.seconds for stage in stages) / 3600
    return hours, hours * per_hour
