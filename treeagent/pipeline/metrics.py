"""Events that running jobs send, and the cost of searches. Both feed progress bars, metrics.jsonl and stage facts."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.base import Usage
from treeagent.pipeline.progress import Advance, Progress
from treeagent.search.node import Budget, Tree

if TYPE_CHECKING:  # it imports TRL, which a search does not need
    from treeagent.learners.common import Hooks

_COUNTED = ("encoded_tokens", "cached_tokens", "failed_requests")
"""Counters of the generator that are part of a ``Cost``."""
_SUMMED = ("trees", "failed", "replayed_steps", *_COUNTED, "best_value")


@dataclass(slots=True)
class Cost:
    """The cost of a number of trees so far."""

    trees: int = 0
    failed: int = 0
    """Trees that ended with an error."""
    best_value: float = 0.0
    """Sum over trees of the highest Q at the root."""
    encoded_tokens: int = 0
    """Prompt tokens that went through the model."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache instead."""
    replayed_steps: int = 0
    """Environment steps that were replayed to return to a state without a snapshot."""
    failed_requests: int = 0
    """Requests to the policy's server that still failed after the last retry."""
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def of(cls, trees: Iterable[Tree], **counted: int) -> "Cost":
        """The cost of trees as far as they record it, with other counts."""
        found = cls(**counted)  # type: ignore[arg-type]  # counts alone
        for tree in trees:
            found.trees += 1
            found.failed += bool(tree.error)
            found.best_value += max((edge.value for edge in tree.root.edges if edge.visits), default=0.0)
            found.budget.add(tree.budget)
        return found

    def __add__(self, other: "Cost") -> "Cost":
        total = Cost(**{name: getattr(self, name) + getattr(other, name) for name in _SUMMED})
        total.budget.add(self.budget)
        total.budget.add(other.budget)
        return total

    def metrics(self, seconds: float, stored: "Cost") -> dict[str, float]:
        """All counts, with those of trees that an earlier, interrupted run ``stored``, and rates over ``seconds``."""
        total = self + stored
        return {name: getattr(total, name) for name in _SUMMED} | asdict(total.budget) | self._rates(seconds)

    def figures(self, seconds: float) -> Mapping[str, str]:
        """A few figures to show beside a progress bar."""
        rates = self._rates(seconds)
        return {
            "simulations/s": f"{rates['simulations_per_second']:,.0f}",
            "tokens/s": f"{rates['tokens_per_second']:,.0f}",
            "best value": f"{rates['best_value']:.2f}",
            "cache hits": f"{rates['cache_hits']:.0%}",
        }

    def _rates(self, seconds: float) -> dict[str, float]:
        return {
            "seconds": seconds,
            "simulations_per_second": self.budget.simulations / max(seconds, 1e-9),
            "tokens_per_second": self.budget.generated_tokens / max(seconds, 1e-9),
            "best_value": self.best_value / max(self.trees, 1),
            "cache_hits": self.cached_tokens / max(self.cached_tokens + self.encoded_tokens, 1),
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A message of a running job: progress, metrics, or the cost of its searches so far."""

    name: str
    done: int = 0
    total: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    index: int = 0
    """Index of the batch whose ``cost`` this is."""
    cost: Cost | None = None
    tokens: int = 0
    """Tokens that the batch ``index`` has read or generated so far."""
    told: str = ""
    """A sentence or a transcript for the user."""


Emit = Callable[[Event], None]


@contextmanager
def heartbeat(emit: Emit, name: str, index: int, usage: Usage) -> Iterator[Emit]:
    """Context that emits the tokens of a job so far every two seconds, since one call of the model may take minutes. It
    yields ``emit`` for use in this thread."""
    lock, ended, before = threading.Lock(), threading.Event(), usage.encoded_tokens + usage.generated_tokens

    def send(event: Event) -> None:
        with lock:
            emit(event)

    def beat() -> None:
        while not ended.wait(2.0):
            send(Event(name, index=index, tokens=usage.encoded_tokens + usage.generated_tokens - before))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield send
    finally:
        ended.set()
        thread.join()


def meter(usage: Usage, dynamics: EnvDynamics) -> Callable[[Sequence[Tree]], Cost]:
    """A function that measures the cost of all trees grown since now, also by the counters of generator and
    environment."""

    def counters() -> dict[str, int]:
        return {name: getattr(usage, name) for name in _COUNTED} | {"replayed_steps": dynamics.replayed_steps}

    before = counters()
    return lambda trees: Cost.of(trees, **{name: now - before[name] for name, now in counters().items()})


@contextmanager
def logged(log: Callable[[str, Mapping[str, float]], None], progress: Progress) -> Iterator[Emit]:
    """Show a progress bar for each name among the events, and pass their metrics to ``log`` under that name."""
    with ExitStack() as stack:
        bars: dict[str, Advance] = {}
        done: dict[str, int] = defaultdict(int)

        def on_event(event: Event) -> None:
            if event.metrics:
                log(event.name, event.metrics)
            if event.total:
                if event.name not in bars:
                    bars[event.name] = stack.enter_context(progress.track(event.name, event.total))
                bars[event.name](event.done - done[event.name])
                done[event.name] = event.done

        yield on_event


def training_hooks(emit: Emit, stage: str, folder: Path, validate: Callable[[], float] | None = None) -> "Hooks":
    """Hooks of a training that send its metrics and progress to ``emit`` as events of ``stage``. ``folder`` holds the
    trainer's own checkpoints; ``validate`` scores the current weights, higher is better."""
    return {
        "on_metrics": lambda metrics: emit(Event(stage, metrics=metrics)),
        "on_progress": lambda done, total: emit(Event(stage, done=done, total=total)),
        "validate": validate,
        "checkpoint_dir": folder,
    }
