"""A pool of servers with the OpenAI protocol: it chooses the server of each request, and handles failures.

All requests of a tree go to the same server, so that its prefix cache holds their common prefix (rendezvous hashing,
Thaler and Ravishankar 1998). If that server cannot be reached, times out, is full, or answers 404 or 5xx, the request
goes to the next server in an order that depends on the tree.

A single server is asked again after a timeout, a 429 or a 5xx, at growing intervals or when its Retry-After header
says; a pool retries all its servers. A request that still fails costs only its own prompt. An error that would affect
every other request, such as a wrong key, stops the run with one sentence, and ``--resume`` continues it.
"""

import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import TypeVar

from treeagent.generators.base import Failure
from treeagent.generators.config import RemoteConfig
from treeagent.generators.usage import Usage
from treeagent.threads import map_in_threads
from treeagent.types import UserError, storable

try:
    import openai
    from openai.types import CompletionUsage, Model
except ImportError as error:
    raise UserError(f"openai is missing ({error}): pip install 'treeagent[remote]'") from error

Answer = TypeVar("Answer")
_LONGEST_WAIT = 60.0
"""Most seconds that a server's ``Retry-After`` is obeyed."""
_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds before each retry of a request that no server of a pool has answered; long enough for servers that are
temporarily full. The client of a single server waits about as long, unless the server says how long."""
_LEFT_OUT_SECONDS = 30.0
"""Seconds for which a server that did not answer is left out before it is asked again."""
_CHECK_SECONDS = 10.0
"""Seconds within which a server of a pool must list the models that it serves."""
_LOAD_SECONDS = 120.0
"""Seconds within which a server must load an adapter, unless ``remote.timeout`` is longer."""
_ADVICE = {
    401: "set OPENAI_API_KEY",
    402: "see to the account",
    403: "set OPENAI_API_KEY",
    404: "correct the url, or set policy.text_only=true if the server completes chats alone",
    429: "lower remote.concurrency, or see to the account's quota",
}
"""HTTP statuses that every other request would get, too, and what the user can do."""
_GONE = (404, 502, 503, 504)
"""HTTP statuses after which a server is left out and others replace it: those of a proxy in front of a dead server, and
that of a server that was restarted with another model."""
_BUSY = (408, 409, 429)
REFUSED = (openai.BadRequestError, openai.UnprocessableEntityError)
"""Errors of a request with a parameter that the server does not accept."""
_FAILURES = (
    *(openai.APIConnectionError, openai.APIStatusError),
    *(AttributeError, IndexError, KeyError, TypeError, ValueError),  # the answer does not follow the protocol
)


@dataclass(slots=True)
class Server:
    """A server of the pool and its state."""

    url: str
    client: openai.OpenAI
    model: str = ""
    """The name under which the server serves the checkpoint; empty if it is not known to serve it."""
    left_out_until: float = 0.0
    """Time on the monotonic clock until which the server is left out; 0 while it answers."""

    def __str__(self) -> str:
        return f"the server at {self.url}"


class Unreachable(UserError):
    """Nothing answers at a server's address."""


def connect(url: str, *, retries: int, timeout: float) -> openai.OpenAI:
    """A client of the server at ``url``."""
    key = os.environ.get("OPENAI_API_KEY") or "none"  # a user's own server needs no key, but the client does
    return openai.OpenAI(base_url=url, api_key=key, timeout=timeout, max_retries=retries)


def model_names(model: Model) -> set[str]:
    """The names of a served model: its id, and the folder from which it was loaded, if the server reports that."""
    return {str(name) for name in (model.id, (model.model_extra or {}).get("root")) if name}


def adapter_name(folder: Path) -> str:
    """The name under which servers load an adapter: the folder's name and a digest of its weights, so that different
    adapters never have the same name."""
    try:
        weights = (folder / "adapter_model.safetensors").read_bytes()
    except OSError as error:
        raise UserError(f"the adapter in {folder} cannot be read ({error.strerror}): give another checkpoint") from None
    return f"{folder.resolve().name}-{blake2b(weights, digest_size=6).hexdigest()}"


def rendezvous_order(key: str, urls: Sequence[str]) -> list[int]:
    """The indices of the servers in the order in which they are asked for ``key``. Each server is first for an equal
    share of the keys, and leaving one out changes only the keys for which it was first."""
    return sorted(range(len(urls)), key=lambda index: blake2b(f"{urls[index]}\n{key}".encode(), digest_size=8).digest())


class Servers:
    """Connections to a pool of servers. They limit the requests in flight, and count tokens and their price."""

    def __init__(
        self,
        config: RemoteConfig,
        checkpoint: str,
        section: str = "policy",
        requests: str = "remote",
        retries: int = len(_RETRY_SECONDS),
        adapter: Path | None = None,
    ) -> None:
        """
        Args:
            checkpoint: a path or a name on the model hub; its last part must be the last part of a served model's name.
            section: the table of the model's settings, for error messages.
            requests: the table of the request settings, for error messages.
            retries: number of retries, if there is a single server.
            adapter: the folder of a LoRA adapter that servers of its base model load (see ``adapter_name``).

        Raises:
            UserError: no server can be reached, or a server refuses the key or does not serve ``checkpoint``.
        """
        self.config, self.checkpoint = config, checkpoint
        self.usage = Usage()
        self.context = sys.maxsize
        """The shortest context length among the servers that report one, in tokens."""
        self._section, self._requests = section, requests
        self._adapter = adapter
        self._adapter_name = "" if adapter is None else adapter_name(adapter)
        self._state = threading.Lock()
        self._slots = threading.Semaphore(config.concurrency)
        """Limits the requests in flight over all calling threads."""
        repeats = retries if len(config.urls) == 1 else 0  # in a pool, the next server is asked instead
        self.servers = [Server(url, connect(url, retries=repeats, timeout=config.timeout)) for url in config.urls]
        # Without this, a connection may be garbage-collected before its client closes it, which leaves an open socket.
        weakref.finalize(self, _close, [server.client for server in self.servers])
        admitted = map_in_threads(self._first_admitted, self.servers, len(self.servers))
        lost = [error for error in admitted if error is not None]
        if len(lost) == len(self.servers):
            raise lost[0]
        for error in lost:
            warnings.warn(f"{error}; until then the others answer for it", stacklevel=3)

    def forget(self) -> None:
        """Do nothing: a server's weights do not change while it runs, so its cached prefixes stay valid."""

    def _check(self, server: Server) -> None:
        """Check that the server supports the requests that will be made. Raises ``UserError`` if not."""

    def _first_admitted(self, server: Server) -> Unreachable | None:
        try:
            self._admit(server)
        except Unreachable as error:
            server.left_out_until = time.monotonic() + _LEFT_OUT_SECONDS
            return error
        return None

    def _admit(self, server: Server) -> None:
        """Look up the checkpoint's name on a server, and check the server."""
        try:
            server.model, context = self._find(server)
            self._check(server)
        except Unreachable:
            raise
        except UserError:
            server.model = ""
            raise
        with self._state:
            self.context = min(self.context, context)

    def _find(self, server: Server) -> tuple[str, int]:
        """The checkpoint's name on the server, and the length of its context in tokens if the server reports it."""
        most = self.config.timeout if len(self.servers) == 1 else min(self.config.timeout, _CHECK_SECONDS)
        client = server.client.with_options(max_retries=1, timeout=most)  # so that a wrong address fails quickly
        served, model_name = self._served_models(server, client), PurePath(self.checkpoint).name
        if self._adapter is not None:
            why, model_name = "", self._adapter_name
            if all(model.id != model_name for model in served):
                why = self._load(server, client, self._adapter)
                served = self._served_models(server, client)
            if all(model.id != model_name for model in served):
                raise UserError(
                    f"{server} does not load the adapter {self._adapter} ({why or 'it says that it has'}): start vLLM "
                    "with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 where it can read that folder"
                )
        for model in served:
            if model_name in {PurePath(name).name for name in model_names(model)}:
                base = (model.model_extra or {}).get("parent")  # vLLM reports the context length of the base model only
                properties = [each.model_extra or {} for each in served if each.id in (model.id, base)]
                contexts = [int(each["max_model_len"]) for each in properties if each.get("max_model_len")]
                return model.id, min(contexts, default=sys.maxsize)
        names = ", ".join(repr(model.id) for model in served[:8]) or "nothing"
        raise UserError(
            f"{server} serves {names}, not {self.checkpoint!r}: start it on this checkpoint (vllm serve "
            f"{self.checkpoint} --logprobs-mode processed_logprobs); a run that stopped here goes on with --resume"
        )

    def _served_models(self, server: Server, client: openai.OpenAI) -> list[Model]:
        served = self._attempt(server, lambda _: list(client.models.list()))
        if isinstance(served, Failure):
            raise Unreachable(served.reason)
        return served

    def _load(self, server: Server, client: openai.OpenAI, adapter: Path) -> str:
        """Make a server load an adapter. Returns the reason if it refuses, which is no error yet: another worker may
        already have made it load the adapter."""
        body = {"lora_name": self._adapter_name, "lora_path": str(adapter.resolve())}
        slow = client.with_options(timeout=max(self.config.timeout, _LOAD_SECONDS))
        try:
            loaded = self._attempt(server, lambda _: slow.post("/load_lora_adapter", cast_to=str, body=body))
        except Unreachable:
            raise
        except UserError as error:
            return str(error)
        return loaded.reason if isinstance(loaded, Failure) else ""

    def _gather(self, requests: Sequence[tuple[str, Callable[[Server], Answer]]]) -> list[Answer | Failure]:
        """The answers, in order. Requests with the same key go to the same server as long as it answers.

        Raises:
            UserError: as ``_attempt``.
        """
        if len(requests) == 1:
            return [self._ask(requests[0])]
        return map_in_threads(self._ask, requests, self.config.concurrency)

    def _ask(self, keyed: tuple[str, Callable[[Server], Answer]]) -> Answer | Failure:
        with self._slots:
            answer = self._answer_of(*keyed)
        if isinstance(answer, Failure):
            with self._state:
                self.usage.failed_requests += 1
        return answer

    def _answer_of(self, key: str, request: Callable[[Server], Answer]) -> Answer | Failure:
        if len(self.servers) == 1:
            return self._attempt(self.servers[0], request)
        order = [self.servers[index] for index in rendezvous_order(key, self.config.urls)]
        last = order[0]
        failed: Exception = UserError(
            f"none of {self._section}.url serves {self.checkpoint!r} any more: start one on it"
        )
        for wait in (*_RETRY_SECONDS, None):
            asked_for = list[float]()
            for server, left_out in self._available(order):
                try:
                    answer = request(server)
                except _FAILURES as error:
                    if not _is_retryable(error):
                        return self._failure(server, error)
                    self._leave_out(server, error)
                    last, failed = server, error
                    asked_for.append(_retry_after(error))
                else:
                    if left_out:  # otherwise the server may have been left out while this request was in flight
                        server.left_out_until = 0.0
                    return answer
            if wait is None or isinstance(failed, openai.APITimeoutError):  # no server is fast enough for this request
                break
            time.sleep(max(wait, min(asked_for, default=0.0)))
        return self._failure(last, failed)

    def _available(self, order: Sequence[Server]) -> Iterator[tuple[Server, bool]]:
        """Yield the servers that are not left out, each with False. If all are left out, yield those that are known to
        serve the checkpoint, each with True."""
        found = False
        for server in order:
            if self._answers(server):
                found = True
                yield server, False
        if not found:
            yield from ((server, True) for server in order if server.model)

    def _answers(self, server: Server) -> bool:
        """Whether a server is not left out. When its time is over, one thread checks the server again."""
        with self._state:
            if not server.left_out_until:
                return True
            if time.monotonic() < server.left_out_until:
                return False
            server.left_out_until = time.monotonic() + _LEFT_OUT_SECONDS
        try:
            self._admit(server)
        except UserError:
            return False
        server.left_out_until = 0.0
        return True

    def _leave_out(self, server: Server, error: Exception) -> None:
        """Leave out a server that may be gone. A server that is only full, or that fails only this request, stays."""
        if isinstance(error, openai.APIStatusError) and error.status_code not in _GONE:
            return
        with self._state:
            first = not server.left_out_until
            server.left_out_until = time.monotonic() + _LEFT_OUT_SECONDS
        if first:
            why = " ".join(storable(str(error.__cause__ or error)).split())[:200]
            warnings.warn(
                f"{server} does not answer ({why}): the others answer for it until it does again", stacklevel=2
            )

    def _attempt(self, server: Server, request: Callable[[Server], Answer]) -> Answer | Failure:
        """Make a request to a server. Returns the answer, or a ``Failure`` with the reason. Raises as ``_failure``."""
        try:
            return request(server)
        except _FAILURES as error:
            return self._failure(server, error)

    def _failure(self, server: Server, error: Exception) -> Failure:
        """The ``Failure`` of a request that met ``error``.

        Raises:
            UserError: every other request would fail for the same reason.
        """
        match error:
            case UserError():
                raise error
            case openai.APITimeoutError():
                return Failure(
                    f"{server} did not answer within {self.config.timeout:g} s: raise {self._requests}.timeout"
                )
            case openai.APIConnectionError():
                raise Unreachable(
                    f"{server} cannot be reached ({error.__cause__ or error}): start it, or correct {self._section}.url"
                ) from None
            case openai.APIStatusError():
                body = error.body.get("message") if isinstance(error.body, dict) else error.message
                message = f"{server} answered {error.status_code}: {' '.join(storable(str(body)).split())[:200]}"
                if error.status_code in _ADVICE:
                    raise UserError(f"{message}: {_ADVICE[error.status_code]}") from None
                return Failure(message)
            case _:  # the answer does not follow the protocol
                return Failure(f"the answer of {server} cannot be read ({type(error).__name__}: {error})")

    def _count(self, usage: CompletionUsage | None) -> None:
        if usage is None:
            return
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens if details is not None else None) or 0
        price = usage.prompt_tokens * self.config.prompt_price + usage.completion_tokens * self.config.generated_price
        with self._state:
            self.usage.encoded_tokens += usage.prompt_tokens - cached
            self.usage.cached_tokens += cached
            self.usage.generated_tokens += usage.completion_tokens
            self.usage.price += price / 1e6


def _close(clients: Sequence[openai.OpenAI]) -> None:
    for client in clients:
        client.close()


def _retry_after(error: Exception) -> float:
    """Seconds that a server asks to wait before the next request, at most ``_LONGEST_WAIT``; 0 if it names none."""
    said = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    return min(float(said), _LONGEST_WAIT) if said.isdecimal() else 0.0


def _is_retryable(error: Exception) -> bool:
    if isinstance(error, openai.APIStatusError):
        return error.status_code >= 500 or error.status_code in (*_GONE, *_BUSY)
    return isinstance(error, openai.APIConnectionError)
