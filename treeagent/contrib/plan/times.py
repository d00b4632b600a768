"""Record how long the stages of a run take: a ``Progress`` that keeps time, and the file RUN/times.jsonl."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import orjson

from treeagent.config import Method
from treeagent.contrib.plan.cost import STAGES, StageCost
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import Advance, Progress, Stage
from treeagent.store import append_line, regular

TIMES = "times.jsonl"
"""Name of the file in a run's folder."""
_WRITE_SECONDS = 10.0
"""Least seconds between two lines of the file during a piece of work. A run that is killed loses about this much of its
recorded time at most."""
_WORKS = {
    "demonstrations": "demonstrations",
    "warm_start": "warm start",
    "warm_start_world": "warm start",
    "search": "search",
    "vary": "search",
    "curriculum": "search",
    "value": "value head",
    "evaluate": "evaluation",
    "evaluate disturbed": "evaluation",
}


def stage_of(work: str) -> str:
    """The stage (one of ``STAGES``) to which a piece of work belongs. In a quickstart an update is named after its
    method (``rft``); in rounds it is ``round-1-rft``, and searches are ``search-1``, ``search-1-imagined`` and
    ``vary-1``. The validations that choose the stage of a curriculum, such as ``curriculum-1-0``, count to the search
    of their round. Other work is its own stage."""
    name, last = re.split(r"-\d", work)[0], work.rpartition("-")[2]
    return "updates" if last in get_args(Method) else _WORKS.get(name, work)


class TimedProgress:
    """A ``Progress`` that also writes to a file how long each stage takes, in one line every few seconds.

    Each second of wall time counts for exactly one stage. Time between two pieces of work counts for the later one.
    While several run at once (with ``adapt.lag``, a search and an update), time counts for the one that began last.
    Times of several programs that worked on the same folder add up.
    """

    def __init__(self, inner: Progress, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner, self._path, self._clock = inner, path, clock
        self._last_write = clock()
        self._stage = STAGES[0]

    def plan(self, stages: Sequence[Stage]) -> None:
        self._inner.plan(stages)

    def warn(self, sentence: str) -> None:
        self._inner.warn(sentence)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        self._stage = stage_of(name)  # the time since the last piece of work ended counts as preparation of this one
        with self._inner.track(name, total) as advance_inner:

            def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
                if self._clock() - self._last_write >= _WRITE_SECONDS:
                    self.write()
                advance_inner(count, fields)

            try:
                yield advance
            finally:
                self.write()

    def write(self) -> None:
        """Write a line with the time since the last one."""
        now = self._clock()
        line = {"stage": self._stage, "seconds": round(now - self._last_write, 3)}
        self._last_write = now
        append_line(self._path, line)


def stage_seconds(path: Path) -> dict[str, float]:
    """Seconds of each stage, from a file of ``TimedProgress``; empty if there is none. Lines that a kill has cut off
    are left out."""
    found: dict[str, float] = {}
    for line in regular(path).read_bytes().splitlines() if path.exists() else ():
        try:
            row = orjson.loads(line)
            found[row["stage"]] = found.get(row["stage"], 0.0) + float(row["seconds"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def run_costs(run: Run) -> dict[str, StageCost]:
    """The cost of each stage of a run so far: seconds from RUN/times.jsonl, tokens and environment steps from the facts
    of its stages. Tokens of validations and tokens that GRPO trains on are not recorded, so they are missing."""
    found = {name: StageCost(name, seconds=seconds) for name, seconds in stage_seconds(run.path / TIMES).items()}

    def add(name: str, **counts: float) -> None:
        before = found.get(name, StageCost(name))
        found[name] = replace(before, **{key: getattr(before, key) + value for key, value in counts.items()})

    for stage, facts in run.stages().items():
        trained = facts.get("update", {}).get("metrics", {}).get("num_tokens", 0.0)
        if stage == "warm_start":
            add("demonstrations", environment_steps=facts["environment_steps"])
            add("warm start", trained_tokens=trained)
        elif "generated_tokens" in facts:
            counts = {key: facts[key] for key in ("generated_tokens", "environment_steps")}
            add("evaluation" if stage.startswith("evaluate-") else "search", **counts)
        elif trained:
            add(stage_of(stage), trained_tokens=trained)
    return found
