"""Audit a world model on steps of held-out tasks: how far can it be trusted?"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, groupby, islice
from pathlib import Path

import orjson

from treeagent.config import RunConfig
from treeagent.imagination.load import (
    world_model,
)
from treeagent.run.folder import Run, RunError
from treeagent.stages.demonstrate import demonstrations
from treeagent.stages.world import (
    experiences,
    imagined_trees,
    is_held_out,
    remembered,
    require_environment,
    round_of,
    split,
)
from treeagent.store import write_atomic
from treeagent.views.transitions import transitions
from treeagent.world_model.fidelity import Fidelity, audit
from treeagent.world_model.transition import Experience

AUDIT_STEPS = 1000
"""Most steps of an audit, which bounds the error of a measured share to about 1.6 percentage points."""

_COMMON = 0.01
"""Share of the actions from which a call is a kind of its own."""


def audit_world(config: RunConfig, run: Run, world: Path, most: int = AUDIT_STEPS) -> Fidelity:
    """Measure a run's world model in the folder ``world`` on the steps of the tasks held out from it, but for those
    that it learnt as another task's: of whole trees, the newest first, since it is to answer the policy of today, and
    where these hold fewer than ``most``, of demonstrations such as it learnt from; written to
    RUN/fidelity.json. Successes that it imagined in its own round, or the last model in the round before, count as far
    as they were replayed.

    Raises:
        RunError: there is nothing held out, the model learnt from what is, or ``config`` is of another environment.
    """
    require_environment(config, run)
    own, known = list(_newest_first(run)), list(remembered(config, world))
    leaked = {one.task_id for one in known if is_held_out(config, one.task_id)}
    if leaked:
        raise RunError(
            f"{world} learnt from {len(leaked)} of the tasks that world.held_out {config.world.held_out} holds out, as "
            f"from {min(leaked)!r}: audit it with the share that it was fitted with, or fit it anew"
        )
    missing = most - sum(not one.opens for one in split(config, own, known)[1])
    learnt, held_out = split(config, chain(own, _held_out_demonstrations(config, missing)), known)
    claims, claims_kept = _claims(run, world)
    low, high = config.environment.returns
    steps, openings = ([one for one in held_out if one.opens is opens] for opens in (False, True))
    if not steps:
        raise RunError(f"no task of {run.path} is held out: raise world.held_out and fit anew, or collect more tasks")
    kept = _whole_trees(steps, most)
    with world_model(config, world) as model:
        fidelity = asyncio.run(
            audit(
                model,
                [*kept, *openings[:most]],
                learnt,
                free=config.world.free,
                noise=config.world.noise,
                reward_span=high - low,
                horizon=config.environment.max_steps,
                kind=kinds([*learnt, *kept], config.world.free),
                replayed=[place < claims_kept for place in range(claims)],
                real=[True] * claims,
            )
        )
    write_atomic(run.path / "fidelity.json", orjson.dumps(fidelity.to_json(), option=orjson.OPT_INDENT_2))
    return fidelity


def _claims(run: Run, world: Path) -> tuple[int, int]:
    """Successes that were found in imagination and replayed in the environment, and those that succeeded there too."""
    number = round_of(world.name)
    stages = (run.stages().get(imagined_trees(each), {}) for each in (number, number - 1))
    return next(((facts["claims"], facts["claims_kept"]) for facts in stages if facts.get("claims")), (0, 0))


def _whole_trees(steps: Iterable[Experience], most: int) -> list[Experience]:
    """The steps of the first trees, as many as fit ``most`` steps together, and of one in any case: an episode that is
    cut short has no return to compare."""
    kept: list[Experience] = []
    for _, tree in groupby(steps, key=lambda one: one.task_id):
        found = list(tree)
        if kept and len(kept) + len(found) > most:
            break
        kept += found
    return kept


def _held_out_demonstrations(config: RunConfig, steps: int) -> Iterator[Experience]:
    """Whole episodes of held-out tasks, of ``steps`` steps or a few more as long as there are any."""
    played = islice(demonstrations(config), config.world.demonstrations) if config.world.demonstrations else ()
    for tree in played:
        if steps <= 0:
            return
        if is_held_out(config, tree.task.id):
            found = list(transitions(tree, config.policy.format))
            steps -= len(found)
            yield from found


def _newest_first(run: Run) -> Iterator[Experience]:
    """Those of the last round's trees first; each tree in one piece."""
    return experiences(run, sorted(run.collections(), key=round_of, reverse=True))


def kinds(found: Collection[Experience], free: Collection[str] = ()) -> Callable[[Experience], str]:
    """Types of action: a call that is common in itself, numbers in it as one, else its first word; the first word too
    where that is ``free``."""
    counts = Counter(_numberless(one.action) for one in found)

    def kind(one: Experience) -> str:
        call = _numberless(one.action)
        common = counts[call] >= max(2, _COMMON * len(found))
        return call if common and one.kind not in free else one.kind

    return kind


def _numberless(call: str) -> str:
    return re.sub(r"\d+", "#", call)
