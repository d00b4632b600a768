"""The cost of searches, by hand."""

import time
from dataclasses import replace

import pytest

from treeagent.generators.base import Usage
from treeagent.pipeline.metrics import Cost, Event, heartbeat
from treeagent.search.node import Budget, Node, Tree
from treeagent.types import State, Task


def test_rates_of_a_resumed_search_leave_out_what_was_on_disk() -> None:
    task = Task("t", "")
    each = Budget(simulations=300, generated_tokens=8000 // 4)
    trees = [
        Tree(task, 0, Node(State(task, ())), budget) for budget in (each, each, replace(each, generated_tokens=4000))
    ]
    stored = Cost.of(trees)
    found = Cost(trees=2, best_value=1.5, budget=Budget(simulations=100, generated_tokens=400))
    metrics = found.metrics(10.0, stored)
    assert (metrics["trees"], metrics["simulations"], metrics["generated_tokens"]) == (5, 1000, 8400)
    assert metrics["simulations_per_second"] == pytest.approx(10)
    assert metrics["tokens_per_second"] == pytest.approx(40)
    assert metrics["best_value"] == pytest.approx(0.75)


def test_a_job_tells_its_tokens_while_one_call_of_the_model_lasts() -> None:
    usage, events = Usage(generated_tokens=50), list[Event]()
    with heartbeat(events.append, "evaluate-base-greedy", 3, usage):
        usage.generated_tokens += 7
        deadline = time.monotonic() + 20
        while not events and time.monotonic() < deadline:
            time.sleep(0.05)
    assert (events[0].index, events[0].tokens) == (3, 7)
