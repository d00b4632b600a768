"""A language model as policy and value function: for each state, it gives think/action candidates and V(s)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call
from treeagent.generators.base import Counting, Failure, Generator, Pause, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat, Reading
from treeagent.generators.config import ActionSource, RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.turn import Grammar, ReAct
from treeagent.types import TURN_CUT_OFF, Action, Estimate, Message, Proposal, State, derive_seed

if TYPE_CHECKING:
    from treeagent.generators.structured import Form

_NO_LIST = "the environment lists no action that can be written here: set policy.actions=sample"


@dataclass(frozen=True, slots=True)
class LLMPolicy:
    """A causal language model as the policy of a search: it samples turns, or the rest of a turn that has begun."""

    generator: Generator
    chat: ChatFormat
    grammar: Grammar = ReAct()  # noqa: RUF009 - frozen
    temperature: float = 1.0
    """Sampling temperature; 0 always takes the likeliest token."""
    max_new_tokens: int = 64
    """Most sampled tokens of a turn. A turn that is cut off there makes no call."""
    thought_tokens: int | None = None
    """Most sampled tokens of a thought; then forced tokens lead the turn into its call (``Grammar.lead``)."""
    form: "Form | None" = None
    """The form that constrains every turn while it is sampled."""
    actions: ActionSource = "sample"
    """Whether turns are sampled, or each legal action of the state is scored as a turn without a thought, or both."""
    tools: Sequence[ToolSpec] = ()
    """The tools by which legal actions are written as calls, in formats that call tools by name."""

    @property
    def concurrent(self) -> bool:
        return self.generator.concurrent

    def greedy(self) -> "LLMPolicy":
        return replace(self, temperature=0.0)

    def forget(self) -> None:
        """Clear the caches. Call it before conversations that share no prefix with earlier ones."""
        self.generator.forget()
        self.chat.forget()

    async def propose(
        self, states: Sequence[State], count: int, seeds: Sequence[int], pause: Pause | None = None
    ) -> Sequence[Proposal]:
        """``count`` turns at each state, with token ids and log-probabilities (in nats) under the distribution they
        were sampled from. With ``pause``, a turn that has not begun yet is always sampled, and ends at the pause.

        If legal actions are scored, P(a) is the softmax of the log-probabilities of their turns. All are returned, in
        the order of a draw without replacement (Gumbel-top-k, Kool et al. 2019), or of P at temperature 0. Their stored
        log-probabilities are those among all tokens. With "both", ``count`` samples come first, and P is
        (n(a) + P_scored(a)) / (``count`` + 1), where n(a) is the number of samples with the call a.
        """
        readings, prompts, errors = _read_all(self.chat, self.generator, states)
        last = [state.messages[-1] for state in states]
        prefixes = [message if message.partial else Message("assistant", "") for message in last]
        written: dict[int, list[Action]] = {}
        for index, state in enumerate(states):
            if self.actions == "sample" or not count or errors[index] or (pause and not prefixes[index].partial):
                continue
            room = self.generator.context - len(prompts[index])
            legal = self._legal_turns(state, prefixes[index])
            if listed := [action for action in legal if len(action.token_ids) <= room]:
                written[index] = listed
            elif self.actions == "score":
                shortest = min((action.token_ids for action in legal), key=len, default=())
                errors[index] = self.generator.refusal((*prompts[index], *shortest)) if legal else _NO_LIST
        readable = [index for index, error in enumerate(errors) if not error]
        sampling = [index for index in readable if self.actions != "score" or index not in written]
        turns = [
            _Turn(prompts[index], prefixes[index], seeds[index], None if prefixes[index].partial else pause)
            for index in sampling
        ]
        proposals, failed = [Proposal()] * len(states), set[int]()
        drawn = (await self._sample(turns, count)) if turns else ()
        for index, turn, samples in zip(sampling, turns, drawn, strict=True):
            if isinstance(samples, Failure):
                errors[index] = samples.reason
                failed.add(index)
            else:
                proposals[index] = Proposal(actions=tuple(self._whole(turn, sample) for sample in samples))
        scoring = [index for index in written if not errors[index]]
        # Of all turns of a state the same tokens are forced.
        led = [written[index][0].token_ids[: len(written[index][0].forced)] for index in scoring]
        candidates = [
            [action.token_ids[len(ids) :] for action in written[index]] for index, ids in zip(scoring, led, strict=True)
        ]
        scored_prompts = [prompts[index] + ids for index, ids in zip(scoring, led, strict=True)]
        score = partial(self.generator.score, scored_prompts, candidates, self.temperature)
        scores = await self.generator.in_background(score) if scoring else ()
        for index, scored in zip(scoring, scores, strict=True):
            if isinstance(scored, Failure):
                errors[index], proposals[index] = scored.reason, Proposal()
                failed.add(index)
            else:
                pairs = zip(written[index], scored, strict=True)
                listed = [
                    replace(action, logprobs=(0.0,) * len(action.forced) + sample.logprobs) for action, sample in pairs
                ]
                proposals[index] = self._ranked(proposals[index].actions, listed, seeds[index])
        return [
            replace(
                proposal,
                context_ids=self.chat.added_ids(reading),
                error=error,
                left_out=reading.left_out,
                failed=index in failed,
            )
            for index, (proposal, reading, error) in enumerate(zip(proposals, readings, errors, strict=True))
        ]

    async def _sample(self, turns: Sequence["_Turn"], count: int) -> list[list[Sample] | Failure]:
        """Sample the rest of each turn ``count`` times. After ``thought_tokens`` a thought is led into its call."""
        budget = self.max_new_tokens if self.thought_tokens is None else self.thought_tokens
        # The tokens of a thought beyond its budget were inserted, so they do not count.
        token_limits = [self.max_new_tokens - min(len(turn.prefix.token_ids), budget) for turn in turns]
        thinks = [not turn.prefix.partial and budget < limit for turn, limit in zip(turns, token_limits, strict=True)]
        first = [budget if thinking else limit for thinking, limit in zip(thinks, token_limits, strict=True)]
        whole = partial(self.generator.sample, self._request(turns, count, first))
        drawn = await self.generator.in_background(whole)
        samples_by_turn = [each if isinstance(each, Failure) else list(each) for each in drawn]
        indices, rests, limits = list[tuple[int, int]](), list[_Turn](), list[int]()
        for index, (turn, samples) in enumerate(zip(turns, samples_by_turn, strict=True)):
            if isinstance(samples, Failure) or not thinks[index]:
                continue
            for number, sample in enumerate(samples):
                # A shorter sample has ended by itself: at its stop token, its pause or the end of the context.
                if len(sample.token_ids) < budget or self._has_ended(turn, sample):
                    continue
                lead = self._lead_in(sample.token_ids)
                samples[number] = led = sample.followed_by(lead)
                if not self._has_ended(turn, led) and len(turn.prompt) + len(led.token_ids) < self.generator.context:
                    ids, prefix = led.token_ids, turn.prefix
                    text = prefix.content + self.chat.decode(ids)
                    begun = Message("assistant", text, (*prefix.token_ids, *ids), partial=True)
                    seed = derive_seed(turn.seed, "after the thought", number)
                    rests.append(_Turn((*turn.prompt, *ids), begun, seed, None if lead else turn.pause))
                    indices.append((index, number))
                    limits.append(token_limits[index] - budget)
        request = partial(self.generator.sample, self._request(rests, 1, limits))
        continuations = await self.generator.in_background(request) if rests else ()
        for (index, number), rest in zip(indices, continuations, strict=True):
            samples = samples_by_turn[index]
            if isinstance(rest, Failure) or isinstance(samples, Failure):
                samples_by_turn[index] = rest if isinstance(rest, Failure) else samples
            else:
                start, [more] = samples[number], rest
                samples[number] = Sample(start.token_ids + more.token_ids, start.logprobs + more.logprobs, start.forced)
        return samples_by_turn

    def _request(self, turns: Sequence["_Turn"], count: int, limits: Sequence[int]) -> SampleRequest:
        return SampleRequest(
            [turn.prompt for turn in turns],
            count,
            [turn.seed for turn in turns],
            stop_id=self.chat.stop_id,
            other_stops=self.chat.other_stops,
            max_new_tokens=limits,
            temperature=self.temperature,
            pauses=[turn.pause for turn in turns],
            form=self.form,
            turn_prefixes=[turn.prefix.token_ids for turn in turns],
        )

    def _has_ended(self, turn: "_Turn", sample: Sample) -> bool:
        if self.chat.has_ended(sample.token_ids) or turn.pause is None:
            return self.chat.has_ended(sample.token_ids)
        return turn.pause.reached((*turn.prefix.token_ids, *sample.token_ids))

    def _lead_in(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The forced tokens that lead a turn that begins with ``token_ids`` into its call; none if it has begun."""
        text, opened = self.chat.decode(token_ids), self.chat.opens_thought
        if self.grammar.begins_action(text, opened=opened):
            return ()
        lead = self.chat.encode_within(self.grammar.lead(text, opened=opened, calls=bool(self.tools)))
        return lead if self.form is None or self.form.may_follow(token_ids, lead) else ()

    def _legal_turns(self, state: State, prefix: Message) -> list[Action]:
        """A turn for each legal action, or the rest of the turn that has begun, without log-probabilities. Actions
        that the format cannot write are left out."""
        mark, written = self.grammar.mark, dict[tuple[int, ...], Action]()
        forced = () if prefix.partial else tuple(range(len(self.chat.closing)))
        for text in state.legal_actions or ():
            call = text if self.grammar.calls == "text" else as_call(text, self.tools)
            turn = self.grammar.write("", call)
            if prefix.partial:
                opened, rest = prefix.content.rpartition(mark)[2], turn.partition(mark)[2]
                if not rest.startswith(opened):
                    continue
                turn = rest[len(opened) :]
            within = (*self.chat.encode_within(turn), self.chat.stop_id)
            ids = within if prefix.partial else self.chat.encode_action(turn)
            action = self._read(prefix, Sample(ids, (), forced))
            if not action.error:
                written[ids] = replace(action, thought="")
        return list(written.values())

    def _ranked(self, sampled: Sequence[Action], scored: Sequence[Action], seed: int) -> Proposal:
        """The sampled actions, then the scored ones in the order of the draw, with their priors."""
        logprobs = np.array([action.logprob for action in scored])
        # A different seed, because the samples of this state were drawn with ``seed``.
        rng = np.random.default_rng(derive_seed(seed, "scored"))
        noise = rng.gumbel(size=len(scored)) if self.temperature else 0.0
        shares = np.exp(logprobs - logprobs.max())
        shares /= shares.sum() * (len(sampled) + 1)
        order = np.argsort(-(logprobs + noise), kind="stable").tolist()
        # The forced tokens of a scored turn come first.
        distinct = {
            action.token_ids[:end]
            for action in scored
            for end in range(len(action.forced) + 1, len(action.token_ids) + 1)
        }
        return Proposal(
            actions=(*sampled, *(scored[index] for index in order)),
            priors=(*[1 / (len(sampled) + 1)] * len(sampled), *(float(shares[index]) for index in order)),
            shared_tokens=sum(len(action.token_ids) - len(action.forced) for action in scored) - len(distinct),
        )

    def _whole(self, turn: "_Turn", sample: Sample) -> Action:
        """The action that a sample adds to a turn. A turn that was cut off makes no call."""
        action = self._read(turn.prefix, sample)
        if action.error or self._has_ended(turn, sample):
            return action
        return replace(action, call="", error=f"{TURN_CUT_OFF} {len(sample.token_ids)} tokens")

    def _read(self, prefix: Message, sample: Sample) -> Action:
        """The action that a sample adds to a turn, whose text may differ from the texts of its parts."""
        text = self.chat.decode((*prefix.token_ids, *sample.token_ids))[len(prefix.content) :]
        turn = self.grammar.read(prefix.content + text, sample.token_ids, sample.logprobs)
        turn = replace(turn, forced=sample.forced)
        return replace(turn, text=text, thought="") if prefix.partial else turn


class TextPolicy(Protocol):
    """A policy that samples turns as text, without token ids: it can be evaluated, but not learnt from."""

    @property
    def generator(self) -> Counting: ...
    @property
    def grammar(self) -> Grammar: ...
    @property
    def concurrent(self) -> bool: ...
    def greedy(self) -> "TextPolicy": ...
    def forget(self) -> None: ...
    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plugged-in ``policy.generator`` is made for: a dataclass of its settings (``policy.options``) with the
    method ``make(wanted) -> Generator | TextPolicy``."""

    checkpoint: Path
    """A folder, or a name on the model hub."""
    requests: RemoteConfig
    """The server at ``policy.url``, and the settings of requests."""
    temperature: float
    max_new_tokens: int
    structured: bool
    """Whether requests may have a ``form``."""
    scores: str
    """If ``score`` will be called, the setting with which it would not be, for error messages; else empty."""
    format: str
    preface: str
    """The user's own system message; empty if there is none."""
    told: bool
    """Whether prompts explain the format and the tools."""
    tools: Sequence[ToolSpec]
    shots: Callable[[Grammar], Sequence[Message]]
    """The demonstrations that every prompt shows, written in a format."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn to be sampled to its end; a part of it may exist already."""

    prompt: tuple[int, ...]
    prefix: Message
    """The existing part of the turn, or an empty message that is not partial."""
    seed: int
    pause: Pause | None


def _read_all(
    chat: ChatFormat, generator: Generator, states: Sequence[State]
) -> tuple[list[Reading], list[tuple[int, ...]], list[str]]:
    """For each state: its reading, its prompt, and the reason why the prompt cannot be read (empty if it can)."""
    readings = [chat.read(state.messages) for state in states]
    prompts = [chat.prompt_ids(reading.messages) for reading in readings]
    pairs = zip(readings, prompts, strict=True)
    return readings, prompts, [reading.error or generator.refusal(prompt) for reading, prompt in pairs]


@dataclass(frozen=True, slots=True)
class HeadValue:
    """V(s) from a value head on the policy's forward pass at the last token of a state. The head predicts the outcome
    of the whole episode, so the rewards paid on the way to s (``State.paid``) are subtracted."""

    generator: Generator
    chat: ChatFormat
    head: ValueHead

    @property
    def concurrent(self) -> bool:
        return self.generator.concurrent

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """V(s) of each state in reward units; the lowest return, but at most 0, if its prompt cannot be read."""
        readings, prompts, errors = _read_all(self.chat, self.generator, states)
        readable = [index for index, error in enumerate(errors) if not error]
        read_prompts = partial(self._read, [prompts[index] for index in readable])
        inputs = await self.generator.in_background(read_prompts) if readable else []
        read, failed = list[torch.Tensor](), set[int]()
        for index, each in zip(readable, inputs, strict=True):
            if isinstance(each, Failure):
                errors[index] = each.reason
                failed.add(index)
            else:
                read.append(each)
        with torch.no_grad():
            values = iter(self.head.value(torch.stack(read)).tolist() if read else ())
        unread = min(0.0, self.head.reward_range[0])
        return [
            Estimate(
                unread if error else next(values) - state.paid,
                self.chat.added_ids(reading),
                error=error,
                left_out=reading.left_out,
                failed=index in failed,
            )
            for index, (state, reading, error) in enumerate(zip(states, readings, errors, strict=True))
        ]

    def _read(self, prompts: Sequence[tuple[int, ...]]) -> list[torch.Tensor | Failure]:
        """The input of the head for each prompt, [features]."""
        if not isinstance(self.head, LogprobHead):
            assert isinstance(self.generator, LocalGenerator)
            return list(self.generator.hidden(prompts))
        candidates = [[(token,) for token in self.head.token_ids]] * len(prompts)
        return [
            scored if isinstance(scored, Failure) else torch.tensor([sample.logprobs[0] for sample in scored])
            for scored in self.generator.score(prompts, candidates)
        ]
