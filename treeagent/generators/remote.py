"""A server that speaks the OpenAI protocol: by token ids (vLLM, SGLang), or by text alone (hosted models).

The ``openai`` package repeats a request after a timeout, a 429 or a 5xx, in growing intervals or when the server's
Retry-After says. A request that still fails costs only its own prompt. An error that every other request would meet,
such as a wrong key, stops the run with one sentence, and ``--resume`` continues it.
"""

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from treeagent.generators.base import Failure, Sample, SampleRequest, context_refusal
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
_PROBE = tuple(range(8))
"""A prompt of token ids that every vocabulary has."""
_PROBE_TOKENS = 16
"""Length of the probe's samples, so long that two independent ones are not equal by chance."""
_FORM = (7, 5, 6, 7)
"""Tokens that a server must draw if the grammar allows nothing else."""
_NO_CONTEXT = 1 << 40
"""Tokens: stands for the context of a server that does not report it."""
_HOPELESS = (402, 405, 501)
"""Statuses that every request would meet: an empty account, a wrong address, a kind of request that is not served."""


class Replies(NamedTuple):
    """The replies to one conversation."""

    texts: list[str]
    generated_tokens: int
    """Tokens of all replies together, as the server counts them; 0 if it does not."""


class _Server:
    """A connection that bounds the requests in flight and counts tokens and price."""

    def __init__(self, config: RemoteConfig, checkpoint: str, section: str = "policy") -> None:
        """
        Args:
            checkpoint: a path or a name on the model hub; its last part must be the last part of a served model's name.
            section: the table of the model's settings, which error sentences name.

        Raises:
            UserError: the server cannot be reached, refuses the key or does not serve ``checkpoint``.
        """
        self.config = config
        self._section = section
        self.usage = Usage()
        key = os.environ.get("OPENAI_API_KEY") or "none"  # your own server needs none, but the client does
        self._client = openai.OpenAI(
            base_url=config.url, api_key=key, timeout=config.timeout, max_retries=config.retries
        )
        self._counting = threading.Lock()
        self.model, self.context = self._find(checkpoint)

    def forget(self) -> None:
        """Do nothing: a server's weights do not change while it runs, so its cached prefixes stay valid."""

    def _find(self, checkpoint: str) -> tuple[str, int]:
        """The checkpoint's name on the server, and the length of its context in tokens."""
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
        except UserError:
            raise
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
                raise UserError(
                    f"{said} ({_words(error)}): see to the account, or correct {self._section}.url"
                ) from None
            return Failure(f"{said}: {_words(error)}")
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


class RemoteGenerator(_Server):
    """Prompts and samples as token ids, by the protocol's completions with the extensions of vLLM and SGLang."""

    def __init__(self, config: RemoteConfig, checkpoint: str, temperature: float, *, structured: bool = False) -> None:
        """
        Args:
            temperature: the policy's, at which the server is tested.
            structured: whether requests may have a ``form``.

        Raises:
            UserError: as for every server; or it gives no token ids, its log-probabilities leave out the temperature,
                or it ignores a form.
        """
        super().__init__(config, checkpoint)
        drawn = self._probe(temperature)
        if temperature != 1 and not math.isclose(
            _top_gap(drawn) * temperature, _top_gap(self._probe(1.0)), rel_tol=0.02, abs_tol=1e-3
        ):
            raise UserError(
                f"the log-probabilities of the server at {config.url} leave out the temperature {temperature:g} that "
                "it draws with: start it with --logprobs-mode processed_logprobs (vLLM) or without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB (SGLang), or set policy.temperature to 1"
            )
        # In SGLang's deterministic inference all samples of one request have one seed, and so are equal.
        self._repeats = len(drawn.choices) > 1 and len({_sample(choice).token_ids for choice in drawn.choices}) == 1
        if structured:
            self._require_form(temperature)

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        """As ``Generator.sample``. A server has no pauses: it draws the whole turn, which is cut afterwards."""
        limits, rules = request.limits(self.context), request.lark()
        each = zip(request.prompts, request.seeds, limits, strict=True)
        return request.paused(self._gather([partial(self._draw, request, rules, *one) for one in each]))

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

    def _draw(self, request: SampleRequest, rules: str, prompt: tuple[int, ...], seed: int, limit: int) -> list[Sample]:
        greedy = request.temperature == 0
        distinct = min(request.count, 1) if greedy else request.count  # all greedy samples of a prompt are equal
        held: dict[str, Any] = {"structured_outputs": {"grammar": rules}} if rules else {}
        samples: list[Sample] = []
        while len(samples) < distinct:  # a server may return fewer samples than were asked for
            answer = self._complete(
                prompt,
                n=1 if self._repeats else distinct - len(samples),
                seed=seed + len(samples),
                max_tokens=limit,
                temperature=request.temperature,
                logprobs=0,
                stop_token_ids=[request.stop_id],
                ignore_eos=True,  # the tokenizer's end of sequence need not be the stop token
                **held,
            )
            samples += map(_sample, answer.choices)
        return samples * request.count if greedy else samples[:distinct]

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
                f"the server at {self.config.url} does not return the log-probability of {min(missing)}: use a server "
                "with vLLM's logprob_token_ids, or set search.critic_weight to 0"
            )
        return [told[name] for name in names]

    def _probe(self, temperature: float) -> Completion:
        """Two samples of a fixed prompt, with the five likeliest first tokens.

        Raises:
            UserError: the server cannot answer this with token ids and log-probabilities.
        """

        def probe() -> Completion:
            answer = self._complete(
                _PROBE,
                n=2,
                max_tokens=_PROBE_TOKENS,
                temperature=temperature,
                logprobs=5,
                ignore_eos=True,
                return_tokens_as_token_ids=True,
            )
            _top_gap(answer)
            for choice in answer.choices:
                _sample(choice)
            return answer

        answer = self._attempt(probe)
        if isinstance(answer, Failure):
            raise UserError(
                f"the server at {self.config.url} gives no token ids with their log-probabilities ({answer.reason}): "
                "use vLLM or SGLang, or set policy.text_only=true to play and measure by text alone"
            )
        return answer

    def _require_form(self, temperature: float) -> None:
        """
        Raises:
            UserError: the server ignores grammars, which servers without them do silently, or cannot read ours.
        """
        grammar = f"%llguidance {{}}\nstart: {' '.join(f'<[{token}]>' for token in _FORM)}"

        def probe() -> tuple[int, ...]:
            held: dict[str, Any] = {"ignore_eos": True, "structured_outputs": {"grammar": grammar}}
            answer = self._complete(_PROBE, max_tokens=len(_FORM), temperature=temperature, logprobs=0, **held)
            return _sample(answer.choices[0]).token_ids

        if (found := self._attempt(probe)) != _FORM:
            reason = found.reason if isinstance(found, Failure) else f"it drew the tokens {found} in place of {_FORM}"
            raise UserError(
                f"the server at {self.config.url} does not hold turns to a form ({reason}): use vLLM with "
                "--structured-outputs-config.backend auto or guidance, or set policy.structured=false"
            )

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
            # Without these, the checkpoint's generation_config.json may choose others, and the server would draw from
            # another distribution than the learners compute.
            extra_body={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True} | extensions,
        )
        if not answer.choices:
            raise ValueError("no choices")
        self._count(answer.usage)
        return answer


class RemoteChat(_Server):
    """Conversations and replies as text, by the protocol's chat completions: no token ids and no log-probabilities.

    Reasoning models of OpenAI refuse ``max_tokens`` (they want ``max_completion_tokens``) and every temperature but 1.
    What a server has refused once, later requests leave out.
    """

    def __init__(self, config: RemoteConfig, checkpoint: str, section: str = "policy") -> None:
        super().__init__(config, checkpoint, section)
        self._limit = "max_tokens"
        self._default_temperature = False

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
        while len(replies) < count:  # a server may return fewer replies than were asked for
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
        """
        Raises:
            UserError: the server refuses a temperature other than 0 and 1. For these two its default is used: 1 is the
                protocol's default, and a greedy reply is never learnt from.
        """
        while True:
            limit, default = self._limit, self._default_temperature and temperature in (0.0, 1.0)
            asked: dict[str, Any] = {limit: max_new_tokens} | ({} if default else {"temperature": temperature})
            try:
                answer: ChatCompletion = self._client.chat.completions.create(
                    model=self.model, messages=rows, n=count, seed=seed, **asked
                )
                return answer
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if limit == "max_tokens" and _refuses(error, limit):
                    self._limit = "max_completion_tokens"
                elif not default and _refuses(error, "temperature"):
                    if temperature not in (0.0, 1.0):
                        raise UserError(
                            f"the server at {self.config.url} does not take the temperature {temperature:g} "
                            f"({_words(error)}): set {self._section.removesuffix('.remote')}.temperature to one that "
                            "it takes, or use another model"
                        ) from None
                    self._default_temperature = True
                else:
                    raise


def _required(answer: Answer | Failure) -> Answer:
    if isinstance(answer, Failure):
        raise UserError(answer.reason)
    return answer


def _words(error: openai.APIStatusError) -> str:
    """What the server said, on one line."""
    told = error.body.get("message") if isinstance(error.body, dict) else None
    said = told if isinstance(told, str) else error.body or error.message
    return " ".join(storable(str(said)).split())[:200]


def _refuses(error: openai.APIStatusError, parameter: str) -> bool:
    """Whether the server refuses this parameter: OpenAI says so in ``param``, other servers in the sentence."""
    return error.param == parameter if error.param else f"'{parameter}'" in str(error.body)


def _sample(choice: Any) -> Sample:
    """
    Raises:
        ValueError: there is not one log-probability for each token id.
    """
    ids, logprobs = tuple(map(int, choice.token_ids)), tuple(map(float, choice.logprobs.token_logprobs))
    if not ids or len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probabilities")
    return Sample(ids, logprobs)


def _top_gap(answer: Completion) -> float:
    """Between the log-probabilities of the likeliest and the fifth likeliest first token, in nats."""
    best, *_, fifth = sorted(_top_logprobs(answer).values(), reverse=True)[:5]
    return best - fifth


def _top_logprobs(answer: Completion) -> dict[str, float]:
    """The likeliest first tokens, by name, and their log-probabilities.

    Raises:
        ValueError: the answer has none.
    """
    logprobs = answer.choices[0].logprobs
    if logprobs is None or not logprobs.top_logprobs:
        raise ValueError("no top_logprobs")
    return logprobs.top_logprobs[0]
