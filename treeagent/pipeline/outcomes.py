"""Outcomes of the episodes of an evaluation, kept on disk until their row is complete."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from treeagent.config import Mode
from treeagent.search.config import Limits
from treeagent.search.node import Budget, Tree, reaches
from treeagent.store import regular, write_atomic
from treeagent.types import CONTEXT_FULL, TURN_CUT_OFF, UserError, storable
from treeagent.world_model.fidelity import wilson_interval

Row = dict[str, Any]
"""One row of results, as ``summarise`` makes it."""
OFTEN = 0.2
"""From this share of episodes on, a limit that cut them off is named."""
CURES = {
    "environment.max_steps": "raise it, unless the environment's own limit ends them",
    "policy.max_new_tokens": "raise it, or set policy.structured=true or policy.thought_tokens to end turns in time",
    "the model's context": "lower policy.max_new_tokens or the length of observations, or set policy.context=drop",
    "search.limits": "search stopped there before search.limits.simulations: raise the other limits",
}
"""Each limit that may cut off an episode, with the cure."""


def evaluation_stage(policy: str, mode: str) -> str:
    return f"evaluate-{policy}-{mode}"


@dataclass(slots=True)
class Outcome:
    """The result of one episode of an evaluation."""

    task_id: str
    reward: float
    """Return of the executed episode, undiscounted."""
    steps: int
    """Steps of the executed episode."""
    budget: Budget = field(default_factory=Budget)
    """The cost of planning and execution together."""
    error: str = ""
    """Why the episode or its planning failed."""
    found: bool | None = None
    """Whether planning, which saw no reward, reached a success; None if nothing was planned or a model answered."""
    end_shows_success: bool = False
    """Whether an end betrayed a success to search (``Env.only_success_ends``)."""
    invalid: int = 0
    """Steps of the executed episode with a malformed turn or a refused call."""
    cut_off: bool = False
    """Whether a limit of steps ended the episode."""
    limits: tuple[str, ...] = ()
    """The limits that it met (``limits_met``)."""
    planning_tokens: int = 0
    """The tokens of ``budget`` that planning sampled."""
    reasoned: int = 0
    """Steps of the executed episode with a thought before the call."""

    @property
    def success(self) -> bool:
        """Whether the return is at least 1, up to rounding."""
        return reaches(self.reward, 1.0)


PlayedBatch = tuple[list[Outcome], float]
"""The outcomes of a batch and its wall time in seconds."""
_BATCH = TypeAdapter(PlayedBatch)


def save_batch(path: Path, batch: PlayedBatch) -> None:
    outcomes, seconds = batch
    written = [
        asdict(replace(each, task_id=storable(str(each.task_id)), error=storable(each.error))) for each in outcomes
    ]
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, orjson.dumps([written, seconds]))


def load_batch(path: Path) -> PlayedBatch | None:
    """The finished batch, or None if it is missing or damaged."""
    try:
        return _BATCH.validate_json(regular(path).read_bytes())
    except (FileNotFoundError, ValueError):  # pydantic's error is a ValueError
        return None


def summarise(policy: str, mode: Mode, outcomes: Sequence[Outcome], seconds: float) -> Row:
    """One row of results (docs/files.md), with the 95 % Wilson interval of success."""
    error = next((" ".join(storable(outcome.error).split()) for outcome in outcomes if outcome.error), "")
    if all_failed_at_start(outcomes):
        raise UserError(
            f"all {len(outcomes)} episodes of {policy} in mode {mode} failed before their first step, the first with "
            f"{error!r}: mend the cause, then continue with --resume"
        )
    successes = sum(outcome.success for outcome in outcomes)
    low, high = wilson_interval(successes, len(outcomes))
    found = [outcome.success for outcome in outcomes if outcome.found]
    limits = Counter(limit for outcome in outcomes for limit in outcome.limits)
    steps = max(sum(outcome.steps for outcome in outcomes), 1)
    row: Row = {
        "policy": policy,
        "mode": mode,
        "success": successes / len(outcomes),
        "success_low": low,
        "success_high": high,
        "reward": sum(outcome.reward for outcome in outcomes) / len(outcomes),
        "tasks": len(outcomes),
        "solved": "".join("01"[outcome.success] for outcome in outcomes),
        "errors": sum(bool(outcome.error) for outcome in outcomes),
        "error": error,
        "steps": sum(outcome.steps for outcome in outcomes) / len(outcomes),
        "invalid": sum(outcome.invalid for outcome in outcomes) / steps,
        "limits": {limit: met / len(outcomes) for limit, met in sorted(limits.items())},
        "reasoned": sum(outcome.reasoned for outcome in outcomes) / steps,
        "environment_steps": sum(outcome.budget.environment_steps for outcome in outcomes),
        "generated_tokens": sum(outcome.budget.generated_tokens for outcome in outcomes),
        "seconds": seconds,
    }
    if any(outcome.found is not None for outcome in outcomes):
        row["found"] = len(found) / len(outcomes)
    if any(outcome.end_shows_success for outcome in outcomes):
        row["pass_at_n"] = True
    if found:
        row["taken"] = sum(found) / len(found)
    return row


def limits_met(outcome: Outcome, episode: Tree, plan: Tree | None, limits: Limits) -> tuple[str, ...]:
    """The limits that cut off an episode without success, one of its turns, or the tree of its ``plan``."""
    if outcome.success:
        return ()
    spent = plan.budget if plan is not None else Budget()
    turn_cut = any(edge.action.error.startswith(TURN_CUT_OFF) for node in episode.nodes() for edge in node.edges)
    stopped = limits.share(spent) >= 1 and spent.simulations < (limits.simulations or 0)
    met = {
        "environment.max_steps": outcome.cut_off,
        "policy.max_new_tokens": turn_cut,
        "the model's context": CONTEXT_FULL in outcome.error,
        "search.limits": stopped,
    }
    return tuple(limit for limit, is_met in met.items() if is_met)


def limits_in_words(met: Mapping[str, int], episodes: int) -> list[str]:
    """Sentences that name the limits that cut off many of so many episodes."""
    return [
        f"{met[limit] / episodes:.0%} of the episodes were cut off by {limit}: {cure}"
        for limit, cure in CURES.items()
        if met.get(limit, 0) >= OFTEN * episodes
    ]


def all_failed_at_start(outcomes: Sequence[Outcome]) -> bool:
    """Whether every episode failed before its first step, as happens when a server answers no request."""
    return all(outcome.error and not outcome.steps for outcome in outcomes)
