"""Estimate what a run will cost from its settings and a few rates, without torch or a model.

Units: tokens, environment steps, seconds, bytes. Rates come from a short measurement (``stages/measure.py``) or from
the formulas of this module (``modelled_rates``).

Sources: training takes 6 floating-point operations per weight and token, a forward pass alone 2 (Kaplan et al. 2020,
section 2.1); a decoding step reads all weights and all earlier keys and values once (Pope et al. 2022, section 2);
AdamW keeps two numbers of 4 bytes for each trained weight (Loshchilov and Hutter 2019); the activations that a layer
keeps for the backward pass were counted in a Llama layer of transformers, as Korthikanti et al. 2022 (section 4) count
them for GPT.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from treeagent.config import Method, Mode, RunConfig, UpdateTraining

Kind = Literal["quickstart", "train"]
STAGES = ("demonstrations", "warm start", "search", "value head", "updates", "evaluation")
"""The stages of a run, in order."""
_COPIES = 2
"""Copies of the trained weights that a training keeps: the best ones and the last finite ones."""
_DECODE_SECONDS = 3e-3
"""Overhead of a decoding step besides its arithmetic: kernel launches and sampling, derived for one GPU."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Seconds of a job on n items: ``fixed`` + ``each`` n."""

    fixed: float
    each: float

    def __call__(self, items: float) -> float:
        return self.fixed + self.each * items

    @classmethod
    def through(cls, *points: tuple[float, float]) -> "Affine":
        """The line through the last two points (items, seconds), adjusted so that neither ``fixed`` nor ``each`` is
        negative; with a single point, the line through the origin."""
        (most, last), *before = reversed(points)
        if not before or before[0][0] >= most:
            return cls(0.0, last / most)
        fewer, first = before[0]
        each = min(max((last - first) / (most - fewer), 0.0), last / most)
        return cls(last - each * most, each)


@dataclass(frozen=True, slots=True)
class PlayRate:
    """The mean cost of a task that is searched or played."""

    generated_tokens: float
    environment_steps: float
    seconds: Affine
    """Seconds of a batch of n tasks, while all workers are busy."""


@dataclass(frozen=True, slots=True)
class TrainRate:
    """The cost of an optimiser step, and of a training besides its steps."""

    step_tokens: float
    step_seconds: float
    steps_per_epoch: float = 0.0
    """Steps of an epoch, used if ``max_steps`` is unset; for an update, an epoch over the trees of the whole run."""
    fixed_seconds: float = 0.0
    """Seconds besides the steps: loading, preparing rows, saving, fitting the value head."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates from which ``stage_costs`` estimates the cost of a run, together with its settings."""

    search: PlayRate
    modes: Mapping[Mode, PlayRate]
    updates: Mapping[Method, TrainRate]
    warm: TrainRate | None = None
    """None if the run starts from a checkpoint."""
    demonstration_seconds: Affine = Affine(0.0, 0.0)
    """Seconds to play and tokenise n demonstrations."""
    demonstration_steps: float = 0.0
    """Environment steps per demonstration."""
    value_seconds: float = 0.0
    """Seconds to fit the value head of the base policy."""
    start_seconds: float = 0.0
    """Seconds until the workers have started. With a warm start they start meanwhile, so this does not count."""

    def without_warm_start(self) -> "Rates":
        """The rates of a run that starts from a checkpoint."""
        return replace(self, warm=None)


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage of a run."""

    name: str
    """One of ``STAGES``."""
    round: int = 0
    """Round of search-and-adapt, from 1; 0 for stages outside rounds."""
    generated_tokens: float = 0.0
    trained_tokens: float = 0.0
    environment_steps: float = 0.0
    seconds: float = 0.0


def stage_costs(config: RunConfig, kind: Kind, rates: Rates) -> list[StageCost]:
    """Estimate the cost of the stages of a run, in order. Their seconds add up to those of the run.

    With ``adapt.lag``, an update counts only the seconds by which it outlasts the search that runs at the same time,
    as if neither slowed the other. Rounds with imagined trees, variations of tasks and resampled trees are counted as
    plain searches of ``collect.tasks`` tasks. The validations that choose the stages of a curriculum are left out. A
    training that stops early is counted with all of its steps.
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
        modes: list[Mode] = [*config.evaluate.modes, *[first] * len(config.update.methods)]
    else:
        for number in range(1, config.adapt.rounds + 1):
            updates = _updates(config, rates, config.adapt.methods, number, together=False)
            if config.adapt.lag and number < config.adapt.rounds:
                beside = _search(config, rates, number + 1).seconds
                updates = replace(updates, seconds=max(updates.seconds - beside, 0.0))
            found += [_search(config, rates, number), updates]
        # The first and the best policy play in every mode, the others greedily; the last policy is taken as the best.
        greedy: list[Mode] = ["greedy"] if "greedy" in config.evaluate.modes else []
        modes = [*config.evaluate.modes * 2, *greedy * (config.adapt.rounds - 1)]
    found.append(_evaluation(config, rates, modes))
    return found


def _search(config: RunConfig, rates: Rates, number: int) -> StageCost:
    tasks, rate = config.collect.tasks, rates.search
    seconds = makespan([rate.seconds(each) for each in parts(tasks, config.batch(tasks))], config.workers)
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
    replayed = min(max(number, 1), 1 + config.adapt.replay)  # the rounds whose trees are learned from
    validations = 0
    for method in methods:
        training, rate = _training(config, method), rates.updates[method]
        steps = training.max_steps or math.ceil(config.training.epochs * rate.steps_per_epoch * replayed)
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


def _evaluation(config: RunConfig, rates: Rates, modes: Sequence[Mode]) -> StageCost:
    tasks = config.evaluate.tasks
    longest_first = sorted(modes, key=lambda mode: mode == "greedy")
    jobs = [rates.modes[mode].seconds(each) for mode in longest_first for each in parts(tasks, config.batch(tasks))]
    return StageCost(
        "evaluation",
        generated_tokens=tasks * sum(rates.modes[mode].generated_tokens for mode in modes),
        environment_steps=tasks * sum(rates.modes[mode].environment_steps for mode in modes),
        seconds=makespan(jobs, config.workers),
    )


def parts(count: int, size: int) -> list[int]:
    """``count`` items in batches of ``size``; the last one may be smaller."""
    return [min(size, count - start) for start in range(0, count, size)]


def makespan(jobs: Sequence[float], workers: int) -> float:
    """Seconds until all jobs are done, if each in turn goes to the worker that is free first."""
    free = [0.0] * max(workers, 1)
    for seconds in jobs:
        index = free.index(min(free))
        free[index] += seconds
    return max(free)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a language model on which time and memory depend."""

    weights: int
    trained: int
    """Weights that an update trains: all of them, or those of the adapter."""
    layers: int
    width: int
    """Hidden size."""
    inner: int
    """Width of the feed-forward part. In a mixture of experts: the width of an expert times the experts that a token
    uses."""
    keys: int
    """Width of the keys of a layer: number of key-value heads times the width of a head."""
    vocabulary: int
    weight_bytes: int = 4
    """Bytes of a weight of the policy that samples."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.layers * self.keys * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """The speed and the memory of a device."""

    name: str
    flops: float
    """Floating-point operations per second that a large matrix product reaches."""
    bandwidth: float
    """Memory bandwidth in bytes per second."""
    memory: float
    """Memory in bytes; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an episode in tokens and steps."""

    root_tokens: float
    """Tokens of the prompt at the root."""
    turn_tokens: float
    observation_tokens: float
    steps: float

    @property
    def episode_tokens(self) -> float:
        return self.root_tokens + self.steps * (self.turn_tokens + self.observation_tokens)

    @classmethod
    def assumed(cls, config: RunConfig) -> "Shape":
        """Assumptions in place of a measurement. The prompt of a pretrained model explains the format and the tools,
        and its turns have thoughts; a model from scratch writes the shortest turns, and its episodes fit into
        ``warm_start.max_tokens``. An episode takes half of ``environment.max_steps``."""
        policy, steps = config.policy, max(config.environment.max_steps / 2, 1.0)
        if policy.model is not None:
            return cls(800.0, min(100.0, policy.max_new_tokens), 150.0, steps)
        turn = min(12.0, policy.max_new_tokens)
        episode = config.warm_start.max_tokens * 0.75
        return cls(episode / (steps + 1), turn, max(episode / (steps + 1) - turn, 1.0), steps)


@dataclass(frozen=True, slots=True)
class TreeCost:
    """The cost of the tree of one task."""

    generated_tokens: float
    encoded_tokens: float
    environment_steps: float


def tree_cost(config: RunConfig, mode: Mode, shape: Shape, *, training: bool = False) -> TreeCost:
    """Estimate the cost of the tree of one task from the limits of its search.

    A tree of S simulations generates S c T tokens: T tokens per candidate and c candidates per simulation. If
    ``search.widening`` is above 0, each simulation of AB-MCTS, and of MCTS by PUCT or Gumbel selection, draws that many
    candidates. Otherwise a new state gets ``search.candidates``, in half of the simulations. The first limit that is
    reached ends the tree. A simulation takes at most one new step; a sampled episode (best-of-N, chains) takes all of
    its steps, with one candidate each. With a prefix cache, a tree encodes its root and each observation once.

    Args:
        training: whether the task is a training task. ``evaluate.best_of`` is for test tasks only.
    """
    if mode == "greedy":
        steps = shape.steps
        return TreeCost(steps * shape.turn_tokens, shape.root_tokens + steps * shape.observation_tokens, steps)
    search = config.search
    limits = search.limits
    whole_episodes = mode in ("best_of_n", "random_expand")
    widened = _widening(config, mode)
    per_simulation = shape.steps if whole_episodes else float(widened) if widened else search.candidates / 2
    tokens, steps = per_simulation * shape.turn_tokens, shape.steps if whole_episodes else 1.0
    simulations = config.evaluate.best_of if mode == "best_of_n" and not training else limits.simulations
    bounds = [float(simulations)] if simulations is not None else []
    bounds += [limits.generated_tokens / tokens] if limits.generated_tokens is not None else []
    bounds += [limits.environment_steps / steps] if limits.environment_steps is not None else []
    count = min(bounds, default=0.0)
    return TreeCost(count * tokens, shape.root_tokens + count * steps * shape.observation_tokens, count * steps)


def _widening(config: RunConfig, mode: Mode) -> int:
    """Candidates that a search draws in each simulation; 0 if it draws all K of a new state at once."""
    widens = mode == "ab_mcts" or (mode == "mcts" and config.search.selection != "uct")
    return config.search.widening if widens else 0


def modelled_rates(
    config: RunConfig, shape: Shape, size: ModelSize, device: Device, step_seconds: float = 0.0
) -> Rates:
    """Estimate rates by formulas only, without a measurement.

    Args:
        step_seconds: seconds of one environment step.
    """
    read = 2 * size.weights / device.flops
    batch = config.batch(config.collect.tasks)
    rows = min(batch, 128) * (_widening(config, config.search.method) or config.search.candidates)
    pass_seconds = (
        max(
            (size.weights * size.weight_bytes + rows * shape.episode_tokens * size.token_bytes) / device.bandwidth,
            rows * read,
        )
        + _DECODE_SECONDS
    )

    def play(mode: Mode, *, training: bool = False) -> PlayRate:
        cost = tree_cost(config, mode, shape, training=training)
        steps = cost.environment_steps
        seconds = cost.generated_tokens * pass_seconds / rows + cost.encoded_tokens * read + steps * step_seconds
        return PlayRate(cost.generated_tokens, steps, Affine(0.0, seconds))

    def train(training: object, tokens: float) -> TrainRate:
        rows = getattr(training, "batch_size") * config.training.accumulation  # noqa: B009
        step_tokens = rows * tokens
        recomputed = 8 if config.training.gradient_checkpointing else 6
        per_epoch = config.collect.tasks / rows
        return TrainRate(step_tokens, recomputed * size.weights * step_tokens / device.flops, per_epoch)

    modes: dict[Mode, PlayRate] = {mode: play(mode) for mode in {"greedy", *config.evaluate.modes}}
    methods: set[Method] = {*config.update.methods, *config.adapt.methods}
    pairs = {"dpo": 2.0}
    episode = min(shape.episode_tokens, config.warm_start.max_tokens)
    warm = train(config.warm_start.training, episode)
    shot = shape.steps * step_seconds
    return Rates(
        search=play(config.search.method, training=True),
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
    """Peak memory of one process in bytes, by part."""

    name: str
    """"search", "warm start", or the method of the update."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def bytes(self) -> float:
        return sum(self.parts.values())


def search_memory(config: RunConfig, size: ModelSize, device_bytes: float) -> Memory:
    """The memory of a worker that searches. If an engine or a server samples, a value head on hidden states needs a
    second copy of the model.

    Args:
        device_bytes: memory of the device in bytes. A vLLM engine takes ``vllm.gpu_memory_utilization`` of it.
    """
    policy = config.policy
    needed: dict[str, float] = {}
    if policy.generator == "local":
        needed["weights"] = size.weights * size.weight_bytes
        needed["keys and values"] = policy.cache_bytes
        needed["logits"] = 128 * size.vocabulary * 4
    elif policy.generator == "vllm":
        needed["engine"] = max(config.vllm.gpu_memory_utilization * device_bytes, size.weights * size.weight_bytes)
    if policy.generator != "local" and config.value_reads == "hidden":
        needed["head's copy of the weights"] = size.weights * size.weight_bytes
        needed["head's keys and values"] = policy.cache_bytes
    return Memory("search", needed)


def training_memory(config: RunConfig, name: str, size: ModelSize, rows: int, row_tokens: float) -> Memory:
    """The memory of a process that trains with ``rows`` rows of ``row_tokens`` tokens per forward pass.

    If all weights are trained, they take 4 bytes each; with an adapter, the frozen weights keep their own number
    format. A training keeps gradients, AdamW's two moments and two copies of the trained weights. For each token, a
    layer keeps about 10 vectors of the hidden size, 4 of the inner size and 4 of the size of the keys. With gradient
    checkpointing it keeps only its input, and one layer at a time is computed again. The language-model head is
    computed in blocks of tokens (TRL's fused head).
    """
    adapted = size.trained < size.weights
    number = 2 if config.precision(config.policy) == "bfloat16" else 4
    tokens = rows * row_tokens
    layer = (10 * size.width + 4 * size.inner + 4 * size.keys) * number
    stored = (
        size.layers * size.width * number + layer if config.training.gradient_checkpointing else size.layers * layer
    )
    return Memory(
        name,
        {
            "weights": size.weights * (size.weight_bytes if adapted else 4),
            "gradients": 4 * size.trained,
            "optimiser": 8 * size.trained,
            "copies of trained weights": 4 * _COPIES * size.trained,
            "activations": tokens * stored,
        },
    )


def memory_needs(
    config: RunConfig, kind: Kind, size: ModelSize, rates: Rates, device_bytes: float = 0.0
) -> list[tuple[Memory, int]]:
    """The memory of each kind of process of a run, with the number of such processes that share a device at the same
    time. Workers on a CPU share its memory; on GPUs, each is assumed to have its own.

    Args:
        device_bytes: as for ``search_memory``.
    """
    on_cpu = config.policy.on_cpu and config.engine == "local"
    searching = search_memory(config, size, device_bytes)
    found = [(searching, config.workers if on_cpu else 1)] if searching.parts else []  # empty if a server holds it all
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
    """Find settings under which a training fits into ``room`` bytes. Settings that do not change its result are tried
    first. Returns them as ``key=value``; empty if none of them suffices.

    Args:
        memory: a function that returns the bytes that the training needs under given settings.
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
    if not fits() and config.precision(config.policy) == "float32":
        chosen["training.precision"] = "bfloat16"
    if not fits():
        return []
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()]


def hours_and_price(stages: Sequence[StageCost], per_hour: float) -> tuple[float, float]:
    """Hours of a run, and their price if all of its machines together cost ``per_hour``."""
    hours = sum(stage.seconds for stage in stages) / 3600
    return hours, hours * per_hour
