"""Audit a world model on steps of held-out tasks, to find how large a share of trees may grow in it."""

import asyncio
from itertools import chain, groupby, islice
from pathlib import Path

import orjson

from treeagent.config import RunConfig
from treeagent.pipeline.demonstrate import demonstrations
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.imagination import world_model
from treeagent.pipeline.world import (
    claims_kept,
    experiences,
    imagined_trees,
    is_held_out,
    remembered_steps,
    require_environment,
    round_of,
    split,
)
from treeagent.store import write_atomic
from treeagent.views.transitions import transitions
from treeagent.world_model.fidelity import Fidelity, audit
from treeagent.world_model.transition import Experience

AUDIT_STEPS = 1000
"""Most steps of an audit; the standard error of a share is then at most about 1.6 percentage points."""


def audit_world(config: RunConfig, run: Run, world: Path, most: int = AUDIT_STEPS) -> Fidelity:
    """Test the world model in the folder ``world`` on up to ``most`` steps of held-out tasks: whole real trees, newest
    first, then demonstrations. The findings are written to RUN/fidelity.json."""
    require_environment(config, run)
    real = [name for name in run.collections() if name != imagined_trees(round_of(name))]
    newest_first = sorted(real, key=round_of, reverse=True)
    own, known = list(experiences(run, newest_first)), list(remembered_steps(world))
    held_out = split(own, known)[1]
    if config.world.demonstrations and sum(not one.opens for one in held_out) < most:
        trees = islice(demonstrations(config), config.world.demonstrations)
        more = (transitions(tree, config.policy.format) for tree in trees if is_held_out(tree.task.id))
        held_out = split(chain(own, *more), known)[1]
    number = round_of(world.name)
    ratios = (claims_kept(run, each) for each in (number, number - 1))
    low, high = config.environment.returns
    steps, openings = ([one for one in held_out if one.opens is opens] for opens in (False, True))
    if not steps:
        raise RunError(f"no task of {run.path} is held out: collect more tasks")
    selected = list[Experience]()
    for tree in (list(found) for _, found in groupby(steps, key=lambda one: one.task_id)):
        if selected and len(selected) + len(tree) > most:
            break
        selected += tree
    with world_model(config, world) as model:
        fidelity = asyncio.run(
            audit(
                model,
                [*selected, *openings[:most]],
                learnt=known,
                free=config.world.free,
                noise=config.world.noise,
                reward_span=high - low,
                cr=next((ratio for ratio in ratios if ratio is not None), None),
            )
        )
    write_atomic(run.path / "fidelity.json", orjson.dumps(fidelity.to_json(), option=orjson.OPT_INDENT_2))
    return fidelity
