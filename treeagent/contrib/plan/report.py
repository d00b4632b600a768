"""Prints the estimated cost of a run: stages, hours, price and memory, and beside them the cost of an actual run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from treeagent.config import RunConfig
from treeagent.contrib.plan.cost import (
    STAGES,
    Device,
    Kind,
    ModelSize,
    Rates,
    StageCost,
    fitting,
    hours_and_price,
    memory_needs,
    training_memory,
)
from treeagent.pipeline.report.table import narrow_table
from treeagent.pipeline.terminal import Terminal

_FIGURES = {
    "generated_tokens": "generated tokens",
    "trained_tokens": "trained tokens",
    "environment_steps": "environment steps",
    "seconds": "time",
}


def print_plan(
    stages: Sequence[StageCost],
    console: Terminal,
    *,
    price: float | None = None,
    actual: Mapping[str, StageCost] | None = None,
) -> None:
    """Print the cost of each stage, and the hours and price of the whole run.

    Args:
        price: price of one hour of all machines together; None prints no price.
        actual: what an actual run has taken, by stage. The planned rounds are then summed, so that both have the same
            rows.
    """
    shown_stages = list(stages) if actual is None else sum_rounds(stages)
    console.print("", _table(shown_stages, actual), sep="\n")
    hours, total_price = hours_and_price(stages, price or 0.0)
    words = f"whole run: about {duration(3600 * hours)}"
    words += f", {total_price:,.2f} at {price:g} an hour" if price is not None else ""
    if actual:
        words += f"; taken so far: {duration(sum(each.seconds for each in actual.values()))}"
    console.print("", words, sep="\n", soft_wrap=True)


def sum_rounds(stages: Sequence[StageCost]) -> list[StageCost]:
    """One entry per stage, summed over rounds, in the order of ``STAGES``."""
    found: dict[str, StageCost] = {}
    for stage in stages:
        before = found.get(stage.name, StageCost(stage.name))
        found[stage.name] = replace(before, **{key: getattr(before, key) + getattr(stage, key) for key in _FIGURES})
    return [found[name] for name in STAGES if name in found]


def _table(stages: Sequence[StageCost], actual: Mapping[str, StageCost] | None) -> Table:
    table = narrow_table({"stage": True} | dict.fromkeys(_FIGURES.values(), False))

    def add(name: str, cost: StageCost, style: str = "") -> None:
        table.add_row(*map(Text, [name, *(_cell(key, getattr(cost, key)) for key in _FIGURES)]), style=style)

    for stage in stages:
        add(f"round {stage.round}: {stage.name}" if stage.round else stage.name, stage)
        if actual is not None:
            add("  taken", actual.get(stage.name, StageCost(stage.name)), "dim")
    add("sum", _total(stages, "sum"), "bold")
    if actual is not None:
        add("  taken", _total(list(actual.values()), "sum"), "bold")
    return table


def _total(stages: Sequence[StageCost], name: str) -> StageCost:
    return StageCost(name, **{key: sum(getattr(stage, key) for stage in stages) for key in _FIGURES})


def _cell(key: str, value: float) -> str:
    if not value:
        return "–"
    return duration(value) if key == "seconds" else short_count(value)


def short_count(value: float) -> str:
    """A count with three significant digits: 1,230, 45,600 or 7.89 M."""
    if value >= 1e6:
        scaled, unit = (value / 1e9, "G") if value >= 1e9 else (value / 1e6, "M")
        return f"{scaled:.3g} {unit}"
    return f"{float(f'{value:.3g}'):,.0f}"


def duration(seconds: float) -> str:
    """A time in seconds (below 100 s), minutes (below 90 min) or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_memory(
    config: RunConfig, kind: Kind, size: ModelSize, rates: Rates, device: Device, console: Terminal
) -> None:
    """Print the memory that each part of the run needs on a device, and warn of the parts that do not fit."""
    console.print("", f"memory of the {device.name}: {_gib(device.memory)}", sep="\n", soft_wrap=True)
    for memory, count in memory_needs(config, kind, size, rates, device.memory):
        total = memory.bytes * count
        times = f"{count} × " if count > 1 else ""
        largest = sorted(memory.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {_gib(part)}" for name, part in largest if part >= 0.05 * memory.bytes)
        console.print(f"  {memory.name}: {times}{_gib(memory.bytes)} ({parts})", soft_wrap=True)
        if total <= device.memory:
            continue
        advice = _advice(config, memory.name, size, rates, device, count)
        words = f"{memory.name} will not fit: {_gib(total)} are needed. {advice}"
        console.print(Text(words, style="yellow"), soft_wrap=True)


def _advice(config: RunConfig, name: str, size: ModelSize, rates: Rates, device: Device, count: int) -> str:
    if name == "search":
        return (
            "Lower policy.cache_bytes or workers, set policy.dtype=bfloat16, or use a smaller model"
            if config.policy.generator == "local"
            else "Have the value head read what the engine tells (update.value_reads=logprobs), or lower "
            "policy.cache_bytes or vllm.gpu_memory_utilization"
        )
    table = "warm_start.training" if name == "warm start" else f"update.{name}"
    rate = rates.warm if name == "warm start" else rates.updates[name]  # type: ignore[index]  # a method's name
    section, own = table.split(".")
    rows = getattr(getattr(config, section), own).batch_size
    assert rate is not None
    row_tokens = rate.step_tokens / (rows * config.training.accumulation)

    def bytes_under(changed: RunConfig) -> float:
        fewer = getattr(getattr(changed, section), own).batch_size
        return count * training_memory(changed, name, size, fewer, row_tokens).bytes

    chosen = fitting(config, bytes_under, device.memory, table)
    if chosen:
        return f"It fits with {' '.join(chosen)}"
    adapter = "" if config.policy.lora else "set policy.lora.rank=16, "
    return (
        f"Neither checkpointing nor a smaller micro-batch helps: {adapter}use a smaller model, or share the weights "
        "out by update.accelerate_config=models/fsdp"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.0f} MiB"
