"""A fitted reward model as the reward of ends."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.judging.audit import read_audit, value_of
from treeagent.contrib.judging.ends import pay_ends
from treeagent.pipeline.rewards import Place, Step
from treeagent.threads import in_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LearnedOptions:
    """Options of the reward "learned"."""

    model: str
    """Folder of a reward model that ``treeagent reward`` wrote."""


class Learned:
    """The reward "learned". The share of the model's V in the reward of an end is the most that its audit allows; the
    environment's own reward makes up the rest."""

    options_type = LearnedOptions

    def __init__(self, options: LearnedOptions, place: Place) -> None:
        self.audit = read_audit(Path(options.model))
        self.cap: float = self.audit["cap"]
        self._model, self._config = options.model, place.config

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        return await pay_ends(steps, self.cap, self.verdicts)

    async def verdicts(self, ends: Sequence[Step]) -> list[float | None]:
        """V of each end, the predicted outcome of the whole episode; None where it is too long for the model."""
        return await in_thread(lambda: self._values(ends))

    def _values(self, ends: Sequence[Step]) -> list[float | None]:
        from treeagent.contrib.judging.scorer import scores
        from treeagent.generators.attention import context_length
        from treeagent.pipeline.build import conversation

        scorer, tokenizer = _loaded(self._model)
        context = context_length(scorer)
        chat, _ = conversation(tokenizer, self._config, context)
        readings = [chat.read(end.result.state.messages) for end in ends]
        fits = [not reading.error and len(reading.prompt_ids) <= context for reading in readings]
        found = iter(scores(scorer, [reading.prompt_ids for reading, fit in zip(readings, fits, strict=True) if fit]))
        return [value_of(next(found), **self.audit["value"]) if fit else None for fit in fits]


@lru_cache(maxsize=1)
def _loaded(model: str) -> "tuple[PreTrainedModel, Any]":
    """The reward model and its tokenizer, loaded once in each process."""
    from transformers import AutoModelForSequenceClassification

    from treeagent.agent.checkpoint import load_tokenizer, no_progress_bars

    with no_progress_bars():
        scorer = AutoModelForSequenceClassification.from_pretrained(model, trust_remote_code=False)
    return scorer.eval(), load_tokenizer(model)
