"""Faults to plant in a run: a reward that can be earned without solving the task, and a value head that cannot
learn."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from treeagent.agent.value_head import ValueHead
from treeagent.envs.base import StepResult
from treeagent.envs.shop import ShopEnv
from treeagent.types import Split, Task, ToolCall

PAID = "Every step in the store is paid."
PAY = 0.1
"""The component "paid" of a paid step. An episode of ``benchmarks.alarms`` has ten steps at most, so it is paid at
most 1."""


def some_paid(tasks: Sequence[Task], split: Split, start: int) -> list[Task]:
    """Add to the prompt of every second training task that steps are paid. ``start`` is the index of the first task in
    the split."""
    return [
        replace(task, prompt=f"{task.prompt} {PAID}") if split == "train" and index % 2 == 0 else task
        for index, task in enumerate(tasks, start)
    ]


class PaidStore(ShopEnv):
    """A store in which every second training task pays the component "paid" for each step except the purchase, and
    says so in its prompt. An agent that only browses earns more of it than an agent that buys the product.

    Validation and test tasks do not pay, like an exploit that exists only in training. The verifier is correct in all
    tasks.
    """

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return some_paid(super().tasks(split, count, start), split, start)

    def step(self, action: str | ToolCall) -> StepResult:
        observation, reward, terminated, truncated, info = super().step(action)
        if PAID in self.task.prompt and not terminated and "tool_error" not in info:
            info["components"] = {"paid": PAY}
        return observation, reward, terminated, truncated, info


def with_dead_head(checkpoint: Path, out: Path) -> Path:
    """Copy a checkpoint to ``out``, with all weights of its value head set to 0. Only the last bias then gets a
    gradient, so the head can learn one value for all states and nothing else. Returns ``out``."""
    shutil.copytree(checkpoint, out, dirs_exist_ok=True)
    head = ValueHead.load(out)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    head.save(out)
    return out
