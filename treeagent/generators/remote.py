"""A server that speaks the OpenAI protocol (vLLM, SGLang, hosted ones): by token ids, or, where it has none, by text.

A request is tried again as the ``openai`` package does: after timeouts, 429 and 5xx, in growing intervals or as long
after as the server says. What then fails a single request costs its prompt alone; what would fail every other one too
stops the run with a sentence, and ``--resume`` goes on from there.
"""

import json
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from treeagent.generators.base import Failure, Pause, Sample, context_refusal, lark, token_limits
from treeagent.generators.config import RemoteConfig
from treeagent.generators.usage import Usage
from treeagent.types import Message, UserError, storable

if TYPE_CHECKING:
    from torch import Tensor

    from treeagent.generators.structured import Form  # its package is an extra

try:
    import openai
    from openai.types import Completion, CompletionUsage
    from openai.types.chat import ChatCompletion
except ImportError as error:
    raise UserError(f"openai is missing ({error}): pip install 'treeagent[remote]'") from error

Answer = TypeVar("Answer")
_PROBE = tuple(range(8))
"""A prompt that every vocabulary can spell."""
_FORM = (7, 5, 6, 7)
"""What a server that holds turns to a form draws, where these tokens are the form."""
_PROBE_TOKENS = 16
"""So many that no two samples are equal by chance."""
_ANY = 1 << 30
"""Samples of a request."""
_NO_CONTEXT = 1 << 40
"""Tokens, where the server does not tell its model's context."""
_HOPELESS = (402, 405, 501)
"""An empty account, a wrong address, a kind of request that is not served: statuses that every request meets."""
_UNKNOWN_CODES = ("unsupported_parameter", "unsupported_value", "unknown_parameter")
"""OpenAI's, for what a model does not take."""
_UNKNOWN_WORDS = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|not permitted|unexpected keyword", re.IGNORECASE
)
"""Those of servers without such codes, beside the name of a parameter."""
_LEFT_OUT = (0.0, 1.0)
"""Temperatures that a request may go without: 1 is the protocol's own, and at 0, which asks for the likeliest reply,
nobody learns from the probabilities."""


class _Common(Failure):
    """What every other request would meet, too."""


class Replies(NamedTuple):
    """What a server wrote to one conversation."""

    texts: list[str]
    generated_tokens: int
    """For all of them, by the server's count; 0 where it keeps none."""


class _Server:
    """A connection that holds few requests in flight and counts what they cost."""

    def __init__(self, config: RemoteConfig, checkpoint: str, section: str = "policy") -> None:
        """``section`` is the table of the model's settings, which errors name.

        Raises:
            UserError: the server cannot be reached, refuses the key or does not serve ``checkpoint``.
        """
        self.config = config
        self._section = section
        self.usage = Usage()
        key = os.environ.get("OPENAI_API_KEY") or "none"  # a server of one's own wants none, but the client does
        self._client = openai.OpenAI(
            base_url=config.url, api_key=key, timeout=config.timeout, max_retries=config.retries
        )
        self._counting = threading.Lock()
        self.model, self.context = self._find(checkpoint)

    def forget(self) -> None:
        """The server keeps its own prefixes, and its weights do not change while it runs."""

    def _find(self, checkpoint: str) -> tuple[str, int]:
        """The name under which the server knows the checkpoint, and the length of its context."""
        served = _required(self._attempt(lambda: list(self._client.models.list())))
        for model in served:
            told = model.model_extra or {}
            if PurePath(checkpoint).name in {PurePath(str(name)).name for name in (model.id, told.get("root"))}:
                return model.id, int(told.get("max_model_len") or _NO_CONTEXT)
        names = ", ".join(repr(model.id) for model in served[:8]) or "nothing"
        raise UserError(
            f"the server at {self.config.url} serves {names}, not {checkpoint!r}: start it on this checkpoint (vllm "
            f"serve {checkpoint} --logprobs-mode processed_logprobs); a run that stopped here goes on with --resume"
        )

    def _gather(self, requests: Sequence[Callable[[], Answer]]) -> list[Answer | Failure]:
        """
        Raises:
            UserError: as of ``_attempt``, or a request failed by what it shares with the others.
        """
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            return list(pool.map(self._one_of_many, requests))

    def _one_of_many(self, request: Callable[[], Answer]) -> Answer | Failure:
        answer = self._attempt(request)
        return _required(answer) if isinstance(answer, _Common) else answer

    def _attempt(self, request: Callable[[], Answer]) -> Answer | Failure:
        server = f"the server at {self.config.url}"
        try:
            return request()
        except openai.APITimeoutError:
            return Failure(f"{server} did not answer within {self.config.timeout:g} s: raise remote.timeout")
        except openai.APIConnectionError as error:
            raise UserError(
                f"{server} cannot be reached ({error.__cause__ or error}): start it, or correct {self._section}.url"
            ) from None
        except (openai.AuthenticationError, openai.PermissionDeniedError):
            raise UserError(f"{server} refuses the key: set OPENAI_API_KEY") from None
        except openai.RateLimitError:
            raise UserError(
                f"{server} still answered 429 (too many requests) after {self.config.retries} further tries: lower "
                f"remote.concurrency, raise remote.retries, or see to the account's quota"
            ) from None
        except openai.NotFoundError as error:
            raise UserError(
                f"{server} answered 404 ({_words(error)}): correct {self._section}.url, or set "
                "policy.text_only=true if it completes chats alone"
            ) from None
        except openai.APIStatusError as error:
            said = f"{server} answered {error.status_code}"
            if error.status_code in _HOPELESS:
                return _Common(f"{said} ({_words(error)}): see to the account, or correct {self._section}.url")
            name = _refused_parameter(error)
            if name is None:
                return Failure(f"{said}: {_words(error)}")
            return _Common(f"{said} to what every request asks for ({_words(error)}): {self._way_out(name)}")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # what it sent is no answer
            return Failure(f"the answer of {server} cannot be read ({type(error).__name__}: {error})")

    def _way_out(self, parameter: str) -> str:
        """What to do where a server does not take a parameter of every request."""
        if parameter == "temperature":
            return f"set {self._section}.temperature to one that it takes, or use another model"
        return "use a server and a model that take it"

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


class RemoteGenerator(_Server):
    """Prompts and samples as token ids, by the protocol's completions with the extensions of vLLM and SGLang."""

    def __init__(self, config: RemoteConfig, checkpoint: str, temperature: float, *, structured: bool = False) -> None:
        """``temperature`` is the policy's, at which the server's log-probabilities are checked.

        Raises:
            UserError: as for any server, or it gives no token ids, or log-probabilities of another distribution than the
                one that it draws from, or it holds nothing to a form where turns are to be ``structured``.
        """
        super().__init__(config, checkpoint)
        plain, drawn = (self._top_gap(each) for each in (1.0, temperature))
        if not math.isclose(drawn * temperature, plain, rel_tol=0.02, abs_tol=1e-3):
            raise UserError(
                f"the server at {config.url} gives log-probabilities without the temperature {temperature:g} that it "
                "draws with: start it with --logprobs-mode processed_logprobs (vLLM) or without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB (SGLang), or set policy.temperature to 1"
            )
        self._together = self._most_together(temperature)
        if structured:
            self._check_holds(temperature)

    def sample(
        self,
        prompts: Sequence[tuple[int, ...]],
        count: int,
        seeds: Sequence[int],
        *,
        stop_id: int,
        max_new_tokens: int | Sequence[int],
        temperature: float = 1.0,
        pauses: Sequence[Pause | None] = (),
        form: "Form | None" = None,
        begun: Sequence[tuple[int, ...]] = (),
    ) -> list[list[Sample] | Failure]:
        """As ``Generator.sample``. The server knows no pauses: it draws the whole turn, which is then cut."""
        limits = token_limits(prompts, max_new_tokens, self.context)
        draw = partial(self._draw, count, stop_id, temperature, lark(form, begun))
        drawn = self._gather([partial(draw, *each) for each in zip(prompts, seeds, limits, strict=True)])
        return [
            samples if pause is None or isinstance(samples, Failure) else [pause.cut(sample) for sample in samples]
            for samples, pause in zip(drawn, pauses or [None] * len(prompts), strict=True)
        ]

    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> "Tensor":
        """As ``Generator.next_logprobs``.

        Raises:
            UserError: a request fails, or the server knows no ``logprob_token_ids``.
        """
        import torch

        asked = self._gather([partial(self._score, prompt, token_ids) for prompt in prompts if token_ids])
        return torch.tensor([_required(row) for row in asked]).reshape(len(prompts), len(token_ids))

    def refusal(self, prompt: tuple[int, ...]) -> str:
        return context_refusal(prompt, self.context)

    def _way_out(self, parameter: str) -> str:
        return (
            "use one that takes it, as vLLM and SGLang do, or set policy.text_only=true to play and measure by "
            "text alone"
        )

    def _draw(
        self, count: int, stop_id: int, temperature: float, rules: str, prompt: tuple[int, ...], seed: int, limit: int
    ) -> list[Sample]:
        distinct = count if temperature > 0 else min(count, 1)  # the likeliest continuation is the same each time
        held: dict[str, Any] = {"structured_outputs": {"grammar": rules}} if rules else {}
        samples: list[Sample] = []
        while len(samples) < distinct:  # a server may give fewer at a time than it is asked for
            answer = self._complete(
                prompt,
                n=min(distinct - len(samples), self._together),
                seed=seed + len(samples),
                max_tokens=limit,
                temperature=temperature,
                logprobs=0,
                stop_token_ids=[stop_id],
                ignore_eos=True,  # which need not be the stop token
                **held,
            )
            samples += map(_sample, answer.choices)
        return samples * count if temperature == 0 else samples[:count]

    def _score(self, prompt: tuple[int, ...], token_ids: Sequence[int]) -> list[float]:
        answer = self._complete(
            prompt,
            max_tokens=1,
            temperature=1.0,
            logprobs=len(token_ids),
            logprob_token_ids=list(token_ids),
            return_tokens_as_token_ids=True,
        )
        told = _top_logprobs(answer)
        names = [f"token_id:{token}" for token in token_ids]
        if missing := set(names) - told.keys():
            raise UserError(
                f"the server at {self.config.url} leaves out {min(missing)}, whose log-probability it is asked for: "
                "use one that knows vLLM's logprob_token_ids, or set search.critic_weight to 0"
            )
        return [told[name] for name in names]

    def _most_together(self, temperature: float) -> int:
        """Samples that one request may ask for: SGLang's deterministic inference gives all of them the same seed."""

        def drawn() -> set[tuple[int, ...]]:
            ask = partial(self._complete, n=2, max_tokens=_PROBE_TOKENS, temperature=temperature, logprobs=0)
            return {_sample(choice).token_ids for choice in ask(_PROBE, ignore_eos=True).choices}

        return _ANY if len(_required(self._attempt(drawn))) > 1 else 1

    def _check_holds(self, temperature: float) -> None:
        """A server that does not know how to hold to a form passes over the wish."""
        form = " ".join(f"<[{token}]>" for token in _FORM)

        def drawn() -> tuple[int, ...]:
            ask = partial(self._complete, _PROBE, max_tokens=len(_FORM), temperature=temperature, logprobs=0)
            answer = ask(ignore_eos=True, structured_outputs={"grammar": f"%llguidance {{}}\nstart: {form}"})
            return _sample(answer.choices[0]).token_ids

        if (found := self._attempt(drawn)) != _FORM:
            told = found.reason if isinstance(found, Failure) else f"it drew the tokens {found} where {_FORM} were due"
            raise UserError(
                f"the server at {self.config.url} does not hold turns to a form ({told}): use vLLM, "
                "its --structured-outputs-config.backend auto or guidance, or set policy.structured=false"
            )

    def _top_gap(self, temperature: float) -> float:
        """Between the log-probabilities of the likeliest token and the fifth after the probe."""
        answer = _required(
            self._attempt(
                lambda: self._complete(
                    _PROBE, max_tokens=1, temperature=temperature, logprobs=5, return_tokens_as_token_ids=True
                )
            )
        )
        try:
            _sample(answer.choices[0])
            best, *_, worst = sorted(_top_logprobs(answer).values(), reverse=True)[:5]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise UserError(
                f"the server at {self.config.url} gives no token ids with their log-probabilities: use one that knows "
                "return_token_ids, as vLLM and SGLang do, or set policy.text_only=true to play and measure by "
                "text alone"
            ) from None
        return best - worst

    def _complete(
        self,
        prompt: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        logprobs: int,
        n: int = 1,
        seed: int = 0,
        **extensions: object,
    ) -> Completion:
        answer = self._client.completions.create(
            model=self.model,
            prompt=list(prompt),
            max_tokens=max_tokens,
            temperature=temperature,
            logprobs=logprobs,
            n=n,
            seed=seed,
            top_p=1.0,
            # The checkpoint's generation_config.json may ask for others, and then the learners' would not be the
            # distribution drawn from.
            extra_body={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True} | extensions,
        )
        if not answer.choices:
            raise ValueError("no choices")
        self._count(answer.usage)
        return answer


class RemoteChat(_Server):
    """Conversations and replies as text, by the protocol's chat completions: no token ids, no log-probabilities.

    Models that think want another name for the limit and no temperature; what a server refuses once it is not asked
    for again.
    """

    def __init__(self, config: RemoteConfig, checkpoint: str, section: str = "policy") -> None:
        super().__init__(config, checkpoint, section)
        self._limit = "max_tokens"
        self._unasked: frozenset[float] = frozenset()

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        count: int,
        seeds: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
    ) -> list[Replies | Failure]:
        """``count`` replies to each conversation."""
        reply = partial(self._reply, count, max_new_tokens, temperature)
        return self._gather([partial(reply, *each) for each in zip(conversations, seeds, strict=True)])

    def _reply(
        self, count: int, max_new_tokens: int, temperature: float, conversation: Sequence[Message], seed: int
    ) -> Replies:
        rows: list[Any] = [{"role": message.role, "content": message.content} for message in conversation]
        replies: list[str] = []
        generated_tokens = 0
        while len(replies) < count:  # a server may give fewer at a time than it is asked for
            answer = self._answer(rows, count - len(replies), seed + len(replies), max_new_tokens, temperature)
            if not answer.choices:
                raise ValueError("no choices")
            self._count(answer.usage)
            generated_tokens += answer.usage.completion_tokens if answer.usage is not None else 0
            replies += [storable(choice.message.content or "") for choice in answer.choices]
        return Replies(replies[:count], generated_tokens)

    def _answer(
        self, rows: list[Any], count: int, seed: int, max_new_tokens: int, temperature: float
    ) -> ChatCompletion:
        """In the words that the server knows."""
        while True:
            limit = self._limit
            asked: dict[str, Any] = {limit: max_new_tokens}
            if temperature not in self._unasked:
                asked["temperature"] = temperature
            try:
                answer: ChatCompletion = self._client.chat.completions.create(
                    model=self.model, messages=rows, n=count, seed=seed, **asked
                )
                return answer
            except openai.APIStatusError as error:
                refused = _refused_parameter(error)
                if refused == limit == "max_tokens":
                    self._limit = "max_completion_tokens"
                elif refused == "temperature" and refused in asked and temperature in _LEFT_OUT:
                    self._unasked |= {temperature}
                else:
                    raise


def _required(answer: Answer | Failure) -> Answer:
    if isinstance(answer, Failure):
        raise UserError(answer.reason)
    return answer


def _words(error: openai.APIStatusError) -> str:
    """The server's own, on one line."""
    told = error.body.get("message") if isinstance(error.body, dict) else None
    said = told if isinstance(told, str) else error.body or error.message
    return " ".join(storable(str(said)).split())[:200]


def _refused_parameter(error: openai.APIStatusError) -> str | None:
    """The parameter of the request that the server does not know or not with this value; None where it refuses
    something else."""
    if error.status_code not in (400, 422):
        return None
    words, told = str(error.body), error.code in _UNKNOWN_CODES
    if not told and not _UNKNOWN_WORDS.search(words):
        return None
    if told and error.param:
        return error.param
    shared = json.loads(error.request.content or b"{}").keys() - {"model", "messages", "prompt"}
    named = [name for name in sorted(shared) if (name == error.param if error.param else _names(words, name))]
    return named[0] if named else "" if told else None


def _names(words: str, parameter: str) -> bool:
    """``n`` stands in many words."""
    quoted = "['\"`]" if len(parameter) < 3 else ""
    return re.search(rf"{quoted}(?<!\w){parameter}(?!\w){quoted}", words) is not None


def _sample(choice: Any) -> Sample:
    """
    Raises:
        ValueError: it holds not one log-probability for each token id.
    """
    ids, logprobs = tuple(map(int, choice.token_ids)), tuple(map(float, choice.logprobs.token_logprobs))
    if not ids or len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probabilities")
    return Sample(ids, logprobs)


def _top_logprobs(answer: Completion) -> dict[str, float]:
    """Of the first token."""
    logprobs = answer.choices[0].logprobs
    if logprobs is None or not logprobs.top_logprobs:
        raise ValueError("no top_logprobs")
    return logprobs.top_logprobs[0]
