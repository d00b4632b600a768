"""Load the parts of a run's world model: its settings, its memory, and the model itself."""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from treeagent.agent.checkpoint import base_and_adapter, load_checkpoint, load_tokenizer
from treeagent.config import RunConfig, load_config
from treeagent.envs.base import Env, EnvWrapper
from treeagent.generators.base import Generator
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.pipeline.folder import Run
from treeagent.store import regular
from treeagent.types import Action, Dynamics, State, Task, Transition, UserError
from treeagent.world_model.experience import ExperienceModel, Writer
from treeagent.world_model.language import LocalWriter, RemoteWriter
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.wording import INSTRUCTIONS, WITHOUT_REASONING, Wording

_loaded = lru_cache(maxsize=1)(load_checkpoint)
"""Keeps the last checkpoint in memory for the next batch of trees."""
SETTINGS = "world.toml"
"""The file in RUN with the settings with which ``treeagent world fit`` made its world model."""


def memory_path(world: Path) -> Path:
    """The memory (a SQLite database) of the world model in the folder ``world``."""
    return world.with_suffix(".sqlite")


def world_of(run: Run, overrides: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """The settings and the folder of a run's world model: from ``world fit``, or else from the last round."""
    if run.is_done("world"):
        return load_config(regular(run.path / SETTINGS), overrides), run.checkpoints / "world"
    rounds = [int(match[1]) for name in run.stages() if (match := re.fullmatch(r"world-(\d+)", name))]
    if not rounds:
        raise UserError(f"{run.path} has no world model: fit one with treeagent world fit {run.path}")
    return load_config(run.path / "config.toml", overrides), run.checkpoints / f"world-{max(rounds)}"


def wording(config: RunConfig) -> Wording:
    """The form of prompts and answers, without instructions for a model from scratch."""
    settings = config.world
    instructions = INSTRUCTIONS if settings.reasoning else WITHOUT_REASONING
    return Wording(instructions if settings.model else "", settings.reasoning, settings.observations)


def require_world(config: RunConfig) -> None:
    """Check that a world model with these settings has what it needs."""
    settings = config.world
    if settings.model is not None and settings.generator != "remote":
        load_tokenizer(settings.model)
    if settings.generator == "vllm":
        import_module("treeagent.generators.vllm")
    elif settings.generator == "remote":
        _remote_world(config)


@contextmanager
def world_model(config: RunConfig, world: Path, env: Env | None = None) -> Iterator[ExperienceModel]:
    """Context that yields the world model in the folder ``world`` as a dynamics. What the wrappers of ``env`` refuse is
    refused in imagination, too."""
    settings, writer = config.world, _writer(config, world)
    with closing(ReplayBuffer(memory_path(world))) if settings.examples else nullcontext() as memory:
        try:
            yield ExperienceModel(
                writer,
                wording(config),
                max_steps=config.environment.max_steps,
                memory=memory,
                examples=settings.examples,
                return_range=config.environment.returns,
                format=config.policy.format,
                tools=env.tools() if env is not None else (),
                forbids=env.refusal if isinstance(env, EnvWrapper) else lambda call: None,
            )
        finally:
            if isinstance(writer, LocalWriter):
                writer.generator.forget()  # a vLLM engine frees its GPUs


def with_planning_world(config: RunConfig) -> tuple[RunConfig, Path]:
    """``config`` with the section [world] of the run ``evaluate.world``, and the folder of that run's world model."""
    run = Run.open(Path(config.evaluate.world))
    settings, world = world_of(run)
    ours, theirs = config.environment, settings.environment
    if (ours.name, ours.options) != (theirs.name, theirs.options):
        raise UserError(
            f"evaluate.world {run.path} is of environment {theirs.name!r} with options {theirs.options}, not of "
            f"{ours.name!r} with {ours.options}: set environment.* as that run has them, or name a run of these"
        )
    return replace(config, world=settings.world), world


def _writer(config: RunConfig, world: Path) -> Writer:
    settings = config.world
    generator: Generator
    if settings.generator == "remote":
        return _remote_world(config)
    if settings.generator == "vllm":
        from treeagent.generators.vllm import engine

        generator = engine("world", *base_and_adapter(world), config.vllm, settings.dtype)
        tokenizer = load_tokenizer(world)
    else:
        checkpoint = _loaded(world, settings.dtype, settings.device_map, merged=True)
        generator = LocalGenerator(checkpoint.model, cache_bytes=config.policy.cache_bytes)
        tokenizer = checkpoint.tokenizer
    return LocalWriter(generator, ChatFormat(tokenizer), settings.max_new_tokens)


def _remote_world(config: RunConfig) -> RemoteWriter:
    from treeagent.generators.remote import Server

    server = Server(config.server(config.world.url), str(config.world.model), "world")
    return RemoteWriter(server, config.world.max_new_tokens)


@dataclass(frozen=True, slots=True)
class Imagination:
    """A dynamics in which ``start`` gives the first state of a task, and the world model imagines all later steps."""

    start: Callable[[Task], Awaitable[State]]
    model: Dynamics

    async def reset(self, task: Task) -> State:
        return await self.start(task)

    async def step(self, state: State, action: Action) -> Transition:
        return await self.model.step(state, action)
