"""Clients of servers with the OpenAI protocol: with token ids (vLLM, SGLang), or with text only (hosted models).

``servers`` decides which server of a pool gets a request, and handles requests that fail.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treeagent.contrib.servers.servers import REFUSED, Server, Servers
from treeagent.generators.base import Failure, Generator, Sample, SampleRequest, prefix_trie, samples_from_trie
from treeagent.generators.config import RemoteConfig
from treeagent.types import Message, UserError, storable

if TYPE_CHECKING:  # importing ``servers`` reports a missing package
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

_PROBE = tuple(range(8))
"""A prompt of token ids that exist in every vocabulary."""
_FORCED = (7, 5, 6, 7)
"""Tokens that a server must draw if the grammar allows nothing else."""


class Replies(NamedTuple):
    """The replies to one conversation."""

    texts: list[str]
    generated_tokens: int
    """Tokens of all replies together, as the server counts them; 0 if it does not count them."""
    prompt_tokens: int = 0
    """Tokens of all prompts together, cached ones included."""
    cut_off: Sequence[bool] = ()
    """Whether each reply was cut off at its limit of tokens."""


class RemoteGenerator(Servers, Generator):
    """A generator that uses the protocol's completions with the extensions of vLLM and SGLang, so that prompts and
    samples are token ids."""

    concurrent = True

    def __init__(
        self,
        config: RemoteConfig,
        checkpoint: str,
        temperature: float,
        *,
        structured: bool = False,
        scores: str = "",
        adapter: Path | None = None,
        versioned: bool = False,
        truncates: bool = False,
    ) -> None:
        """
        Args:
            temperature: the policy's temperature, at which the server is tested.
            structured: whether requests may have a ``form``.
            scores: if ``score`` will be called, the setting with which it would not be, for error messages; else empty.
            adapter: as for ``Servers``.
            versioned: whether the server's weights change during the run. Every answer must then name the model that
                was asked for.
            truncates: whether requests may have a ``top_p`` or ``min_p``.

        Raises:
            UserError: as ``Servers``; or a server gives no token ids, its log-probabilities ignore the temperature,
                ``top_p`` or ``min_p``, it ignores a form, or it does not support ``logprob_token_ids``, which scoring
                needs.
        """
        self._temperature, self._structured, self._scores = temperature, structured, scores
        self._versioned, self._truncates = versioned, truncates
        super().__init__(config, checkpoint, adapter=adapter)

    def _check(self, server: Server) -> None:
        temperature = self._temperature
        fix = "use vLLM or SGLang, or set policy.text_only=true to play and measure by text alone"
        _, gap = self._probe(server, temperature, fix)
        if temperature != 1 and not math.isclose(
            gap * temperature, self._probe(server, 1.0, fix)[1], rel_tol=0.02, abs_tol=1e-3
        ):
            raise UserError(
                f"the log-probabilities of {server} leave out the temperature {temperature:g} that "
                "it draws with: start it with --logprobs-mode processed_logprobs (vLLM) or without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB (SGLang), or set policy.temperature to 1"
            )
        if self._truncates and self._narrowest_logprob(server, fix) < -1e-3:
            raise UserError(
                f"the log-probabilities of {server} leave out policy.top_p and policy.min_p: start it with "
                "--logprobs-mode processed_logprobs (vLLM), or set policy.top_p to 1 and policy.min_p to 0"
            )
        if self._structured:  # a server without support for grammars ignores them silently
            fix = "use vLLM with --structured-outputs-config.backend auto or guidance, or set policy.structured=false"
            rules = f"%llguidance {{}}\nstart: {' '.join(f'<[{token}]>' for token in _FORCED)}"
            generated, _ = self._probe(server, temperature, fix, structured_outputs={"grammar": rules})
            if generated != _FORCED:
                raise UserError(f"{server} does not hold turns to a form: {fix}")
        if self._scores and isinstance(
            failed := self._attempt(server, partial(self._score, _PROBE, _PROBE[:2], temperature)), Failure
        ):
            raise UserError(f"{failed.reason}: use vLLM, which knows logprob_token_ids, or set {self._scores}")

    def sample(self, request: SampleRequest) -> list[list[Sample] | Failure]:
        """As for ``Generator``. Servers have no pauses, so whole turns are sampled and cut afterwards."""
        each = zip(request.prompts, request.seeds, request.limits(self.context), strict=True)
        draws = [partial(self._draw, request, *one) for one in each]
        return request.paused(self._gather(list(zip(_keys(request.prompts, request.trees), draws, strict=True))))

    def score(
        self,
        prompts: Sequence[tuple[int, ...]],
        candidates: Sequence[Sequence[tuple[int, ...]]],
        temperature: float = 1.0,
        trees: Sequence[str] = (),
    ) -> list[list[Sample] | Failure]:
        """As for ``Generator``. Each prefix of a candidate is a separate request, so that the server's prefix cache
        helps."""
        tries = [{prefix: tokens for prefix, tokens in prefix_trie(each).items() if tokens} for each in candidates]
        rows = iter(
            self._gather(
                [
                    (key, partial(self._score, prompt + prefix, tokens, temperature or 1.0))
                    for key, prompt, trie in zip(_keys(prompts, trees), prompts, tries, strict=True)
                    for prefix, tokens in trie.items()
                ]
            )
        )
        scored: list[list[Sample] | Failure] = []
        for each, trie in zip(candidates, tries, strict=True):
            logprobs, failed = dict[tuple[int, ...], dict[int, float]](), list[Failure]()
            for prefix, tokens in trie.items():
                if isinstance(row := next(rows), Failure):
                    failed.append(row)
                else:
                    logprobs[prefix] = dict(zip(tokens, row, strict=True))
            scored.append(failed[0] if failed else samples_from_trie(each, logprobs))
        return scored

    def _draw(
        self, request: SampleRequest, prompt: tuple[int, ...], seed: int, limit: int, server: Server
    ) -> list[Sample]:
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
            server,
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

    def _score(
        self, prompt: tuple[int, ...], token_ids: Sequence[int], temperature: float, server: Server
    ) -> list[float]:
        extensions: dict[str, object] = {"logprob_token_ids": list(token_ids), "return_tokens_as_token_ids": True}
        answer = self._complete(
            server, prompt, extensions, max_tokens=1, temperature=temperature, logprobs=len(token_ids)
        )
        logprobs = _first_logprobs(answer)
        return [logprobs[f"token_id:{token}"] for token in token_ids]

    def _probe(
        self, server: Server, temperature: float, fix: str, **extensions: object
    ) -> tuple[tuple[int, ...], float]:
        """The tokens of a short sample, and the gap between the log-probabilities of the likeliest and the fifth
        likeliest first token, in nats.

        Raises:
            UserError: the server cannot answer with token ids and log-probabilities. The message ends with ``fix``.
        """

        def ask(server: Server) -> tuple[tuple[int, ...], float]:
            answer = self._complete(
                server,
                _PROBE,
                {"ignore_eos": True} | extensions,
                max_tokens=len(_FORCED),
                temperature=temperature,
                logprobs=5,
            )
            best, *_, fifth = sorted(_first_logprobs(answer).values(), reverse=True)[:5]
            return _sample(answer.choices[0]).token_ids, best - fifth

        probed = self._attempt(server, ask)
        if isinstance(probed, Failure):
            raise UserError(f"{probed.reason}: {fix}")
        return probed

    def _narrowest_logprob(self, server: Server, fix: str) -> float:
        """The log-probability of a token that is drawn where ``top_p`` and ``min_p`` leave only one.

        Raises:
            UserError: as ``_probe``.
        """

        def ask(server: Server) -> float:
            narrow: dict[str, object] = {"ignore_eos": True, "min_p": 0.99}
            answer = self._complete(server, _PROBE, narrow, max_tokens=1, temperature=1.0, top_p=1e-4, logprobs=0)
            return _sample(answer.choices[0]).logprobs[0]

        drawn = self._attempt(server, ask)
        if isinstance(drawn, Failure):
            raise UserError(f"{drawn.reason}: {fix}")
        return drawn

    def _complete(
        self,
        server: Server,
        prompt: tuple[int, ...],
        extensions: dict[str, object],
        *,
        n: int = 1,
        seed: int = 0,
        **parameters: Any,
    ) -> "Completion":
        # Without these, values in the checkpoint's generation_config.json may apply, and the server would sample from
        # another distribution than the learners compute.
        unrestricted = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True}
        answer: Completion = server.client.completions.create(
            model=server.model,
            prompt=list(prompt),
            n=n,
            seed=seed,
            extra_body=unrestricted | extensions,
            **{"top_p": 1.0} | parameters,
        )
        if self._versioned and (served_as := getattr(answer, "model", None)) != server.model:
            raise UserError(
                f"{server} answered as {served_as!r}, not as {server.model!r}, so its weights are unknown: serve the "
                "checkpoint under that name alone, or leave out policy.reload; then go on with --resume"
            )
        self._count(answer.usage)
        return answer


class RemoteChat(Servers):
    """A client that uses the protocol's chat completions: conversations and replies are text, without token ids and
    log-probabilities."""

    _variant = 0
    """Index of the first spelling of a request (see ``reply``) that the servers have accepted so far."""

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        count: int,
        seeds: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
        trees: Sequence[str] = (),
    ) -> list[Replies | Failure]:
        """Get ``count`` replies to each conversation. ``trees`` are as for ``SampleRequest``.

        OpenAI's reasoning models refuse ``max_tokens`` and every temperature except 1. If a server refuses one spelling
        of a request, the next one is tried. The last spelling leaves out a temperature of 0 or 1: 1 is the protocol's
        default, and a greedy reply is never learnt from.
        """
        old, new = {"max_tokens": max_new_tokens}, {"max_completion_tokens": max_new_tokens}
        sampling = {"temperature": temperature}
        variants: list[dict[str, Any]] = [old | sampling, new | sampling, *([new] if temperature in (0.0, 1.0) else [])]
        each = zip(conversations, seeds, strict=True)
        replies = [partial(self._reply, variants, count, *one) for one in each]
        return self._gather(list(zip(_keys(conversations, trees), replies, strict=True)))

    def _reply(
        self,
        variants: Sequence[dict[str, Any]],
        count: int,
        conversation: Sequence[Message],
        seed: int,
        server: Server,
    ) -> Replies:
        rows = [{"role": message.role, "content": message.content} for message in conversation]
        replies, cut_off = list[str](), list[bool]()
        generated_tokens = prompt_tokens = 0
        while len(replies) < count:  # a server may return fewer replies than requested
            parameters = {"messages": rows, "n": count - len(replies), "seed": seed + len(replies)}
            answer = self._answer(server, variants, parameters)
            if not answer.choices:
                raise ValueError("no choices")
            self._count(answer.usage)
            if answer.usage is not None:
                generated_tokens += answer.usage.completion_tokens
                prompt_tokens += answer.usage.prompt_tokens
            replies += [storable(choice.message.content or "") for choice in answer.choices]
            cut_off += [choice.finish_reason == "length" for choice in answer.choices]
        return Replies(replies[:count], generated_tokens, prompt_tokens, cut_off[:count])

    def _answer(
        self, server: Server, variants: Sequence[dict[str, Any]], parameters: dict[str, Any]
    ) -> "ChatCompletion":
        last = len(variants) - 1
        index = min(self._variant, last)
        while True:
            try:
                answer: ChatCompletion = server.client.chat.completions.create(
                    model=server.model, **parameters, **variants[index]
                )
            except REFUSED as error:
                if index == last or not any(name in str(error) for name in variants[index]):
                    raise
                index += 1
            else:
                self._variant = index
                return answer


def _keys(prompts: Sequence[object], trees: Sequence[str]) -> Sequence[str]:
    """The keys by which prompts are assigned to servers: the names of their trees, or else the prompts themselves."""
    return trees or [repr(prompt) for prompt in prompts]


def _sample(choice: Any) -> Sample:
    """Convert a choice of an answer.

    Raises:
        ValueError: there are no token ids, or not one log-probability for each.
    """
    ids, logprobs = tuple(map(int, choice.token_ids)), tuple(map(float, choice.logprobs.token_logprobs))
    if not ids or len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probabilities")
    return Sample(ids, logprobs)


def _first_logprobs(answer: Any) -> dict[str, float]:
    """Log-probabilities of the alternatives of the first token, by the server's name of the token."""
    logprobs: dict[str, float] = answer.choices[0].logprobs.top_logprobs[0]
    return logprobs
