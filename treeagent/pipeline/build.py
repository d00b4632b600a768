"""Build from the settings: the environment, its tasks, the policy, its generator, and the value function of leaves.

Environments and policies are built once in each process and reused by later jobs with the same settings.
"""

import atexit
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
import torch
from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerBase

from treeagent.agent.checkpoint import (
    Checkpoint,
    base_and_adapter,
    count_weights,
    has_head,
    load_checkpoint,
    load_tokenizer,
)
from treeagent.agent.policy import ChatPolicy, HeadValue, LLMPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.config import EnvironmentConfig, PolicyConfig, RunConfig
from treeagent.envs import EnvDynamics, WorkerEnv, make_env, wrap
from treeagent.envs.answers import checked_tasks, contained
from treeagent.envs.base import Env, ToolSpec
from treeagent.envs.pool import EnvPool
from treeagent.generators.attention import context_length
from treeagent.generators.base import Generator
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ModelConfig, RemoteConfig, ScratchConfig, VllmConfig
from treeagent.generators.formats import Format, make_grammar
from treeagent.generators.grammar import Grammar, openai_tools
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.learners.lora import with_adapter
from treeagent.pipeline.play import Actors
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.shots import MOST_TRIES, Shot, played_shots, read_shots
from treeagent.search.values import MixedValue, RolloutValue
from treeagent.types import Dynamics, Message, Policy, Split, Task, UserError, Value, derive_seed


def tasks_at(env: Env, split: Split, places: Sequence[int]) -> list[Task]:
    """The tasks with these indices in a split. Consecutive indices are fetched by one call.

    Raises:
        UserError: the split has fewer tasks.
    """
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


def environment(config: RunConfig) -> Env:
    """The run's environment, which the process keeps."""
    return _environment(_SETTINGS.dump_json(config.environment))


_SETTINGS = TypeAdapter(EnvironmentConfig)


def instances(config: RunConfig) -> Env | EnvPool:
    """The run's environment, or a pool of ``environment.parallel`` instances of it, on which steps are made. The
    process keeps the pool; it is closed when other environment settings replace it, and when the process ends.

    Raises:
        UserError: ``environment.parallel`` is above 1 and the environment is imagined.
    """
    env, count = environment(config), config.environment.parallel
    if count == 1:
        return env
    if env.origin == "imagined":
        raise UserError(
            f"environment.parallel is {count}, but environment {config.environment.name!r} is imagined by one model: "
            "set it to 1"
        )
    global _pool
    written = _SETTINGS.dump_json(config.environment)
    if _pool is None or _pool[0] != written:
        if _pool is not None:
            _pool[1].close()
        _pool = written, EnvPool(env, partial(_made, written), count)
    return _pool[1]


_pool: tuple[bytes, EnvPool] | None = None
"""The last pool, with the settings of its environment in JSON."""


_environments: dict[bytes, Env] = {}
"""The environments of the last two settings in JSON. The one used last comes last."""


def _environment(written: bytes) -> Env:
    """``_made``, or the environment that this process made from the same settings. It is closed when the process ends
    by itself."""
    env = _environments.pop(written) if written in _environments else _made(written)
    if len(_environments) > 1:
        with suppress(Exception):  # a user's environment may raise anything
            _environments.pop(next(iter(_environments))).close()
    _environments[written] = env
    _close_at_exit()
    return env


@cache
def _close_at_exit() -> None:
    """Have this process close its environments when it ends. Call it after an environment was made: what is registered
    last runs first, and ``WorkerEnv`` registers the end of its process."""
    atexit.register(close_environments)
    Finalize(None, close_environments, exitpriority=0)  # in a worker process, where atexit does nothing


def close_environments() -> None:
    """Close the environments that this process keeps. Their errors are ignored, because the results are stored."""
    while _environments:
        with suppress(Exception):
            _environments.popitem()[1].close()


def _made(written: bytes) -> Env:
    """Build the environment from its settings as JSON, a form that a cache can compare."""
    settings = _SETTINGS.validate_json(written)
    name, options = settings.name, settings.options
    seconds = settings.call_seconds
    env = WorkerEnv(name, options, call_seconds=seconds) if settings.worker else make_env(name, options)
    return wrap(env, settings.wrappers)


def env_dynamics(env: Env | EnvPool, config: RunConfig, name: str, *, reveal_reward: bool = True) -> EnvDynamics:
    """The environment, or several instances of it, as a ``Dynamics``. ``name`` seeds its randomness, if it is
    stochastic."""
    return EnvDynamics(
        env,
        max_steps=config.environment.max_steps,
        reveal_reward=reveal_reward,
        seed=derive_seed(config.seed, name),
        list_actions=config.policy.actions != "sample",
    )


def with_split_steps(dynamics: Dynamics, config: RunConfig, grammar: Grammar) -> Dynamics:
    """With ``search.granularity`` "split", a dynamics in which thought and action are separate steps; else ``dynamics``
    unchanged."""
    return SplitDynamics(dynamics, grammar) if config.search.granularity == "split" else dynamics


def greedy(policy: LLMPolicy, config: RunConfig) -> Policy:
    """The policy with greedy decoding, in the steps of ``in_steps``."""
    return in_steps(policy.greedy(), config)


def in_steps(policy: LLMPolicy, config: RunConfig) -> Policy:
    """The policy as it acts outside a tree. It takes whole turns, unless thoughts are separate steps
    (``with_split_steps``) and the legal actions are scored after them."""
    thinks = config.search.granularity == "split" and config.policy.actions != "sample"
    return SplitPolicy(policy) if thinks else policy


def load_actors(checkpoint: Path, config: RunConfig) -> tuple[Actors, LLMPolicy | ChatPolicy]:
    """Load a checkpoint. Returns the actors that the search settings describe, if so set with thoughts as separate
    steps, and the policy that takes whole turns. All share one generator.

    Raises:
        UserError: the settings ask for split steps, and ``policy.text_only`` gives no token ids.
    """
    search, server = config.search, config.server(config.policy.url)
    policy, value = _load_policy(checkpoint, config.policy, config.vllm, server, known_tools(config), shots(config))
    if isinstance(policy, ChatPolicy):
        if search.granularity == "split":
            raise UserError("search.granularity 'split' wants token ids, which policy.text_only does not give")
        return Actors(policy, policy.greedy(), value), policy
    sampling = SplitPolicy(policy) if search.granularity == "split" else policy
    return Actors(sampling, greedy(policy, config), value), policy


@lru_cache(maxsize=1)
def _load_policy(
    checkpoint: Path,
    settings: PolicyConfig,
    vllm: VllmConfig,
    server: RemoteConfig,
    tools: str,
    shown: tuple[Shot, ...],
) -> tuple[LLMPolicy | ChatPolicy, HeadValue | None]:
    """The policy and its value head, which uses the forward pass of the same generator. An engine or a server gives no
    hidden states, so a head that reads them runs on a second copy of the checkpoint, in transformers.

    Raises:
        UserError: the copy does not fit into memory.
    """
    if settings.generator == "remote" and settings.text_only:
        from treeagent.generators.remote import RemoteChat

        grammar, known = make_grammar(settings.format), _specs(tools)
        texts = [settings.preface, grammar.instructions(known) if settings.is_told else ""]
        system = [Message("system", "\n\n".join(filter(None, texts)))] if any(texts) else []
        opening = (*system, *(message for shot in shown for message in shot.messages(grammar, known)))
        chat = RemoteChat(server, str(checkpoint))
        return ChatPolicy(chat, grammar, opening, settings.temperature, settings.max_new_tokens), None
    scores = (  # the setting to change where a server cannot score given tokens
        "policy.actions=sample" if settings.actions != "sample" else ""
    )
    if settings.generator != "local":
        head = ValueHead.load(checkpoint) if has_head(checkpoint) else None
        if head is None or isinstance(head, LogprobHead):
            if head is not None:
                scores = "update.value_reads=hidden, and update the policy"
            served = _engine_or_server(checkpoint, settings, vllm, server, scores)
            policy = _policy(served, load_tokenizer(checkpoint), settings, tools, shown)
            return policy, None if head is None else HeadValue(served, policy.chat, head)
        _require_copy(checkpoint, settings, vllm)
    loaded = load_checkpoint(checkpoint, settings.dtype, settings.device_map, merged=True)
    local = LocalGenerator(loaded.model, cache_bytes=settings.cache_bytes)
    generator = (
        local if settings.generator == "local" else _engine_or_server(checkpoint, settings, vllm, server, scores)
    )
    policy = _policy(generator, loaded.tokenizer, settings, tools, shown)
    local.shared = policy.chat.shared_ids()  # the value head reads by ``local``, even if an engine or server samples
    return policy, None if loaded.head is None else HeadValue(local, policy.chat, loaded.head)


def _require_copy(checkpoint: Path, settings: PolicyConfig, vllm: VllmConfig) -> None:
    """Check that a second copy of the weights, for a value head on hidden states, fits into memory beside the sampling
    engine. Raises UserError if it does not."""
    weights, own = count_weights(checkpoint)
    dtype = own if settings.dtype == "auto" else getattr(torch, settings.dtype)
    needed = weights * dtype.itemsize
    if settings.device_map is None or settings.device_map == "cpu":
        room, memory, beside = float(psutil.virtual_memory().available), "this machine's memory", ""
    else:
        number = settings.device_map.partition(":")[2]  # "cuda:1"; the engine takes the first GPU
        gpu = int(number) if number.isdecimal() else 0
        free, total = torch.cuda.mem_get_info(gpu)
        share = vllm.gpu_memory_utilization if settings.generator == "vllm" and gpu == 0 else 0.0
        room, memory = min(free, (1 - share) * total), "the GPU's memory"
        beside = f" beside the engine's {share:.0%}" if share else ""
    if needed <= room:
        return
    raise UserError(
        f"the value head of {checkpoint} reads hidden states, for which a second copy of the weights is loaded: it "
        f"takes {needed / 2**30:.1f} GiB and up to {settings.cache_bytes / 2**30:.1f} GiB of cached prefixes "
        f"(policy.cache_bytes), but {memory} has {room / 2**30:.1f} GiB left{beside}: update the policy elsewhere with "
        "update.value_reads=logprobs, whose head needs no copy, lower vllm.gpu_memory_utilization, or set "
        "policy.dtype=bfloat16"
    )


def first_checkpoint(settings: ModelConfig, texts: Iterable[str], weights_seed: int, adapter_seed: int) -> Checkpoint:
    """The model that training starts from: the one that the settings name, with an adapter if they ask for one, or a
    model from scratch, with a tokenizer trained on ``texts``."""
    if settings.model is not None:
        loaded = load_checkpoint(settings.model, device_map=settings.device_map)
        return replace(loaded, model=with_adapter(loaded.model, settings.lora, adapter_seed))
    shape = ScratchConfig(**asdict(settings.scratch))
    tokenizer = train_tokenizer(texts, shape)
    return Checkpoint(random_model(tokenizer, shape, weights_seed), tokenizer)


def make_policy(checkpoint: Checkpoint, config: RunConfig) -> LLMPolicy:
    """A policy on a checkpoint that is in memory. Call ``forget`` on its generator when the weights change."""
    generator = LocalGenerator(checkpoint.model, cache_bytes=config.policy.cache_bytes)
    policy = _policy(generator, checkpoint.tokenizer, config.policy, known_tools(config), shots(config))
    generator.shared = policy.chat.shared_ids()
    return policy


def make_chat(checkpoint: Checkpoint, config: RunConfig) -> ChatFormat:
    """The chat format by which a checkpoint's policy tokenises conversations. It needs no generator, so the weights may
    be sharded."""
    context = context_length(checkpoint.model)
    return _conversation(checkpoint.tokenizer, config.policy, known_tools(config), shots(config), context)[0]


def _policy(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    settings: PolicyConfig,
    tools: str,
    shown: tuple[Shot, ...],
) -> LLMPolicy:
    chat, grammar = _conversation(tokenizer, settings, tools, shown, generator.context)
    form = None
    if settings.is_structured:
        from treeagent.generators.structured import Form

        form = Form(chat, partial(grammar.rules, _specs(tools)))
    return LLMPolicy(
        generator,
        chat,
        grammar,
        settings.temperature,
        settings.max_new_tokens,
        thought_tokens=settings.most_thought,
        top_p=settings.top_p,
        min_p=settings.min_p,
        form=form,
        actions=settings.actions,
        tools=_specs(tools),
    )


def known_tools(config: RunConfig) -> str:
    """The environment's tools as JSON, a form that a cache can compare. Empty if neither the prompt nor the sampling of
    turns nor the scoring of legal actions nor the reading of calls uses them."""
    policy = config.policy
    calls = policy.format == "tools" or (
        policy.format == "json" and (policy.most_thought or policy.actions != "sample")
    )
    if not policy.is_told and not policy.shots and not policy.is_structured and not calls:
        return ""
    return json.dumps([asdict(tool) for tool in environment(config).tools()])


def _specs(tools: str) -> list[ToolSpec]:
    return [ToolSpec(**tool) for tool in json.loads(tools)] if tools else []


def shots(config: RunConfig) -> tuple[Shot, ...]:
    """The demonstrations that every prompt shows.

    Raises:
        UserError: as ``played_shots`` and ``read_shots``.
    """
    setting = config.policy.shots
    if isinstance(setting, str):
        return tuple(read_shots(Path(setting)))
    written = _SETTINGS.dump_json(config.environment)
    return _played_shots(written, setting, config.policy.format, config.seed) if setting else ()


@lru_cache(maxsize=1)
def _played_shots(written: bytes, count: int, format: Format, seed: int) -> tuple[Shot, ...]:
    env, most = _environment(written), _SETTINGS.validate_json(written).max_steps
    tasks = list[Task]()
    for index in range(count * MOST_TRIES):
        with contained(), suppress(ValueError):  # the split holds fewer
            tasks += env.tasks("train", 1, index)
    return tuple(played_shots(env, tasks, count, max_steps=most, format=format, seed=seed))


def conversation(
    tokenizer: PreTrainedTokenizerBase,
    settings: PolicyConfig,
    tools: str,
    context_tokens: int | None = None,
    shown: Sequence[Shot] = (),
) -> tuple[ChatFormat, Grammar]:
    """The chat format and the grammar by which a policy's turns are read and written. The prompt of a pretrained model
    explains the format and the tools; a model from scratch learns both from demonstrations."""
    known = _specs(tools)
    grammar = make_grammar(settings.format, str(tokenizer.chat_template), known)
    in_prompt = settings.is_told and bool(tools)
    chat = ChatFormat(
        tokenizer,
        preface=settings.preface,
        instructions=grammar.instructions(known) if in_prompt else "",
        tools=openai_tools(known) if in_prompt and grammar.calls == "native" else (),
        context_tokens=context_tokens,
        shots=[shot.messages(grammar, known) for shot in shown],
    )
    return chat, grammar


def _conversation(
    tokenizer: PreTrainedTokenizerBase, settings: PolicyConfig, tools: str, shown: Sequence[Shot], context: int
) -> tuple[ChatFormat, Grammar]:
    """``conversation`` for a model whose context holds ``context`` tokens.

    Raises:
        UserError: instructions and demonstrations leave no room for a conversation.
    """
    most = settings.most_tokens(context)
    chat, grammar = conversation(tokenizer, settings, tools, most, shown)
    used, room = len(chat.shared_ids()), context - settings.max_new_tokens if most is None else most
    if used and used >= room:
        raise UserError(
            f"the instructions and {len(shown)} demonstrations take {used:,} tokens of every prompt, which may have "
            f"{room:,} (the model's context holds {context:,}, policy.max_new_tokens is {settings.max_new_tokens:,}): "
            "lower policy.shots, shorten policy.instructions, or use a model with a longer context"
        )
    return chat, grammar


def _engine_or_server(
    checkpoint: Path, settings: PolicyConfig, vllm: VllmConfig, server: RemoteConfig, scores: str
) -> Generator:
    """The generator of the policy: a vLLM engine, or a client of a server.

    Args:
        scores: as for ``RemoteGenerator``.
    """
    if settings.generator == "vllm":
        from treeagent.generators.vllm import engine

        base, adapter = base_and_adapter(checkpoint)
        return engine("policy", base, adapter, vllm, settings.dtype, structured=settings.is_structured)
    from treeagent.generators.remote import RemoteGenerator

    return RemoteGenerator(
        server,
        str(checkpoint),
        settings.temperature,
        structured=settings.is_structured,
        scores=scores,
        adapter=base_and_adapter(checkpoint)[1] if settings.reload == "lora" else None,
        versioned=settings.reload is not None,
        truncates=settings.truncates,
    )


def serve(config: RunConfig, checkpoint: Path, progress: Progress) -> None:
    """Make the servers load a checkpoint, if ``policy.reload`` is a command for it. With "lora", each
    ``RemoteGenerator`` makes the servers load its own adapter."""
    if not config.reloads:
        return
    from treeagent.contrib.servers.reload import reload

    for why in reload(config.server(config.policy.url), str(checkpoint), config.policy.reload or ()):
        progress.warn(f"{why}: the other servers go on without it")


def value_head(checkpoint: Checkpoint, config: RunConfig) -> ValueHead:
    """The checkpoint's value head, or a new one if it has none with the inputs that ``update.value_reads`` names."""
    if config.value_reads == "hidden":
        return hidden_head(checkpoint, config)
    if isinstance(checkpoint.head, LogprobHead):
        return checkpoint.head
    return LogprobHead(reward_range=config.environment.returns, seed=derive_seed(config.seed, "value_head"))


def hidden_head(checkpoint: Checkpoint, config: RunConfig) -> ValueHead:
    """The checkpoint's value head on hidden states, or a new one if it has none that reads two layers."""
    if checkpoint.head is not None and checkpoint.head.middle is not None:
        return checkpoint.head
    width = checkpoint.model.config.get_text_config().hidden_size
    return ValueHead(width, config.environment.returns, derive_seed(config.seed, "value_head"), middle=True)


def leaf_value(head: Value | None, policy: Policy, dynamics: Dynamics, config: RunConfig) -> Value | None:
    """The value function of leaves: the value head, rollouts of the policy, or a mixture weighted by
    ``search.rollout_weight``."""
    weight = config.search.rollout_weight
    if not weight:
        return head
    rollouts = RolloutValue(
        in_steps(policy, config) if isinstance(policy, LLMPolicy) else policy,
        dynamics,
        max_steps=config.environment.max_steps,
        discount=config.search.discount,
        bootstrap=config.search.bootstrap,
        value=head,
        seed=config.seed,
        step_seconds=config.search.step_seconds,
    )
    return rollouts if head is None or weight == 1 else MixedValue([head, rollouts], [1 - weight, weight])
