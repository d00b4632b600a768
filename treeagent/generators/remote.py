"""A client of one server with the OpenAI protocol: completions with token ids (vLLM, SGLang), and chats of text alone.

A request that fails after retries costs only its own prompt; an error that every other request would get, such as a
wrong key, stops the run. Answers have a deadline and a size, and their tokens and log-probabilities are checked.
"""

import importlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar

from treeagent.generators.base import (
    Asked,
    Failure,
    Generator,
    Ids,
    Sample,
    SampleRequest,
    Usage,
    checked_logprob,
    checked_sample,
    score_each_prefix,
)
from treeagent.generators.config import RemoteConfig
from treeagent.generators.turn import openai_content
from treeagent.threads import map_in_threads
from treeagent.types import Message, UserError, storable

try:
    import openai
    from openai.types import CompletionUsage, Model
    from openai.types.chat import ChatCompletion
except ImportError as error:
    raise UserError(f"openai is missing ({error}): pip install 'treeagent[remote]'") from error

Answer = TypeVar("Answer")
_CLIENT = next(kind for kind in openai.DefaultHttpxClient.__mro__ if kind.__name__ == "Client")
httpx: Any = importlib.import_module(_CLIENT.__module__.partition(".")[0])
"""The package by which OpenAI's makes requests: httpx or httpx2."""
RETRIES = 2
"""How often a request is tried again, at growing intervals or when the server says."""
_MOST_BYTES = 1 << 26
"""Most bytes of an answer."""
_ADVICE = {
    401: "set OPENAI_API_KEY",
    402: "see to the account",
    403: "set OPENAI_API_KEY",
    404: "correct the url, or start the server on this model",
    429: "lower remote.concurrency, or see to the account's quota",
}
"""HTTP statuses that every other request would get, too, and what the user can do."""
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""What is raised where an answer does not follow the protocol."""
_PROBE = tuple(range(8))
"""A prompt of token ids that exist in every vocabulary."""
_SPELLINGS = {"max_tokens": "max_completion_tokens", "temperature": "", "seed": "", "n": ""}
"""Parameters of a chat that some servers refuse, with the name that is tried instead; empty leaves it out."""


class Client(openai.DefaultHttpxClient):
    """Limits a whole answer in time and in size. httpx's own timeout is for each piece of an answer."""

    def send(self, request: Any, **options: Any) -> Any:
        request.headers["Accept-Encoding"] = "identity"  # a small compressed answer may unpack to a huge one
        deadline, content = time.monotonic() + request.extensions["timeout"]["read"], bytearray()
        answer = super().send(request, **options | {"stream": True})
        with closing(answer):
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise httpx.DecodingError("it is compressed", request=request)
            for piece in answer.iter_raw():
                content += piece
                if len(content) > _MOST_BYTES:
                    raise httpx.DecodingError(f"it has more than {_MOST_BYTES} bytes", request=request)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer did not end in time", request=request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(content), request=request)


class Server:
    """The connection to a server. It limits the requests in flight and counts tokens.

    The last part of ``checkpoint``, a path or a name, must be that of a served model's name (``model``); ``context`` is
    its length in tokens, if the server reports it. ``section`` is the table of the settings, for error messages.
    """

    def __init__(
        self, config: RemoteConfig, checkpoint: str, section: str = "policy", *, retries: int = RETRIES
    ) -> None:
        self.config, self.checkpoint = config, checkpoint
        self.usage = Usage()
        self._section = section
        self._state = threading.Lock()
        self._slots = threading.Semaphore(config.concurrency)
        self._spelling: dict[str, str] = {}
        """The parameters of a chat that the server has refused so far, with the name that it accepts."""
        self.client = openai.OpenAI(
            base_url=config.url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",  # a user's own server needs no key
            timeout=config.timeout,
            max_retries=retries,
            http_client=Client(timeout=config.timeout),
        )
        weakref.finalize(self, self.client.close)  # or a garbage-collected client would leave an open socket
        self.model, self.context = self._find()

    def __str__(self) -> str:
        return f"the server at {self.config.url}"

    def forget(self) -> None:
        """Do nothing: a server's weights do not change while it runs, so its cached prefixes stay valid."""

    def gather(self, requests: Sequence[Callable[[], Answer]]) -> list[Answer | Failure]:
        """The answers, in order, each as by ``ask``."""
        return map_in_threads(self.ask, requests, self.config.concurrency)

    def ask(self, request: Callable[[], Answer]) -> Answer | Failure:
        """The answer to a request, or why there is none; a UserError if every other request would fail alike."""
        try:
            with self._slots:
                return request()
        except openai.APITimeoutError:
            failure = f"{self} did not answer within {self.config.timeout:g} s: raise remote.timeout"
        except openai.APIConnectionError as error:
            if not isinstance(error.__cause__, httpx.DecodingError):
                fix = f"start it, or correct {self._section}.url"
                raise UserError(f"{self} cannot be reached ({error.__cause__ or error}): {fix}") from None
            failure = f"the answer of {self} cannot be read ({error.__cause__})"
        except openai.APIStatusError as refused:
            body = refused.body.get("message") if isinstance(refused.body, dict) else refused.message
            failure = f"{self} answered {refused.status_code}: {' '.join(storable(str(body)).split())[:200]}"
            if refused.status_code in _ADVICE:
                raise UserError(f"{failure}: {_ADVICE[refused.status_code]}") from None
        except UserError:  # which is a ValueError
            raise
        except _UNREADABLE as unreadable:
            reason = storable(f"{type(unreadable).__name__}: {unreadable}")[:200]
            failure = f"the answer of {self} cannot be read ({reason})"
        with self._state:
            self.usage.failed_requests += 1
        return Failure(failure)

    def chat(self, messages: Sequence[Message], **asked: Any) -> ChatCompletion:
        """The answer to a chat, with at least one choice. What a server refuses, as OpenAI's reasoning models do
        ``max_tokens``, is named otherwise or left out, a temperature only if it is 0 or 1."""
        rows: list[Any] = [{"role": message.role, "content": openai_content(message)} for message in messages]
        spelling = dict(self._spelling)
        if asked["temperature"] not in (0.0, 1.0):
            spelling["temperature"] = "temperature"
        while True:
            sent = {spelling.get(name, name): value for name, value in asked.items()}
            sent.pop("", None)
            try:
                answer: ChatCompletion = self.client.chat.completions.create(model=self.model, messages=rows, **sent)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                named = [each for each in _SPELLINGS if each == error.param or f"'{each}'" in str(error)]
                if not (new := [each for each in named if each not in spelling]):
                    raise
                spelling[new[0]] = _SPELLINGS[new[0]]
                continue
            self._spelling = {name: other for name, other in spelling.items() if name != other}
            if not answer.choices:
                raise ValueError("no choices")
            self.count(answer.usage)
            return answer

    def served_models(self) -> list[Model]:
        served = self.ask(lambda: list(self.client.with_options(max_retries=1).models.list()))
        if isinstance(served, Failure):
            raise UserError(f"{served.reason}: start it, or correct {self._section}.url")
        return served

    def count(self, usage: CompletionUsage | None) -> None:
        """Add the tokens that the server has counted for a request."""
        if usage is None:
            return
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens if details is not None else None) or 0
        counts = (usage.prompt_tokens, usage.completion_tokens, cached)
        if not all(type(each) is int and 0 <= each < 1 << 32 for each in counts):
            raise ValueError(f"it counts {counts!r:.80} tokens")
        with self._state:
            self.usage.encoded_tokens += max(usage.prompt_tokens - cached, 0)
            self.usage.cached_tokens += cached
            self.usage.generated_tokens += usage.completion_tokens

    def _find(self) -> tuple[str, int]:
        """The checkpoint's name on the server, and the length of its context in tokens."""
        served, name = self.served_models(), PurePath(self.checkpoint).name
        for model in served:
            told = model.model_extra or {}
            if name in {PurePath(str(each)).name for each in (model.id, told.get("root")) if each}:
                # vLLM reports the context length of an adapter's base model only.
                properties = [each.model_extra or {} for each in served if each.id in (model.id, told.get("parent"))]
                contexts = [each.get("max_model_len") for each in properties]
                return model.id, min((each for each in contexts if type(each) is int and each > 0), default=sys.maxsize)
        names = ", ".join(repr(model.id) for model in served[:8]) or "nothing"
        raise UserError(
            f"{self} serves {names}, not {self.checkpoint!r}: start it on this checkpoint (vllm serve "
            f"{self.checkpoint} --logprobs-mode processed_logprobs); a run that stopped here goes on with --resume"
        )


class RemoteGenerator(Server, Generator):
    """A generator that uses completions with the extensions of vLLM and SGLang: prompts and samples are token ids. What
    a run needs of the server is tried at once. A server may draw of the tokenizer's ``vocabulary`` tokens alone. If
    ``score`` will be called, ``scores`` is the setting with which it would not be."""

    concurrent = True

    def __init__(
        self,
        config: RemoteConfig,
        checkpoint: str,
        temperature: float,
        *,
        vocabulary: int = 1 << 31,
        scores: str = "",
        retries: int = RETRIES,
    ) -> None:
        super().__init__(config, checkpoint, retries=retries)
        self._vocabulary = vocabulary
        gap = self._gap(temperature) * temperature
        if temperature != 1 and not math.isclose(gap, self._gap(1.0), rel_tol=0.02, abs_tol=1e-3):
            raise UserError(
                f"the log-probabilities of {self} leave out the temperature {temperature:g} that it draws with: start "
                "it with --logprobs-mode processed_logprobs (vLLM) or without SGLANG_RETURN_ORIGINAL_LOGPROB (SGLang), "
                "or set policy.temperature to 1"
            )
        if scores and isinstance(failed := self.ask(partial(self._score, _PROBE, _PROBE[:2], temperature)), Failure):
            raise UserError(f"{failed.reason}: use vLLM, which knows logprob_token_ids, or set {scores}")

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        if not request.count:
            return [[] for _ in request.prompts]
        each = zip(request.prompts, request.seeds, request.limits(self.context), strict=True)
        return request.paused(self.gather([partial(self._draw, request, *one) for one in each]))

    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> list[list[Sample] | Failure]:

        def ask(asked: list[Asked]) -> list[list[float] | Failure]:
            return self.gather([partial(self._score, *each, temperature or 1.0) for each in asked])

        return score_each_prefix(prompts, candidates, ask)

    def _draw(self, request: SampleRequest, prompt: tuple[int, ...], seed: int, limit: int) -> list[Sample]:
        extensions: dict[str, object] = {"ignore_eos": True}  # it need not be a stop token
        extensions["stop_token_ids"] = [request.stop_id, *request.other_stops]
        if request.form is not None:
            extensions["structured_outputs"] = {"grammar": request.form.lark}
        asked = {"n": request.count, "max_tokens": limit, "temperature": request.temperature, "logprobs": 0}
        answer = self.complete(prompt, extensions, seed=seed, **asked)
        samples = [self._sample(choice, limit) for choice in answer.choices]
        if len(samples) != request.count:
            raise ValueError(f"{len(samples)} samples, not {request.count}")
        return samples

    def _score(self, prompt: tuple[int, ...], token_ids: Sequence[int], temperature: float) -> list[float]:
        extensions: dict[str, object] = {"logprob_token_ids": list(token_ids), "return_tokens_as_token_ids": True}
        answer = self.complete(prompt, extensions, max_tokens=1, temperature=temperature, logprobs=len(token_ids))
        logprobs = answer.choices[0].logprobs.top_logprobs[0]
        return [checked_logprob(logprobs[f"token_id:{token}"]) for token in token_ids]

    def _sample(self, choice: Any, limit: int) -> Sample:
        return checked_sample(choice.token_ids, choice.logprobs.token_logprobs, limit, self._vocabulary)

    def _gap(self, temperature: float) -> float:
        """The gap between the log-probabilities of the likeliest and the fifth likeliest token of a sample, in nats."""

        def request() -> float:
            answer = self.complete(_PROBE, {"ignore_eos": True}, max_tokens=4, temperature=temperature, logprobs=5)
            self._sample(answer.choices[0], 4)
            best, *_, fifth = sorted(answer.choices[0].logprobs.top_logprobs[0].values(), reverse=True)[:5]
            return float(best - fifth)

        gap = self.ask(request)
        if isinstance(gap, Failure):
            raise UserError(f"{gap.reason}: use vLLM or SGLang, or a generator that plays by text alone")
        return gap

    def complete(
        self, prompt: tuple[int, ...], extensions: dict[str, object], *, seed: int = 0, **parameters: Any
    ) -> Any:
        """The server's answer to one request, whatever the checkpoint's generation_config.json says of sampling."""
        whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True}
        answer = self.client.completions.create(
            model=self.model, prompt=list(prompt), seed=seed, top_p=1.0, extra_body=whole | extensions, **parameters
        )
        self.count(answer.usage)
        return answer
