"""The settings ``[rewards]``: the weights of reward components, and the budgets of costs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.types import REACHES_OUT

_STRICT = ConfigDict(extra="forbid")
Amount = Annotated[float, Field(ge=0)]
Tier = Literal["rule", "learned", "judge"]
_TIERS: tuple[Tier, ...] = ("rule", "learned", "judge")


@dataclass(frozen=True, config=_STRICT)
class JudgeConfig:
    """A model that judges the ends of episodes by yes/no questions."""

    model: str
    """The judge model. With ``url``, its name on the server. Without, a folder, a GGUF file or a name on the Hugging
    Face hub."""
    items: tuple[str, ...]
    """Questions about an episode, to which "yes" is the good answer; each should ask one thing. The component ``judge``
    is the share of yes answers or, for a model in this process, the mean probability of yes."""
    url: Annotated[str | None, REACHES_OUT] = None
    """Root of the OpenAI-compatible API of the judge's server; its key is read from ``OPENAI_API_KEY``. Unset runs the
    model in this process. It is then asked each question separately, and returns only the probability of yes against
    no."""
    reference: str = ""
    """Name of an entry of the task's data that the judge is shown as the reference answer; empty shows none."""
    hacked: bool = True
    """Also asks whether the agent got its reward by bypassing the task. If most votes say yes, the episode is paid
    nothing."""
    votes: Annotated[int, Field(gt=0, le=99)] = 3
    """Number of times (k) that a judge on a server is asked. Every second time, the questions are in reverse order. A
    verdict needs more than half of the votes."""
    temperature: Amount = 1.0
    """Sampling temperature of a judge on a server."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 512
    """Maximum number of tokens in a reply of a judge on a server, including reasoning."""
    timeout: Annotated[float, Field(gt=0)] = 60.0
    """Timeout of a request, in seconds; a request that fails is tried once more."""
    tools: tuple[str, ...] = ()
    """Read-only tools of the environment that a judge on a server may call before it answers, in the state where the
    episode ended."""
    most_tool_calls: Annotated[int, Field(gt=0)] = 3
    """Maximum number of calls of ``tools`` in each vote."""
    most_calls: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of calls of the judge in a run; unset means no limit."""
    most_tokens: Annotated[int, Field(ge=0)] | None = None
    """Budget of the judge's tokens in a run, including prompts. Once it is used up, the judge is not called any more.
    Unset means no limit."""
    prompt_price: Amount = 0.0
    """Price of a million prompt tokens of the judge."""
    generated_price: Amount = 0.0
    """Price of a million sampled tokens of the judge."""

    @model_validator(mode="after")
    def _has_items(self) -> Self:
        if not self.items:
            raise ValueError("items is empty: ask the judge at least one question")
        for item in self.items:
            if not item.strip() or len(item.splitlines()) > 1:
                raise ValueError(f"items has {item!r}: give each question as one line")
        if len(set(self.items)) < len(self.items):
            raise ValueError("items names a question twice: give each once")
        if self.tools and self.url is None:
            raise ValueError(
                f"tools names {', '.join(self.tools)}, but a judge in this process only says yes or no: set url, or "
                "leave tools out"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class RewardsConfig:
    """Components of the reward of a step, by name: the weight of each, and budgets for those that are costs."""

    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each component; the reward of a step is the weighted sum. Empty keeps the environment's own reward."""
    normalise: Literal["none", "std"] = "none"
    """When a policy learns from trees, "std" divides each component by the standard deviation of its sums over the
    finished paths of a task; "none" does not. The value head learns the rewards that a search pays, undivided."""
    schedule: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Factors that multiply a component's weight in the first and in the last round of ``treeagent train``, with linear
    interpolation between. A component that is not named has the factor 1."""
    rules: Annotated[dict[str, str], REACHES_OUT] = Field(default_factory=dict)
    """Components that your own functions compute: a "module:function" for each component name. The function takes a
    Step and returns a number, or None if the rule does not apply."""
    tools: bool = False
    """Scores each tool call against the tool's schema and the reference: whether to call, which tool, and which
    arguments."""
    judge: JudgeConfig | None = None
    """A model that judges the ends of episodes. It gives the components ``judge`` and ``hacked``."""
    learned: Annotated[str | None, REACHES_OUT] = None
    """Folder of a reward model that ``treeagent reward fit`` wrote. Its V(s) is the component ``learned`` of ends, and
    the tier "learned" uses it instead of the policy's value head."""
    tiers: tuple[Tier, ...] = ()
    """Who decides about an end. Each tier is asked only if the one before it abstains or is uncertain. "rule" is the
    component named by ``rule``, "learned" is the reward model or else the value head, and "judge" is the judge. The
    result is the component ``verdict``. Empty asks the judge and the reward model about every end."""
    rule: str = "outcome"
    """Component of an end by which the tier "rule" decides. It abstains if the rule returns None."""
    uncertain: tuple[float, float] = (0.25, 0.75)
    """A tier's score strictly between these two numbers is uncertain, and the next tier is asked."""
    spot_checks: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the ends decided with certainty by an earlier tier about which the judge is asked as well. Its answer
    changes no reward. ``agreement/TIER_judge`` and a warning report how often it disagrees."""
    budgets: dict[str, Amount] = Field(default_factory=dict)
    """Maximum mean sum over an episode, for each component that is a cost. Evaluation does not take a plan that exceeds
    its budget."""
    multiplier_rate: Amount = 0.1
    """Step size η of the Lagrange multiplier of each budget d. Before an update, λ <- max(0, λ + η (mean cost - d))."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for table in (self.weights, self.budgets):
            for name, value in table.items():
                if not math.isfinite(value):
                    raise ValueError(f"{name} is {value}: give a finite number")
        for name in self.schedule:
            if name not in self.weights:
                raise ValueError(f"schedule names {name!r}, which has no weight: give it one in weights")
        for name in self.budgets:
            if name in self.weights:
                raise ValueError(f"{name!r} has a weight and a budget: give it one of them")
            if name in HIDDEN:
                raise ValueError(f"budgets names {name!r}, which a plan at evaluation must not know: name a cost")
        for name in self.weights:
            if name in JUDGED and self.judge is None:
                raise ValueError(f"weights names {name!r}, but there is no judge: set judge.model and judge.items")
            if name == "verdict" and not self.tiers:
                raise ValueError(f"weights names {name!r}, but tiers is empty: name the tiers")
            if name == "learned" and not self.learns:
                raise ValueError(
                    f"weights names {name!r}, but nothing gives it: set rewards.learned, or name it in rewards.tiers"
                )
        if "hacked" in self.weights:
            raise ValueError("weights names 'hacked', which takes all rewards of an episode back: leave it out")
        if "spot_check" in self.weights:
            raise ValueError("weights names 'spot_check', which some ends have at random: leave it out")
        if self.spot_checks and ("judge" not in self.tiers or len(self.tiers) == 1):
            raise ValueError(
                f"spot_checks is {self.spot_checks:g}, but tiers is {list(self.tiers)}: name the judge and a tier "
                "before it, or leave spot_checks out"
            )
        if self.tiers != tuple(tier for tier in _TIERS if tier in self.tiers):
            raise ValueError(f"tiers is {list(self.tiers)}: name each once, in the order {', '.join(_TIERS)}")
        if self.tiers and ("judge" in self.tiers) != (self.judge is not None):
            fix = "set judge.model and judge.items" if self.judge is None else "add it, or leave out tiers or the judge"
            raise ValueError(f"tiers is {list(self.tiers)}, which does not fit the judge: {fix}")
        if self.learned is not None and self.tiers and "learned" not in self.tiers:
            raise ValueError(f"learned is set, but tiers is {list(self.tiers)}: add 'learned', or leave it out")
        if self.rule in ASSESSED:
            raise ValueError(f"rule is {self.rule!r}, which later tiers give: name another component")
        if not -math.inf < self.uncertain[0] <= self.uncertain[1] < math.inf:
            raise ValueError(f"uncertain is {self.uncertain}: give two numbers, the lower one first")
        for name in self.rules:
            if name in RESERVED:
                raise ValueError(f"rules names {name!r}, which is a component already: choose another name")
        return self

    @property
    def active(self) -> bool:
        """Whether steps get components in addition to those that the environment gives."""
        return bool(self.weights or self.budgets or self.rules or self.tools or self.assesses)

    @property
    def assesses(self) -> bool:
        """Whether ends are judged by a judge, a reward model or tiers."""
        return self.judge is not None or self.learned is not None or bool(self.tiers)

    @property
    def learns(self) -> bool:
        """Whether ends may have the component ``learned``."""
        return self.learned is not None or "learned" in self.tiers

    @property
    def awaited(self) -> tuple[str, ...]:
        """The components without which the reward of an end is unknown, if they have a weight."""
        return ("verdict",) if self.tiers else ("judge", "learned")

    def weighing(self, weights: Mapping[str, float]) -> "RewardsConfig":
        """These settings with other ``weights`` for some components. If none had a weight, the environment's own reward
        keeps counting, as the component ``outcome`` with the weight 1."""
        return replace(self, weights=(self.weights or {"outcome": 1.0}) | dict(weights)) if weights else self

    def at(self, progress: float) -> "RewardsConfig":
        """These settings with the weights at a point of the schedule: ``progress`` is 0 in the first round and 1 in the
        last."""
        weights = dict(self.weights)
        for name, (start, stop) in self.schedule.items():
            weights[name] *= (1 - progress) * start + progress * stop
        return replace(self, weights=weights, schedule={})


DERIVED = ("outcome", "process", "steps", "tokens", "invalid", "forbidden")
"""Components that every step has, also in stored trees of any version."""
AXES = ("when", "which", "how")
ERRORS = ("needless", "missed", "wrong_tool", "wrong_arguments", "malformed")
TOOL_SCORES = (*AXES, *ERRORS, "right", "format")
"""Components of ``rewards.tools``."""
JUDGED = ("judge", "hacked")
"""Components of ``rewards.judge``: the share of its answers that are yes, and 1 if it says that the agent got its
reward by bypassing the task."""
ASSESSED = (*JUDGED, "learned", "verdict", "spot_check")
"""Components of ends that ``rewards.judge`` and ``rewards.tiers`` give."""
HIDDEN = ("outcome", "process", *ASSESSED, *AXES, "needless", "missed", "wrong_tool", "wrong_arguments", "right")
"""Components that depend on the task's answer, and that a plan at evaluation must not know."""
RESERVED = (*DERIVED, *TOOL_SCORES, *ASSESSED)
