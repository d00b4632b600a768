"""Checks before a command starts: whether the devices, models, packages and tasks that it needs are available.

The run's folder does not exist yet, so a failed check leaves nothing behind.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from treeagent.agent.checkpoint import load_tokenizer, require_device
from treeagent.config import COMPARING, Method, RunConfig
from treeagent.envs import make_env, wrap
from treeagent.envs.answers import checked_tasks, checked_tools, contained
from treeagent.envs.base import Env
from treeagent.pipeline.build import GENERATORS
from treeagent.pipeline.folder import RunError
from treeagent.pipeline.imagination import require_world, with_planning_world
from treeagent.pipeline.rewards import Place, make_reward
from treeagent.pipeline.trackers import require_trackers
from treeagent.seams import resolve
from treeagent.types import Split, UserError

Use = Literal["warm_start", "collect", "adapt", "update", "evaluate"]
"""Parts of a command that use tasks, named after the section of the settings that determines their number."""


def require(config: RunConfig, uses: Sequence[Use], methods: Sequence[Method] = (), model: Path | None = None) -> None:
    """Check everything that a command is going to use.

    Args:
        uses: the parts of the command that use tasks.
        methods: the update methods that the command uses.
        model: folder or hub name of the model to start from; None if a warm start makes one.
    """
    require_trackers(config)
    if config.evaluate.world:
        with_planning_world(config)
    _require_engines(config)
    devices = {"policy.device_map": config.policy.device_map}
    if "adapt" in uses and config.adapt.imagines:
        devices["world.device_map"] = config.world.device_map
        require_world(config)  # otherwise it would fail hours later, in the round that uses it
    for key, device in devices.items():
        require_device(key, device)
    require_whole_vocabulary(config, methods)
    name = config.policy.model if model is None and "warm_start" in uses else model
    if name is not None and config.policy.generator in GENERATORS:
        load_tokenizer(name)  # not for a hosted model, since its name is only known to its server
    environment = config.environment
    with closing(wrap(make_env(environment.name, environment.options), environment.wrappers)) as env:
        checked_tools(env.tools())
        _require_tasks(config, env, uses)
        if config.rewards.function:
            make_reward(Place(config, env, Path("runs"), ""))
        if config.policy.actions != "sample":
            _require_legal_actions(config, env)
        if "evaluate" in uses:
            _require_unforeseen_outcomes(config, env)


def _require_engines(config: RunConfig) -> None:
    """Import the modules of the engines. Each raises an error that names its package if that is missing."""
    if config.policy.generator in GENERATORS:
        import_module(GENERATORS[config.policy.generator])
    else:
        resolve("policy.generator", config.policy.generator, GENERATORS)
    if config.policy.is_structured:
        import_module("treeagent.generators.structured")


def require_whole_vocabulary(config: RunConfig, methods: Sequence[Method]) -> None:
    """Check that the settings by which trees are sampled fit the methods that learn from the samples.

    DPO and GRPO compare the policy with the log-probabilities of the samples, which must be normalised over the whole
    vocabulary. With ``structured``, vLLM and servers normalise them over the tokens that the grammar allows.
    """
    policy = config.policy
    unfit = [method for method in methods if method in COMPARING]
    if unfit and policy.is_structured and policy.generator != "local":
        raise UserError(
            f"{unfit[0]} needs log-probabilities over the whole vocabulary, but with policy.structured the generator "
            f"{policy.generator!r} gives them over the allowed tokens only: learn by rft or distil, set "
            "policy.structured=false, or search with policy.generator=local"
        )


def _require_legal_actions(config: RunConfig, env: Env) -> None:
    """Check that the environment lists legal actions. This needs a started episode, so the first task of a split is
    started; if no split's first task can be started, the check is skipped."""
    for split in get_args(Split):
        with suppress(Exception), contained():
            [task] = env.tasks(split, 1)
            env.reset(seed=task.seed, options={"task": task})
            listed = env.legal_actions()
            break
    else:
        return
    if listed is None:
        raise UserError(
            f"policy.actions is {config.policy.actions!r}, but environment {config.environment.name!r} lists no legal "
            "actions: set policy.actions=sample, or an environment with legal_actions()"
        )


def _require_unforeseen_outcomes(config: RunConfig, env: Env) -> None:
    """Check that planning cannot foresee the random outcomes of the execution. Both replay the same ones if a
    stochastic environment has no exact snapshots."""
    planned = [mode for mode in config.evaluate.modes if mode != "greedy"]
    kind = env.snapshot_kind
    if not planned or config.evaluate.world or kind == "exact" or not env.stochastic:
        return
    raise UserError(
        f"evaluate.modes has {planned[0]!r}, but environment {config.environment.name!r} is stochastic and has "
        f"snapshot_kind {kind!r}, so that planning would replay the random outcomes of the execution: give it exact "
        "snapshots, set evaluate.modes to greedy, or plan in a world model (evaluate.world)"
    )


def _require_tasks(config: RunConfig, env: Env, uses: Sequence[Use]) -> None:
    """Request the last task of each use, so that a split that is too small fails now instead of after hours."""
    warm, per_round, adapt = config.warm_start, config.collect.tasks, config.adapt
    seeding = adapt.seed_tasks if adapt.imagined_in(1) else 0
    required: dict[Use, tuple[Split, str, int]] = {
        "warm_start": ("train", "warm_start.tasks", min(warm.tasks, warm.episodes)),
        "collect": ("train", "collect.tasks", per_round),
        "adapt": ("train", "adapt.rounds of collect.tasks and adapt.seed_tasks", adapt.rounds * per_round + seeding),
        "update": ("validation", "update.validation_tasks", config.update.validation_tasks),
        "evaluate": ("test", "evaluate.first_task and evaluate.tasks", config.evaluate.places.stop),
    }
    for use in uses:
        split, key, count = required[use]
        try:
            found: object = env.tasks(split, 1, count - 1)
            if isinstance(found, Sequence) and not found:
                raise ValueError("its tasks() gives none there")
        except ValueError as error:
            fix = str(error) if isinstance(error, UserError) else f"{error}: lower it"
            raise RunError(
                f"{key}: {count} tasks of the {split} split are wanted, but environment {config.environment.name!r} "
                f"has fewer: {fix}"
            ) from error
        checked_tasks(found, split)
