"""A cascade of judges: a rule, then a reward model, then a judge. Each is asked only about the ends on which the one
before abstains or is uncertain, so most ends cost nothing."""

from collections.abc import Callable, Sequence
from typing import Self

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from treeagent import seams
from treeagent.contrib.judging.ends import pay_ends
from treeagent.contrib.judging.judge import Judge, JudgeOptions
from treeagent.contrib.judging.learned import Learned, LearnedOptions
from treeagent.pipeline.rewards import Place, Step

Rule = Callable[[Step], float | None]


def outcome(step: Step) -> float | None:
    """The rule "outcome": the environment's reward of an end of the task. It abstains at a limit."""
    return step.reward if step.result.terminated else None


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CascadeOptions:
    """Options of the reward "cascade"."""

    rule: str = ""
    """A function of a Step as "module:function", which returns a score or None; "outcome" is the environment's own
    reward of an end. Empty leaves this tier out."""
    model: str = ""
    """Folder of a reward model that ``treeagent reward`` wrote. Empty leaves this tier out."""
    judge: JudgeOptions | None = None
    """Options of a judge. Unset leaves this tier out."""
    uncertain: tuple[float, float] = (0.25, 0.75)
    """A score strictly between these two numbers is uncertain, and the next tier is asked. The last score counts."""

    @model_validator(mode="after")
    def _has_tiers(self) -> Self:
        if not (self.rule or self.model or self.judge):
            raise ValueError("give at least one of rule, model and judge")
        return self


class Cascade:
    """The reward "cascade"."""

    options_type = CascadeOptions

    def __init__(self, options: CascadeOptions, place: Place) -> None:
        self.options = options
        self.rule: Rule | None = None
        if options.rule:
            self.rule = seams.resolve("rewards.function", options.rule, {"outcome": f"{__name__}:outcome"})
        self.learned = Learned(LearnedOptions(options.model), place) if options.model else None
        self.judge = None if options.judge is None else Judge(options.judge, place)

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        return await pay_ends(steps, 1.0, self.verdicts)

    async def verdicts(self, ends: Sequence[Step]) -> list[float | None]:
        """The verdict of the first tier that is certain, or else of the last tier that gives any. A reward model that
        its audit trusts by c only gives c V + (1 - c) m, where m is the middle of ``uncertain``."""
        found = [None if self.rule is None else self.rule(end) for end in ends]
        middle, cap = sum(self.options.uncertain) / 2, self.learned.cap if self.learned else 1.0
        tiers: Sequence[tuple[Learned | Judge | None, float]] = ((self.learned, cap), (self.judge, 1.0))
        for tier, trust in tiers:
            if tier is not None and (open_ends := self._open(found)):
                verdicts = await tier.verdicts([ends[index] for index in open_ends])
                for index, verdict in zip(open_ends, verdicts, strict=True):
                    if verdict is not None:
                        found[index] = trust * verdict + (1 - trust) * middle
        return found

    def _open(self, found: Sequence[float | None]) -> list[int]:
        """The indices of the ends about which the next tier is asked."""
        low, high = self.options.uncertain
        return [index for index, each in enumerate(found) if each is None or low < each < high]
