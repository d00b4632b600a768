"""Sizes of a model made on the spot. Imports no torch, so that a command line can read it at once."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ScratchConfig:
    """A byte-pair tokenizer and a Qwen3, both trained from scratch."""

    vocabulary: Annotated[int, Field(ge=300)] = 1024
    """Tokens of the tokenizer, at most."""
    layers: Annotated[int, Field(gt=0)] = 3
    """Transformer blocks."""
    width: Annotated[int, Field(gt=0)] = 96
    """Hidden size."""
    heads: Annotated[int, Field(gt=0)] = 4
    """Attention heads; must divide ``width``."""
    context: Annotated[int, Field(gt=0)] = 1024
    """Longest conversation, in tokens."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of 2 * heads ({2 * self.heads}): change one of them")
        return self
