"""One run's settings: composes each room's own configuration, reads TOML and dotted overrides, refuses what it does
not know."""

import ast
import difflib
import inspect
import json
import math
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import tomli_w
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from treeagent.envs.approval import Approve
from treeagent.envs.disturbed import Disturbance
from treeagent.envs.shield import Shield
from treeagent.generators.config import (
    LOCAL_SERVER,
    ActionSource,
    Addresses,
    ModelConfig,
    RemoteConfig,
    RequestConfig,
    VllmConfig,
)
from treeagent.generators.grammar import Format
from treeagent.learners.config import (
    Count,
    DPOLoss,
    GRPOLoss,
    Optimiser,
    OptimiserConfig,
    Positive,
    Seed,
    TrainingConfig,
)
from treeagent.rewards.config import RewardsConfig
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.decide import Decision
from treeagent.store import regular
from treeagent.types import REACHES_OUT, UserError
from treeagent.views.advantages import AdvantageConfig
from treeagent.views.imitation import ImitationConfig
from treeagent.views.pairs import PairConfig
from treeagent.views.policy import PolicyTargetConfig
from treeagent.views.values import ValueTargetConfig
from treeagent.world_model.encoder import EncoderConfig

_STRICT = ConfigDict(extra="forbid")

Method = Literal["rft", "distil", "dpo", "grpo"]
COMPARING: tuple[Method, ...] = ("dpo", "grpo")
"""Methods that compare the policy with the log-probabilities of the samples."""
Mode = Literal["greedy", SearchMethod]
Name = TypeVar("Name", bound=str)
LearnerConfig = TypeVar("LearnerConfig", bound=OptimiserConfig)
_OPEN_TABLES = (
    "environment.options.",
    *(f"rewards.{table}." for table in ("weights", "schedule", "rules", "budgets")),
)
"""Tables whose keys the user names."""
Share = Annotated[float, Field(ge=0, le=1)]
Scalar = int | float | str | bool
Tracker = Literal["tensorboard", "trackio", "wandb"]

MOST_TOKENS = 2**24
"""No model has a longer context."""
_MUON_DECAY = 0.01
"""Weight decay beside Muon, whose updates would let the weights grow without it (Liu et al. 2025)."""


def _each_once(names: tuple[Name, ...]) -> tuple[Name, ...]:
    """A checkpoint is named after its method, and a row of results after its mode."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{list(names)} is empty or names one twice: name at least one, and each once")
    return names


@dataclass(frozen=True, config=_STRICT)
class RayConfig:
    """The Ray cluster that workers run on where ``engine`` is "ray"."""

    address: Annotated[str | None, REACHES_OUT] = None
    """Address of a running Ray cluster, such as "auto" or "10.0.0.1:6379"; unset starts one on this machine for the
    run."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that each Ray worker reserves: several, or a fraction of one."""


@dataclass(frozen=True, config=_STRICT)
class EnvironmentConfig:
    """The environment, and the limits of an episode."""

    name: Annotated[str, REACHES_OUT] = "shop"
    """Name of a built-in environment, or "module:Class" of your own."""
    options: dict[str, Scalar | tuple[Scalar, ...] | dict[str, str | tuple[str, ...]]] = Field(default_factory=dict)
    """Keyword arguments passed to the environment; its own documentation lists them."""
    max_steps: Annotated[int, Field(gt=0)] = 20
    """Most steps of an episode; a longer one is truncated."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Least and greatest return of an episode, between which a new value head's estimates lie. A success is a return of
    1."""
    parallel: Annotated[int, Field(gt=0, le=1024)] = 1
    """Instances of the environment in each worker. With more than one, steps of different tasks overlap, each instance
    in a thread of its own, and one more instance lists tasks and tools. The trees are the same for any number, up to
    the rounding of the model's numbers."""
    worker: bool = False
    """Runs the environment in a process of its own, so that a call that hangs or crashes fails its own task only."""
    call_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds after which a call of an environment with ``worker`` is given up and its process is killed."""
    episode_seconds: Annotated[float, Field(gt=0)] | None = None
    """Most seconds inside the calls along one path of an episode, for an environment with ``worker``; unset sets no
    limit."""
    observation_bytes: Annotated[int, Field(gt=0)] | None = None
    """Most bytes of an observation that the agent reads; a note says how many were cut. Unset cuts nothing."""
    episode_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes of all observations of an episode after which it is truncated; unset sets no limit."""
    shield: Shield = Field(default_factory=Shield)
    """Calls that never reach the environment, and what each of them costs."""
    approve: Approve = Field(default_factory=Approve)
    """Calls that wait until a person approves them."""
    disturbances: tuple[Disturbance, ...] = ()
    """What is made harder about the environment, at training as at evaluation, to measure or to train an agent that
    withstands it; ``evaluate.suite`` measures one at a time."""

    @model_validator(mode="after")
    def _some_range(self) -> Self:
        low, high = self.returns
        if not low < high:
            raise ValueError(f"returns ({low:g}, {high:g}) is no range: give the least return first")
        return self


@dataclass(frozen=True, config=_STRICT)
class PolicyConfig(ModelConfig):
    """The language model that acts. With ``lora`` an adapter is trained wherever the policy is trained; only a policy
    from scratch is warm-started in full before it gets one."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature at which the policy samples; the learners divide logits by it too."""
    max_new_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 256
    """Most tokens of one think/action step."""
    format: Format = "react"
    """How a turn is written: "react" is ReAct text, "json" one JSON object, "tools" the model's own tool calls."""
    instructions: str = "auto"
    """System prompt: "auto" explains task, format and tools to a given ``policy.model``, and tells a model from scratch
    nothing. Another text stands before the explanation; an empty one leaves out both."""
    shots: Annotated[Annotated[int, Field(ge=0)] | str, REACHES_OUT] = 0
    """Demonstrations that every prompt shows as earlier turns: a number of successes of the environment's demonstrator
    on training tasks, or a file of conversations, a JSON line each."""
    actions: ActionSource = "sample"
    """Where candidates come from: "sample" samples turns, "score" scores a turn without a thought for each action that
    the environment lists as legal, and takes their probabilities as priors, "both" adds sampled turns."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Samples only the likeliest tokens that together have this probability. Below 1, updates that compare
    log-probabilities (DPO, GRPO) cannot learn from the samples."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Samples only tokens of at least this share of the likeliest one's probability. Above 0, updates that compare
    log-probabilities (DPO, GRPO) cannot learn from the samples."""
    thought_tokens: Annotated[int, Field(gt=0)] | None = None
    """Sampled tokens after which a turn that is still thinking is led into its call by written tokens, which carry no
    loss. Unset means half of ``max_new_tokens`` for a given ``policy.model``, and no bound for a model from scratch."""
    structured: bool | None = None
    """Constrains every turn to the format while it is sampled: a call of one of the environment's tools with arguments
    of its schema, or text where there are no tools. Unset means true for a given ``policy.model`` that samples in this
    process (``policy.generator`` "local")."""
    context: Literal["refuse", "drop"] = "refuse"
    """What happens where a prompt grows too long: "refuse" ends the episode there, "drop" replaces the oldest
    observations by a note."""
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    """Most tokens of a prompt before ``context`` "drop" replaces observations; unset means the model's context less
    ``max_new_tokens``."""
    cache_bytes: Annotated[int, Field(gt=0)] = 1 << 30
    """Most bytes of keys and values of shared prefixes that each worker keeps, for ``generator`` "local"."""
    reload: Annotated[Literal["lora"] | Annotated[tuple[str, ...], Field(min_length=1)] | None, REACHES_OUT] = None
    """How servers (``generator`` "remote") get the weights of another checkpoint: "lora" has vLLM load its adapter by
    ``/v1/load_lora_adapter``; a list is a command and its arguments, in which {checkpoint} and {url} are replaced, that
    loads it or starts the server again. Unset stops the run until you have."""
    text_only: bool = False
    """Asks the server's chat endpoint for text, where it gives no token ids; such trees can be measured, but not
    learned from."""

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.context == "refuse" and self.context_tokens is not None:
            raise ValueError("context_tokens is set, but context is 'refuse': set context='drop' too, or leave it out")
        if self.context == "drop" and self.text_only:
            raise ValueError("context is 'drop', which counts tokens, but text_only has none: leave one out")
        if self.actions != "sample" and self.generator == "remote" and self.text_only:
            raise ValueError(
                f"actions is {self.actions!r}, which scores token ids, but text_only has none: leave one out"
            )
        if self.reload is not None and (self.generator != "remote" or self.text_only):
            other = "text_only is true" if self.text_only else f"generator is {self.generator!r}"
            raise ValueError(f"reload is set, but {other}, so no server gets new weights: leave reload out")
        if self.structured and self.generator == "remote" and self.text_only:
            raise ValueError("structured constrains token ids, but text_only has none: leave one out")
        return self

    @property
    def is_structured(self) -> bool:
        """Whether turns are constrained while they are sampled."""
        return self.model is not None and self.generator == "local" if self.structured is None else self.structured

    @property
    def most_thought(self) -> int | None:
        """Sampled tokens after which a turn is led into its call; None for no such bound."""
        if self.thought_tokens is not None or self.model is None:
            return self.thought_tokens
        return max(self.max_new_tokens // 2, 1)

    @property
    def truncates(self) -> bool:
        """Whether tokens of the model's own distribution are never sampled."""
        return self.top_p < 1 or self.min_p > 0

    @property
    def is_told(self) -> bool:
        """Whether a prompt begins with the format and the tools; a model from scratch learns them from
        demonstrations."""
        return bool(self.instructions) and (self.model is not None or self.instructions != "auto")

    @property
    def preface(self) -> str:
        """The user's own text at the beginning of every prompt."""
        return "" if self.instructions == "auto" else self.instructions

    def most_tokens(self, context: int) -> int | None:
        """Most tokens of a prompt before old observations are left out, under a model whose ``context`` holds that
        many tokens; None where nothing is left out.

        Raises:
            UserError: the model's context is too small.
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
class PretrainingConfig:
    """A training that may start from random weights."""

    optimiser: Optimiser = "adamw"
    """"adamw" without weight decay, or "muon", which learns from scratch in about half the steps: Muon for weight
    matrices and AdamW for the rest, with a weight decay of 0.01."""
    learning_rate: Positive = 1e-4
    """Peak learning rate; 1e-4 suits an adapter, 1e-5 all weights of a pretrained model, 4e-3 Muon from scratch."""
    batch_size: Count = 8
    """Rows of one forward pass."""
    max_steps: Count | None = None
    """Optimiser steps; unset means as many as ``training.epochs`` take."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps over which the learning rate rises from 0."""


@dataclass(frozen=True, config=_STRICT)
class EarlyExperienceConfig:
    """What actions tried beside the demonstrated ones teach the policy (Early Experience, Zhang et al. 2025)."""

    rows: Literal["none", "world", "reflection", "both"] = "none"
    """Extra rows of the warm start: "world" are the environment's answers to actions, trained on before the imitation;
    "reflection" are turns that say why an action is better than another, trained on with the demonstrations."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the demonstrations, the first ones, at whose states the right action and two wrong ones are tried, each
    played to the end without further errors."""

    def wants(self, kind: Literal["world", "reflection"]) -> bool:
        return self.rows in (kind, "both")


@dataclass(frozen=True, config=_STRICT)
class WarmStartConfig:
    """Imitation of the environment's demonstrator, before any search."""

    episodes: Annotated[int, Field(gt=0)] = 1000
    """Demonstrations that are played."""
    tasks: Annotated[int, Field(gt=0)] = 1000
    """Training tasks of the demonstrations; where ``episodes`` is greater, tasks repeat with other errors."""
    noise: Share = 0.0
    """Probability that the demonstrator errs at a step."""
    max_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 4096
    """Most tokens of a demonstration; longer ones are left out."""
    training: PretrainingConfig = Field(default_factory=PretrainingConfig)
    """The imitation."""
    early_experience: EarlyExperienceConfig = Field(default_factory=EarlyExperienceConfig)
    """Rows beyond the demonstrations."""


@dataclass(frozen=True, config=_STRICT)
class CollectConfig:
    """The training tasks that are searched, and how many trees advance together."""

    tasks: Annotated[int, Field(gt=0, le=10**9)] = 800
    """Training tasks that are searched, one tree each; in search-and-adapt, of each round."""
    batch: Annotated[int, Field(gt=0)] = 100
    """Trees that share their model calls; a resumed run keeps finished batches."""
    resample: Annotated[int, Field(ge=0)] = 0
    """Rounds in which trees whose returns are all equal are replaced by trees of further tasks (DAPO's dynamic
    sampling)."""


@dataclass(frozen=True, config=_STRICT)
class UpdateTraining:
    """The training of one update."""

    learning_rate: Positive = 1e-4
    """Peak learning rate; 1e-4 suits an adapter, 1e-5 all weights of a pretrained model."""
    batch_size: Count = 8
    """Rows of one forward pass."""
    max_steps: Count | None = None
    """Optimiser steps; unset means as many as ``training.epochs`` take."""
    validate_every: Count = 50
    """Optimiser steps between two validations on ``update.validation_tasks``; the best checkpoint is kept."""


@dataclass(frozen=True, config=_STRICT)
class RFTTraining(UpdateTraining):
    """Imitation of the best paths."""


@dataclass(frozen=True, config=_STRICT)
class DistilTraining(UpdateTraining):
    """Distillation of the search's policy."""

    batch_size: Count = 32
    """States of one forward pass."""


@dataclass(frozen=True, config=_STRICT)
class DPOTraining(DPOLoss, UpdateTraining):
    """Preference optimisation on sibling pairs."""

    learning_rate: Positive = 2e-5
    """Peak learning rate; 2e-5 suits an adapter, 1e-6 all weights of a pretrained model."""
    batch_size: Count = 8
    """Preference pairs of one forward pass."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations in a row without a new best after which DPO stops; 0 never stops early."""


@dataclass(frozen=True, config=_STRICT)
class GRPOTraining(GRPOLoss, UpdateTraining):
    """Policy gradient on tree advantages."""

    learning_rate: Positive = 2e-5
    """Peak learning rate; 2e-5 suits an adapter, 1e-6 all weights of a pretrained model."""
    batch_size: Annotated[int, Field(ge=2)] = 8
    """Rows of one forward pass; TRL needs two or more."""


@dataclass(frozen=True, config=_STRICT)
class RewardTraining(UpdateTraining):
    """Bradley-Terry on pairs of ends and siblings (``treeagent reward fit``)."""

    validate_every: Count = 50
    """Optimiser steps between two validations, on pairs of tasks that are not trained on; the best checkpoint is
    kept."""
    centre: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Weight of (u(chosen) + u(rejected))², which keeps the scores of a reward model around 0."""
    patience: Annotated[int, Field(ge=0)] = 5
    """Validations in a row without a new best after which the fit stops; 0 never stops early."""


@dataclass(frozen=True, config=_STRICT)
class UpdateConfig:
    """How the policy learns from the trees."""

    methods: Annotated[tuple[Method, ...], AfterValidator(_each_once)] = ("rft", "dpo", "grpo")
    """Updates that are made, each from the base policy: "rft" imitates the best paths, "distil" learns the
    search's policy over the candidates of each state, "dpo" compares siblings, "grpo" weights actions by their
    advantages."""
    validation_tasks: Annotated[int, Field(gt=0)] = 100
    """Validation tasks whose greedy success chooses the checkpoint that is kept."""
    imitation: ImitationConfig = Field(default_factory=ImitationConfig)
    """Which actions of the trees are imitated ("rft")."""
    targets: PolicyTargetConfig = Field(default_factory=PolicyTargetConfig)
    """Which policy over the candidates of each state is learned ("distil")."""
    values: ValueTargetConfig = Field(default_factory=ValueTargetConfig)
    """Which value of each state the value head learns."""
    pairs: PairConfig = Field(default_factory=PairConfig)
    """Which actions of the trees form preference pairs ("dpo")."""
    advantages: AdvantageConfig = Field(default_factory=AdvantageConfig)
    """How the actions of the trees are scored ("grpo")."""
    rft: RFTTraining = Field(default_factory=RFTTraining)
    """Imitation of the best paths: the control."""
    distil: DistilTraining = Field(default_factory=DistilTraining)
    """Distillation of the search's policy."""
    dpo: DPOTraining = Field(default_factory=DPOTraining)
    """Preference optimisation on sibling pairs."""
    grpo: GRPOTraining = Field(default_factory=GRPOTraining)
    """Policy gradient on tree advantages."""
    reward: RewardTraining = Field(default_factory=RewardTraining)
    """Training of a reward model, whose pairs are those of ``pairs`` and of the ends of a task."""
    value_rows: Annotated[int, Field(gt=0)] = 2000
    """Most tree paths on which the value head is fitted after every change of the policy."""
    value_reads: Literal["auto", "hidden", "logprobs"] = "auto"
    """What the value head reads of the policy at a state: "hidden" its last hidden state, for which another
    ``policy.generator`` than "local" needs a second copy of the model in this process; "logprobs" the log-probabilities
    of 128 tokens, which vLLM gives too, as an engine or on a server. "auto" means "hidden" with "local", and else
    "logprobs"."""
    keep_trees: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the trees that are learned from, those whose returns differ most (StarPO-S)."""
    processes: Annotated[int, Field(gt=0, le=1024)] = 1
    """Processes of this machine that train together, each on its own batches; a step sees the batches of all."""
    accelerate_config: Annotated[str | None, REACHES_OUT] = None
    """File of ``accelerate config`` by which these processes are started; unset means plain data-parallel training.
    configs/models/fsdp.yaml shards the weights."""


@dataclass(frozen=True, config=_STRICT)
class EvaluateConfig:
    """How policies are compared."""

    tasks: Annotated[int, Field(gt=0)] = 200
    """Held-out tasks, of the environment's test split."""
    first_task: Annotated[int, Field(ge=0)] = 0
    """Index of the first of them in the test split, so that several seeds can each have their own."""
    modes: Annotated[tuple[Mode, ...], AfterValidator(_each_once)] = ("greedy", "best_of_n", "mcts")
    """Ways of acting that are evaluated: "greedy" is the policy at temperature 0, the others are methods of search.
    Sampling is "best_of_n" with ``best_of`` 1."""
    best_of: Annotated[int, Field(gt=0)] = 8
    """Samples (N) of best-of-N, where they replace ``search.limits.simulations``."""
    decision: Decision = "leaf"
    """How the actions to take are chosen from a finished tree."""
    likelihood_weight: Annotated[float, Field(ge=0)] = 0.0
    """λ of ``decision`` "leaf", which ranks ends by V + λ log π(path), in reward units a nat."""
    stop_at_gain: Annotated[float, Field(ge=0)] = 0.0
    """The search of a task ends when the rest of its limits is expected to raise V + λ log π of the best end by less
    than this, in reward units (``stopping.LeastGain``); at 0 it uses its limits up. For ``decision`` "leaf" alone."""
    replays: Annotated[int, Field(ge=0)] = 0
    """In a stochastic environment, how often each of the best plans of a finished tree is executed again, with other
    random outcomes, before one is chosen. 0 chooses by what the search met. For ``decision`` "leaf" alone."""
    cvar: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Plans that are tried again are ranked by the mean return of this share of their worst replays (α of the
    conditional value at risk); 1 ranks them by the mean."""
    suite: tuple[Disturbance, ...] = ()
    """Disturbances of the environment under which ``treeagent eval`` plays the same tasks again, one at a time;
    ``--suite full`` names all."""
    world: Annotated[str, REACHES_OUT] = ""
    """Folder of a run whose world model is searched in place of the environment, anew after every real step (model
    predictive control); empty searches the environment."""

    @model_validator(mode="after")
    def _replays(self) -> Self:
        if self.cvar < 1 and not self.replays:
            raise ValueError(f"cvar is {self.cvar:g}, but replays is 0, so that nothing is tried again: set replays")
        if self.replays and (self.decision != "leaf" or self.world):
            other = f"world is {self.world!r}" if self.world else f"decision is {self.decision!r}"
            raise ValueError(
                f"replays is {self.replays}, which ranks whole plans in the environment, but {other}: leave one out"
            )
        return self

    @property
    def places(self) -> range:
        """Indices of the held-out tasks in the test split."""
        return range(self.first_task, self.first_task + self.tasks)


@dataclass(frozen=True, config=_STRICT)
class AdaptConfig:
    """Search-and-adapt: rounds of search with the current policy and of learning from the trees."""

    rounds: Annotated[int, Field(gt=0)] = 3
    """Rounds of search and update."""
    methods: Annotated[tuple[Method, ...], AfterValidator(_each_once)] = ("dpo", "grpo")
    """Updates of a round, one after the other on the same weights."""
    replay: Annotated[int, Field(ge=0)] = 1
    """Earlier rounds whose trees are learned from again, the ``seed_tasks`` counting as one; their stored
    log-probabilities are the reference."""
    lag: Literal[0, 1] = 0
    """1 runs a round's updates while the next round's search runs, which then takes the policy that goes into these
    updates, not the one that comes out: it searches with the last policy but one. The updates have a worker of their
    own, beside ``workers``. 0 searches with the last policy."""
    curriculum: Share = 0.5
    """Share of a round's tasks that were searched before: those whose returns differed most when last searched."""
    effort: Annotated[float, Field(ge=1)] = 1.0
    """Factor by which ``search.limits`` grow for tasks that were searched before without a success."""
    imagined: Share | tuple[Share, ...] = 0.0
    """Greatest share of a round's trees that grow in the world model: one number for all rounds, or one for each. The
    audit before each round may allow less."""
    seed_tasks: Annotated[int, Field(gt=0)] = 100
    """Tasks searched in the environment before a first round that imagines, for the world model to learn from."""
    variations: Share = 0.0
    """Greatest share of a round's tasks that are harder variations of the tasks of widest spread. A variation is
    learned from if the policy solves it at times, but less often than its task."""

    @model_validator(mode="after")
    def _one_share_a_round(self) -> Self:
        if isinstance(self.imagined, tuple) and len(self.imagined) != self.rounds:
            raise ValueError(f"imagined names {len(self.imagined)} shares for {self.rounds} rounds: give one a round")
        return self

    def imagined_in(self, number: int) -> float:
        """The share of round ``number``, from 1 on."""
        return self.imagined[number - 1] if isinstance(self.imagined, tuple) else self.imagined

    @property
    def imagines(self) -> bool:
        """Whether any round may search in the world model."""
        return any(self.imagined_in(number) for number in range(1, self.rounds + 1))


@dataclass(frozen=True, config=_STRICT)
class TeacherConfig:
    """A model on a server that explains real steps, for the world model to learn to reason so."""

    model: str
    """Name that the server gives the teacher."""
    url: Annotated[Addresses, REACHES_OUT] = LOCAL_SERVER
    """Root of the OpenAI-compatible API of the teacher's server, or a list of several; its key is read from
    ``OPENAI_API_KEY``."""


@dataclass(frozen=True, config=_STRICT)
class WorldConfig(ModelConfig):
    """The world model: what it is, what it learns from and how it is audited."""

    max_new_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 512
    """Most tokens of one answer of the world model."""
    reasoning: bool = True
    """The world model reasons before it answers, as ``teacher`` does or, without a teacher, by a rule."""
    teacher: TeacherConfig | None = None
    """A served model that writes the reasoning from which the world model learns. Steps that it does not explain are
    explained by rule."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Similar stored steps (k) shown to the world model before each question."""
    encoder: EncoderConfig = Field(default_factory=EncoderConfig)
    """How similar steps are found."""
    observations: Annotated[int, Field(gt=0)] | None = None
    """Latest observations of the episode shown to the world model; unset shows all. One is enough where an observation
    holds the whole state, as a board does."""
    demonstrations: Annotated[int, Field(ge=0)] = 0
    """The world model learns from at most this many episodes of the warm start, its first ones, beside the trees."""
    end_rows: Annotated[int, Field(gt=0)] = 1
    """How often a step that ends an episode appears among the training rows; such steps are few, and their rewards are
    the hardest to predict."""
    hard_steps: Annotated[int, Field(ge=0)] = 0
    """Optimiser steps after each fit in which half of the rows are ends, drawn by how likely the world model is to get
    them wrong."""
    max_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 4096
    """Most tokens of a training row of the world model; longer ones are left out."""
    refit_steps: Annotated[int, Field(gt=0)] = 200
    """Optimiser steps of a later round's fit, which continues from the last one on all real steps so far."""
    verify_steps: Annotated[int, Field(ge=0)] = 20
    """Most environment steps that replay the promised successes of each imagined tree; 0 replays none."""
    noise: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Greatest share of wrong training labels that imagined trees may bring in; it caps how many trees are imagined. 1
    accepts every world model that errs on fewer than half of the returns."""
    free: tuple[str, ...] = ()
    """First words of actions whose answers the history cannot determine, such as "search"; the audit asks only that
    they be consistent."""
    training: PretrainingConfig = Field(default_factory=PretrainingConfig)
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
        if self.generator == "remote" and self.hard_steps:
            raise ValueError(f"hard_steps is {self.hard_steps}, but generator 'remote' is not trained: set it to 0")
        return self


@dataclass(frozen=True, config=_STRICT)
class RunConfig:
    """Everything that determines a run."""

    seed: Seed = 0
    """Seed from which every random choice derives."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Worker processes; results do not depend on their number. 0 takes as many as suit the model and the machine."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of each worker on this machine; results depend on their number by rounding alone. 0 takes one for a model
    of fewer than 30 million weights, else the cores divided by the workers."""
    engine: Literal["local", "ray"] = "local"
    """Where the workers run: "local" on this machine, "ray" as actors of a Ray cluster. Results do not depend on it."""
    trackers: Annotated[tuple[Tracker, ...], REACHES_OUT] = ()
    """Where metrics go beside metrics.jsonl: "tensorboard", "trackio", "wandb"."""
    mirror: Annotated[str, REACHES_OUT] = ""
    """Address to which the run's folder is copied every minute and at the end, such as "s3://bucket/run"; any that
    fsspec opens. With --resume, a run that this machine does not have is fetched from there. Empty copies nothing."""
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    remote: RequestConfig = Field(default_factory=RequestConfig)
    ray: RayConfig = Field(default_factory=RayConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    rewards: RewardsConfig = Field(default_factory=RewardsConfig)
    collect: CollectConfig = Field(default_factory=CollectConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    adapt: AdaptConfig = Field(default_factory=AdaptConfig)
    world: WorldConfig = Field(default_factory=WorldConfig)

    @model_validator(mode="after")
    def _fits(self) -> Self:
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
        if self.policy.is_structured and self.policy.generator != "local" and self.search.granularity == "split":
            raise ValueError(
                f"search.granularity is 'split', but policy.generator {self.policy.generator!r} cannot constrain a "
                "turn that has begun: set policy.generator=local, search.granularity=step, or policy.structured=false"
            )
        if self.search.learned_weight and self.rewards.learned is None:
            raise ValueError(
                f"search.learned_weight is {self.search.learned_weight:g}, but there is no reward model: set "
                "rewards.learned to the folder of one"
            )
        if self.search.process_weight and self.rewards.weights:
            raise ValueError(
                f"search.process_weight is {self.search.process_weight:g} beside rewards.weights, which weighs the "
                "component 'process': set one of them"
            )
        if self.policy.actions != "sample" and (self.evaluate.world or self.adapt.imagines):
            raise ValueError(
                f"policy.actions is {self.policy.actions!r}, but the world model that evaluate.world or adapt.imagined "
                "searches lists no legal actions: set policy.actions=sample"
            )
        if self.policy.context == "drop" and self.update.pairs.rule == "trajectory":
            raise ValueError(
                "update.pairs.rule 'trajectory' needs one prompt before all actions of a path, which policy.context "
                "'drop' may cut: compare siblings"
            )
        if self.update.advantages.kind == "gae" and self.search.method != "mcts" and not self.search.estimate_all:
            raise ValueError(
                f"update.advantages.kind is 'gae', which needs V(s) of every state, but search.method "
                f"{self.search.method!r} estimates leaves only: set search.estimate_all too"
            )
        if self.update.advantages.kind == "gae" and self.update.values.target in ("best", "success"):
            raise ValueError(
                "update.advantages.kind is 'gae', which needs the mean return of the policy from each state, but "
                f"update.values.target is {self.update.values.target!r}, against which hardly any step gains: set "
                "update.values.target to 'lambda' or 'mean'"
            )
        return self

    def learner(self, kind: type[LearnerConfig], stage: PretrainingConfig | UpdateTraining) -> LearnerConfig:
        """The settings of one training as its learner takes them: the stage's own over those of ``[training]``."""
        shared = {field.name: getattr(self.training, field.name) for field in fields(self.training)}
        own = {field.name: getattr(stage, field.name) for field in fields(stage)}
        given = shared | {key: value for key, value in own.items() if value is not None}
        decay = _MUON_DECAY if own.get("optimiser") == "muon" else 0.0
        return kind(**given, weight_decay=decay, seed=self.seed)

    @property
    def reloads(self) -> bool:
        """Whether a command brings each checkpoint to the servers, which then serve no other."""
        return isinstance(self.policy.reload, tuple)

    @property
    def value_reads(self) -> Literal["hidden", "logprobs"]:
        """``update.value_reads``, resolved."""
        wanted = self.update.value_reads
        if wanted == "auto":
            return "hidden" if self.policy.generator == "local" else "logprobs"
        return wanted

    def server(self, url: str | tuple[str, ...]) -> RemoteConfig:
        """How the server at ``url``, or the pool of several, is asked."""
        return RemoteConfig(**asdict(self.remote), url=url)


class ConfigError(ValueError):
    """A setting that cannot be used: one sentence with its key, its value and the fix."""


def load_config(
    path: Path | None, overrides: Sequence[str] = (), *, seed: int | None = None, world: Path | None = None
) -> RunConfig:
    """The defaults, changed by a TOML file, then by overrides such as ``collect.tasks=32``, then by ``seed``.

    A file may name another one that it ``extends``, by a path relative to itself. An override's value is read as a TOML
    value, a bare word as a string.

    Args:
        world: a file whose table ``world`` takes the place of that of ``path``.

    Raises:
        ConfigError: a file cannot be read, or a setting is unknown, of another type or out of range.
    """
    settings = {} if path is None else _read_settings(path)
    if world is not None:
        settings["world"] = _read_settings(world).get("world", {})
    for override in overrides:
        _override(settings, override)
    if seed is not None:
        settings["seed"] = seed
    for key, value in _flat(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}, but should be a finite number: correct it")
    try:
        # JSON is the mode in which strict types still take a table for a dataclass and an array for a tuple.
        return TypeAdapter(RunConfig).validate_json(json.dumps(settings, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(_unknown_key(settings) or _problem(error, settings)) from None


def reaching_out(path: Path, overrides: Sequence[str] = ()) -> Iterator[tuple[str, object]]:
    """The settings by which a file names code to run or a machine to contact, with their values: those marked
    ``REACHES_OUT``, unless they have their default or an override gives them.

    Raises:
        ConfigError: the file cannot be read.
    """
    written, given = _flat(_read_settings(path)), dict[str, Any]()
    for override in overrides:
        _override(given, override)
    own = {key: value for key, value in written.items() if key not in _flat(given)}
    for key, field, _ in known_settings():
        value = own.get(key) or {name: each for name, each in own.items() if name.startswith(f"{key}.")}  # of a table
        if REACHES_OUT not in field.metadata or not value or isinstance(value, int):
            continue
        built_in = key == "environment.name" and ":" not in str(value)
        if value != field.get_default(call_default_factory=True) and not built_in and value != ["tensorboard"]:
            yield key, value


def dump_config(config: RunConfig) -> str:
    """Every setting as TOML; ``load_config`` reads it back to an equal value. ``None``, which TOML lacks, is absent."""
    return tomli_w.dumps(TypeAdapter(RunConfig).dump_python(config, mode="json", exclude_none=True))


def config_difference(old: RunConfig, new: RunConfig) -> list[str]:
    """The dotted keys whose values differ, sorted."""
    before, after = flat_settings(old), flat_settings(new)
    return sorted(key for key in before | after if before.get(key) != after.get(key))


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted key."""
    return _flat(TypeAdapter(RunConfig).dump_python(config))


def known_settings(section: Any = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Every setting there is, those of optional tables too, in the order of the sections: its dotted key, pydantic's
    description of its type and default, and what it does in one or two sentences."""
    texts = _attribute_docstrings(section)
    for name, field in section.__pydantic_fields__.items():
        table = next((each for each in (field.annotation, *get_args(field.annotation)) if is_dataclass(each)), None)
        if table is None:
            yield f"{prefix}{name}", field, texts.get(name, "")
        else:
            yield from known_settings(table, f"{prefix}{name}.")


@cache
def _attribute_docstrings(section: type) -> Mapping[str, str]:
    """The string below each attribute, on one line; Python itself keeps none of them."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for attribute, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str(words))):
                        found[attribute.target.id] = " ".join(words.split())
    return found


def _read_settings(path: Path, reading: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's settings over those of the file that it extends."""
    if path.resolve() in reading:
        raise ConfigError(f"config file {path} extends itself: remove one of the extends between")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
        json.dumps(settings, default=str)  # walks it whole
    except (OSError, ValueError, RecursionError) as error:  # not there, not UTF-8, no TOML, or nested without end
        raise ConfigError(f"config file {path} cannot be read: {error}: correct the path or the file") from None
    parent = settings.pop("extends", None)
    if parent is None:
        return settings
    return _merged(_read_settings(regular(path.parent / str(parent)), (*reading, path.resolve())), settings)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Sections joined, key by key."""
    whole = dict(below)
    for key, value in above.items():
        old = whole.get(key)
        whole[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return whole


def _override(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r} is not of the form key=value: write it like collect.tasks=32")
    section = settings
    for part in parts[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
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


def _unknown_key(settings: Mapping[str, Any]) -> str:
    """A sentence on the first key that is no setting; empty where all are."""
    known = [key for key, _, _ in known_settings()]
    for key in _flat(settings):
        known_table = any(one.startswith(f"{key}.") for one in known)
        if not known_table and key not in known and not key.startswith(_OPEN_TABLES):
            near = difflib.get_close_matches(key, known, 3, cutoff=0.5)
            guess = f"did you mean {' or '.join(near)}? " if near else ""
            return f"{key} is no setting: {guess}treeagent settings lists them all"
    return ""


def _problem(error: ValidationError, settings: dict[str, Any]) -> str:
    """The first problem in words: its key, its value and pydantic's own message. What the members of a union say of one
    value is one problem."""
    problems = error.errors(include_url=False)
    first, (key, value) = problems[0], _locate(settings, problems[0]["loc"])
    if first["type"] == "value_error":  # a section's own check of settings that belong together
        return f"{key or 'the config'}: {first['msg'].removeprefix('Value error, ')}"
    if first["type"] == "missing":
        return f"{key} is incomplete: set {key}.{first['loc'][-1]} too"
    same = [each["msg"] for each in problems if _locate(settings, each["loc"])[0] == key]
    said = " or ".join(dict.fromkeys(message.removeprefix("Input should be ") for message in same))
    return f"{key} is {json.dumps(value, default=str)}, but should be {said}: correct it"


def _locate(settings: Any, location: Sequence[int | str]) -> tuple[str, Any]:
    """The part of pydantic's location that is a key of the file (the rest names members of a union), and its value."""
    keys: list[str] = []
    for part in location:
        try:
            settings = settings[part]
        except (KeyError, IndexError, TypeError):
            break
        keys.append(str(part))
    return ".".join(keys), settings
