"""How much sooner a search finishes if the steps of a slow environment overlap (``environment.parallel``).

    .venv/bin/python -m benchmarks.pool

A small untrained model scores the legal actions of a walk on a grid, in which each step waits for 50 ms. All arms must
grow the same trees, up to the rounding of priors; this is checked. With a heavy tail, the waits are log-normal (σ = 1)
with the same mean, and equal states wait equally long. ``makespan`` is the time of the search divided by the larger of
two lower bounds: all waits divided evenly among the instances, and the time of a search whose steps do not wait. The
steps of one tree follow one after the other, so no search ends before all waits of its ``longest tree`` have passed.
These waits are given as a share of the same bound.
"""

import math
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.envs import Env, StepResult, task_to_play
from treeagent.envs.base import SnapshotKind
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.metrics import Cost
from treeagent.pipeline.trees import read_trees
from treeagent.search.record import to_record
from treeagent.types import Split, Task, ToolCall, UserError, derive_seed

QUESTION = "How much sooner is a search done where the steps of a slow environment overlap?"
MOVES: Mapping[str, tuple[int, int]] = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SHAPE = ScratchConfig(width=32, heads=2, layers=1, vocabulary=300, context=512)
WAITED = defaultdict[str, float](float)
"""Seconds that the steps of each task have waited in total."""


class Walk(Env):
    """A walk on a grid. ``tail`` makes the waits log-normal."""

    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, seconds: float = 0.0, tail: bool = False) -> None:
        self.seconds, self.tail = seconds, tail
        self.place: tuple[str, int, int] = ("", 0, 0)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.place = (task_to_play(self, seed, options).id, 0, 0)
        return "at 0 0", {}

    def step(self, action: str | ToolCall) -> StepResult:
        seconds = self.wait()
        WAITED[self.place[0]] += seconds  # no race: the steps of one tree never overlap
        time.sleep(seconds)
        return self.moved(action)

    def wait(self) -> float:
        """Seconds that the next step waits."""
        if not self.tail:
            return self.seconds
        return self.seconds * random.Random(derive_seed(0, *self.place)).lognormvariate(-0.5, 1.0)

    def moved(self, action: str | ToolCall) -> StepResult:
        if action not in MOVES:
            return "no such way", 0.0, False, False, {"tool_error": "no such way"}
        (task, x, y), (right, up) = self.place, MOVES[str(action)]
        self.place = task, x + right, y + up
        return f"at {x + right} {y + up}", float(x + right + y + up == 6), False, False, {}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"walk-{split}-{index}", "walk", split, index) for index in range(start, start + count)]

    def legal_actions(self) -> list[str] | None:
        return [*MOVES]

    def snapshot(self) -> object:
        return self.place

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        self.place = snapshot

    def state_key(self) -> str | None:
        return str(self.place)


@dataclass(frozen=True, slots=True)
class Way:
    """The settings of an arm."""

    instances: int
    waits: bool = True
    tail: bool = False
    more: int = 1
    """Factor by which more trees are searched."""
    name: str = "benchmarks.pool:Walk"

    def settings(self, seconds: float, trees: int, simulations: int) -> RunConfig:
        options: dict[str, object] = {"seconds": seconds if self.waits else 0.0}
        if self.name.endswith(":Walk"):
            options |= {"tail": self.tail}
        inline = ",".join(f"{key}={str(value).lower()}" for key, value in options.items())
        return load_config(
            None,
            [
                f"environment.name={self.name}",
                f"environment.options={{{inline}}}",
                f"environment.parallel={self.instances}",
                "environment.max_steps=8",
                "policy.actions=score",
                "policy.max_new_tokens=8",
                f"search.limits={{simulations={simulations}}}",
                f"collect.tasks={self.more * trees}",
            ],
        )


WAYS = {
    "no waits": Way(1, waits=False),
    "no waits, 16 instances": Way(16, waits=False),
    "1 instance": Way(1),
    "4 instances": Way(4),
    "16 instances": Way(16),
    "no waits, 4 times the trees": Way(1, waits=False, more=4),
    "heavy tail, 1 instance": Way(1, tail=True),
    "heavy tail, 16 instances": Way(16, tail=True),
    "heavy tail, 16 instances, 4 times the trees": Way(16, tail=True, more=4),
}


@dataclass(frozen=True, slots=True)
class Searched:
    """One search of all trees."""

    cost: Cost
    seconds: float
    processor: float
    """CPU seconds of all threads."""
    waited: list[float]
    """Seconds that the steps of each tree waited."""
    nodes: list[Any]


def search_once(config: RunConfig, checkpoint: Path) -> Searched:
    from benchmarks.pool import WAITED as waited  # the module that the environments use; this one may be __main__

    with tempfile.TemporaryDirectory() as folder:
        waited.clear()
        job = SearchJob(config, checkpoint, "collect", 0, range(config.collect.tasks), Path(folder))
        started, processor = time.perf_counter(), time.process_time()
        cost = search_batch(job, lambda event: None)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        nodes = [to_record(tree)["nodes"] for tree in read_trees(Path(folder))]
        return Searched(cost, seconds, processor, list(waited.values()), nodes)


def same(first: Any, second: Any) -> bool:
    """Whether two records are the same up to the rounding of floats."""
    if isinstance(first, float):
        return isinstance(second, float) and math.isclose(first, second, rel_tol=1e-4, abs_tol=1e-6)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(each, second[key]) for key, each in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def main() -> None:
    options = repeating(__doc__, "pool", rounds=3)
    options.add_argument("--seconds", type=float, default=0.05, help="of a step")
    options.add_argument("--trees", type=int, default=32)
    options.add_argument("--simulations", type=int, default=8, help="of a tree")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["Thought: on Action: north east south west at 0 1 2 3 4 5 6 7 walk"] * 5, SHAPE)

    def measure(number: int) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Checkpoint(random_model(tokenizer, SHAPE, number), tokenizer), Path(folder) / "model")
            done = dict[str, Searched]()
            for arm, way in {"": WAYS["no waits"], **WAYS}.items():  # the unnamed arm loads the model
                config = way.settings(arguments.seconds, arguments.trees, arguments.simulations)
                done[arm] = search_once(config, Path(folder) / "model")
                if not same(done[arm].nodes[: arguments.trees], done[""].nodes):
                    raise UserError(f"the arm {arm!r} grew other trees: this is a bug")
        figures = dict[str, dict[str, float]]()
        for arm, way in WAYS.items():
            found, simulations = done[arm], way.more * arguments.trees * arguments.simulations
            each = {"seconds": found.seconds, "processor ms / simulation": 1000 * found.processor / simulations}
            if way.waits:
                model = done["no waits, 4 times the trees" if way.more > 1 else "no waits"].seconds
                bound = max(sum(found.waited) / way.instances, model)
                each |= {"makespan": found.seconds / bound, "longest tree": max(found.waited) / bound}
                if way.more == 1:
                    serial = done["heavy tail, 1 instance" if way.tail else "1 instance"]
                    each["ratio"] = serial.seconds / found.seconds
            figures[arm] = each
        return figures

    with record_of(arguments, QUESTION, trees=arguments.trees, simulations=arguments.simulations) as record:
        add_rounds(record, arguments.rounds, options_digest(arguments), [*WAYS], measure)


if __name__ == "__main__":
    main()
