"""A server that speaks the OpenAI protocol: by token ids (vLLM, SGLang), or by text alone (hosted models).

The ``openai`` package repeats a request after a timeout, a 429 or a 5xx, in growing intervals or when the server's
Retry-After says. A request that still fails costs only its own prompt. An error that every other request would meet,
such as a wrong key, stops the run with one sentence, and ``--resume`` continues it.
"""

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from treeagent.generators.base import Failure, Generator, Sample, SampleRequest, beginnings, put_together
from treeagent.generators.config import RemoteConfig
from treeagent.generators.usage import Usage
from treeagent.types import Message, UserError, storable

if TYPE_CHECKING:
    from torch import Tensor

try:
    import openai
    from openai.types import Completion, CompletionUsage
    from openai.types.chat import ChatCompletion
except ImportError as error:
    raise UserError(f"openai is missing ({error}): pip install 'treeagent[remote]'") from error

Answer = TypeVar("Answer")
_RETRIES = 6
"""How often the client repeats a failed request. It waits 0.5 to 8 seconds before each, about 24 in all, unless the
server says how long: enough for a server that is full for a while."""
_PROBE = tuple(range(8))
"""A prompt of token ids that every vocabulary has."""
_FORCED = (7, 5, 6, 7)
"""Tokens that a server must draw if the grammar allows nothing else."""
_FIXES = {
    401: "set OPENAI_API_KEY",
    402: "see to the account",
    403: "set OPENAI_API_KEY",
    404: "correct the url, or set policy.text_only=true if the server completes chats alone",
    429: "lower remote.concurrency, or see to the account's quota",
}
"""Statuses that every request would meet, and what the user can do."""


class Replies(NamedTuple):
    """The replies to one conversation."""

    texts: list[str]
    generated_tokens: int
    """Tokens of all replies together, as the server counts them; 0 if it does not."""
    prompt_tokens: int = 0
    """Tokens of all prompts together, cached ones included."""


class _Server:
    """A connection that bounds the requests in flight and counts tokens and price."""

    def __init__(
        self,
        config: RemoteConfig,
        checkpoint: str,
        section: str = "policy",
        requests: str = "remote",
        retries: int = _RETRIES,
    ) -> None:
        """
        Args:
            checkpoint: a path or a name on the model hub; its last part must be the last part of a served model's name.
            section: the table of the model's settings, which error sentences name.
            requests: the table of the settings of requests, which error sentences name.
            retries: how often a failed request is repeated.

        Raises:
            UserError: the server cannot be reached, refuses the key or does not serve ``checkpoint``.
        """
        self.config = config
        self._section, self._requests = section, requests
        self.usage = Usage()
        key = os.environ.get("OPENAI_API_KEY") or "none"  # your own server needs none, but the client does
        self._client = openai.OpenAI(base_url=config.url, api_key=key, timeout=config.timeout, max_retries=retries)
        self._counting = threading.Lock()
        self.model, self.context = self._find(checkpoint)

    def forget(self) -> None:
        """Do nothing: a server's weights do not change while it runs, so its cached prefixes stay valid."""

    def _find(self, checkpoint: str) -> tuple[str, int]:
        """The checkpoint's name on the server, and the length of its context in tokens if the server reports it."""
        client = self._client.with_options(max_retries=1)  # a wrong address shows at once
        served = self._attempt(lambda: list(client.models.list()))
        if isinstance(served, Failure):
            raise UserError(served.reason)
        for model in served:
            told = model.model_extra or {}
            if PurePath(checkpoint).name in {PurePath(str(name)).name for name in (model.id, told.get("root"))}:
                return model.id, int(told.get("max_model_len") or sys.maxsize)
        names = ", ".join(repr(model.id) for model in served[:8]) or "nothing"
        raise UserError(
            f"the server at {self.config.url} serves {names}, not {checkpoint!r}: start it on this checkpoint (vllm "
            f"serve {checkpoint} --logprobs-mode processed_logprobs); a run that stopped here goes on with --resume"
        )

    def _gather(self, requests: Sequence[Callable[[], Answer]]) -> list[Answer | Failure]:
        """The answers, in order.

        Raises:
            UserError: as ``_attempt``.
        """
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            return list(pool.map(self._attempt, requests))

    def _attempt(self, request: Callable[[], Answer]) -> Answer | Failure:
        """The answer, or why this request has none.

        Raises:
            UserError: every other request would fail for the same reason.
        """
        server = f"the server at {self.config.url}"
        try:
            return request()
        except openai.APITimeoutError:
            return Failure(f"{server} did not answer within {self.config.timeout:g} s: raise {self._requests}.timeout")
        except openai.APIConnectionError as error:
            raise UserError(
                f"{server} cannot be reached ({error.__cause__ or error}): start it, or correct {self._section}.url"
            ) from None
        except openai.APIStatusError as error:
            body = error.body.get("message") if isinstance(error.body, dict) else error.message
            said = f"{server} answered {error.status_code}: {' '.join(storable(str(body)).split())[:200]}"
            if error.status_code in _FIXES:
                raise UserError(f"{said}: {_FIXES[error.status_code]}") from None
            return Failure(said)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # not the protocol's form
            return Failure(f"the answer of {server} cannot be read ({type(error).__name__}: {error})")

    def _count(self, usage: CompletionUsage | None) -> None:
        if usage is None:
            return
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens if details is not None else None) or 0
        price = usage.prompt_tokens * self.config.prompt_price + usage.completion_tokens * self.config.generated_price
        with self._counting:
            self.usage.encoded_tokens += usage.prompt_tokens - cached
            self.usage.cached_tokens += cached
            self.usage.generated_tokens += usage.completion_tokens
            self.usage.price += price / 1e6


class RemoteGenerator(_Server, Generator):
    """Prompts and samples as token ids, by the protocol's completions with the extensions of vLLM and SGLang."""

    def __init__(
        self,
        config: RemoteConfig,
        checkpoint: str,
        temperature: float,
        *,
        structured: bool = False,
        scores: bool = False,
    ) -> None:
        """
        Args:
            temperature: the policy's, at which the server is tested.
            structured: whether requests may have a ``form``.
            scores: whether ``score`` will be called.

        Raises:
            UserError: as for every server; or it gives no token ids, its log-probabilities leave out the temperature,
                it ignores a form, or it knows no ``logprob_token_ids``, which scoring needs.
        """
        super().__init__(config, checkpoint)
        fix = "use vLLM or SGLang, or set policy.text_only=true to play and measure by text alone"
        _, gap = self._probe(temperature, fix)
        if temperature != 1 and not math.isclose(
            gap * temperature, self._probe(1.0, fix)[1], rel_tol=0.02, abs_tol=1e-3
        ):
            raise UserError(
                f"the log-probabilities of the server at {config.url} leave out the temperature {temperature:g} that "
                "it draws with: start it with --logprobs-mode processed_logprobs (vLLM) or without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB (SGLang), or set policy.temperature to 1"
            )
        if structured:  # a server without grammars ignores them silently
            fix = "use vLLM with --structured-outputs-config.backend auto or guidance, or set policy.structured=false"
            rules = f"%llguidance {{}}\nstart: {' '.join(f'<[{token}]>' for token in _FORCED)}"
            drawn, _ = self._probe(temperature, fix, structured_outputs={"grammar": rules})
            if drawn != _FORCED:
                raise UserError(f"the server at {config.url} does not hold turns to a form: {fix}")
        if scores and isinstance(
            failed := self._attempt(partial(self._score, _PROBE, _PROBE[:2], temperature)), Failure
        ):
            raise UserError(f"{failed.reason}: use vLLM, which knows logprob_token_ids, or set policy.actions=sample")

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        """A server has no pauses: it draws the whole turn, which is cut afterwards."""
        each = zip(request.prompts, request.seeds, request.limits(self.context), strict=True)
        return request.paused(self._gather([partial(self._draw, request, *one) for one in each]))

    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> "Tensor":
        """
        Raises:
            UserError: a request fails, or the server knows no ``logprob_token_ids``.
        """
        import torch

        rows = self._gather([partial(self._score, prompt, token_ids) for prompt in prompts if token_ids])
        for row in rows:
            if isinstance(row, Failure):
                raise UserError(
                    f"{row.reason}: the critic needs a server with vLLM's logprob_token_ids; else set "
                    "search.critic_weight to 0"
                )
        return torch.tensor(rows).reshape(len(prompts), len(token_ids))

    def score(
        self,
        prompts: Sequence[tuple[int, ...]],
        candidates: Sequence[Sequence[tuple[int, ...]]],
        temperature: float = 1.0,
    ) -> list[list[Sample] | Failure]:
        """Each beginning is a request of its own, so that the server's prefix cache serves it."""
        tries = [{begun: tokens for begun, tokens in beginnings(each).items() if tokens} for each in candidates]
        rows = iter(
            self._gather(
                [
                    partial(self._score, prompt + begun, tokens, temperature or 1.0)
                    for prompt, trie in zip(prompts, tries, strict=True)
                    for begun, tokens in trie.items()
                ]
            )
        )
        scored: list[list[Sample] | Failure] = []
        for each, trie in zip(candidates, tries, strict=True):
            told, failed = dict[tuple[int, ...], dict[int, float]](), list[Failure]()
            for begun, tokens in trie.items():
                if isinstance(row := next(rows), Failure):
                    failed.append(row)
                else:
                    told[begun] = dict(zip(tokens, row, strict=True))
            scored.append(failed[0] if failed else put_together(each, told))
        return scored

    def _draw(self, request: SampleRequest, prompt: tuple[int, ...], seed: int, limit: int) -> list[Sample]:
        if not request.count:
            return []
        # The tokenizer's end of sequence need not be the stop token.
        extensions: dict[str, object] = {
            "stop_token_ids": [request.stop_id],
            "ignore_eos": True,
            "min_p": request.min_p,
        }
        if request.form is not None:
            extensions["structured_outputs"] = {"grammar": request.form.lark}
        answer = self._complete(
            prompt,
            extensions,
            n=request.count,
            seed=seed,
            max_tokens=limit,
            temperature=request.temperature,
            top_p=request.top_p,
            logprobs=0,
        )
        samples = [_sample(choice) for choice in answer.choices]
        if len(samples) != request.count:
            raise ValueError(f"{len(samples)} samples, not {request.count}")
        return samples

    def _score(self, prompt: tuple[int, ...], token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        extensions: dict[str, object] = {"logprob_token_ids": list(token_ids), "return_tokens_as_token_ids": True}
        answer = self._complete(prompt, extensions, max_tokens=1, temperature=temperature, logprobs=len(token_ids))
        told = _first_logprobs(answer)
        return [told[f"token_id:{token}"] for token in token_ids]

    def _probe(self, temperature: float, fix: str, **extensions: object) -> tuple[tuple[int, ...], float]:
        """The tokens of a short sample, and the gap between the log-probabilities of the likeliest and the fifth
        likeliest first token, in nats.

        Raises:
            UserError: the server cannot answer this with token ids and log-probabilities; ``fix`` says what to do.
        """

        def ask() -> tuple[tuple[int, ...], float]:
            answer = self._complete(
                _PROBE,
                {"ignore_eos": True} | extensions,
                max_tokens=len(_FORCED),
                temperature=temperature,
                logprobs=5,
            )
            best, *_, fifth = sorted(_first_logprobs(answer).values(), reverse=True)[:5]
            return _sample(answer.choices[0]).token_ids, best - fifth

        probed = self._attempt(ask)
        if isinstance(probed, Failure):
            raise UserError(f"{probed.reason}: {fix}")
        return probed

    def _complete(
        self, prompt: tuple[int, ...], extensions: dict[str, object], *, n: int = 1, seed: int = 0, **asked: Any
    ) -> Completion:
        # Without these, the checkpoint's generation_config.json may choose others, and the server would draw
        # from another distribution than the learners compute.
        whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True}
        answer: Completion = self._client.completions.create(
            model=self.model,
            prompt=list(prompt),
            n=n,
            seed=seed,
            extra_body=whole | extensions,
            **{"top_p": 1.0} | asked,
        )
        self._count(answer.usage)
        return answer


class RemoteChat(_Server):
    """Conversations and replies as text, by the protocol's chat completions: no token ids and no log-probabilities."""

    _spelling = 0
    """Place of the first spelling in ``reply`` that the server takes, as far as is known."""

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        count: int,
        seeds: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
    ) -> list[Replies | Failure]:
        """``count`` replies to each conversation.

        OpenAI's reasoning models refuse ``max_tokens`` and every temperature but 1. If a server refuses one spelling of
        a request, the next is tried. A temperature of 0 or 1 may be left out: 1 is the protocol's default, and a
        greedy reply is never learned from.
        """
        old, new = {"max_tokens": max_new_tokens}, {"max_completion_tokens": max_new_tokens}
        drawn = {"temperature": temperature}
        spellings: list[dict[str, Any]] = [old | drawn, new | drawn, *([new] if temperature in (0.0, 1.0) else [])]
        each = zip(conversations, seeds, strict=True)
        return self._gather([partial(self._reply, spellings, count, *one) for one in each])

    def _reply(
        self, spellings: Sequence[dict[str, Any]], count: int, conversation: Sequence[Message], seed: int
    ) -> Replies:
        rows = [{"role": message.role, "content": message.content} for message in conversation]
        replies: list[str] = []
        generated_tokens = prompt_tokens = 0
        while len(replies) < count:  # a server may return fewer replies than were asked for
            answer = self._answer(spellings, messages=rows, n=count - len(replies), seed=seed + len(replies))
            if not answer.choices:
                raise ValueError("no choices")
            self._count(answer.usage)
            if answer.usage is not None:
                generated_tokens += answer.usage.completion_tokens
                prompt_tokens += answer.usage.prompt_tokens
            replies += [storable(choice.message.content or "") for choice in answer.choices]
        return Replies(replies[:count], generated_tokens, prompt_tokens)

    def _answer(self, spellings: Sequence[dict[str, Any]], **asked: Any) -> ChatCompletion:
        last = len(spellings) - 1
        place = min(self._spelling, last)
        while True:
            try:
                answer: ChatCompletion = self._client.chat.completions.create(
                    model=self.model, **asked, **spellings[place]
                )
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if place == last or not any(name in str(error) for name in spellings[place]):
                    raise
                place += 1
            else:
                self._spelling = place
                return answer


def _sample(choice: Any) -> Sample:
    """
    Raises:
        ValueError: there is not one log-probability for each token id.
    """
    ids, logprobs = tuple(map(int, choice.token_ids)), tuple(map(float, choice.logprobs.token_logprobs))
    if not ids or len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probabilities")
    return Sample(ids, logprobs)


def _first_logprobs(answer: Any) -> dict[str, float]:
    """Log-probabilities of the first token's alternatives, by name."""
    told: dict[str, float] = answer.choices[0].logprobs.top_logprobs[0]
    return told
