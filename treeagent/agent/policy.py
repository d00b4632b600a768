"""A language model as policy and value function: for each state, it gives think/action candidates and V(s)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call
from treeagent.generators.base import Failure, Generator, Pause, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ActionSource
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
    """Whether turns are sampled, or each legal action of the state is scored as a turn without a thought."""
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

        If legal actions are scored, all are returned. P(a) is the softmax of the log-probabilities of their turns.
        """
        readings = [self.chat.read(state.messages) for state in states]
        prompts = [reading.prompt_ids for reading in readings]
        errors = [each.error or self.generator.refusal(each.prompt_ids) for each in readings]
        turns, legal = dict[int, _Turn](), dict[int, list[Action]]()
        for index, state in enumerate(states):
            last = state.messages[-1]
            prefix = last if last.partial else Message("assistant", "")
            if errors[index]:
                continue
            if self.actions == "sample" or not count or (pause and not prefix.partial):
                turns[index] = _Turn(prompts[index], prefix, seeds[index], None if prefix.partial else pause)
                continue
            possible = self._legal_turns(state, prefix)
            room = self.generator.context - len(prompts[index])
            if fitting := [action for action in possible if len(action.token_ids) <= room]:
                legal[index] = fitting
            else:
                shortest = min((action.token_ids for action in possible), key=len, default=())
                errors[index] = self.generator.refusal((*prompts[index], *shortest)) if possible else _NO_LIST
        results = dict(zip(turns, await self._sample(list(turns.values()), count), strict=True)) if turns else {}
        if legal:
            # Of all turns of a state the same first tokens are forced.
            led = {index: actions[0].token_ids[: len(actions[0].forced)] for index, actions in legal.items()}
            candidates = [[each.token_ids[len(each.forced) :] for each in actions] for actions in legal.values()]
            after = [prompts[index] + ids for index, ids in led.items()]
            score = partial(self.generator.score, after, candidates, self.temperature)
            results |= zip(legal, await self.generator.in_background(score), strict=True)
        proposals, failed = [Proposal()] * len(states), set[int]()
        for index, samples in results.items():
            if isinstance(samples, Failure):
                errors[index] = samples.reason
                failed.add(index)
            elif index in turns:
                proposals[index] = Proposal(actions=tuple(self._read(turns[index], sample) for sample in samples))
            else:
                pairs = zip(legal[index], samples, strict=True)
                known = [replace(each, logprobs=(0.0,) * len(each.forced) + one.logprobs) for each, one in pairs]
                proposals[index] = self._ranked(known, seeds[index])
        return [
            replace(
                proposal,
                context_ids=reading.added_ids,
                error=error,
                left_out=reading.left_out,
                failed=index in failed,
            )
            for index, (proposal, reading, error) in enumerate(zip(proposals, readings, errors, strict=True))
        ]

    async def _sample(self, turns: Sequence["_Turn"], count: int) -> list[Sequence[Sample] | Failure]:
        """Sample the rest of each turn ``count`` times. After ``thought_tokens`` a thought is led into its call."""
        budget = self.max_new_tokens if self.thought_tokens is None else self.thought_tokens
        # The tokens of a thought beyond its budget were inserted, so they do not count.
        limits = [self.max_new_tokens - min(len(turn.prefix.token_ids), budget) for turn in turns]
        thinks = [not turn.prefix.partial and budget < limit for turn, limit in zip(turns, limits, strict=True)]
        first = [budget if thinking else limit for thinking, limit in zip(thinks, limits, strict=True)]
        drawn = await self._generate(turns, count, first)
        begun = list[tuple[int, int, _Turn]]()
        for index, (turn, samples) in enumerate(zip(turns, drawn, strict=True)):
            if isinstance(samples, Failure) or not thinks[index]:
                continue
            for number, sample in enumerate(samples):
                # A shorter sample has ended by itself: at its stop token, its pause or the end of the context.
                if len(sample.token_ids) < budget or self._has_ended(turn, sample):
                    continue
                lead = self._lead_in(sample.token_ids)
                ids = sample.token_ids + lead
                led = Sample(ids, sample.logprobs + (0.0,) * len(lead), tuple(range(budget, len(ids))))
                samples[number] = led
                if not self._has_ended(turn, led) and len(turn.prompt) + len(ids) < self.generator.context:
                    prefix = Message("assistant", self.chat.decode(ids), ids, partial=True)
                    seed = derive_seed(turn.seed, "after the thought", number)
                    rest = _Turn((*turn.prompt, *ids), prefix, seed, None if lead else turn.pause)
                    begun.append((index, number, rest))
        rests = [rest for _, _, rest in begun]
        more = await self._generate(rests, 1, [limits[index] - budget for index, _, _ in begun]) if begun else ()
        for (index, number, _), end in zip(begun, more, strict=True):
            samples = drawn[index]
            if isinstance(end, Failure):
                drawn[index] = end
            elif not isinstance(samples, Failure):
                start = samples[number]
                ids, logprobs = start.token_ids + end[0].token_ids, start.logprobs + end[0].logprobs
                samples[number] = Sample(ids, logprobs, start.forced)
        return [*drawn]

    async def _generate(
        self, turns: Sequence["_Turn"], count: int, limits: Sequence[int]
    ) -> list[list[Sample] | Failure]:
        request = SampleRequest(
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
        drawn = await self.generator.in_background(partial(self.generator.sample, request))
        return [each if isinstance(each, Failure) else list(each) for each in drawn]

    def _has_ended(self, turn: "_Turn", sample: Sample) -> bool:
        if self.chat.has_ended(sample.token_ids):
            return True
        return turn.pause is not None and turn.pause.reached((*turn.prefix.token_ids, *sample.token_ids))

    def _lead_in(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The forced tokens that lead a turn that begins with ``token_ids`` into its call; none if it has begun."""
        text, opened = self.chat.decode(token_ids), self.chat.opens_thought
        if self.grammar.begins_action(text, opened=opened):
            return ()
        lead = self.chat.encode_within(self.grammar.lead(text, opened=opened, calls=bool(self.tools)))
        return lead if self.form is None or self.form.may_follow(token_ids, lead) else ()

    def _legal_turns(self, state: State, prefix: Message) -> list[Action]:
        """A turn for each legal action that the format can write, or the rest of the turn that has begun, without
        log-probabilities."""
        mark, written = self.grammar.mark, dict[tuple[int, ...], Action]()
        whole = _Turn((), prefix, 0, None)
        for text in state.legal_actions or ():
            turn = self.grammar.write("", text if self.grammar.calls == "text" else as_call(text, self.tools))
            forced = tuple(range(len(self.chat.closing)))
            if prefix.partial:
                opened, rest = prefix.content.rpartition(mark)[2], turn.partition(mark)[2]
                if not rest.startswith(opened):
                    continue
                ids, forced = (*self.chat.encode_within(rest[len(opened) :]), self.chat.stop_id), ()
            else:
                ids = self.chat.encode_action(turn)
            action = self._read(whole, Sample(ids, (), forced))
            if not action.error:
                written[ids] = replace(action, thought="")
        return list(written.values())

    def _ranked(self, scored: Sequence[Action], seed: int) -> Proposal:
        """The scored actions with their priors, in the order of a draw without replacement (Gumbel-top-k, Kool et al.
        2019), or of P at temperature 0."""
        logprobs = np.array([action.logprob for action in scored])
        noise = np.random.default_rng(derive_seed(seed, "scored")).gumbel(size=len(scored)) if self.temperature else 0.0
        shares = np.exp(logprobs - logprobs.max())
        shares /= shares.sum()
        order = np.argsort(-(logprobs + noise), kind="stable").tolist()
        sampled = [action.token_ids[len(action.forced) :] for action in scored]
        distinct = {ids[: end + 1] for ids in sampled for end in range(len(ids))}
        return Proposal(
            actions=tuple(scored[index] for index in order),
            priors=tuple(float(shares[index]) for index in order),
            shared_tokens=sum(map(len, sampled)) - len(distinct),
        )

    def _read(self, turn: "_Turn", sample: Sample) -> Action:
        """The action that a sample adds to a turn, whose text may differ from the texts of its parts. A turn that was
        cut off makes no call."""
        begun = turn.prefix
        text = self.chat.decode((*begun.token_ids, *sample.token_ids))[len(begun.content) :]
        action = self.grammar.read(begun.content + text, sample.token_ids, sample.logprobs)
        action = replace(action, forced=sample.forced)
        if begun.partial:
            action = replace(action, text=text, thought="")
        if action.error or self._has_ended(turn, sample):
            return action
        return replace(action, call="", error=f"{TURN_CUT_OFF} {len(sample.token_ids)} tokens")


class TextPolicy(Protocol):
    """A policy that samples turns as text, without token ids: it can be evaluated, but not learnt from."""

    @property
    def generator(self) -> Any: ...
    @property
    def grammar(self) -> Grammar: ...
    @property
    def concurrent(self) -> bool: ...
    def greedy(self) -> "TextPolicy": ...
    def forget(self) -> None: ...
    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]: ...


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn to be sampled to its end; a part of it may exist already."""

    prompt: tuple[int, ...]
    prefix: Message
    """The existing part of the turn, or an empty message that is not partial."""
    seed: int
    pause: Pause | None


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
        readings = [self.chat.read(state.messages) for state in states]
        errors = [each.error or self.generator.refusal(each.prompt_ids) for each in readings]
        readable = [index for index, error in enumerate(errors) if not error]
        read_prompts = partial(self._read, [readings[index].prompt_ids for index in readable])
        inputs = await self.generator.in_background(read_prompts) if readable else []
        read, failed, values = dict[int, torch.Tensor](), set[int](), dict[int, float]()
        for index, each in zip(readable, inputs, strict=True):
            if isinstance(each, Failure):
                errors[index] = each.reason
                failed.add(index)
            else:
                read[index] = each
        if read:
            with torch.no_grad():
                values = dict(zip(read, self.head.value(torch.stack([*read.values()])).tolist(), strict=True))
        unread = min(0.0, self.head.reward_range[0])
        return [
            Estimate(
                values[index] - state.paid if index in values else unread,
                reading.added_ids,
                error=errors[index],
                left_out=reading.left_out,
                failed=index in failed,
            )
            for index, (state, reading) in enumerate(zip(states, readings, strict=True))
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
