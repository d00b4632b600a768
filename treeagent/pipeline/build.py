"""Build from the settings: the environment, its tasks, the policy, its generator, and the value function of leaves. A
process keeps one environment, with the policy that acts in it, for later jobs."""

import atexit
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from multiprocessing.util import Finalize
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from treeagent.agent.checkpoint import (
    Checkpoint,
    base_and_adapter,
    has_head,
    load_checkpoint,
    load_tokenizer,
    with_adapter,
)
from treeagent.agent.policy import HeadValue, LLMPolicy, TextPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.config import EnvironmentConfig, RunConfig
from treeagent.envs import EnvDynamics, WorkerEnv, make_env, wrap
from treeagent.envs.answers import checked_tasks, contained
from treeagent.envs.base import Env, ToolSpec
from treeagent.envs.pool import EnvPool
from treeagent.generators.attention import context_length
from treeagent.generators.base import Generator
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import CACHE_BYTES, ModelConfig, ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import Grammar, make_grammar, openai_tools
from treeagent.pipeline.play import Actors
from treeagent.pipeline.shots import MOST_TRIES, Shot, played_shots, read_shots
from treeagent.seams import checked, resolve
from treeagent.types import Dynamics, Policy, Split, Task, UserError, derive_seed

GENERATORS = {name: f"treeagent.generators.{name}" for name in ("local", "vllm", "remote")}
"""The names of the core for ``policy.generator``, each with the module that it needs."""


def tasks_at(env: Env, split: Split, places: Sequence[int]) -> list[Task]:
    """The tasks with these indices in a split. Consecutive indices are fetched by one call."""
    tasks: list[Task] = []
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        block = [place for _, place in run]
        with contained():
            found = checked_tasks(env.tasks(split, len(block), block[0]), split)
        if len(found) != len(block):
            raise UserError(
                f"the environment gave {len(found)} where tasks {block[0]} to {block[-1]} of split {split!r} were "
                "asked for: set fewer, or mend its tasks()"
            )
        tasks += found
    return tasks


@dataclass(slots=True)
class _Kept:
    """What a process keeps for its next job."""

    settings: EnvironmentConfig
    env: Env
    pool: EnvPool | None = None
    shots: dict[object, tuple[Shot, ...]] = field(default_factory=dict[object, tuple[Shot, ...]])
    """The demonstrations that were played, by what they depend on."""
    policy: LLMPolicy | TextPolicy | None = None
    value: HeadValue | None = None
    made_from: object = None
    """What ``policy`` and ``value`` were made from."""


_kept: _Kept | None = None


def _keep(settings: EnvironmentConfig) -> _Kept:
    global _kept
    if _kept is None or _kept.settings != settings:
        close_environments()
        _kept = _Kept(settings, make_environment(settings))
        # After WorkerEnv has registered the end of its process: what is registered last runs first.
        atexit.register(close_environments)
        Finalize(None, close_environments, exitpriority=0)  # in a worker process, where atexit does nothing
    return _kept


def environment(config: RunConfig) -> Env:
    """The run's environment, which the process keeps until another one is asked for."""
    return _keep(config.environment).env


def instances(config: RunConfig) -> Env | EnvPool:
    """The run's environment, or a pool of ``environment.parallel`` instances of it, on which steps are made."""
    kept, count = _keep(config.environment), config.environment.parallel
    if count == 1:
        return kept.env
    kept.pool = kept.pool or EnvPool(kept.env, partial(make_environment, config.environment), count)
    return kept.pool


def close_environments() -> None:
    """Close what this process keeps. Errors are ignored: the results are stored."""
    global _kept
    closing, _kept = _kept, None
    for each in () if closing is None else (closing.pool, closing.env):
        if each is not None:
            with suppress(Exception):  # a user's environment may raise anything
                each.close()


def make_environment(settings: EnvironmentConfig) -> Env:
    name, options, seconds = settings.name, settings.options, settings.call_seconds
    env = WorkerEnv(name, options, call_seconds=seconds) if settings.worker else make_env(name, options)
    return wrap(env, settings.wrappers)


def env_dynamics(env: Env | EnvPool, config: RunConfig, name: str, *, reveal_reward: bool = True) -> EnvDynamics:
    """The environment as a ``Dynamics``. ``name`` seeds its randomness."""
    return EnvDynamics(
        env,
        max_steps=config.environment.max_steps,
        reveal_reward=reveal_reward,
        seed=derive_seed(config.seed, name),
        list_actions=config.policy.actions != "sample",
    )


def with_split_steps(dynamics: Dynamics, config: RunConfig, grammar: Grammar) -> Dynamics:
    """With ``search.granularity`` "split", thought and action as separate steps; else ``dynamics`` unchanged."""
    return SplitDynamics(dynamics, grammar) if config.search.granularity == "split" else dynamics


def in_steps(policy: LLMPolicy, config: RunConfig) -> Policy:
    """The policy as it acts outside a tree: in whole turns, unless legal actions are scored after separate thoughts."""
    thinks = config.search.granularity == "split" and config.policy.actions != "sample"
    return SplitPolicy(policy) if thinks else policy


def load_actors(checkpoint: Path, config: RunConfig) -> tuple[Actors, LLMPolicy | TextPolicy]:
    """Load a checkpoint: the actors that the search settings describe, and the policy that takes whole turns."""
    kept = _keep(config.environment)
    made_from = checkpoint, config.policy, config.vllm, config.remote, config.seed
    if kept.policy is None or kept.made_from != made_from:
        kept.policy = kept.value = None  # before the next is loaded, so that memory never holds both
        kept.policy, kept.value = _load_policy(checkpoint, config)
        kept.made_from = made_from
    policy, split = kept.policy, config.search.granularity == "split"
    if isinstance(policy, LLMPolicy):
        return Actors(SplitPolicy(policy) if split else policy, in_steps(policy.greedy(), config), kept.value), policy
    return Actors(policy, policy.greedy(), kept.value), policy


def _load_policy(checkpoint: Path, config: RunConfig) -> tuple[LLMPolicy | TextPolicy, HeadValue | None]:
    """The policy and its value head. An engine or a server gives no hidden states, so a head that reads them runs on a
    second copy of the checkpoint, in transformers."""
    settings, copy = config.policy, None
    head = ValueHead.load(checkpoint) if settings.generator != "local" and has_head(checkpoint) else None
    if settings.generator == "local" or not (head is None or isinstance(head, LogprobHead)):
        copy = load_checkpoint(checkpoint, settings.dtype, settings.device_map, merged=True)
        policy, head = make_policy(copy, config), copy.head
        reader = policy.generator
    if settings.generator != "local":
        served = _engine_or_server(checkpoint, config, isinstance(head, LogprobHead))
        if not isinstance(served, Generator):
            return served, None
        policy = _policy(served, load_tokenizer(checkpoint), config)
        reader = served if copy is None else reader
    return policy, None if head is None else HeadValue(reader, policy.chat, head)


def first_checkpoint(settings: ModelConfig, texts: Iterable[str], weights_seed: int, adapter_seed: int) -> Checkpoint:
    """The model that training starts from: the one that the settings name, or one from scratch with a tokenizer of
    ``texts``."""
    if settings.model is not None:
        loaded = load_checkpoint(settings.model, device_map=settings.device_map)
        return replace(loaded, model=with_adapter(loaded.model, settings.lora, adapter_seed))
    shape = ScratchConfig(**asdict(settings.scratch))
    tokenizer = train_tokenizer(texts, shape)
    return Checkpoint(random_model(tokenizer, shape, weights_seed), tokenizer)


def make_policy(checkpoint: Checkpoint, config: RunConfig) -> LLMPolicy:
    """A policy on a checkpoint that is in memory. Call ``forget`` on its generator when the weights change."""
    generator = LocalGenerator(
        checkpoint.model, cache_bytes=config.policy.cache_bytes or CACHE_BYTES, vocabulary=len(checkpoint.tokenizer)
    )
    policy = _policy(generator, checkpoint.tokenizer, config)
    generator.shared = policy.chat.shared_ids()
    return policy


def make_chat(checkpoint: Checkpoint, config: RunConfig) -> ChatFormat:
    """The chat format by which a checkpoint's policy tokenises conversations."""
    return conversation(checkpoint.tokenizer, config, context_length(checkpoint.model))[0]


def _policy(generator: Generator, tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> LLMPolicy:
    settings, tools = config.policy, known_tools(config)
    chat, grammar = conversation(tokenizer, config, generator.context, generator.end_ids)
    form = None
    if settings.is_structured:
        from treeagent.generators.structured import Form

        form = Form(chat, partial(grammar.rules, tools))
    return LLMPolicy(
        generator,
        chat,
        grammar,
        settings.temperature,
        settings.max_new_tokens,
        thought_tokens=settings.most_thought,
        form=form,
        actions=settings.actions,
        tools=tools,
    )


def known_tools(config: RunConfig) -> Sequence[ToolSpec]:
    """The environment's tools; empty if nothing uses them."""
    policy = config.policy
    if not policy.is_told and not policy.shots and not policy.is_structured and policy.format == "react":
        return ()
    return environment(config).tools()


def shots(config: RunConfig) -> tuple[Shot, ...]:
    """The demonstrations that every prompt shows: of a file, or the demonstrator's first successes."""
    setting, form = config.policy.shots, config.policy.format
    if isinstance(setting, str):
        return tuple(read_shots(Path(setting)))
    if not setting:
        return ()
    kept, key = _keep(config.environment), (setting, form, config.seed)
    if key not in kept.shots:
        tasks = list[Task]()
        for index in range(setting * MOST_TRIES):
            with contained(), suppress(ValueError):  # the split holds fewer
                tasks += kept.env.tasks("train", 1, index)
        most = config.environment.max_steps
        kept.shots[key] = tuple(played_shots(kept.env, tasks, setting, max_steps=most, format=form, seed=config.seed))
    return kept.shots[key]


def conversation(
    tokenizer: PreTrainedTokenizerBase, config: RunConfig, context: int, end_ids: Sequence[int] = ()
) -> tuple[ChatFormat, Grammar]:
    """The chat format and the grammar by which a policy's turns are read and written, for a model whose context holds
    ``context`` tokens."""
    settings, tools, shown = config.policy, known_tools(config), shots(config)
    most, grammar = settings.most_tokens(context), make_grammar(settings.format, str(tokenizer.chat_template), tools)
    chat = ChatFormat(
        tokenizer,
        preface=settings.preface,
        instructions=grammar.instructions(tools) if settings.is_told else "",
        tools=openai_tools(tools) if settings.is_told and grammar.calls == "native" else (),
        context_tokens=most,
        shots=[shot.messages(grammar, tools) for shot in shown],
        end_ids=end_ids,
    )
    used, room = len(chat.shared_ids()), context - settings.max_new_tokens if most is None else most
    if used and used >= room:
        raise UserError(
            f"the instructions and {len(shown)} demonstrations take {used:,} tokens of every prompt, which may have "
            f"{room:,} (the model's context holds {context:,}, policy.max_new_tokens is {settings.max_new_tokens:,}): "
            "lower policy.shots, shorten policy.instructions, or use a model with a longer context"
        )
    return chat, grammar


def _engine_or_server(checkpoint: Path, config: RunConfig, head_scores: bool) -> Generator | TextPolicy:
    """What samples for the policy: a vLLM engine, a client of a server, or what ``policy.generator`` plugs in: a
    dataclass of its settings (``policy.options``) with a method ``make(checkpoint, config, scores)``."""
    settings = config.policy
    if settings.generator == "vllm":
        from treeagent.generators.vllm import engine

        base, adapter = base_and_adapter(checkpoint)
        return engine("policy", base, adapter, config.vllm, settings.dtype, structured=settings.is_structured)
    # The setting to change where a server cannot score given tokens.
    scores = "policy.actions=sample" if settings.actions != "sample" else ""
    if head_scores:
        scores = "update.value_reads=hidden, and update the policy"
    if settings.generator == "remote":
        from treeagent.generators.remote import RemoteGenerator

        vocabulary, server = len(load_tokenizer(checkpoint)), config.server(settings.url)
        return RemoteGenerator(server, str(checkpoint), settings.temperature, vocabulary=vocabulary, scores=scores)
    plugged = resolve("policy.generator", settings.generator, GENERATORS)
    source = checked(plugged, settings.options, f"policy.generator {settings.generator!r}")
    made: Generator | TextPolicy = source.make(checkpoint, config, scores)
    return made


def value_head(checkpoint: Checkpoint, config: RunConfig, reads: str = "") -> ValueHead:
    """The checkpoint's value head, or a new one if it has none that reads ``reads`` (``update.value_reads``)."""
    head, returns, seed = checkpoint.head, config.environment.returns, derive_seed(config.seed, "value_head")
    if (reads or config.value_reads) == "logprobs":
        return head if isinstance(head, LogprobHead) else LogprobHead(reward_range=returns, seed=seed)
    if head is not None and head.middle is not None:  # it reads two layers
        return head
    return ValueHead(checkpoint.model.config.get_text_config().hidden_size, returns, seed, middle=True)
