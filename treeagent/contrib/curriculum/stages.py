"""The stages of a curriculum, and the choice of the next one."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Share = Annotated[float, Field(ge=0, le=1)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Stage:
    """The tasks that the rounds of a stage search."""

    name: str
    """Name of the stage in stages.json and in messages."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment that differ from ``environment.options``, such as the length of a task."""


@dataclass(frozen=True, config=_STRICT)
class Curriculum:
    """Stages of a curriculum, the easiest first."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    advance_at: Share = 0.7
    """Success at which a round goes on to the next stage: the fraction of ``update.validation_tasks`` of the stage that
    the policy solves greedily before the round."""
    fall_back_at: Share = 0.2
    """Success below which a round returns to the stage before."""

    def next_stage(self, stage: int, success: Callable[[int], float]) -> tuple[int, float]:
        """The index of the next round's stage, and the success of the policy in it. Stages that the policy has mastered
        are passed.

        Args:
            stage: index of the present stage.
            success: measures the policy on the tasks of a stage, as a fraction of solved tasks.
        """
        reached = success(stage)
        if reached < self.fall_back_at and stage > 0:
            return stage - 1, success(stage - 1)
        while reached >= self.advance_at and stage < len(self.stages) - 1:
            stage += 1
            reached = success(stage)
        return stage, reached
