"""Measure what a run will cost, by running its stages on few items with a policy that has trained for some seconds.

The functions, settings, batches and workers are those of the run, in a temporary folder; only counts are smaller. So a
rate includes the time that workers lose by sharing the machine.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from treeagent.agent.checkpoint import base_and_adapter, count_weights, load_checkpoint
from treeagent.config import Method, Mode, RunConfig
from treeagent.contrib.plan.cost import (
    Affine,
    Device,
    Kind,
    ModelSize,
    PlayRate,
    Rates,
    Shape,
    TrainRate,
    modelled_rates,
)
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import scratch_shape
from treeagent.learners.lora import with_adapter
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.collect import BatchJob, search_batch
from treeagent.pipeline.demonstrate import demonstrations, tokenise
from treeagent.pipeline.evaluate import evaluate_batch
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.machine import cores
from treeagent.pipeline.metrics import Cost
from treeagent.pipeline.processes import run_jobs, shared_workers
from treeagent.pipeline.progress import Advance, Progress, Stage
from treeagent.pipeline.rows import scored_rows
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import fit_base, learn
from treeagent.pipeline.warm_start import TOKENIZER_EPISODES, warm_start
from treeagent.search.node import Budget
from treeagent.types import NothingToLearn
from treeagent.views.values import value_rows

Result = TypeVar("Result")
_DEMONSTRATIONS = 400
"""Demonstrations of the measurement: enough to train a tokenizer from scratch and to give hundreds of rows."""
_WARM_SECONDS = 15.0
"""Seconds of training. A small model from scratch learns the form of a turn in about this time."""
_LEAST_STEPS = 60
"""Least optimiser steps of a model from scratch, which with fewer would hardly finish an episode."""
_PLAY_SECONDS = 8.0
"""Most seconds that the next larger batch is expected to take; the second batch may take four times as long."""
_FIRST_STEPS = 5
"""Optimiser steps of a measurement. The first one, which is slower, and the last one do not count."""
_GROWTH = 4
"""Factor from the size of one batch to the next."""
_CORE_FLOPS, _CORE_BANDWIDTH = 3e10, 5e9
"""Rough floating-point operations and bytes per second of one core, for estimates without a measurement."""
_GPUS = (("H200", 350e12, 3.4e12), ("H100", 350e12, 2.3e12), ("A100", 150e12, 1.4e12), ("", 50e12, 0.6e12))
"""(part of the GPU's name, operations per second, bytes per second), as programs reach them in bfloat16. The last row
is a guess for any other GPU."""


class ProgressTimer:
    """A ``Progress`` that records when each piece of work advanced."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner
        self.times: dict[str, list[tuple[float, int]]] = {}
        """For each piece of work, pairs (clock in seconds, items done): at its start, at every advance, at its end."""

    def plan(self, stages: Sequence[Stage]) -> None:
        """Do nothing: a measurement does not announce its stages."""

    def warn(self, sentence: str) -> None:
        """Do nothing: warnings about a policy that has hardly trained are of no use."""

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        times, done = self.times.setdefault(name, []), 0
        times.append((time.perf_counter(), 0))
        with self._inner.track(f"measure {name}", total) as advance_inner:

            def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
                nonlocal done
                done += count
                times.append((time.perf_counter(), done))
                advance_inner(count, fields)

            yield advance
        times.append((time.perf_counter(), done))

    def step_seconds(self, name: str) -> float:
        """Mean seconds of an optimiser step. The first and the last step are left out, because they include what the
        trainer does before and after all steps."""
        steps = [mark for mark in self.times[name][:-1] if mark[1]][:-1]
        (start, first), (end, last) = steps[0], steps[-1]
        return (end - start) / max(last - first, 1)


@dataclass(slots=True)
class _Measurement:
    """State that the parts of a measurement share."""

    config: RunConfig
    run: Run
    timer: ProgressTimer
    jobs: int = 0
    """Batches played so far."""
    searched: int = 0
    """Training tasks searched so far."""


def measure(config: RunConfig, kind: Kind, progress: Progress, checkpoint: Path | None = None) -> Rates:
    """Rates for ``stage_costs``, in a minute or two for a small model.

    Args:
        config: the run's settings, adapted to this machine by ``fit_to_machine``.
        checkpoint: the checkpoint that the run starts from; by default a warm start.

    Raises:
        RunError, UserError: as the run itself.
    """
    timer = ProgressTimer(progress)
    low = config.environment.returns[0]
    # Few trees may hold a success yet, and rows of any other tree take the same time, so all of them are used.
    update = replace(
        config.update,
        imitation=replace(config.update.imitation, min_return=low),
        targets=replace(config.update.targets, min_return=low),
        pairs=replace(config.update.pairs, min_margin=1e-9),
    )
    config = replace(config, update=update)
    with tempfile.TemporaryDirectory(prefix="treeagent-plan-") as folder_name:
        folder = Path(folder_name)
        warm = None if checkpoint is not None else _warm(config, timer, folder)
        start = checkpoint if warm is None else warm.policy
        assert start is not None
        with Run.create(folder / "rest", config, resume=False) as run, shared_workers(config):
            measurement = _Measurement(config, run, timer)
            began = time.perf_counter()
            _search(measurement, start, 1)
            elapsed = time.perf_counter() - began
            search, costs = _fit_play_seconds(
                lambda size: _search(measurement, start, size), config.batch(config.collect.tasks)
            )
            total = sum(costs, Cost())
            found: dict[Mode, PlayRate] = {}
            for mode in dict.fromkeys(("greedy", *config.evaluate.modes)):
                found[mode] = _mode(measurement, start, mode)
            value_seconds, base = _value(measurement, start)
            updates = _updates(measurement, kind, base, value_seconds, None if warm is None else warm.rate)
    return Rates(
        search=_rate(total.budget, total.trees, search),
        modes=found,
        updates=updates,
        warm=None if warm is None else warm.rate,
        demonstration_seconds=Affine(0.0, 0.0) if warm is None else warm.seconds,
        demonstration_steps=0.0 if warm is None else warm.steps,
        value_seconds=value_seconds,
        start_seconds=max(elapsed - search(1), 0.0),
    )


def _rate(budget: Budget, tasks: int, seconds: Affine) -> PlayRate:
    return PlayRate(budget.generated_tokens / max(tasks, 1), budget.environment_steps / max(tasks, 1), seconds)


@dataclass(frozen=True, slots=True)
class _WarmStart:
    policy: Path
    rate: TrainRate
    seconds: Affine
    """Seconds of n demonstrations."""
    steps: float
    """Environment steps per demonstration."""


def _warm(config: RunConfig, timer: ProgressTimer, folder: Path) -> _WarmStart:
    """Run a short warm start, and then a longer one if time allows, which gives a better policy."""
    settings = config.warm_start
    count = min(settings.episodes, _DEMONSTRATIONS)
    most = settings.training.max_steps
    step_count = _FIRST_STEPS
    for name in ("first", "second"):
        training = replace(
            settings.training, max_steps=step_count, warmup_steps=min(settings.training.warmup_steps, step_count // 4)
        )
        small = replace(
            config,
            warm_start=replace(settings, episodes=count, tasks=min(settings.tasks, count), training=training),
        )
        timer.times.clear()
        with Run.create(folder / name, small, resume=False) as run:
            policy = warm_start(small, run, timer)
            facts = run.facts("warm_start")
        seconds = timer.step_seconds("warm_start")
        affordable = int(_WARM_SECONDS / seconds)
        if config.policy.model is None:
            affordable = max(affordable, _LEAST_STEPS)
        affordable = min(affordable, most or affordable)
        if name == "second" or affordable <= 2 * _FIRST_STEPS:
            break
        step_count = affordable
    steps, update = step_count, facts["update"]
    points = timer.times["demonstrations"]
    (began, _), (first, _), (last, _), (ended, _) = points[0], points[1], points[-2], points[-1]
    sample = [tree for _, tree in zip(range(64), demonstrations(small), strict=False)]
    chat = make_chat(load_checkpoint(policy, device_map=config.policy.device_map), config)
    lessons = time.perf_counter()
    for tree in sample:
        tokenise(tree, chat)
    lesson = (time.perf_counter() - lessons) / len(sample)
    # A tokenizer from scratch is trained on the first demonstrations only.
    once = max(ended - last - count * lesson, 0.0)
    if config.policy.model is None:
        once *= min(settings.episodes, TOKENIZER_EPISODES) / count
    return _WarmStart(
        policy,
        TrainRate(
            update["metrics"]["num_tokens"] / steps,
            seconds,
            steps / update["metrics"]["epoch"] * settings.episodes / count,
            max(update["seconds"] - steps * seconds, 0.0),
        ),
        Affine(first - began + once, (last - first) / max(count - 1, 1) + lesson),
        facts["environment_steps"] / count,
    )


def _fit_play_seconds(play: Callable[[int], Sequence[Result]], most: int) -> tuple[Affine, list[Result]]:
    """Play batches of growing size, up to ``most``. Returns a fit of their seconds to their size, and all results."""
    points, results, size = list[tuple[float, float]](), list[Result](), min(2, most)
    while True:
        began = time.perf_counter()
        results += play(size)
        seconds = time.perf_counter() - began
        points.append((size, seconds))
        # With a single size, the fixed time of a batch could not be told from the time of each task.
        patience = _PLAY_SECONDS if len(points) > 1 else 4 * _PLAY_SECONDS
        if size == most or _GROWTH * seconds > patience:
            return Affine.through(*points), results
        size = min(_GROWTH * size, most)


def _search(measurement: _Measurement, policy: Path, size: int) -> list[Cost]:
    """Search a batch of ``size`` training tasks in each worker. Every batch takes the next tasks."""
    config = measurement.config
    jobs = list[BatchJob]()
    for _ in range(_busy_workers(config, config.collect.tasks)):
        tasks = [place % config.collect.tasks for place in range(measurement.searched, measurement.searched + size)]
        jobs.append(BatchJob(config, policy, COLLECTED, measurement.jobs, tasks, measurement.run.trees))
        measurement.jobs, measurement.searched = measurement.jobs + 1, measurement.searched + size
    return [cost for _, cost in run_jobs(search_batch, jobs, config)]


def _busy_workers(config: RunConfig, tasks: int) -> int:
    """Number of workers that a stage of ``tasks`` tasks keeps busy."""
    return max(min(config.workers, tasks), 1)


def _mode(measurement: _Measurement, policy: Path, mode: Mode) -> PlayRate:
    """The rate of an evaluation mode, measured on validation tasks; test tasks would give the same cost."""
    config, held_out = measurement.config, measurement.config.update.validation_tasks

    def play(size: int) -> list[Budget]:
        jobs = list[BatchJob]()
        for _ in range(_busy_workers(config, config.evaluate.tasks)):
            name = f"measure-{mode}"
            job = BatchJob(config, policy, name, measurement.jobs, range(size), None, split="validation", mode=mode)
            jobs.append(job)
            measurement.jobs += 1
        return [outcome.budget for _, (outcomes, _) in run_jobs(evaluate_batch, jobs, config) for outcome in outcomes]

    seconds, budgets = _fit_play_seconds(play, min(config.batch(config.evaluate.tasks), held_out))
    total = Budget()
    for budget in budgets:
        total.add(budget)
    return _rate(total, len(budgets), seconds)


def _value(measurement: _Measurement, policy: Path) -> tuple[float, Path]:
    """Estimate the seconds of fitting the value head on the rows of the whole run. Returns them and the policy with the
    fitted head. If no tree has an end, there is nothing to fit: then the seconds are 0."""
    config, began = measurement.config, time.perf_counter()
    try:
        base = fit_base(config, measurement.run, measurement.timer, policy)
    except NothingToLearn:
        return 0.0, policy
    seconds = time.perf_counter() - began
    fitted = measurement.run.facts("base")["value"]
    positions = fitted["train_positions"] + fitted["held_out_positions"]
    trees = list(read_trees(measurement.run.trees))
    rows = [row for tree in trees for row in value_rows(tree, config.update.values)]
    expected_rows = min(config.update.value_rows, len(rows) * config.collect.tasks / len(trees))
    known = positions * len(rows) / max(sum(len(row.value_positions) for row in rows), 1)
    return seconds * expected_rows / max(known, 1.0), base


def _updates(
    measurement: _Measurement, kind: Kind, policy: Path, value_seconds: float, warm: TrainRate | None
) -> dict[Method, TrainRate]:
    """Rates of a few steps of each method: run side by side as in the quickstart, or one after the other as in a
    round. A method that finds nothing to learn gets the rate of another training or, without any, that of the
    formulas."""
    config, run = measurement.config, measurement.run
    methods: tuple[Method, ...] = config.update.methods if kind == "quickstart" else config.adapt.methods
    few = {"max_steps": _FIRST_STEPS, "validate_every": 10**6}
    small = replace(
        config,
        update=replace(
            config.update,
            validation_tasks=1,
            **{method: replace(cast(Any, getattr(config.update, method)), **few) for method in methods},
        ),
    )
    trees = list(read_trees(run.trees))
    share = config.collect.tasks / len(trees)

    def train(some: Sequence[Method]) -> None:
        learn(
            small, run, measurement.timer, [(policy, method, run.checkpoints / method) for method in some], [COLLECTED]
        )

    for some in [methods] if kind == "quickstart" else [(method,) for method in methods]:
        try:
            train(some)
        except NothingToLearn:
            continue
    rates: dict[Method, TrainRate] = {}
    for method in filter(run.is_done, methods):
        metrics, settings = run.facts(method)["update"]["metrics"], getattr(config.update, method)
        if method == "grpo":  # its metrics count no tokens
            rows = [row for tree in trees for row in scored_rows([tree], config.update.advantages)]
            length = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows) / len(rows)
            tokens = length * settings.batch_size * config.training.accumulation
        else:
            tokens = metrics["num_tokens"] / _FIRST_STEPS
        per_epoch = _FIRST_STEPS / metrics["epoch"] * share
        rates[method] = TrainRate(tokens, measurement.timer.step_seconds(method), per_epoch, value_seconds)
    known = next(iter(rates.values()), warm)
    for method in methods:
        if method not in rates and known is not None:
            rates[method] = replace(known, steps_per_epoch=0.0, fixed_seconds=value_seconds)
        elif method not in rates:
            size, device = model_size(config, policy), this_device(config)
            rate = modelled_rates(config, Shape.assumed(config), size, device).updates[method]
            rates[method] = replace(rate, fixed_seconds=value_seconds)
    return rates


def model_size(config: RunConfig, checkpoint: str | Path | None = None) -> ModelSize:
    """The sizes of the policy's model, read from its configuration without loading its weights.

    Raises:
        UserError: there is no such model.
    """
    policy = config.policy
    name = policy.model if checkpoint is None else checkpoint
    if name is not None:
        count_weights(name)  # raises UserError with the reason if the name is wrong
    shape: PretrainedConfig = (
        scratch_shape(ScratchConfig(**asdict(policy.scratch)))
        if name is None
        else AutoConfig.from_pretrained(base_and_adapter(name)[0], trust_remote_code=False)
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=shape.dtype or torch.float32)
        weights = sum(each.numel() for each in model.parameters())
        adapted = with_adapter(model, policy.lora, 0)
    text = shape.get_text_config()
    inner = text.intermediate_size
    if getattr(text, "num_experts_per_tok", None):
        inner = text.num_experts_per_tok * getattr(text, "moe_intermediate_size", inner)
    heads = text.num_attention_heads
    number = model.dtype if policy.dtype == "auto" else cast(torch.dtype, getattr(torch, policy.dtype))
    return ModelSize(
        weights=weights,
        trained=sum(each.numel() for each in adapted.parameters() if each.requires_grad),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        inner=inner,
        keys=(getattr(text, "num_key_value_heads", None) or heads)
        * (getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=text.vocab_size,
        weight_bytes=number.itemsize,
    )


def this_device(config: RunConfig) -> Device:
    """The device of the policy's weights. If the settings ask for a GPU and this machine has none, an H100."""
    if config.policy.on_cpu and config.policy.generator != "vllm":
        count = max(config.threads, 1)
        memory = psutil.virtual_memory().total
        return Device(f"CPU, {cores()} cores", count * _CORE_FLOPS, count * _CORE_BANDWIDTH, memory)
    name, memory = "H100, assumed: no GPU is here", 80e9
    if torch.cuda.is_available():
        known = torch.cuda.get_device_properties(0)
        name, memory = known.name, float(known.total_memory)
    flops, bandwidth = next((flops, rate) for part, flops, rate in _GPUS if part in name)
    return Device(name, flops, bandwidth, memory)
