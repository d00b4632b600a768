"""One run's settings: composes each room's own configuration, reads TOML and dotted overrides, refuses what it does
not know."""

import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from treeagent.envs.forks import SNAPSHOT_BYTES
from treeagent.envs.shield import Shield
from treeagent.generators.config import DType, RemoteConfig, ScratchConfig, VllmConfig
from treeagent.generators.grammar import Format
from treeagent.learners.config import DPOConfig, GRPOConfig, LoraConfig, Seed, SFTConfig, ValueConfig
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.decide import Decision
from treeagent.search.limits import Limits
from treeagent.types import UserError
from treeagent.views.advantages import AdvantageConfig
from treeagent.views.imitation import TargetConfig
from treeagent.views.pairs import PairConfig
from treeagent.world_model.encoder import EncoderConfig

_STRICT = ConfigDict(extra="forbid")


Method = Literal["rft", "dpo", "grpo"]


Share = Annotated[float, Field(ge=0, le=1)]


Tracker = Literal["tensorboard", "trackio", "wandb"]


def _check_methods(methods: Sequence[Method]) -> None:
    if not methods:
        raise ValueError('methods is empty: name at least one of "rft", "dpo", "grpo"')
    if len(set(methods)) < len(methods):  # a checkpoint goes by its method
        raise ValueError(f"methods {list(methods)} names one twice: name each once")


Mode = Literal["greedy", SearchMethod]


@dataclass(frozen=True, config=_STRICT)
class EvaluateConfig:
    """How policies are compared."""

    tasks: Annotated[int, Field(gt=0)] = 200
    """Held-out tasks (the environment's test split)."""
    modes: tuple[Mode, ...] = ("greedy", "best_of_n", "mcts")
    """Ways of acting: the policy at temperature 0, or a method of search. Sampling is ``best_of_n`` with N = 1."""
    best_of: Annotated[int, Field(gt=0)] = 8
    """N of best-of-N, where it stands for ``search.limits.simulations``."""
    decision: Decision = "leaf"
    """How a search's tree becomes actions; those of lookahead are taken already."""
    likelihood_weight: Annotated[float, Field(ge=0)] = 0.0
    """λ of ``leaf``: ends are ranked by V + λ log π(path), in reward units a nat."""
    world: str = ""
    """The folder of a run whose world model is searched in place of the environment, anew after each step that the
    environment took (model predictive control); none if empty."""

    @model_validator(mode="after")
    def _some_mode(self) -> Self:
        if not self.modes:
            raise ValueError('modes is empty: name at least one, such as "greedy"')
        if len(set(self.modes)) < len(self.modes):
            raise ValueError(f"modes {list(self.modes)} names one twice: name each once")
        return self


@dataclass(frozen=True, config=_STRICT)
class EnvironmentConfig:
    """Which environment, and how an episode of it is bounded."""

    name: str = "shop"
    """A built-in environment, or "module:Class"."""
    options: dict[str, int | float | str | bool | tuple[str, ...]] = Field(default_factory=dict)
    """Passed to the environment; see its own documentation."""
    max_steps: Annotated[int, Field(gt=0)] = 10
    """Steps after which an episode is truncated."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Least and greatest return of an episode, between which a new value head's estimates lie. A success is a return
    of 1."""
    worker: bool = False
    """Run it in a process of its own, so that a call that hangs or crashes costs its own task only."""
    call_seconds: Annotated[float, Field(gt=0)] = 60.0
    """With ``worker``: wall time after which a call is given up and the process killed."""
    episode_seconds: Annotated[float, Field(gt=0)] | None = None
    """With ``worker``: most wall time inside calls along one path of an episode."""
    observation_bytes: Annotated[int, Field(gt=0)] | None = None
    """Of an observation that the agent reads; a note tells how many were cut."""
    episode_bytes: Annotated[int, Field(gt=0)] | None = None
    """Of all observations of an episode after which it is truncated."""
    shield: Shield = Field(default_factory=Shield)
    """Calls that never reach the environment, in training or evaluation, and what they cost."""
    snapshot_bytes: Annotated[int, Field(gt=0)] = SNAPSHOT_BYTES
    """Bound of the snapshots kept to go back to; the least recently used are replayed when wanted again."""

    @model_validator(mode="after")
    def _some_range(self) -> Self:
        low, high = self.returns
        if not low < high:
            raise ValueError(f"returns ({low:g}, {high:g}) is no range: give the least return first")
        return self


@dataclass(frozen=True, config=_STRICT)
class PolicyConfig:
    """The language model that acts."""

    model: str | None = None
    """A local folder or hub name to start from; none trains one from scratch on demonstrations."""
    scratch: ScratchConfig = Field(default_factory=ScratchConfig)
    """Sizes of the model from scratch."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of sampling; the learners divide logits by it too."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 48
    """Longest think/action step, in tokens."""
    format: Format = "react"
    """How a turn is written: ReAct text, JSON with when/which/how, or the model's own tool calls. In the last two a
    ``model`` is told the format and the environment's tools."""
    structured: bool = False
    """Hold every turn to the format while it is sampled: a call of one of the environment's tools with arguments of its
    schema or, where it has none, a text."""
    context: Literal["refuse", "drop"] = "refuse"
    """Where a prompt grows too long its state is a dead end, or old observations are left out, a note in the place of
    each."""
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    """Most tokens of a prompt before "drop" leaves any out; none means the model's context less ``max_new_tokens``."""
    cache_bytes: Annotated[int, Field(gt=0)] = 1 << 30
    """Bound of each worker's prefix cache, of ``local``."""
    generator: Literal["local", "vllm", "remote"] = "local"
    """What samples: transformers or a vLLM engine in this process, or a server. Training is always transformers'."""
    dtype: DType = "auto"
    """Of the weights that sample in this process."""
    device_map: str | None = None
    """Where transformers puts them, such as "cuda"; none is the CPU."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """The engine."""
    remote: RemoteConfig = Field(default_factory=RemoteConfig)
    """The server."""

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.context == "refuse" and self.context_tokens is not None:
            raise ValueError("context_tokens is set, but context is 'refuse': set context='drop' too, or leave it out")
        if self.context == "drop" and self.remote.text_only:
            raise ValueError("context is 'drop', which counts tokens, but remote.text_only has none: leave one out")
        if self.structured and self.generator == "remote" and self.remote.text_only:
            raise ValueError("structured holds token ids to the format, but remote.text_only has none: leave one out")
        return self

    @property
    def is_told(self) -> bool:
        """Whether a prompt begins with the format and the tools: a model made here learns them from demonstrations, and
        a ReAct environment explains itself."""
        return self.model is not None and self.format != "react"

    def most_tokens(self, context: int) -> int | None:
        """Of a prompt, before old observations are left out, under a model whose ``context`` holds that many; none
        where nothing is left out.

        Raises:
            UserError: the context does not hold as many.
        """
        if self.context == "refuse":
            return None
        room = context - self.max_new_tokens
        if room < (self.context_tokens or 1):
            raise UserError(
                f"the model's context holds {context} tokens, which leaves {room} beside policy.max_new_tokens "
                f"({self.max_new_tokens}): lower that or policy.context_tokens ({self.context_tokens or 'unset'})"
            )
        return self.context_tokens or room


@dataclass(frozen=True, config=_STRICT)
class EarlyExperienceConfig:
    """What actions tried beside the demonstrated ones teach the policy (Early Experience, Zhang et al. 2025)."""

    rows: Literal["none", "world", "reflection", "both"] = "none"
    """"world": before the imitation, what the environment answers to an action. "reflection": among the demonstrations,
    turns that say why an action is better than another one."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Of the demonstrations, the first ones, at whose states other actions are tried."""
    alternatives: Annotated[int, Field(ge=0)] = 2
    """K, wrong actions drawn at each of these states, beside the right one. Each is played on to the end without
    further errors."""
    world_steps: Annotated[int, Field(gt=0)] = 200
    """Steps of the optimiser, set as in ``warm_start.sft``, on "world" rows alone."""

    def wants(self, kind: Literal["world", "reflection"]) -> bool:
        return self.rows in (kind, "both")


@dataclass(frozen=True, config=_STRICT)
class WarmStartConfig:
    """Imitation of the environment's demonstrator, before any search."""

    episodes: Annotated[int, Field(gt=0)] = 12000
    """Demonstrations."""
    tasks: Annotated[int, Field(gt=0)] = 3000
    """Training tasks they are of; where episodes are more, tasks repeat with other errors."""
    noise: Annotated[float, Field(ge=0, le=1)] = 0.3
    """How often the demonstrator errs."""
    max_tokens: Annotated[int, Field(gt=0)] = 400
    """Longer demonstrations are left out: a few of them would take most of the time."""
    sft: SFTConfig = Field(default_factory=SFTConfig)
    """The imitation itself."""
    lora: LoraConfig | None = None
    """An adapter to train in place of the weights of ``policy.model``; updates go on with it."""
    early_experience: EarlyExperienceConfig = Field(default_factory=EarlyExperienceConfig)
    """More than the demonstrations."""


@dataclass(frozen=True, config=_STRICT)
class CollectConfig:
    """Which training tasks are searched, and how many trees advance together."""

    tasks: Annotated[int, Field(gt=0)] = 800
    """One tree each."""
    batch: Annotated[int, Field(gt=0)] = 100
    """Trees that share their model calls; a finished batch is what a resumed run keeps."""
    limits: Limits | None = None
    """What all trees of a collection may spend together: it ends with the batch that reaches a limit."""
    resample: Annotated[int, Field(ge=0)] = 0
    """Rounds in which trees whose returns are all equal are made up for by trees of further tasks (DAPO's dynamic
    sampling)."""


@dataclass(frozen=True, config=_STRICT)
class UpdateConfig:
    """What the updates make of the trees."""

    methods: tuple[Method, ...] = ("rft", "dpo", "grpo")
    """Each starts from the base policy."""
    validation_tasks: Annotated[int, Field(gt=0)] = 100
    """Tasks, apart from training and held-out ones, whose greedy success chooses the checkpoint that is kept."""
    targets: TargetConfig = Field(default_factory=TargetConfig)
    """Paths to imitate, and what a state is worth."""
    pairs: PairConfig = Field(default_factory=PairConfig)
    """Siblings that make a preference pair."""
    advantages: AdvantageConfig = Field(default_factory=AdvantageConfig)
    """Actions that get an advantage."""
    rft: SFTConfig = Field(default_factory=SFTConfig)
    """Imitation of the best paths: the control."""
    dpo: DPOConfig = Field(default_factory=DPOConfig)
    """Preference optimisation on sibling pairs."""
    grpo: GRPOConfig = Field(default_factory=GRPOConfig)
    """Policy gradient on tree advantages."""
    value: ValueConfig = Field(default_factory=ValueConfig)
    """The head's fit on search returns, after every change of the policy."""
    value_rows: Annotated[int, Field(gt=0)] = 2000
    """Most tree paths used by that fit."""
    keep_trees: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of trees learned from, those whose returns differ most (StarPO-S)."""
    lora: LoraConfig | None = None
    """An adapter to train in place of the weights; one that the checkpoint has already is trained on in any case."""
    processes: Annotated[int, Field(gt=0)] = 1
    """Of this machine that train together, each on its own batches, so that a step sees as many batches at once."""
    accelerate_config: str | None = None
    """A file of ``accelerate config`` by which they are started, where plain data-parallel training is not wanted;
    configs/models/fsdp.yaml shares the weights out."""

    @model_validator(mode="after")
    def _some_method(self) -> Self:
        _check_methods(self.methods)
        return self


@dataclass(frozen=True, config=_STRICT)
class AdaptConfig:
    """Search-and-adapt: search with the policy as it is, learn from the trees, again."""

    rounds: Annotated[int, Field(gt=0)] = 3
    """Of search and update."""
    methods: tuple[Method, ...] = ("dpo", "grpo")
    """Updates of a round, one after the other on the same weights."""
    replay: Annotated[int, Field(ge=0)] = 1
    """Earlier rounds whose trees are learned from again, that of ``seed_tasks`` too; the log-probabilities stored with
    them are the reference."""
    curriculum: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of a round's tasks that were searched before: those whose returns differed most when last searched."""
    effort: Annotated[float, Field(ge=1)] = 1.0
    """Factor of ``search.limits`` for tasks that were searched before without a success."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Rounds in a row without a better validation before the loop stops; 0 never stops."""
    imagined: Share | tuple[Share, ...] = 0.0
    """Most of a round's trees that grow in the world model, as a share: one for all rounds, or one a round. The audit
    before each round may allow less."""
    seed_tasks: Annotated[int, Field(gt=0)] = 100
    """Searched in the environment before the first round, if that is to imagine, for the world model to learn from."""
    variations: Share = 0.0
    """Most of a round's tasks that are harder variations of tasks of widest spread, as a share. One is learned from if
    the policy solves it less often than its task, but at times."""

    @model_validator(mode="after")
    def _some_method(self) -> Self:
        _check_methods(self.methods)
        if isinstance(self.imagined, tuple) and len(self.imagined) != self.rounds:
            raise ValueError(f"imagined names {len(self.imagined)} shares for {self.rounds} rounds: give one a round")
        return self

    def imagined_in(self, number: int) -> float:
        """The share of round ``number``, from 1 on."""
        return self.imagined[number - 1] if isinstance(self.imagined, tuple) else self.imagined

    @property
    def imagines(self) -> bool:
        """Some round does."""
        return any(self.imagined_in(number) for number in range(1, self.rounds + 1))


@dataclass(frozen=True, config=_STRICT)
class TeacherConfig:
    """A model on a server that reasons about real steps, for the world model to learn to reason so."""

    model: str
    """Its name there."""
    remote: RemoteConfig = Field(default_factory=RemoteConfig)
    """The server."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of its lines; 0 is greedy."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 256
    """Longest answer, thinking included where the server counts it."""


@dataclass(frozen=True, config=_STRICT)
class WorldConfig:
    """The world model: what it is, what it learns from and how it is audited."""

    generator: Literal["local", "vllm", "remote"] = "local"
    """A model here, which is trained, and then samples in transformers or by a vLLM engine in this process; or one on a
    server, which is told what to do and shown ``examples``."""
    model: str | None = None
    """A local folder or hub name to fine-tune; none trains one from scratch. On a server, its name there."""
    lora: LoraConfig | None = None
    """An adapter that is trained in place of the model's own weights."""
    dtype: DType = "auto"
    """Of the weights that sample in this process."""
    device_map: str | None = None
    """Where transformers puts them, such as "cuda"; none is the CPU."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """The engine."""
    remote: RemoteConfig = Field(default_factory=RemoteConfig)
    """The server."""
    scratch: ScratchConfig = Field(default_factory=ScratchConfig)
    """Sizes of the one from scratch."""
    reasoning: bool = True
    """It reasons before it answers, as ``teacher`` does or, without one, a rule."""
    teacher: TeacherConfig | None = None
    """Who writes the reasoning that it learns. A step that the teacher does not explain is reasoned by rule."""
    examples: Annotated[int, Field(ge=0)] = 0
    """k, similar steps that it is shown."""
    encoder: EncoderConfig = Field(default_factory=EncoderConfig)
    """What tells which are similar."""
    observations: Annotated[int, Field(gt=0)] | None = None
    """How many observations of the episode it is shown, the last ones; none shows all. One is enough where it tells
    everything, as a board does."""
    demonstrations: Annotated[int, Field(ge=0)] = 0
    """Episodes of a warm start, its first ones, that it learns from beside the trees: of far more tasks than are
    searched, so that it learns to read a task rather than to know some."""
    end_rows: Annotated[int, Field(gt=0)] = 1
    """Times that a step which ends an episode is among the training rows: there are few, and their rewards are what is
    hardest to tell."""
    hard_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps after each fit in which half of the rows are ends, drawn by how likely the model is to get them
    wrong: search goes where a model errs in the agent's favour."""
    max_tokens: Annotated[int, Field(gt=0)] = 512
    """Longer training rows are left out."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 128
    """Longest answer."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of its answers; 0 is greedy."""
    confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Least probability of the least likely token of an answer that ends an episode; of an end that it is less sure of
    nobody knows what it is worth. 0 takes every answer."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the tasks that it is audited on and never learns from."""
    audit_steps: Annotated[int, Field(gt=0)] = 1000
    """Most steps of an audit."""
    refit_steps: Annotated[int, Field(gt=0)] = 200
    """Steps of a later round's fit, which goes on from the last one on all real steps so far."""
    verify_steps: Annotated[int, Field(ge=0)] = 20
    """Of the environment, most for each imagined tree, to replay what it promises; 0 takes it at its word."""
    noise: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Share of wrong training labels that imagined experience may bring in, which caps how much of it is used; 1 trusts
    any model of which fewer than half of the returns are wrong."""
    free: tuple[str, ...] = ("search",)
    """Types of action whose answers the history cannot tell, so that only consistency is asked of them."""
    sft: SFTConfig = Field(default_factory=SFTConfig)
    """The fit."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.generator == "remote" and self.model is None:
            raise ValueError("generator is 'remote', but no model is named: set model to the server's name for it")
        if self.lora and (self.generator == "remote" or self.model is None):
            why = "generator is 'remote'" if self.generator == "remote" else "no model is named"
            raise ValueError(
                f"lora is set, but {why}, so no adapter can be trained: leave it out, or name a model here"
            )
        if self.teacher and (self.generator == "remote" or not self.reasoning):
            why = "generator is 'remote', so nothing is trained" if self.reasoning else "reasoning is false"
            raise ValueError(f"teacher is {self.teacher.model!r}, but {why}: leave one out")
        if self.generator == "remote" and (self.confidence or self.hard_steps):
            raise ValueError(
                f"confidence is {self.confidence:g} and hard_steps {self.hard_steps}, but generator is 'remote': a "
                "server is not asked how sure it is, nor trained; set both to 0"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class RayConfig:
    """The cluster that jobs run on with ``engine`` "ray"."""

    address: str | None = None
    """Of one that runs, such as "auto" or "10.0.0.1:6379"; none starts one on this machine, for the run alone."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """What each worker has to itself: several GPUs, or a part of one."""


@dataclass(frozen=True, config=_STRICT)
class RunConfig:
    """Everything that determines a run."""

    seed: Seed = 0
    """Every random choice derives from it; a training may be given a ``seed`` of its own."""
    workers: Annotated[int, Field(gt=0, le=1024)] = 2
    """Processes; results do not depend on it."""
    engine: Literal["local", "ray"] = "local"
    """Where the workers run: on this machine, or as actors of a Ray cluster; results do not depend on it."""
    ray: RayConfig = Field(default_factory=RayConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    collect: CollectConfig = Field(default_factory=CollectConfig)
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    adapt: AdaptConfig = Field(default_factory=AdaptConfig)
    world: WorldConfig = Field(default_factory=WorldConfig)
    trackers: tuple[Tracker, ...] = ()
    """Where metrics go beside metrics.jsonl."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.warm_start.lora and self.policy.model is None:
            raise ValueError("warm_start.lora is set, but no policy.model that an adapter could sit on: set it")
        if self.warm_start.lora and self.update.lora not in (None, self.warm_start.lora):
            raise ValueError("update.lora differs from warm_start.lora, whose adapter it goes on with: leave it out")
        if self.world.demonstrations > self.warm_start.episodes:
            raise ValueError(
                f"world.demonstrations is {self.world.demonstrations}, but warm_start.episodes is only "
                f"{self.warm_start.episodes}: lower the first, or raise the second"
            )
        if self.update.accelerate_config and self.update.processes == 1:
            raise ValueError("update.accelerate_config is set, but update.processes is 1: set both, or neither")
        if self.engine == "ray" and self.policy.device_map not in (None, "cpu") and not self.ray.gpus_per_worker:
            raise ValueError(
                f"policy.device_map is {self.policy.device_map!r}, but ray.gpus_per_worker is 0, which hides the GPUs "
                "from a worker: set it, to 0.5 for two workers on one"
            )
        shared = self.engine == "local" or self.ray.gpus_per_worker < 1
        if self.policy.generator == self.world.generator == "vllm":
            raise ValueError(
                "policy.generator and world.generator are both 'vllm', but a process has one engine: serve the world "
                "model (vllm serve) and set world.generator=remote, or set one of them to local"
            )
        if "vllm" in (self.policy.generator, self.world.generator) and self.workers > 1 and shared:
            raise ValueError(
                f"workers is {self.workers}, and each would start a vLLM engine of its own: set workers=1, or "
                "engine=ray and ray.gpus_per_worker"
            )
        if self.policy.structured and self.policy.generator != "local" and self.search.granularity == "split":
            raise ValueError(
                f"search.granularity is 'split', but policy.generator {self.policy.generator!r} cannot hold a turn "
                "that has begun to its format: set policy.generator=local, search.granularity=step, or "
                "policy.structured=false"
            )
        if self.policy.context == "drop" and self.search.transpositions != "off":
            raise ValueError(
                "search.transpositions takes a state's tokens from one of another history, of which policy.context "
                "'drop' may have left something out: leave one out"
            )
        if self.policy.context == "drop" and self.update.pairs.rule == "trajectory":
            raise ValueError(
                "update.pairs.rule 'trajectory' wants one prompt before all actions of a path, which policy.context "
                "'drop' may cut: compare siblings"
            )
        if self.update.pairs.critic_weight and not self.search.critic_weight:
            raise ValueError("update.pairs.critic_weight is set, but no critic is asked: set search.critic_weight too")
        if self.update.advantages.kind == "gae" and self.search.method != "mcts" and not self.search.estimate_all:
            raise ValueError(
                f"update.advantages.kind is 'gae', which wants V(s) of every state, but search.method "
                f"{self.search.method!r} asks it of leaves only: set search.estimate_all too"
            )
        return self


class ConfigError(ValueError):
    """A setting that cannot be used: one sentence with its key, its value and the fix."""


def load_config(path: Path | None, overrides: Sequence[str] = (), *, seed: int | None = None) -> RunConfig:
    """The defaults, changed by a TOML file, then by overrides such as ``collect.tasks=32``, then by ``seed``.

    A file may name another one that it ``extends``, by a path relative to itself. An override's value is read as a TOML
    value, a bare word as a string. A training that is given no seed has the run's.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown, of another type or out of range.
    """
    settings = {} if path is None else _read_settings(path)
    for override in overrides:
        _override(settings, override)
    if seed is not None:
        settings["seed"] = seed
    settings = _merged(_training_seeds(settings.get("seed", 0)), settings)
    _refuse_foreign_values(settings)
    try:
        # JSON is the mode in which strict types still take a table for a dataclass and an array for a tuple.
        return TypeAdapter(RunConfig).validate_json(json.dumps(settings, default=str), strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigError(_sentence(problems, settings)) from None


def dump_config(config: RunConfig) -> str:
    """Every setting as TOML; ``load_config`` reads it back to an equal value. ``None``, which TOML lacks, is absent; so
    is a training's seed that is the run's: it follows where the file is read with another."""
    settings = TypeAdapter(RunConfig).dump_python(config, mode="json", exclude_none=True)
    for key in filter(_is_training_seed, _flat(settings)):
        *places, name = key.split(".")
        section = reduce(getitem, places, settings)
        if section[name] == config.seed:
            del section[name]
    return tomli_w.dumps(settings)


def config_difference(old: RunConfig, new: RunConfig) -> list[str]:
    """The dotted keys whose values differ, sorted; without a training's seed that is the run's in both."""
    before, after = flat_settings(old), flat_settings(new)
    absent = object()
    differing = [key for key in before | after if before.get(key, absent) != after.get(key, absent)]
    of_the_runs = (old.seed, new.seed)
    return sorted(key for key in differing if not (_is_training_seed(key) and (before[key], after[key]) == of_the_runs))


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted key."""
    return _flat(TypeAdapter(RunConfig).dump_python(config))


def _read_settings(path: Path, reading: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's settings over those of the file that it extends."""
    if path.resolve() in reading:
        raise ConfigError(f"config file {path} extends itself: remove one of the extends between")
    settings = _read_toml(path)
    parent = settings.pop("extends", None)
    if parent is None:
        return settings
    if not isinstance(parent, str):
        raise ConfigError(f"config file {path} extends {parent!r}, which is no path: write it in quotes")
    return _merged(_read_settings(path.parent / parent, (*reading, path.resolve())), settings)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Sections joined, key by key."""
    whole = dict(below)
    for key, value in above.items():
        old = whole.get(key)
        whole[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return whole


def _training_seeds(seed: Any) -> dict[str, Any]:
    """The settings that give every training this seed."""
    settings: dict[str, Any] = {}
    for key in filter(_is_training_seed, flat_settings(RunConfig())):
        section = settings
        *places, name = key.split(".")
        for place in places:
            section = section.setdefault(place, {})
        section[name] = seed
    return settings


def _is_training_seed(key: str) -> bool:
    return key.endswith(".seed")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist: check the path given to --config") from None
    except tomllib.TOMLDecodeError as error:
        # tomllib of Python 3.11 tells the place in its message only: "Invalid value (at line 3, column 5)".
        raise ConfigError(f"config file {path} is not valid TOML: {error}: correct it there") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {path} is not UTF-8 text: save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None


def _override(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r} is not of the form key=value: write it like collect.tasks=32")
    section = settings
    for depth, part in enumerate(parts[:-1], start=1):
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            place = ".".join(parts[:depth])
            raise ConfigError(f"override {override!r} does not fit: {place} is a value, no section; set {place} itself")
    section[parts[-1]] = _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _refuse_foreign_values(settings: Mapping[str, Any]) -> None:
    """TOML knows infinities and dates, which no setting takes and JSON has no form for."""
    for key, value in _flat(settings).items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(f"{key} is {item}, but must be a finite number: write one")
            if isinstance(item, (date, time)):
                raise ConfigError(f"{key} is the date {item}, but no setting takes a date: put it in quotes")


def _sentence(problems: list[ErrorDetails], settings: dict[str, Any]) -> str:
    """The first problem in words; the members of a union, told apart by pydantic, are one problem."""
    problems = sorted(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    keys, value = _locate(settings, problems[0]["loc"])
    if problems[0]["type"] == "unexpected_keyword_argument":
        return _unknown_key([str(part) for part in problems[0]["loc"]])
    key = ".".join(keys) or "the config"
    if isinstance(value, dict) and problems[0]["type"] == "missing":
        return f"{key} wants {problems[0]['loc'][-1]}: set {key}.{problems[0]['loc'][-1]}"
    if problems[0]["type"] == "value_error":  # a section's own check of settings that belong together
        return f"{key}: {problems[0]['msg'].removeprefix('Value error, ')}"
    same = [problem for problem in problems if _locate(settings, problem["loc"])[0] == keys]
    if isinstance(value, list) and same[-1]["type"] in ("missing", "too_long"):  # a pair that is none
        length = same[-1]["ctx"]["max_length"] if "ctx" in same[-1] else int(same[-1]["loc"][-1]) + 1
        return f"{key} is {json.dumps(value, default=str)}, but must have {length} values: correct it"
    wants = [each["msg"].removeprefix("Input should be ").replace("an object", "a section") for each in same]
    unquoted = isinstance(value, str) and not isinstance(_toml_value(value), str)
    fix = "write it without quotes" if unquoted else "correct it"
    if isinstance(value, str) and same[0]["type"] in ("list_type", "tuple_type"):
        fix = f"write it as {json.dumps([value])}, on a command line in single quotes"
    return f"{key} is {json.dumps(value, default=str)}, but must be {' or '.join(dict.fromkeys(wants))}: {fix}"


def _locate(settings: Any, location: Sequence[int | str]) -> tuple[list[str], Any]:
    """The part of pydantic's location that is a key of the file (the rest names members of a union), and its value."""
    keys: list[str] = []
    for part in location:
        member = isinstance(settings, dict) and part in settings
        item = isinstance(settings, list) and isinstance(part, int) and part < len(settings)
        if not member and not item:
            break
        settings = settings[part]
        keys.append(str(part))
    return keys, settings


def _unknown_key(parts: list[str]) -> str:
    section: Any = RunConfig
    for part in parts[:-1]:
        kind = next(field.type for field in fields(section) if field.name == part)
        section = next(each for each in (kind, *get_args(kind)) if is_dataclass(each))  # one may be optional
    known = [field.name for field in fields(section)]
    every = flat_settings(RunConfig())
    where = ".".join(parts[:-1])
    alike = [f"{where}.{name}" if where else name for name in difflib.get_close_matches(parts[-1], known, 1)]
    near = [key for key in every if key.split(".")[-1] == parts[-1]] or alike
    guess = f"did you mean {' or '.join(near[:4])}? " if near else ""
    place = f"section [{where}]" if where else "the config"
    return f"{'.'.join(parts)} is no setting: {guess}{place} knows {', '.join(known)}"
