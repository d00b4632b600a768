"""Several servers of one model: each answers for a share of the trees, and if one fails, the others answer for it.

A prompt goes to the server that has read the longest earlier prompt that it continues, so that the prefix cache of one
server holds a whole tree. A server that fails is left out for a while. A request that no server answers costs only its
own prompt.
"""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options

from treeagent.agent.checkpoint import base_and_adapter, load_tokenizer
from treeagent.config import RunConfig
from treeagent.generators.base import Failure, Generator, Ids, Sample, SampleRequest, Usage
from treeagent.generators.config import Address, RemoteConfig
from treeagent.generators.remote import RETRIES, RemoteGenerator, Server
from treeagent.threads import map_in_threads
from treeagent.types import UserError

Answer = TypeVar("Answer")
_LEFT_OUT_SECONDS = 30.0
"""Seconds for which a server that failed is left out before it is asked again."""
_LOAD_SECONDS = 120.0
"""Seconds within which a server must load an adapter."""


@options(frozen=True, config=ConfigDict(extra="forbid"))
class Servers:
    """Settings of ``policy.generator`` "pool" (``policy.options``)."""

    urls: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Root URLs of the OpenAI-compatible APIs of servers of the same model."""
    reload: Literal["lora"] | None = None
    """How servers get the weights of another checkpoint. "lora" makes vLLM load its adapter by
    ``/v1/load_lora_adapter``. Unset stops the run until you have loaded the checkpoint."""

    def make(self, checkpoint: Path, config: RunConfig, scores: str = "") -> "Pool":
        """A client of the servers."""
        adapter = base_and_adapter(checkpoint)[1] if self.reload == "lora" else None
        vocabulary = len(load_tokenizer(checkpoint))

        def connect(url: str) -> RemoteGenerator:
            return RemoteGenerator(
                config.server(url),
                str(checkpoint) if adapter is None else load_adapter(url, adapter),
                config.policy.temperature,
                vocabulary=vocabulary,
                scores=scores,
                retries=RETRIES if len(self.urls) == 1 else 0,  # in a pool, the next server is asked instead
            )

        return Pool(self.urls, connect)


@dataclass(slots=True)
class _Member:
    """A server of the pool."""

    url: str
    generator: RemoteGenerator | None = None
    """None until the server has answered for the first time, and after it has failed."""
    left_out_until: float = 0.0
    """Time on the monotonic clock."""


class Pool(Generator):
    """The servers at ``urls``; ``connect`` makes the client of one."""

    concurrent = True

    def __init__(self, urls: Sequence[str], connect: Callable[[str], RemoteGenerator]) -> None:
        self.members = [_Member(url) for url in urls]
        self.usage = Usage()
        self._connect, self._clients = connect, list[RemoteGenerator]()
        self._state = threading.Lock()
        self._readers: dict[int, int] = {}
        """For the hash of each prompt, the index of the server that has read it."""
        self._next = 0
        errors = map_in_threads(self._admit, self.members, len(self.members))
        lost = [error for error in errors if error is not None]
        if len(lost) == len(self.members):
            raise lost[0]
        for error in lost:
            warnings.warn(f"{error}; until then the others answer for it", stacklevel=3)
        self.context = min(member.generator.context for member in self.members if member.generator is not None)

    def forget(self) -> None:
        with self._state:
            self._readers.clear()

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        limits = request.limits(self.context)

        def draw(server: RemoteGenerator, part: Sequence[int]) -> list[list[Sample] | Failure]:
            return server.sample(
                replace(
                    request,
                    prompts=[request.prompts[index] for index in part],
                    seeds=[request.seeds[index] for index in part],
                    max_new_tokens=[limits[index] for index in part],
                    pauses=[request.pauses[index] for index in part] if request.pauses else (),
                    turn_prefixes=[request.turn_prefixes[index] for index in part] if request.turn_prefixes else (),
                )
            )

        return self._spread(request.prompts, draw)

    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> list[list[Sample] | Failure]:
        def score(server: RemoteGenerator, part: Sequence[int]) -> list[list[Sample] | Failure]:
            chosen = [candidates[index] for index in part]
            return server.score([prompts[index] for index in part], chosen, temperature)

        return self._spread(prompts, score)

    def _spread(
        self,
        prompts: Sequence[tuple[int, ...]],
        call: Callable[[RemoteGenerator, Sequence[int]], list[Answer | Failure]],
    ) -> list[Answer | Failure]:
        """The answers to the prompts, each from the first server in its order that gives one."""
        orders = [self._order(prompt) for prompt in prompts]
        answers: list[Answer | Failure] = [Failure("no server was asked")] * len(prompts)
        errors: dict[int, UserError] = {}
        for turn in range(len(self.members)):
            waiting = [index for index, answer in enumerate(answers) if isinstance(answer, Failure)]
            parts: dict[int, list[int]] = {}
            for index in waiting:
                parts.setdefault(orders[index][turn], []).append(index)

            def ask(part: tuple[int, list[int]]) -> list[Answer | Failure] | UserError:
                member = self.members[part[0]]
                if (refused := self._admit(member)) is not None:
                    return refused
                try:
                    assert member.generator is not None
                    return call(member.generator, part[1])
                except UserError as error:
                    with self._state:
                        gone, member.generator = member.generator, None
                        member.left_out_until = time.monotonic() + _LEFT_OUT_SECONDS
                    if gone is not None:
                        warnings.warn(f"{error}: the other servers answer for it until it does again", stacklevel=2)
                    return error

            told = map_in_threads(ask, list(parts.items()), len(parts))
            for (number, part), given in zip(parts.items(), told, strict=True):
                if isinstance(given, UserError):
                    errors[number] = given
                    continue
                for index, answer in zip(part, given, strict=True):
                    answers[index] = answer
                    with self._state:
                        self._readers[_keys(prompts[index])[-1]] = number
        for name in (each.name for each in fields(Usage)):  # also of clients that have failed
            setattr(self.usage, name, sum(getattr(client.usage, name) for client in self._clients))
        if len(errors) == len(self.members):
            raise next(iter(errors.values()))
        return answers

    def _order(self, prompt: tuple[int, ...]) -> list[int]:
        """The servers in the order in which they are asked for a prompt."""
        with self._state:
            keys = _keys(prompt)
            first = next((self._readers[key] for key in reversed(keys) if key in self._readers), None)
            if first is None:
                first, self._next = self._next, (self._next + 1) % len(self.members)
            self._readers[keys[-1]] = first
        return [(first + turn) % len(self.members) for turn in range(len(self.members))]

    def _admit(self, member: _Member) -> UserError | None:
        """Connect to a server unless that is done. Returns why it cannot be used."""
        if member.generator is None:
            if time.monotonic() < member.left_out_until:
                return UserError(f"the server at {member.url} is left out, because it failed: start it again")
            try:
                member.generator = self._connect(member.url)
            except UserError as error:
                member.left_out_until = time.monotonic() + _LEFT_OUT_SECONDS
                return error
            self._clients.append(member.generator)
        return None


def _keys(prompt: tuple[int, ...]) -> list[int]:
    """A hash of each beginning of a prompt, shortest first."""
    return list(accumulate(prompt, lambda key, token: hash((key, token)), initial=0))


def adapter_name(folder: Path) -> str:
    """The name under which servers load an adapter: the folder's name and a digest of its weights, so that different
    adapters never have the same name."""
    weights = (folder / "adapter_model.safetensors").read_bytes()
    return f"{folder.resolve().name}-{blake2b(weights, digest_size=6).hexdigest()}"


def load_adapter(url: str, folder: Path) -> str:
    """Make a vLLM server of the base model load an adapter, unless it has it. Returns its name there."""
    name, server = adapter_name(folder), _Any(url, _LOAD_SECONDS)
    if name in server.names():
        return name
    body = {"lora_name": name, "lora_path": str(folder.resolve())}
    try:
        loaded = server.ask(lambda: server.client.post("/load_lora_adapter", cast_to=str, body=body))
        why = loaded.reason if isinstance(loaded, Failure) else "it says that it has"
    except UserError as error:
        why = str(error)
    if name not in server.names():  # another worker may have made it load the adapter meanwhile
        raise UserError(
            f"{server} does not load the adapter {folder} ({why}): start vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 where it can read that folder"
        )
    return name


class _Any(Server):
    """A connection to a server of whatever model."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(RemoteConfig(url=url, timeout=timeout), "", retries=0)

    def _find(self) -> tuple[str, int]:
        return "", 0

    def names(self) -> set[str]:
        return {model.id for model in self.served_models()}
