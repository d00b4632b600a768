"""Search in imagination: trees grow on a world model, and what they promise is replayed in the environment before it
counts."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from treeagent.checkpoint import Checkpoint, base_and_adapter, load_checkpoint, load_tokenizer
from treeagent.config import RunConfig, TeacherConfig, WorldConfig, load_config
from treeagent.envs.base import Env
from treeagent.envs.shield import FORBIDDEN, ShieldedEnv
from treeagent.generators.base import Generator
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import DType
from treeagent.generators.local import LocalGenerator
from treeagent.health import finished_paths
from treeagent.run import Run
from treeagent.search.growth import Growth, take_step
from treeagent.search.node import Edge, Node, Tree, path_logprob, path_return, succeeds
from treeagent.seeds import derive_seed
from treeagent.types import Action, Dynamics, Refused, State, Task, ToolCall, Transition
from treeagent.world_model.encoder import Encoder, EncoderConfig, LexicalEncoder
from treeagent.world_model.experience import ExperienceModel, Writer
from treeagent.world_model.local import HiddenStateEncoder, LocalWriter
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import answered
from treeagent.world_model.wording import INSTRUCTIONS, Wording

if TYPE_CHECKING:
    from treeagent.world_model.remote import RemoteWriter  # its package is an extra

_ROUNDING = 0.0015
"""Returns that differ by no more are equal: a world model writes its rewards in three decimals."""


@dataclass(frozen=True, slots=True)
class Imagination:
    """A dynamics whose tasks open in the environment, which takes no step of it, and go on in a world model."""

    environment: Dynamics
    model: Dynamics

    async def reset(self, task: Task) -> State:
        return await self.environment.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        return await self.model.step(state, action)


def memory_path(world: Path) -> Path:
    """Where the memory of the world model in the folder ``world`` is."""
    return world.with_suffix(".sqlite")


def open_memory(config: RunConfig, world: Path) -> ReplayBuffer:
    """That memory, which is to be closed.

    Raises:
        Refused: as ``make_encoder`` and ``ReplayBuffer``.
    """
    return ReplayBuffer(memory_path(world), make_encoder(config, world))


def make_encoder(config: RunConfig, world: Path) -> Encoder:
    """What embeds the steps in the memory of the world model in the folder ``world``.

    Raises:
        Refused: its model or its package cannot be had.
    """
    settings = config.world.encoder
    if settings.kind == "lexical":
        return LexicalEncoder()
    own = world.with_name("warm")
    if settings.model is None and not own.is_dir():
        raise Refused(
            f"world.encoder.kind is 'hidden-states', but {own}, whose they are where no model is named, is not there: "
            "set world.encoder.model to a policy's folder"
        )
    return load_encoder(settings, settings.model or str(own))


@lru_cache(maxsize=1)
def load_encoder(settings: EncoderConfig, name: str) -> Encoder:
    """One with a model.

    Raises:
        Refused: the model or its package cannot be had.
    """
    if settings.kind == "sentence-transformers":
        from treeagent.world_model.sentences import SentenceEncoder  # its package is an extra

        return SentenceEncoder(name, settings.device)
    checkpoint = load_checkpoint(name, device_map=settings.device)
    return HiddenStateEncoder(LocalGenerator(checkpoint.model), ChatFormat(checkpoint.tokenizer))


def settings_path(run: Run) -> Path:
    """Where the settings are kept of the world model that ``treeagent world fit`` made for a run."""
    return run.path / "world.toml"


def world_of(run: Run, overrides: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """The settings and the folder of a run's world model: that of ``treeagent world fit``, else the last round's.

    Raises:
        Refused: there is none.
    """
    if run.is_done("world"):
        return load_config(settings_path(run), overrides), run.checkpoints / "world"
    rounds = [int(match[1]) for name in run.stages() if (match := re.fullmatch(r"world-(\d+)", name))]
    if not rounds:
        raise Refused(f"{run.path} has no world model: fit one with treeagent world fit {run.path}")
    return load_config(run.path / "config.toml", overrides), run.checkpoints / f"world-{max(rounds)}"


def wording(config: RunConfig) -> Wording:
    """A model that is trained on answers needs no instructions."""
    settings = config.world
    return Wording(INSTRUCTIONS if settings.model else "", settings.reasoning, settings.observations)


def require_world(settings: WorldConfig) -> None:
    """Ask for what a world model of these settings turns to, before anything is done for it.

    Raises:
        Refused: a server or its model, a model, an encoder or a package cannot be had.
    """
    if settings.encoder.model is not None:
        load_encoder(settings.encoder, settings.encoder.model)
    if settings.model is not None and settings.generator != "remote":
        load_tokenizer(settings.model)
    if settings.generator == "vllm":
        import_module("treeagent.generators.vllm")
    elif settings.generator == "remote":
        _remote_world(settings)
    if settings.teacher is not None:
        teacher(settings.teacher)


@contextmanager
def world_model(
    config: RunConfig, world: Path, env: Env | None = None, *, calls_alone: bool = False
) -> Iterator[ExperienceModel]:
    """The world model in the folder ``world`` as a dynamics, its memory open; for an agent whose turns are of
    ``policy.format``, or come as their calls alone. The shield of ``env`` holds in it too."""

    def forbids(call: str | ToolCall) -> str | None:
        reason = env.forbidden(call) if isinstance(env, ShieldedEnv) else None
        return None if reason is None else FORBIDDEN + reason

    settings, writer = config.world, _writer(config, world)
    memory = open_memory(config, world)
    try:
        if settings.examples:
            len(memory)  # one that is lost is told here, not by every tree that would ask it
        yield ExperienceModel(
            writer,
            wording(config),
            max_steps=config.environment.max_steps,
            memory=memory,
            examples=settings.examples,
            confidence=settings.confidence,
            return_range=config.environment.returns,
            format=None if calls_alone else config.policy.format,
            forbids=forbids,
            seed=derive_seed(config.seed, "world"),
        )
    finally:
        memory.close()
        if isinstance(writer, LocalWriter):
            writer.generator.forget()  # an engine leaves the GPUs to what comes next


def planner(config: RunConfig, env: Env | None = None) -> AbstractContextManager[ExperienceModel]:
    """The world model of the run ``evaluate.world``, for the agent that ``config`` describes to plan in; the shield of
    ``env`` holds in it too.

    Raises:
        Refused: as ``planned_in``.
    """
    return world_model(*planned_in(config), env)


def planned_in(config: RunConfig) -> tuple[RunConfig, Path]:
    """The agent's settings, with those of that world model, and its folder.

    Raises:
        Refused: it is of another environment or other options of it, or does not go with the agent, or there is none.
    """
    run = Run.open(Path(config.evaluate.world))
    settings, world = world_of(run)
    if settings.environment.name != config.environment.name:
        raise Refused(
            f"evaluate.world {run.path} is of environment {settings.environment.name!r}, not of "
            f"{config.environment.name!r}: name a run of that one"
        )
    known, asked = settings.environment.options, config.environment.options
    changed = [name for name in sorted(known | asked) if known.get(name) != asked.get(name)]
    if changed:
        raise Refused(
            f"evaluate.world {run.path} is of {config.environment.name!r} with other options: "
            + ", ".join(
                f"{name} is {known.get(name, 'not set')} there and {asked.get(name, 'not set')} here"
                for name in changed
            )
            + ": set environment.options as that run has them, or name a run of these"
        )
    try:
        # Demonstrations are for fitting it, and bound to a warm start that this agent need not have had.
        return replace(config, world=replace(settings.world, demonstrations=0)), world
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused(f"evaluate.world {run.path} does not go with the other settings: {reason}") from None


def _writer(config: RunConfig, world: Path) -> Writer:
    settings = config.world
    if settings.generator == "remote":
        return _remote_world(settings)
    generator: Generator
    if settings.generator == "vllm":
        from treeagent.generators.vllm import engine

        generator = engine("world", *base_and_adapter(world), settings.vllm, settings.dtype)
        tokenizer = load_tokenizer(world)
    else:
        checkpoint = _load(world, settings.dtype, settings.device_map)
        generator = LocalGenerator(checkpoint.model, cache_bytes=config.policy.cache_bytes)
        tokenizer = checkpoint.tokenizer
    return LocalWriter(generator, ChatFormat(tokenizer), settings.temperature, max_new_tokens=settings.max_new_tokens)


def _remote_world(settings: WorldConfig) -> "RemoteWriter":
    return _served("world", str(settings.model), settings)


def teacher(settings: TeacherConfig) -> "RemoteWriter":
    """The model on a server that reasons about real steps.

    Raises:
        Refused: the server cannot be reached, or does not serve it.
    """
    return _served("world.teacher", settings.model, settings)


def _served(section: str, model: str, settings: WorldConfig | TeacherConfig) -> "RemoteWriter":
    from treeagent.generators.remote import RemoteChat
    from treeagent.world_model.remote import RemoteWriter

    served = RemoteChat(settings.remote, model, f"{section}.remote")
    return RemoteWriter(served, settings.temperature, max_new_tokens=settings.max_new_tokens)


@lru_cache(maxsize=1)
def _load(world: Path, dtype: DType, device_map: str | None) -> Checkpoint:
    return load_checkpoint(world, dtype, device_map)


async def settle(trees: Sequence[Tree], environment: Dynamics, steps: int, seconds: float | None = None) -> None:
    """Say of freshly grown trees that they are imagined, and verify them; ``steps`` of 0 take them at their word.

    Args:
        environment: the one that opened their tasks.
        steps: of the environment, most for each tree; a replay under way is finished.
        seconds: wall time after which a step is given up.
    """
    call_imagined(trees)
    for tree in trees if steps else ():
        await verify(tree, environment, steps, seconds)


def call_imagined(trees: Iterable[Tree]) -> None:
    """Say so of every node, the root as well."""
    for tree in trees:
        for node in tree.nodes():
            node.origin = "imagined"


async def verify(tree: Tree, environment: Dynamics, steps: int, seconds: float | None = None) -> None:
    """Replay what the tree promises, the best first, and keep what can be believed after that.

    Finished paths are replayed until none promises more than a replay has returned. Where the environment answers as
    imagined, a node becomes real. Where it first answers otherwise, its answer takes the node's place, what was
    imagined below goes, and the rest of the plan is played to its end for the return alone: its actions were drawn
    behind prompts that never came about. A replayed action is worth the best return of its replays.

    Of its siblings, those that promise as much or more were not replayed: they are dropped. The others stay, without
    what is below them, as what to prefer the replayed action to. So the best action of a state and the best path of the
    tree were replayed, and a winner that failed is left as the failure that it is. Where the environment breaks down,
    the tree keeps the reason and nothing else.
    """
    growth, before, best = Growth(tree), tree.budget.environment_steps, -math.inf
    tree.root.origin = "real"
    while tree.budget.environment_steps - before < steps and (plan := _best_promise(tree)):
        promised = path_return(plan, tree.discount)
        if promised <= best + _ROUNDING:
            break
        claimed = succeeds(plan)
        played = await _replay(growth, plan, environment, seconds)
        if played is None:  # nobody knows what the replayed steps are worth
            tree.root.edges = []
            return
        if claimed:
            tree.budget.claims += 1
            tree.budget.claims_kept += succeeds(played)
        best = max(best, path_return(played, tree.discount))
    _keep_believable(tree.root, tree.discount)


def _best_promise(tree: Tree) -> Sequence[Edge]:
    """The finished path of highest return whose end is imagined, of equals the likeliest and then the shortest; empty
    where there is none."""

    def rank(path: Sequence[Edge]) -> tuple[float, float, int]:
        return path_return(path, tree.discount), path_logprob(path), -len(path)

    return max((path for path in finished_paths(tree) if _end(path).origin == "imagined"), key=rank, default=())


async def _replay(
    growth: Growth, plan: Sequence[Edge], environment: Dynamics, seconds: float | None
) -> Sequence[Edge] | None:
    """The plan as the environment answers it; None where that failed, of which the tree keeps the reason."""
    discount = growth.tree.discount
    known = next(place for place, edge in enumerate(plan) if _end([edge]).origin == "imagined")
    path = list(plan[:known])
    agrees = True
    while agrees and len(path) < len(plan):
        path.append(plan[len(path)])
        agrees = await _step(growth, path, environment, seconds)
        if _end(path).origin == "imagined":
            return None
    rest: list[Edge] = []
    for edge in plan[len(path) :]:
        if _end([*path, *rest]).ended:
            break
        rest.append(Edge(edge.action, prior=1.0))
        await take_step(environment, growth, [*path, *rest], seconds)
        if rest[-1].child is None:
            return None
    if rest:
        _end(path).value = path_return(rest, discount)
    for place, edge in enumerate(path):
        returned = path_return(path[place:], discount)
        edge.value_sum = edge.visits * (max(edge.value, returned) if place < known else returned)
    return [*path, *rest]


async def _step(growth: Growth, path: Sequence[Edge], environment: Dynamics, seconds: float | None) -> bool:
    """Take the last edge of ``path``, so far imagined, in the environment, whose answer takes the place of the imagined
    one; whether they are the same. An environment that fails leaves the edge as it is."""
    imagined, reward = _end(path), path[-1].reward
    await take_step(environment, growth, path, seconds)
    real = _end(path)
    if real is imagined or not _same(imagined, real) or abs((reward or 0.0) - (path[-1].reward or 0.0)) > _ROUNDING:
        return False
    real.state = replace(real.state, messages=imagined.state.messages)  # what the actions below were drawn behind
    real.value, real.edges = imagined.value, imagined.edges
    real.context_ids, real.left_out = imagined.context_ids, imagined.left_out
    return True


def _same(imagined: Node, real: Node) -> bool:
    """Whether the agent reads the same, but for white space at the end, which a served model's answers lack, and the
    same is possible from there on."""
    told, heard = answered(imagined.state.messages), answered(real.state.messages)
    flags = ("terminated", "truncated", "invalid")
    return told.rstrip() == heard.rstrip() and all(getattr(imagined, flag) == getattr(real, flag) for flag in flags)


def _keep_believable(node: Node, discount: float) -> None:
    replayed = [edge for edge in node.edges if edge.child is not None and edge.child.origin == "real"]
    best = max((edge.value for edge in replayed), default=-math.inf)
    node.edges = [
        edge for edge in node.edges if edge.child is None or edge in replayed or edge.value < best - _ROUNDING
    ]
    for edge in node.edges:
        if edge in replayed:
            _keep_believable(_end([edge]), discount)
        elif edge.child is not None and edge.child.edges:
            # What its visits found stands for what is cut off below.
            edge.child.value = (edge.value - (edge.reward or 0.0)) / (1.0 if edge.thought else discount)
            edge.child.edges = []


def _end(path: Sequence[Edge]) -> Node:
    node = path[-1].child
    assert node is not None
    return node
