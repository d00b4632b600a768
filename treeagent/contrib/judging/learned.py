"""A fitted reward model as the reward of ends."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.judging.audit import read_audit
from treeagent.contrib.judging.ends import pay_ends
from treeagent.pipeline.rewards import Place, Step
from treeagent.types import UserError

if TYPE_CHECKING:
    from treeagent.agent.checkpoint import Checkpoint
    from treeagent.agent.policy import HeadValue
    from treeagent.generators.local import LocalGenerator


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LearnedOptions:
    """Options of the reward "learned"."""

    model: str
    """Folder of a reward model that ``treeagent reward fit`` wrote."""
    weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share w of the model's V in the reward of an end; the environment's own reward makes up the rest. Unset takes the
    most that the model's audit allows, which a given one must not exceed."""


class Learned:
    """The reward "learned"."""

    options_type = LearnedOptions

    def __init__(self, options: LearnedOptions, place: Place) -> None:
        self.cap: float = read_audit(Path(options.model))["cap"]
        self.weight = self.cap if options.weight is None else options.weight
        if self.weight > self.cap:
            raise UserError(
                f"the reward model's weight is {self.weight:g}, but the audit of {options.model} allows at most "
                f"{self.cap:.2f}: lower it, or fit the reward model to more trees"
            )
        self._model, self._config = options.model, place.config
        self._value: HeadValue | None = None

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        return await pay_ends(steps, self.weight, self.verdicts)

    async def verdicts(self, ends: Sequence[Step]) -> list[float | None]:
        """V of each end, the predicted outcome of the whole episode; None where the model cannot read it."""
        from treeagent.agent.policy import HeadValue
        from treeagent.pipeline.build import make_chat

        if self._value is None:
            checkpoint, generator = _loaded(self._model)
            if checkpoint.head is None:
                raise UserError(
                    f"{self._model} has no value head: fit the reward model again (treeagent reward fit RUN)"
                )
            self._value = HeadValue(generator, make_chat(checkpoint, self._config), checkpoint.head)
        found = await self._value.estimate([end.result.state for end in ends])
        return [None if each.error else each.value for each in found]


@lru_cache(maxsize=1)
def _loaded(model: str) -> "tuple[Checkpoint, LocalGenerator]":
    """The reward model, loaded once in each process."""
    from treeagent.agent.checkpoint import load_checkpoint
    from treeagent.generators.local import LocalGenerator

    checkpoint = load_checkpoint(model, merged=True)
    return checkpoint, LocalGenerator(checkpoint.model)
