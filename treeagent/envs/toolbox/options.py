"""The options of the toolbox."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ToolboxOptions:
    """How long the pipelines of calls are, and how large the world is that they ask."""

    least_calls: Annotated[int, Field(ge=0, le=8)] = 0
    """Fewest calls that a task needs before its answer; a task of 0 states the answer in its question."""
    most_calls: Annotated[int, Field(ge=0, le=8)] = 3
    """Most calls that a task needs before its answer."""
    people: Annotated[int, Field(ge=2, le=12)] = 6
    """People of a task's world, each in one of half as many teams."""

    @model_validator(mode="after")
    def _some_range(self) -> Self:
        if self.least_calls > self.most_calls:
            raise ValueError(f"least_calls is {self.least_calls}, more than most_calls, {self.most_calls}: lower it")
        return self
