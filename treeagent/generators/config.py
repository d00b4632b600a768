"""Which model it is and what runs it. Imports no torch, so that a command line can read it at once."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.types import REACHES_OUT

ActionSource = Literal["sample", "score", "both"]
"""Whether candidates are sampled, or the environment's legal actions scored."""
DType = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of weights; "auto" takes the checkpoint's own."""

LOCAL_SERVER = "http://localhost:8000/v1"
"""Where vLLM serves by default."""


def _distinct_servers(url: str | tuple[str, ...]) -> str | tuple[str, ...]:
    urls = (url,) if isinstance(url, str) else url
    if not urls:
        raise ValueError("the list of servers is empty: name one, or leave it out")
    for each in urls:
        try:
            known = urlsplit(each).scheme in ("http", "https") and bool(urlsplit(each).hostname)
        except ValueError:  # such as an IPv6 address without its end
            known = False
        if not known:
            raise ValueError(f"{each!r} is no server's address: write one such as {LOCAL_SERVER}")
        if [other.rstrip("/") for other in urls].count(each.rstrip("/")) > 1:
            raise ValueError(f"{each!r} stands twice in the list of servers: leave one out")
    return url


Addresses = Annotated[str | tuple[str, ...], AfterValidator(_distinct_servers)]
"""The root of an OpenAI-compatible API, or the roots of several that serve the same model."""

LORA_SCALE = 2.0
"""alpha / rank, by which an adapter's output is multiplied: the usual choice, under which ``rank`` may change without a
new learning rate."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LoraConfig:
    """A low-rank adapter beside frozen weights (Hu et al. 2021): h = W x + 2 B A x, where B starts at zero."""

    rank: Annotated[int, Field(gt=0)] = 16
    """Rank of the low-rank adapter: rows of its matrix A and columns of its matrix B."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, by the last part of their names; "all-linear" means every linear layer but the
    language-model head."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ScratchSizes:
    """Sizes of a small Qwen3 that is trained from scratch."""

    layers: Annotated[int, Field(gt=0)] = 3
    """Transformer blocks of a model from scratch."""
    width: Annotated[int, Field(gt=0)] = 96
    """Hidden size of a model from scratch."""
    heads: Annotated[int, Field(gt=0)] = 4
    """Attention heads of a model from scratch; twice this number must divide ``width``."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of 2 * heads ({2 * self.heads}): change one of them")
        return self


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ScratchConfig(ScratchSizes):
    """A small Qwen3 and its byte-pair tokenizer, both trained from scratch."""

    vocabulary: Annotated[int, Field(ge=300)] = 1024
    """Most tokens of the tokenizer."""
    context: Annotated[int, Field(gt=0)] = 1024
    """Longest conversation, in tokens."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ModelConfig:
    """A language model: where its weights come from, what samples from it, and how it is adapted."""

    model: str | None = None
    """A model's folder, a GGUF file, or its name on the Hugging Face hub; on a server, the name that the server gives
    it. Unset means that a small model is trained from scratch."""
    generator: Literal["local", "vllm", "remote"] = "local"
    """What samples: "local" is transformers in this process, "vllm" an engine in this process, "remote" a server.
    Training always uses transformers."""
    url: Annotated[Addresses, REACHES_OUT] = LOCAL_SERVER
    """Root of the server's OpenAI-compatible API, for ``generator`` "remote"; its key is read from
    ``OPENAI_API_KEY``. A list names several servers of the same model, which share the trees and stand in for each
    other."""
    dtype: DType = "auto"
    """Number format of the weights that sample in this process. "auto" takes the checkpoint's own; but a policy of 30
    million weights or more samples in bfloat16 on a processor that has AMX."""
    device_map: str | None = None
    """Device of the weights, such as "cuda" or "auto", as transformers names it; unset means the CPU."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 256
    """Most tokens of one answer."""
    lora: LoraConfig | None = None
    """Trains a low-rank adapter in place of the model's own weights."""
    scratch: ScratchSizes = Field(default_factory=ScratchSizes)
    """Sizes of the model that is trained from scratch where ``model`` is unset."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RequestConfig:
    """How requests to every model server are made."""

    concurrency: Annotated[int, Field(gt=0, le=4096)] = 32
    """Most requests that each worker has in flight at once."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which a request is given up and tried again."""
    prompt_price: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million prompt tokens; the run adds up what its requests cost."""
    generated_price: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million sampled tokens; the run adds up what its requests cost."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RemoteConfig(RequestConfig):
    """The servers of one model, and how requests to them are made."""

    url: Annotated[Addresses, REACHES_OUT] = LOCAL_SERVER
    """As of ``ModelConfig``."""

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else self.url


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class VllmConfig:
    """The vLLM engine; a process has one."""

    tensor_parallel_size: Annotated[int, Field(gt=0)] = 1
    """GPUs over which the engine spreads the model's weights."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of each GPU's memory that the engine takes; between batches it frees the memory for training."""
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    """Longest conversation of the engine, in tokens; unset means the model's own limit, whose keys and values must then
    fit into memory."""
