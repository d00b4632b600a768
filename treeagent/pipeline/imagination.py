"""A run's world model in use: its settings, its memory and the model, and the replay of the best paths of imagined
trees in the environment before anything learns from them."""

import math
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
from treeagent.generators.config import CACHE_BYTES
from treeagent.generators.local import LocalGenerator
from treeagent.pipeline.folder import Run
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_logprob, path_return, succeeds
from treeagent.search.searcher import Growth, take_step
from treeagent.store import regular
from treeagent.types import Action, Dynamics, State, Task, Transition, UserError
from treeagent.world_model.experience import ExperienceModel, Writer
from treeagent.world_model.language import LocalWriter, RemoteWriter
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import last_answer
from treeagent.world_model.wording import INSTRUCTIONS, WITHOUT_REASONING, Wording

_loaded = lru_cache(maxsize=1)(load_checkpoint)
"""Keeps the last checkpoint in memory for the next batch of trees."""
_ROUNDING = 0.0015
"""Largest difference of two returns that count as equal: a world model may round rewards."""
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
        generator = LocalGenerator(checkpoint.model, cache_bytes=config.policy.cache_bytes or CACHE_BYTES)
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


async def verify_all(trees: Sequence[Tree], environment: Dynamics, steps: int) -> None:
    """Mark freshly grown trees as imagined and verify them; after ``steps`` environment steps in a tree, no further
    replay starts."""
    for tree in trees:
        for node in tree.nodes():
            node.origin = "imagined"
        if steps:
            await verify(tree, environment, steps)


async def verify(tree: Tree, environment: Dynamics, steps: int) -> None:
    """Replay the tree's finished paths in the environment, best first, and remove what these replays did not confirm.

    Paths are replayed until no imagined return exceeds the best return of a replay. While the environment answers as
    imagined, the path's nodes become real. Its first different answer replaces the imagined node and subtree; the rest
    of the path is then played only for its return. The value of a replayed action is the best return of its replays.

    A sibling with an imagined value at least as high as the best replayed action's is dropped; the others stay as
    worse alternatives, without their subtrees. If the environment raises an error, the tree keeps the error and no
    edges.
    """
    growth, before, best = Growth(tree), tree.budget.environment_steps, -math.inf
    tree.root.origin = "real"
    while tree.budget.environment_steps - before < steps and (plan := _best_imagined_path(tree)):
        imagined_return = path_return(plan, tree.discount)
        if imagined_return <= best + _ROUNDING:
            break
        claimed = succeeds(plan)
        replayed_path = await _replay(growth, plan, environment)
        if replayed_path is None:  # the values of the replayed steps are unknown
            tree.root.edges = []
            return
        if claimed:
            tree.budget.claims += 1
            tree.budget.claims_kept += succeeds(replayed_path)
        best = max(best, path_return(replayed_path, tree.discount))
    _keep_verified(tree.root, tree.discount)


def _best_imagined_path(tree: Tree) -> Sequence[Edge]:
    """The finished path with an imagined end and the highest return (ties: likelier, then shorter), or (). One that a
    limit cut off before it earned anything does not count."""

    def rank(path: Sequence[Edge]) -> tuple[float, float, int]:
        return path_return(path, tree.discount), path_logprob(path), -len(path)

    imagined_paths = (
        path
        for path in finished_paths(tree)
        if _end(path).origin == "imagined" and (_end(path).terminated or path_return(path, tree.discount) > 0)
    )
    return max(imagined_paths, key=rank, default=())


async def _replay(growth: Growth, plan: Sequence[Edge], environment: Dynamics) -> Sequence[Edge] | None:
    """Play a path in the environment. Returns the path with its answers; None after an error of the environment."""
    discount = growth.tree.discount
    known = next(index for index, edge in enumerate(plan) if _end([edge]).origin == "imagined")
    path = list(plan[:known])
    agrees = True
    while agrees and len(path) < len(plan):
        path.append(plan[len(path)])
        agrees = await _step(growth, path, environment)
        if _end(path).origin == "imagined":
            return None
    rest: list[Edge] = []
    for edge in plan[len(path) :]:
        if _end([*path, *rest]).ended:
            break
        rest.append(Edge(edge.action, prior=1.0))
        await take_step(environment, growth, [*path, *rest])
        if rest[-1].child is None:
            return None
    if rest:
        _end(path).value = path_return(rest, discount)
    for index, edge in enumerate(path):
        returned = path_return(path[index:], discount)
        edge.value_sum = edge.visits * (max(edge.value, returned) if index < known else returned)
    return [*path, *rest]


async def _step(growth: Growth, path: Sequence[Edge], environment: Dynamics) -> bool:
    """Replace the imagined node at the end of ``path`` by the environment's. Returns whether the two are the same: in
    flags, reward and, up to white space at the end, observation."""
    imagined, reward = _end(path), path[-1].reward
    await take_step(environment, growth, path)
    real = _end(path)
    texts = [last_answer(node.state.messages).rstrip() for node in (imagined, real)]
    flags = [(node.terminated, node.truncated, node.invalid) for node in (imagined, real)]
    same = texts[0] == texts[1] and flags[0] == flags[1]
    if real is imagined or not same or abs((reward or 0.0) - (path[-1].reward or 0.0)) > _ROUNDING:
        return False
    # The actions below were sampled after exactly these messages and token ids.
    real.state = replace(real.state, messages=imagined.state.messages)
    real.value, real.edges = imagined.value, imagined.edges
    real.context_ids, real.left_out = imagined.context_ids, imagined.left_out
    return True


def _keep_verified(node: Node, discount: float) -> None:
    replayed = [edge for edge in node.edges if edge.child is not None and edge.child.origin == "real"]
    best = max((edge.value for edge in replayed), default=-math.inf)
    node.edges = [
        edge for edge in node.edges if edge.child is None or edge in replayed or edge.value < best - _ROUNDING
    ]
    for edge in node.edges:
        if edge in replayed:
            _keep_verified(_end([edge]), discount)
        elif edge.child is not None and edge.child.edges:
            # The subtree is removed, but the value that its visits found is kept.
            edge.child.value = (edge.value - (edge.reward or 0.0)) / edge.discount(discount)
            edge.child.edges = []


def _end(path: Sequence[Edge]) -> Node:
    node = path[-1].child
    assert node is not None
    return node
