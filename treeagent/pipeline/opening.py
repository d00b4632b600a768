"""Open a run for writing: check what it is going to need, before its folder is made, and let the machine choose what
the settings leave open."""

import os
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from accelerate import tracking

from treeagent.agent.checkpoint import count_weights, load_tokenizer, require_device
from treeagent.config import COMPARING, LARGE, Method, RunConfig, Tracker, load_config
from treeagent.envs import make_env, wrap
from treeagent.envs.answers import checked_tasks, checked_tools, contained
from treeagent.envs.base import Env
from treeagent.generators.config import CACHE_BYTES
from treeagent.generators.scratch import CHAT_TEMPLATE
from treeagent.pipeline.build import GENERATORS
from treeagent.pipeline.demonstrate import require_demonstrator
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.imagination import require_world, with_planning_world
from treeagent.pipeline.processes import shared_workers
from treeagent.pipeline.progress import Progress, QuietProgress
from treeagent.pipeline.rewards import Place, make_reward
from treeagent.seams import resolve
from treeagent.types import Split, UserError

Use = Literal["warm_start", "collect", "adapt", "update", "evaluate"]
"""Parts of a command that use tasks."""
_MOST_WORKERS, _MOST_THREADS = 8, 16
"""More workers get small batches, and more threads of a worker hardly speed up a billion parameters."""
_WORKER_BYTES = 3 << 29
"""Memory of a worker in bytes besides its weights and its KV cache."""


@contextmanager
def opened(
    config: RunConfig,
    out: str | Path,
    uses: Sequence[Use],
    *,
    methods: Sequence[Method] = (),
    checkpoint: Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> Iterator[tuple[Run, Progress]]:
    """Context that yields the run in the folder ``out``, begun or continued, whose ``config`` holds the machine's
    choices, and its progress. All stages within share workers."""
    shown, stored = progress or QuietProgress(), Path(out) / "config.toml"
    config = for_checkpoint(config, checkpoint)
    _require(config, uses, methods, checkpoint)
    begun = load_config(stored) if resume and stored.is_file() else None
    config, said = fit_to_machine(config, checkpoint, begun)
    if said:
        shown.warn(said)
    with Run.create(Path(out), config, resume=resume) as run:
        if run.replaced:
            shown.warn(f"{out} holds no work yet, so these settings of it are replaced: {', '.join(run.replaced)}")
        with tracked(run), shared_workers(config):
            yield run, shown


def for_checkpoint(config: RunConfig, checkpoint: Path | None) -> RunConfig:
    """The settings with ``policy.model`` set to a pretrained ``checkpoint``, whose prompts explain format and tools. A
    policy of a run has its run's settings, and a model from scratch has learnt both from demonstrations."""
    if checkpoint is None or config.policy.model is not None:
        return config
    folder = checkpoint.absolute().parent
    if folder.name == "checkpoints" and (folder.parent / "config.toml").is_file():
        return config
    is_read = checkpoint.is_dir() and config.policy.generator in GENERATORS
    if is_read and load_tokenizer(checkpoint).chat_template == CHAT_TEMPLATE:
        return config
    return replace(config, policy=replace(config.policy, model=str(checkpoint)))


def _require(config: RunConfig, uses: Sequence[Use], methods: Sequence[Method], model: Path | None) -> None:
    """Check what a command is going to use. ``model`` is None if a warm start makes one."""
    policy, environment = config.policy, config.environment
    require_trackers(config)
    if config.evaluate.world:
        with_planning_world(config)
    if policy.generator in GENERATORS:
        import_module(GENERATORS[policy.generator])  # its error names its package
    else:
        resolve("policy.generator", policy.generator, GENERATORS)
    if policy.is_structured:
        import_module("treeagent.generators.structured")
    require_device("policy.device_map", policy.device_map)
    if "adapt" in uses and config.adapt.imagines:
        require_world(config)
        require_device("world.device_map", config.world.device_map)
    require_whole_vocabulary(config, methods)
    name = policy.model if model is None and "warm_start" in uses else model
    if name is not None and policy.generator in GENERATORS:
        load_tokenizer(name)  # not for a hosted model, since its name is only known to its server
    with closing(wrap(make_env(environment.name, environment.options), environment.wrappers)) as env:
        checked_tools(env.tools())
        if "warm_start" in uses:
            require_demonstrator(config, env)
        _require_tasks(config, env, uses)
        if config.rewards.function:
            make_reward(Place(config, env, Path("runs"), ""))
        listed: object = ()
        if policy.actions != "sample":
            with suppress(Exception), contained():  # a task that cannot be started tells nothing
                [task] = env.tasks("train", 1)
                env.reset(seed=task.seed, options={"task": task})
                listed = env.legal_actions()
        if listed is None:
            raise UserError(
                f"policy.actions is {policy.actions!r}, but environment {environment.name!r} lists no legal actions: "
                "set policy.actions=sample, or an environment with legal_actions()"
            )
        planned = [mode for mode in config.evaluate.modes if mode != "greedy" and "evaluate" in uses]
        # Without exact snapshots, planning would replay the random outcomes of the execution.
        if planned and not config.evaluate.world and env.snapshot_kind != "exact" and env.stochastic:
            raise UserError(
                f"evaluate.modes has {planned[0]!r}, but environment {environment.name!r} is stochastic and has "
                f"snapshot_kind {env.snapshot_kind!r}, so that planning would foresee random outcomes: give it exact "
                "snapshots, set evaluate.modes to greedy, or plan in a world model (evaluate.world)"
            )


def require_whole_vocabulary(config: RunConfig, methods: Sequence[Method]) -> None:
    """Check that the log-probabilities with which DPO and GRPO compare the policy are normalised over the whole
    vocabulary: with ``structured``, vLLM and servers normalise them over the allowed tokens."""
    policy, unfit = config.policy, [method for method in methods if method in COMPARING]
    if unfit and policy.is_structured and policy.generator != "local":
        raise UserError(
            f"{unfit[0]} needs log-probabilities over the whole vocabulary, but with policy.structured the generator "
            f"{policy.generator!r} gives them over the allowed tokens only: learn by rft or distil, set "
            "policy.structured=false, or search with policy.generator=local"
        )


def _require_tasks(config: RunConfig, env: Env, uses: Sequence[Use]) -> None:
    """Request the last task of each use, so that a split that is too small fails now."""
    warm, per_round, adapt = config.warm_start, config.collect.tasks, config.adapt
    seeding = adapt.seed_tasks if adapt.imagined_in(1) else 0
    required: dict[Use, tuple[Split, str, int]] = {
        "warm_start": ("train", "warm_start.tasks", min(warm.tasks, warm.episodes)),
        "collect": ("train", "collect.tasks", per_round),
        "adapt": ("train", "adapt.rounds of collect.tasks and adapt.seed_tasks", adapt.rounds * per_round + seeding),
        "update": ("validation", "update.validation_tasks", config.update.validation_tasks),
        "evaluate": ("test", "evaluate.first_task and evaluate.tasks", config.evaluate.places.stop),
    }
    for split, key, count in map(required.__getitem__, uses):
        try:
            found: object = env.tasks(split, 1, count - 1)
            if isinstance(found, Sequence) and not found:
                raise ValueError("its tasks() gives none there")
        except ValueError as error:
            fix = str(error) if isinstance(error, UserError) else f"{error}: lower it"
            raise RunError(
                f"{key}: {count} tasks of the {split} split are wanted, but environment {config.environment.name!r} "
                f"has fewer: {fix}"
            ) from error
        checked_tasks(found, split)


def fit_to_machine(
    config: RunConfig, checkpoint: str | Path | None = None, begun: RunConfig | None = None
) -> tuple[RunConfig, str]:
    """The settings with the values that they leave to the machine (``workers``, ``threads``, ``policy.dtype``,
    ``policy.cache_bytes``, ``training.precision``), and a sentence that states the choice, if any.

    Workers with one thread each use the cores best. They get more only if memory has no room for more copies of the
    weights, or there are ``_MOST_WORKERS``. The cache gets half of the memory that is left
    to a worker, or a quarter of a GPU's: prompts that it can't hold are computed again at every turn. A resumed run
    keeps the number formats with which it was ``begun``.
    """
    policy, name, said = config.policy, checkpoint or config.policy.model, ""
    dtype, precision, cache = policy.dtype, config.training.precision, policy.cache_bytes or CACHE_BYTES
    counted = name is not None and policy.on_cpu and policy.generator == "local"
    weights, own = count_weights(str(name)) if counted else (0, torch.float32)
    if large := weights >= LARGE:
        # Attention over a long prompt is slow in bfloat16 without AMX, also where products are fast.
        amx = torch.cpu.get_capabilities().get("amx_bf16")
        if dtype == "auto":
            dtype = begun.policy.dtype if begun else "bfloat16" if amx else "auto"
        if precision == "auto":
            precision = begun.training.precision if begun else "bfloat16" if multiplies_bfloat16() else "auto"
    elif not policy.on_cpu and torch.cuda.is_available():
        if not policy.cache_bytes:
            cache = max(cache, torch.cuda.get_device_properties().total_memory // 4)
        if precision == "auto":
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
            precision = begun.training.precision if begun else "bfloat16" if supported else "float32"
            said = f"{torch.cuda.get_device_name()}: updates compute in {precision} (training.precision changes this)"
    size = weights * (own if dtype == "auto" else getattr(torch, dtype)).itemsize if large else 0
    workers, threads, cores = config.workers, config.threads, len(os.sched_getaffinity(0))
    memory = usable_memory()
    if not workers:
        room = memory // (size + cache + _WORKER_BYTES)
        workers = max(min(cores // (threads or 1), room, _MOST_WORKERS), 1)
        if not policy.on_cpu or "vllm" in (policy.generator, config.world.generator):
            workers = 1
    threads = threads or (max(min(cores // workers, torch.get_num_threads(), _MOST_THREADS), 1) if large else 1)
    if large and not policy.cache_bytes:
        cache = max(cache, (memory // workers - size - _WORKER_BYTES) // 2)
    policy, training = replace(policy, dtype=dtype, cache_bytes=cache), replace(config.training, precision=precision)
    chosen = replace(config, workers=workers, threads=threads, policy=policy, training=training)
    if large:
        sampled = str(own).removeprefix("torch.") if dtype == "auto" else dtype
        said = (
            f"{name}: {weights / 1e6:,.0f} million weights sample in {sampled} ({size / 2**30:.1f} GiB a worker, and "
            f"{cache / 2**30:.1f} for keys and values) and train in {chosen.precision(policy)}, workers {workers}, "
            f"threads {threads} (policy.dtype, policy.cache_bytes, training.precision, workers and threads change this)"
        )
    return chosen, said


def usable_memory(process: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or fewer in a container or a batch job of Linux."""
    limits: list[int] = [psutil.virtual_memory().total]
    for line in process.read_text().splitlines() if process.is_file() else ():
        kind, group = line.split(":", 2)[1:]
        if kind in ("", "memory"):  # version 2 of control groups, and version 1
            own = groups / kind / group.lstrip("/")
            for folder in (own, *own.parents):  # a container may see its own group at the top
                with suppress(OSError, ValueError):  # no such file, or no limit: "max"
                    limits.append(int((folder / ("memory.limit_in_bytes" if kind else "memory.max")).read_text()))
    return min(limits)


def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies matrices at least 1.5 times as fast in bfloat16 as in float32. It is timed: of
    the processors with AVX512-BF16 only some are faster."""

    def seconds(dtype: torch.dtype) -> float:
        left, right = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
        return min(timeit.repeat(lambda: left @ right, number=1, repeat=5))

    return 1.5 * seconds(torch.bfloat16) < seconds(torch.float32)


def training_threads(config: RunConfig, checkpoint: Path) -> int:
    """The threads of the only update of a stage: of all workers, which are idle, for a large model on this CPU; else of
    one worker."""
    threads = max(config.threads, 1)
    if config.workers < 2 or not config.policy.on_cpu or count_weights(checkpoint)[0] < LARGE:
        return threads
    return min(config.workers * threads, max(threads, _MOST_THREADS))


@contextmanager
def tracked(run: Run) -> Iterator[None]:
    """Context in which the run's metrics also go to every tracker in ``config.trackers``."""
    makers: dict[Tracker, Callable[[], Any]] = {
        "tensorboard": lambda: tracking.TensorBoardTracker("tensorboard", logging_dir=run.path),
        "trackio": lambda: tracking.TrackioTracker("treeagent", name=run.path.name),
        "wandb": lambda: tracking.WandBTracker("treeagent", name=run.path.name, dir=run.path, resume="allow"),
    }
    opened, before = {name: makers[name]() for name in run.config.trackers}, run.on_log
    for tracker in opened.values():
        tracker.start()

    def tell(stage: str, step: int, metrics: Mapping[str, float]) -> None:
        prefixed = {f"{stage}/{key}": float(value) for key, value in metrics.items()}
        for name, tracker in opened.items():
            if name == "tensorboard":
                tracker.log(prefixed, step=step)
            else:  # these trackers count steps over a whole run, but stages that run in parallel share no step
                tracker.log(prefixed | {f"{stage}/step": step})

    run.on_log = tell
    try:
        yield
    finally:
        run.on_log = before
        for tracker in opened.values():
            tracker.finish()


def require_trackers(config: RunConfig) -> None:
    """Check that the packages of all trackers are installed."""
    for name in config.trackers:
        # wandb creates a folder named "wandb", which Python takes for a package without an origin.
        if getattr(find_spec(name), "origin", None) is None:
            raise RunError(
                f"trackers names {name!r}, which is not installed: pip install 'treeagent[{name}]', or leave it out"
            )
