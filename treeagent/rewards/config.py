"""The settings ``[rewards]``: what the components of a reward weigh, and which of them have a budget."""

import math
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
    """The judge: a name on the server, or a folder, a GGUF file or a name on the Hugging Face hub without ``url``."""
    items: tuple[str, ...]
    """Questions about an episode to which "yes" is the good answer; each asks one thing. The component ``judge`` is the
    share of answers that are yes; of a model in this process, their mean probability of yes."""
    url: Annotated[str | None, REACHES_OUT] = None
    """Root of the OpenAI-compatible API of the judge's server; its key is read from ``OPENAI_API_KEY``. Unset runs the
    model in this process: it is asked each question once, by itself, and says only how likely yes is against no."""
    reference: str = ""
    """Name of the entry of a task's data that the judge reads as the reference answer; empty shows none."""
    hacked: bool = True
    """Also asks whether the reward was got around the task. If most votes say so, the episode is paid nothing."""
    votes: Annotated[int, Field(gt=0, le=99)] = 3
    """Times that a judge on a server is asked (k); every second time it reads the questions in reverse. A verdict needs
    more than half of them."""
    temperature: Amount = 1.0
    """Temperature at which a judge on a server samples."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 512
    """Most tokens of a reply of a judge on a server, reasoning included."""
    timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds after which a request is given up; it is tried twice."""
    tools: tuple[str, ...] = ()
    """Read-only tools of the environment that a judge on a server may call before it answers, where the episode
    ended."""
    most_tool_calls: Annotated[int, Field(gt=0)] = 3
    """Most calls of ``tools`` by each vote."""
    most_calls: Annotated[int, Field(ge=0)] | None = None
    """Most calls of the judge in a run; unset sets no limit."""
    most_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens of the judge in a run, prompts included, after which it is called no more; unset sets no limit."""
    prompt_price: Amount = 0.0
    """Price of a million prompt tokens of the judge."""
    generated_price: Amount = 0.0
    """Price of a million sampled tokens of the judge."""

    @model_validator(mode="after")
    def _asks(self) -> Self:
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
    """Components of the reward of a step, by name: what each weighs, and which of them are costs with a budget."""

    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each component in the reward of a step, which is their weighted sum; empty leaves the environment's
    own reward."""
    normalise: Literal["none", "std"] = "none"
    """"std" divides each component, where trees are learned from, by the standard deviation of its sums over the
    finished paths of a task; "none" divides by nothing."""
    schedule: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Factors of a component's weight in the first and in the last round of ``treeagent train``, with a straight line
    between; 1 where it is not named."""
    rules: Annotated[dict[str, str], REACHES_OUT] = Field(default_factory=dict)
    """Components that functions of yours compute, "module:function" by the component's name: (Step) -> number, or None
    where the rule does not apply."""
    tools: bool = False
    """Scores each call of a tool against the tool's schema and the reference: whether to call, which tool, which
    arguments."""
    judge: JudgeConfig | None = None
    """A model that judges the ends of episodes: components ``judge`` and ``hacked``."""
    learned: Annotated[str | None, REACHES_OUT] = None
    """Folder of a reward model that ``treeagent reward fit`` wrote: the component ``learned`` of ends is its V(s), and
    the tier "learned" asks it in place of the policy's value head."""
    tiers: tuple[Tier, ...] = ()
    """Who decides about an end, each asked only where the one before abstains or is uncertain: "rule" is the component
    ``rule``, "learned" the reward model, or else the value head, "judge" the judge. They give the component
    ``verdict``; empty asks the judge and the reward model about every end."""
    rule: str = "outcome"
    """Component of an end by which the tier "rule" decides: a rule that says None abstains."""
    uncertain: tuple[float, float] = (0.25, 0.75)
    """What a tier says strictly between these numbers is uncertain, and the next tier is asked."""
    spot_checks: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The judge is also asked about this share of the ends that an earlier tier decides with certainty. Its answer
    changes no reward. ``agreement/TIER_judge`` and a warning tell how often it disagrees."""
    budgets: dict[str, Amount] = Field(default_factory=dict)
    """Greatest mean sum over an episode of a component that is a cost; a plan over it is not taken at evaluation."""
    multiplier_rate: Amount = 0.1
    """Step size η of the Lagrange multiplier of each budget d: λ <- max(0, λ + η (mean cost - d)) before an update."""

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
        """Whether steps get components beyond those that the environment gives."""
        return bool(self.weights or self.budgets or self.rules or self.tools or self.assesses)

    @property
    def assesses(self) -> bool:
        """Whether ends are judged, by a judge, by a reward model or by tiers."""
        return self.judge is not None or self.learned is not None or bool(self.tiers)

    @property
    def learns(self) -> bool:
        """Whether ends may have the component ``learned``."""
        return self.learned is not None or "learned" in self.tiers

    @property
    def awaited(self) -> tuple[str, ...]:
        """The components that an end must have for its reward to be known, where they have a weight."""
        return ("verdict",) if self.tiers else ("judge", "learned")

    def at(self, progress: float) -> "RewardsConfig":
        """These settings with the weights of a point between the first round (0) and the last one (1)."""
        weights = dict(self.weights)
        for name, (start, stop) in self.schedule.items():
            weights[name] *= (1 - progress) * start + progress * stop
        return replace(self, weights=weights, schedule={})


DERIVED = ("outcome", "process", "steps", "tokens", "invalid", "forbidden")
"""Components that every step has, in stored trees of every age too."""
AXES = ("when", "which", "how")
ERRORS = ("needless", "missed", "wrong_tool", "wrong_arguments", "malformed")
TOOL_SCORES = (*AXES, *ERRORS, "right", "format")
"""Components of ``rewards.tools``."""
JUDGED = ("judge", "hacked")
"""Components of ``rewards.judge``: the share of its answers that are yes, and 1 where it says that the reward was got
around the task."""
ASSESSED = (*JUDGED, "learned", "verdict", "spot_check")
"""Components of ends that ``rewards.judge`` and ``rewards.tiers`` give."""
HIDDEN = ("outcome", "process", *ASSESSED, *AXES, "needless", "missed", "wrong_tool", "wrong_arguments", "right")
"""Components that read the answer."""
RESERVED = (*DERIVED, *TOOL_SCORES, *ASSESSED)
