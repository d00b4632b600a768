"""Settings of a language model and of the generator that runs it. This module does not import torch, so that a command
line reads it quickly."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.types import REACHES_OUT

ActionSource = Literal["sample", "score"]
"""Whether candidates are sampled, or the environment's legal actions are scored."""
DType = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of weights; "auto" takes the checkpoint's own."""

CACHE_BYTES = 1 << 30
"""Default size of the prefix cache: that of a small model, and the least of a large one."""
LOCAL_SERVER = "http://localhost:8000/v1"
"""The default address of a vLLM server."""


def _server(url: str) -> str:
    try:
        known = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:  # for example an IPv6 address without its closing bracket
        known = False
    if not known:
        raise ValueError(f"{url!r} is no server's address: write one such as {LOCAL_SERVER}")
    return url


Address = Annotated[str, AfterValidator(_server)]
"""The root URL of an OpenAI-compatible API."""

LORA_SCALE = 2.0
"""alpha / rank, by which an adapter's output is multiplied. With this ratio fixed, as is usual, ``rank`` can change
without a new learning rate."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LoraConfig:
    """A low-rank adapter added to frozen weights (Hu et al. 2021): h = W x + 2 B A x, where B starts at zero."""

    rank: Annotated[int, Field(gt=0)] = 16
    """Rank of the low-rank adapter of every linear layer but the head: the rows of its matrix A, the columns of B."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ScratchSizes:
    """Sizes of a small Qwen3 model that is trained from scratch."""

    layers: Annotated[int, Field(gt=0)] = 3
    """Number of transformer blocks of a model from scratch."""
    width: Annotated[int, Field(gt=0)] = 96
    """Hidden size of a model from scratch."""
    heads: Annotated[int, Field(gt=0)] = 4
    """Number of attention heads of a model from scratch; ``width`` must be a multiple of twice this number."""
    context: Annotated[int, Field(gt=0)] = 1024
    """Tokens of the longest conversation that a model from scratch reads; long episodes need more."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ScratchConfig(ScratchSizes):
    """A small Qwen3 model and its byte-pair tokenizer, both trained from scratch."""

    vocabulary: Annotated[int, Field(ge=300)] = 1024
    """Largest vocabulary of the tokenizer, in tokens."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ModelConfig:
    """A language model: the source of its weights, the server that has it, and its adapter."""

    model: str | None = None
    """The model: a folder, or a name on the Hugging Face hub; for a server, the name under which it serves the model.
    If unset, a small model is trained from scratch."""
    url: Annotated[Address, REACHES_OUT] = LOCAL_SERVER
    """Root URL of the server's OpenAI-compatible API, for ``generator`` "remote"; its key is read from
    ``OPENAI_API_KEY``."""
    dtype: DType = "auto"
    """Number format of the weights for sampling in this process. "auto" keeps that of the checkpoint, but a policy of
    30 million weights or more samples in bfloat16 on a processor with AMX."""
    device_map: str | None = None
    """Device of the weights as transformers names it, such as "cuda" or "auto"; unset means the CPU."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 256
    """Most tokens of one answer."""
    lora: LoraConfig | None = None
    """If set, training changes a low-rank adapter instead of the model's own weights."""
    scratch: ScratchSizes = Field(default_factory=ScratchSizes)
    """Sizes of the model that is trained from scratch if ``model`` is unset."""

    @property
    def on_cpu(self) -> bool:
        """Whether the weights of this model are on the CPU in processes that load it."""
        return self.device_map in (None, "cpu")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RequestConfig:
    """Settings of requests to all model servers."""

    concurrency: Annotated[int, Field(gt=0, le=4096)] = 32
    """Most requests that each worker has in flight at a time."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds in which an answer must be complete. A request that takes longer is tried again twice."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RemoteConfig(RequestConfig):
    """The server of one model, and the settings of requests to it."""

    url: Annotated[Address, REACHES_OUT] = LOCAL_SERVER
    """As for ``ModelConfig``."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class VllmConfig:
    """The vLLM engine. A process has at most one."""

    tensor_parallel_size: Annotated[int, Field(gt=0)] = 1
    """Number of GPUs over which the engine splits the model's weights."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of each GPU's memory that the engine takes. Between batches it frees the memory for training."""
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    """Length of the engine's longest conversation, in tokens. Unset means the model's own limit; keys and values of
    that length must fit into memory."""
