"""Where a model comes from and what runs it. Imports no torch, so that a command line can read it at once."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

DType = Literal["auto", "float32", "bfloat16", "float16"]
"""Of weights; auto takes the checkpoint's own."""


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


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RemoteConfig:
    """A server that speaks the OpenAI protocol; its key, if it wants one, is read from ``OPENAI_API_KEY``."""

    url: str = "http://localhost:8000/v1"
    """Of the protocol's root."""
    text_only: bool = False
    """The server gives no token ids: ask its chat endpoint for text, which can be played and measured, not learned
    from."""
    concurrency: Annotated[int, Field(gt=0)] = 32
    """Most requests in flight, for each worker."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which a request is given up, and tried again."""
    retries: Annotated[int, Field(ge=0)] = 6
    """Further tries of a request; the waits between them double up to 8 seconds, or are as the server's Retry-After
    says."""
    prompt_price: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens."""
    generated_price: Annotated[float, Field(ge=0)] = 0.0
    """Per million sampled tokens."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class VllmConfig:
    """An engine in this process."""

    tensor_parallel_size: Annotated[int, Field(gt=0)] = 1
    """GPUs that share the model."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of each GPU's memory that the engine takes; between batches it leaves them to training."""
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    """Longest conversation, in tokens; none takes the model's own, whose keys and values must then fit."""
