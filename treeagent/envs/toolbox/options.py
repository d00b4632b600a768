"""Options of the toolbox."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ToolboxOptions:
    """Settings of ``ToolboxEnv``: the length of the pipelines and the size of the worlds."""

    least_calls: Annotated[int, Field(ge=0, le=8)] = 0
    """Fewest calls that a task needs before its answer. With 0 calls, the question states the answer."""
    most_calls: Annotated[int, Field(ge=0, le=8)] = 3
    """Most calls that a task needs before its answer."""
    people: Annotated[int, Field(ge=2, le=12)] = 6
    """Number of people in a task's world. There are half as many teams."""

    @model_validator(mode="after")
    def _some_range(self) -> Self:
        if self.least_calls > self.most_calls:
            raise ValueError(f"least_calls is {self.least_calls}, more than most_calls, {self.most_calls}: lower it")
        return self
