"""The settings of one run, read from TOML files and dotted overrides."""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args

import tomli_w
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from treeagent.envs.make import env_class
from treeagent.generators.config import ActionSource, ModelConfig, RemoteConfig, RequestConfig, VllmConfig
from treeagent.learners.config import (
    Count,
    DPOLoss,
    GRPOLoss,
    Optimiser,
    OptimiserConfig,
    Positive,
    Precision,
    Seed,
    TrainingConfig,
)
from treeagent.seams import known
from treeagent.search.config import METHODS, SearchConfig
from treeagent.search.decide import Decision
from treeagent.store import StoreError, regular
from treeagent.types import REACHES_OUT, UserError
from treeagent.views.advantages import AdvantageConfig
from treeagent.views.imitation import ImitationConfig
from treeagent.views.pairs import PairConfig
from treeagent.views.policy import PolicyTargetConfig
from treeagent.views.values import ValueTargetConfig

_STRICT = ConfigDict(extra="forbid")

Method = Literal["rft", "distil", "dpo", "grpo"]
COMPARING: tuple[Method, ...] = ("dpo", "grpo")
"""Methods that compare the policy's log-probabilities with those of the samples."""
Mode = Annotated[str, AfterValidator(lambda name: known("search.method", name, METHODS, "greedy"))]
Name = TypeVar("Name", bound=str)
LearnerConfig = TypeVar("LearnerConfig", bound=OptimiserConfig)
_PLUGS_IN = ("environment.name", "search.method", "evaluate.modes", "policy.generator", "policy.format")
"""Settings whose value is a short name, or else names code as "module:Name"."""
Share = Annotated[float, Field(ge=0, le=1)]
Scalar = int | float | str | bool
Options = dict[str, Scalar | tuple[Scalar, ...] | dict[str, str | tuple[str, ...]]]
RewardOptions = dict[str, Any]
Wrapper = str | dict[str, str | dict[str, Scalar | tuple[Scalar, ...]]]
Tracker = Literal["tensorboard", "trackio", "wandb"]

LARGE = 30_000_000
"""Number of weights from which a model counts as large."""
_MUON_DECAY = 0.01
"""Weight decay with Muon, without which the weights grow (Liu et al. 2025)."""


def _each_once(names: tuple[Name, ...]) -> tuple[Name, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{list(names)} is empty or names one twice: name at least one, and each once")
    return names


@dataclass(frozen=True, config=_STRICT)
class EnvironmentConfig:
    """The environment, and the limits of an episode."""

    name: Annotated[str, REACHES_OUT] = "shop"
    """Name of a built-in environment, or "module:Class" for your own."""
    options: Options = Field(default_factory=dict)
    """Keyword arguments passed to the environment; its own documentation lists them."""
    max_steps: Count = 20
    """Maximum number of steps in an episode; a longer episode is truncated."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest return of an episode: the range of V's estimates. A return of 1 is a success."""
    parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """Environment instances in each worker, each in a thread of its own; the trees are the same for any number."""
    worker: bool = False
    """Runs the environment in its own process, so that a call that hangs or crashes costs only its own task."""
    call_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds after which a call kills the process of the environment, if ``worker`` is true."""
    wrappers: Annotated[tuple[Wrapper, ...], REACHES_OUT] = ()
    """Wrappers, the innermost first: names, "module:Class", or tables of ``name`` and ``options``."""


@dataclass(frozen=True, config=_STRICT)
class PolicyConfig(ModelConfig):
    """The language model that acts. A policy from scratch trains all weights in its warm start."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of the policy; DPO, GRPO and distillation divide logits by it too."""
    max_new_tokens: Count = 256
    """Maximum number of tokens in one think/action step."""
    generator: Annotated[str, REACHES_OUT] = "local"
    """"local" (transformers), "vllm", "remote" (a server) or "module:Name". Training always uses transformers."""
    options: Annotated[Options, REACHES_OUT] = Field(default_factory=dict)
    """Settings of a generator that is plugged in."""
    format: Annotated[str, REACHES_OUT] = "react"
    """Format of a turn: "react" (text), "tools" (the model's tool calls in JSON), or "module:Name"."""
    instructions: str = "auto"
    """System prompt: "auto" explains task and tools to a pretrained model; a text stands before that; empty: none."""
    shots: Annotated[Annotated[int, Field(ge=0)] | str, REACHES_OUT] = 0
    """Few-shot demonstrations: a number of the demonstrator's successes, or a file of JSON lines."""
    actions: ActionSource = "sample"
    """Candidates: "sample" samples turns, "score" scores the environment's legal actions, with priors."""
    thought_tokens: Count | None = None
    """Sampled tokens after which a thought is led into its call. Unset: half of ``max_new_tokens`` if pretrained."""
    structured: bool | None = None
    """Constrained decoding of calls that fit a tool. Unset: true for a pretrained model and ``generator`` "local"."""
    context: Literal["refuse", "drop"] = "refuse"
    """If a prompt becomes too long, "refuse" ends the episode, "drop" replaces the oldest observations by a note."""
    cache_bytes: Annotated[int, Field(ge=0)] = 0
    """Most bytes of each worker's cache of keys and values of prefixes, for ``generator`` "local"; 0 chooses by model
    and machine."""

    @property
    def is_structured(self) -> bool:
        return self.model is not None and self.generator == "local" if self.structured is None else self.structured

    @property
    def most_thought(self) -> int | None:
        """``thought_tokens``, resolved; None: no limit."""
        if self.is_structured and self.generator != "local":
            return None
        return self.thought_tokens or (None if self.model is None else max(self.max_new_tokens // 2, 1))

    @property
    def is_told(self) -> bool:
        """Whether a prompt explains the format and the tools. A model from scratch learns them from demonstrations."""
        return bool(self.instructions) and (self.model is not None or self.instructions != "auto")

    @property
    def preface(self) -> str:
        return "" if self.instructions == "auto" else self.instructions

    def most_tokens(self, context: int) -> int | None:
        """Tokens of a prompt from which old observations are left out; None if they never are."""
        if self.context == "refuse":
            return None
        room = context - self.max_new_tokens
        if room < 1:
            raise UserError(
                f"the model's context holds {context} tokens, and policy.max_new_tokens takes {self.max_new_tokens} of "
                "them: lower it, or use a model with a longer context"
            )
        return room


@dataclass(frozen=True, config=_STRICT)
class Training:
    """One training. What all trainings of a run share stands in ``[training]``."""

    rates: ClassVar[tuple[float, float]] = (1e-4, 1e-5)
    """The default learning rates: of an adapter or a small model, and of all weights of a large model."""

    learning_rate: Positive | None = None
    """Peak rate. Unset: 1e-4, or 1e-5 for all weights from 30 million on; for DPO and GRPO 2e-5 and 1e-6."""
    batch_size: Count = 8
    """Rows, states ("distil") or preference pairs ("dpo") in one forward pass."""
    max_steps: Count | None = None
    """Optimiser steps; unset means as many as ``training.epochs`` need."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps over which the learning rate rises from 0."""
    optimiser: Optimiser = "adamw"
    """"adamw" without weight decay, or "muon" for matrices with a decay of 0.01, which learns in half the steps."""
    validate_every: Count = 50
    """Optimiser steps between two validations on ``update.validation_tasks``; the best weights are kept."""
    patience: Annotated[int, Field(ge=0)] = 0
    """An update stops early after this many validations in a row without a new best; 0 never stops early."""

    def at_rate(self, trained: int | None) -> Self:
        """With a learning rate. ``trained`` is the number of weights if all are; None: an adapter."""
        large = trained is not None and trained >= LARGE
        return replace(self, learning_rate=self.learning_rate or self.rates[large])


@dataclass(frozen=True, config=_STRICT)
class WarmStartConfig:
    """Imitation of the environment's demonstrator, before any search."""

    checkpoint: str | None = None
    """A policy to start from instead: a checkpoint's folder, or the name of one that comes with the package."""
    episodes: Count = 1000
    """Number of demonstrations to play."""
    tasks: Count = 1000
    """Number of training tasks to demonstrate; with more ``episodes``, tasks repeat with other errors."""
    noise: Share = 0.0
    """Probability that the demonstrator makes an error at a step."""
    max_tokens: Count = 4096
    """Maximum number of tokens in a demonstration; longer ones are left out."""
    training: Training = Field(default_factory=Training)


@dataclass(frozen=True, config=_STRICT)
class CollectConfig:
    """The training tasks that are searched, and how many trees advance together."""

    tasks: Annotated[int, Field(gt=0, le=10**9)] = 800
    """Number of training tasks to search, one tree each; in search-and-adapt, for each round."""
    batch: Count = 100
    """Most trees that share their model calls; a resumed run keeps finished batches."""


@dataclass(frozen=True, config=_STRICT)
class DistilTraining(Training):
    """Distillation of the search's policy."""

    batch_size: Count = 32


@dataclass(frozen=True, config=_STRICT)
class DPOTraining(DPOLoss, Training):
    """Preference optimisation on sibling pairs."""

    rates: ClassVar[tuple[float, float]] = (2e-5, 1e-6)
    batch_size: Count = 16  # pairs of one tree share their prompts


@dataclass(frozen=True, config=_STRICT)
class GRPOTraining(GRPOLoss, Training):
    """Policy gradient on tree advantages."""

    rates: ClassVar[tuple[float, float]] = (2e-5, 1e-6)
    batch_size: Annotated[int, Field(ge=2)] = 8
    """Rows in one forward pass; TRL needs two or more."""


@dataclass(frozen=True, config=_STRICT)
class RewardsConfig:
    """A reward of your own for search and learning. Success stays the environment's."""

    function: Annotated[str, REACHES_OUT] = ""
    """The reward of a step: "module:function" of a ``pipeline.rewards.Step``, or a name. Empty: the environment's."""
    options: RewardOptions = Field(default_factory=dict)
    """Options of ``function``."""


@dataclass(frozen=True, config=_STRICT)
class UpdateConfig:
    """How the policy learns from the trees."""

    methods: Annotated[tuple[Method, ...], AfterValidator(_each_once)] = ("rft", "dpo", "grpo")
    """Updates, each from the base policy: "rft" imitates, "distil" fits the search, "dpo" and "grpo"."""
    validation_tasks: Count = 100
    """Number of validation tasks; the checkpoint that solves most of them greedily is kept."""
    control: bool = False
    """Whether the quickstart also imitates episodes sampled as in best-of-N, for the same tasks."""
    imitation: ImitationConfig = Field(default_factory=ImitationConfig)
    targets: PolicyTargetConfig = Field(default_factory=PolicyTargetConfig)
    values: ValueTargetConfig = Field(default_factory=ValueTargetConfig)
    pairs: PairConfig = Field(default_factory=PairConfig)
    advantages: AdvantageConfig = Field(default_factory=AdvantageConfig)
    rft: Training = Field(default_factory=Training)
    distil: DistilTraining = Field(default_factory=DistilTraining)
    dpo: DPOTraining = Field(default_factory=DPOTraining)
    grpo: GRPOTraining = Field(default_factory=GRPOTraining)
    value_rows: Count = 2000
    """Most tree paths that the value head is fitted on after every change of the policy."""
    value_reads: Literal["hidden", "logprobs"] | None = None
    """What the value head reads: "hidden" states (unset, if "local"), or the "logprobs" of 128 tokens."""


@dataclass(frozen=True, config=_STRICT)
class EvaluateConfig:
    """How policies are compared."""

    tasks: Count = 200
    """Number of held-out tasks, from the environment's test split."""
    first_task: Annotated[int, Field(ge=0)] = 0
    """Index of the first of these tasks in the test split, so that seeds can have different tasks."""
    modes: Annotated[tuple[Mode, ...], AfterValidator(_each_once), REACHES_OUT] = ("greedy", "best_of_n", "mcts")
    """Ways of acting: "greedy" is the policy at temperature 0, the others are search methods."""
    best_of: Count = 8
    """Samples (N) of best-of-N, in place of ``search.limits.simulations``."""
    decision: Decision = "leaf"
    """How the actions to take are chosen from a finished tree."""
    likelihood_weight: Annotated[float, Field(ge=0)] | Literal["validation"] = 0.1
    """λ of ``decision`` "leaf", which takes the end with the highest V + λ · (mean log π of its turns, in nats).
    "validation" searches ``update.validation_tasks`` validation tasks too, and takes the λ that solves most of them."""
    world: Annotated[str, REACHES_OUT] = ""
    """Folder of a run whose world model is searched instead, anew after every real step."""

    @property
    def weight(self) -> float:
        """λ, as far as no validation tasks have chosen another."""
        return 0.1 if isinstance(self.likelihood_weight, str) else self.likelihood_weight

    @property
    def places(self) -> range:
        return range(self.first_task, self.first_task + self.tasks)


@dataclass(frozen=True, config=_STRICT)
class AdaptConfig:
    """Search-and-adapt: each round searches with the current policy and learns from the trees."""

    rounds: Count = 3
    """Rounds of search and update."""
    methods: Annotated[tuple[Method, ...], AfterValidator(_each_once)] = ("rft",)
    """Updates in each round, applied one after the other to the same weights."""
    replay: Annotated[int, Field(ge=0)] = 1
    """Earlier rounds whose trees are learned from again, with their stored log-probabilities as the reference."""
    curriculum: Share = 0.5
    """Largest share of a round's tasks that were searched before: those whose returns varied most then."""
    imagined: Share | tuple[Share, ...] = 0.0
    """Most of a round's trees, as a share, that grow in the world model: one number, or one a round."""
    seed_tasks: Count = 100
    """Tasks searched in the real environment before the first round, if that round may use the world model."""

    @model_validator(mode="after")
    def _one_share_a_round(self) -> Self:
        if isinstance(self.imagined, tuple) and len(self.imagined) != self.rounds:
            raise ValueError(f"imagined names {len(self.imagined)} shares for {self.rounds} rounds: give one a round")
        return self

    def imagined_in(self, number: int) -> float:
        """The largest share of imagined trees in round ``number``, counted from 1."""
        return self.imagined[number - 1] if isinstance(self.imagined, tuple) else self.imagined

    @property
    def imagines(self) -> bool:
        return any(self.imagined) if isinstance(self.imagined, tuple) else self.imagined > 0


@dataclass(frozen=True, config=_STRICT)
class WorldConfig(ModelConfig):
    """The world model: what it is, what it learns from and how it is audited."""

    generator: Literal["local", "vllm", "remote"] = "local"
    """The engine that writes: "local" is transformers, "vllm" is vLLM, "remote" a server, which is not trained."""
    max_new_tokens: Count = 512
    """Maximum number of tokens in one answer of the world model."""
    reasoning: bool = True
    """Whether the world model reasons before it answers, which it learns from reasoning that a rule writes."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Similar stored steps (k) that the world model is shown before each question."""
    observations: Count | None = None
    """Latest observations of the episode that the world model is shown; unset shows all."""
    demonstrations: Annotated[int, Field(ge=0)] = 0
    """Most warm-start episodes, counted from the first, that the world model learns from besides the trees."""
    end_rows: Count = 1
    """How often a step that ends an episode, which is rare and hard to predict, appears in the training rows."""
    hard_steps: Annotated[int, Field(ge=0)] = 0
    """Extra optimiser steps after each fit, with half of the rows episode ends that the model gets wrong."""
    max_tokens: Count = 4096
    """Maximum number of tokens in a training row; longer rows are left out."""
    refit_steps: Count = 200
    """Optimiser steps of the fit in each later round, which continues the previous one on all real steps."""
    verify_steps: Annotated[int, Field(ge=0)] = 20
    """Environment steps of an imagined tree after which no replay of a predicted success begins; 0: none."""
    noise: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Most training labels, as a share, that imagined trees may get wrong, which limits their number."""
    free: tuple[str, ...] = ()
    """First words of actions whose answers nothing can tell, such as "search"; the audit shows the others apart."""
    training: Training = Field(default_factory=Training)


@dataclass(frozen=True, config=_STRICT)
class RunConfig:
    """Everything that determines a run."""

    seed: Seed = 0
    """Seed from which all random choices are derived."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of worker processes, on which results depend only by rounding. 0 chooses by model and machine."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of each worker; 0 chooses one, or for large policies on CPUs the cores divided by the workers."""
    trackers: Annotated[tuple[Tracker, ...], REACHES_OUT] = ()
    """Where metrics go in addition to metrics.jsonl: "tensorboard", "trackio", "wandb"."""
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    remote: RequestConfig = Field(default_factory=RequestConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    rewards: RewardsConfig = Field(default_factory=RewardsConfig)
    collect: CollectConfig = Field(default_factory=CollectConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    adapt: AdaptConfig = Field(default_factory=AdaptConfig)
    world: WorldConfig = Field(default_factory=WorldConfig)

    def batch(self, tasks: int, workers: int | None = None) -> int:
        """Trees of a batch of a stage, such that all workers search equally many batches."""
        workers = max(self.workers if workers is None else workers, 1)
        rounds = -(-tasks // (self.collect.batch * workers))
        return max(-(-tasks // (rounds * workers)), 1) if tasks else 1

    def precision(self, model: ModelConfig) -> Precision:
        """``training.precision``, resolved."""
        if self.training.precision == "auto":
            return "float32" if model.device_map in (None, "cpu", "mps") else "bfloat16"
        return self.training.precision

    def learner(self, kind: type[LearnerConfig], stage: Training, model: ModelConfig | None = None) -> LearnerConfig:
        """The settings of a training, by default of the policy: those of the stage, above ``[training]``."""
        own = {key: value for key, value in asdict(stage.at_rate(None)).items() if value is not None}
        values = asdict(self.training) | {"precision": self.precision(model or self.policy)} | own
        return kind(**values, weight_decay=_MUON_DECAY if stage.optimiser == "muon" else 0.0, seed=self.seed)

    @property
    def value_reads(self) -> Literal["hidden", "logprobs"]:
        """``update.value_reads``, resolved."""
        return self.update.value_reads or ("hidden" if self.policy.generator == "local" else "logprobs")

    def server(self, url: str) -> RemoteConfig:
        """The request settings for the server at ``url``."""
        return RemoteConfig(**asdict(self.remote), url=url)


def load_config(
    path: Path | None, overrides: Sequence[str] = (), *, seed: int | None = None, world: Path | None = None
) -> RunConfig:
    """The defaults, then a TOML file (above the one that it ``extends``), overrides such as ``collect.tasks=32``, and
    ``seed``. The table ``world`` of the file ``world`` replaces that of ``path``."""
    settings = {} if path is None else _read_settings(path)
    if world is not None:
        settings["world"] = _read_settings(world).get("world", {})
    for override in overrides:
        _override(settings, override)
    if seed is not None:
        settings["seed"] = seed
    try:
        # In pydantic's JSON mode, strict types still accept a table for a dataclass and an array for a tuple.
        return TypeAdapter(RunConfig).validate_json(json.dumps(settings, default=str, allow_nan=False), strict=True)
    except ValidationError as error:
        raise UserError(_problem(error, settings)) from None
    except ValueError as error:
        raise UserError(f"the settings hold a number that is not finite ({error}): give a finite one") from None


def reaching_out(path: Path, overrides: Sequence[str] = ()) -> Iterator[tuple[str, object]]:
    """The settings of a file that name code or a machine (``REACHES_OUT``), except defaults, built-in names and those
    that an override gives."""
    written, overridden = _flat(_read_settings(path)), dict[str, Any]()
    for override in overrides:
        _override(overridden, override)
    own = {key: value for key, value in written.items() if key not in _flat(overridden)}
    for key, field, _ in known_settings():
        value = own.get(key) or {name: each for name, each in own.items() if name.startswith(f"{key}.")}  # a table
        if REACHES_OUT not in field.metadata or not value or isinstance(value, int):
            continue
        built_in = key in _PLUGS_IN and ":" not in str(value)
        if value != field.get_default(call_default_factory=True) and not built_in and value != ["tensorboard"]:
            yield key, value
    name = str((written | _flat(overridden)).get("environment.name", EnvironmentConfig.name))
    options = {} if ":" in name else getattr(getattr(env_class(name), "options_type", None), "__pydantic_fields__", {})
    for option, field in options.items():
        if REACHES_OUT in field.metadata and (key := f"environment.options.{option}") in own:
            yield key, own[key]


_FIRST_LINE = "# All settings of a run. The last line of this file is a comment, too.\n"
_END = "# end\n"


def dump_config(config: RunConfig) -> str:
    """Every setting that is not None as TOML. The comments at both ends tell a file that was cut short."""
    settings = TypeAdapter(RunConfig).dump_python(config, mode="json", exclude_none=True)
    return _FIRST_LINE + tomli_w.dumps(settings) + _END


def config_difference(old: RunConfig, new: RunConfig) -> list[str]:
    """The dotted keys whose values differ, sorted."""
    before, after = flat_settings(old), flat_settings(new)
    return sorted(key for key in before | after if before.get(key) != after.get(key))


def flat_settings(config: RunConfig) -> dict[str, Any]:
    return _flat(TypeAdapter(RunConfig).dump_python(config))


def known_settings(section: Any = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    """All settings in order: dotted key, pydantic's description, class of the table."""
    for name, field in section.__pydantic_fields__.items():
        table = next((each for each in (field.annotation, *get_args(field.annotation)) if is_dataclass(each)), None)
        if table is None:
            yield f"{prefix}{name}", field, section
        else:
            yield from known_settings(table, f"{prefix}{name}.")


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        text = regular(path).read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
        if text.startswith(_FIRST_LINE) and not text.endswith(_END):
            raise ValueError("its end is missing")
        settings = tomllib.loads(text)
        json.dumps(settings, default=str)  # fails on values nested too deeply
        parent = settings.pop("extends", None)
        return settings if parent is None else _merged(_read_settings(path.parent / str(parent)), settings)
    except (OSError, ValueError, RecursionError, StoreError) as error:
        if isinstance(error, UserError):  # of the file that this one extends
            raise
        raise UserError(f"config file {path} cannot be read: {error}: correct the path or the file") from None


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _override(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, last = key.strip().split(".")
    if not equals or not all((*tables, last)):
        raise UserError(f"override {override!r} is not of the form key=value: write it like collect.tasks=32")
    for part in tables:
        if not isinstance(settings.get(part), dict):
            settings[part] = {}
        settings = settings[part]
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    settings[last] = parsed["value"] if len(parsed) == 1 else text.strip()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _problem(error: ValidationError, settings: dict[str, Any]) -> str:
    """The first problem in pydantic's words, with its key and value. An unknown key comes before others."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "unexpected_keyword_argument")
    keys, value = list[str](), cast(Any, settings)
    for part in first["loc"]:  # from where the file has no such key on, the parts name members of a union
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            break
        keys.append(str(part))
    key, message = ".".join(keys), first["msg"].removeprefix("Value error, ")
    if first["type"] == "unexpected_keyword_argument":
        key = next(iter(_flat({key: value})), key)
        near = difflib.get_close_matches(key, [known for known, _, _ in known_settings()], 3, cutoff=0.5)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{key} is no setting: {guess}docs/settings.md lists them all"
    if first["type"] == "value_error":
        return f"{key or 'the config'}: {message}"
    return f"{key} is {json.dumps(value, default=str)}: {message}: correct it"
