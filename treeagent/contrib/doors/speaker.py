"""The model behind a door: conversations become prompts of token ids, samples become answers, requests are batched."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from secrets import token_hex

from treeagent.agent.policy import LLMPolicy
from treeagent.config import RunConfig
from treeagent.contrib.doors.wire import Asked, Said, tools_key
from treeagent.contrib.traces.transcripts import TranscriptMessage
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.generators.base import Failure, Generator, Pause, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.structured import Form
from treeagent.generators.turn import Grammar, ToolCalls, make_grammar, openai_tools
from treeagent.pipeline.build import load_actors
from treeagent.pipeline.opening import for_checkpoint
from treeagent.pipeline.play import Actors
from treeagent.types import TURN_CUT_OFF, Action, Message, ToolCall, UserError

_FORMATS = 16  # sets of tools that are kept ready
_QUIET, _PATIENCE = 0.5, 4.0
"""A batch waits for the conversations of the last two, until none came for the first share of the time that the last
one took, and at most for the second."""


class Format:
    """How conversations with one set of tools are written as tokens, and how turns are read."""

    def __init__(self, policy: LLMPolicy, config: RunConfig, tools: Sequence[ToolSpec]) -> None:
        settings, tokenizer = config.policy, policy.chat.tokenizer
        self.key, self.tools = tools_key(tools), tools
        self.grammar: Grammar = make_grammar(settings.format, str(tokenizer.chat_template), tools)
        self.chat = ChatFormat(
            tokenizer,
            preface=settings.preface,
            instructions=self.grammar.instructions(tools) if tools else "",
            tools=openai_tools(tools) if self.grammar.calls == "native" else (),
            end_ids=policy.generator.end_ids,
        )
        self.form = cache(self._form)  # ``tool_choice`` "required", or the name of a tool
        self._tokens = cache(self.chat.tokens_with)
        first, later = Message("user", "1"), (Message("assistant", "2", (0,)), Message("person", "3"))
        self.is_local = self.chat.context_ids((first, *later * 3)) == self.chat.context_ids((first, *later))
        """Whether what the template writes after a turn depends on the opening, the turn and what follows it alone."""

    def _form(self, choice: str) -> Form:
        tools = [each for each in self.tools if choice in ("required", each.name)]
        return Form(self.chat, partial(self.grammar.rules, tools))

    def messages(
        self, given: Sequence[TranscriptMessage], known: Callable[[TranscriptMessage], Message | None]
    ) -> tuple[Message, ...]:
        """The conversation, with the sampled ids of the turns that are ``known``. Other turns are context."""
        messages, began = list[Message](), False
        for each in given:
            if each.role == "assistant":
                began = True
                messages.append(known(each) or self._foreign(each))
            elif each.role == "user" and began:
                messages.append(Message("person", each.content))
            else:
                messages.append(Message("system" if each.role == "system" else "user", each.content))
        return tuple(messages)

    def _foreign(self, message: TranscriptMessage) -> Message:
        """A turn that was not sampled here."""
        texts = [message.content, *(self.grammar.write("", call) for _, call in message.calls)]
        text = "\n".join(filter(None, texts))
        return Message("assistant", text, self.chat.encode_action(text))

    def pause(self, stops: Sequence[str]) -> Pause | None:
        """Ends a sample after one of the texts at which the client wants it to stop."""
        if not stops:
            return None
        tokens = frozenset[int]().union(*(self._tokens(stop[-1]) for stop in stops))
        return Pause(tokens, lambda ids: any(stop in self.chat.decode(ids) for stop in stops))

    def read(self, sample: Sample, asked: Asked, prompt_tokens: int) -> tuple[Action, Said]:
        """A sample as an action and as an answer."""
        text = self.chat.decode(sample.token_ids)
        action = self.grammar.read(text, sample.token_ids, sample.logprobs)
        thought, said = _split(text, self.chat.opens_thought)
        if not self.tools and isinstance(action.call, ToolCall):
            action = replace(action, call=said.strip())
        calls: tuple[ToolCall, ...] = (action.call,) if isinstance(action.call, ToolCall) else ()
        if self.tools and isinstance(action.call, str) and self.grammar.calls == "text" and not action.error:
            called = read_call(as_call(action.call, self.tools), self.tools)
            calls = (called,) if isinstance(called, ToolCall) else ()
        elif self.tools and action.error and isinstance(self.grammar, ToolCalls):
            calls = _several(self.grammar, said)
            action = replace(action, call=said.strip(), error="") if calls else action
        cuts = [said.find(stop) for stop in asked.stop if stop in said]
        if not self.chat.has_ended(sample.token_ids) and not cuts:
            error = f"{TURN_CUT_OFF} {len(sample.token_ids)} tokens"
            action, calls = replace(action, call="", error=action.error or error), ()
        finish = "tool_calls" if calls else "length" if action.error.startswith(TURN_CUT_OFF) else "stop"
        if not self.tools and self.grammar.calls == "text":
            said, thought = text, ""
        elif calls:
            said = said.partition(self.grammar.mark)[0]
        if cuts:
            said = said[: min(cuts)]
        named = tuple((f"call_{token_hex(12)}", call) for call in calls)
        size = len(sample.token_ids)
        return action, Said(f"chatcmpl-{token_hex(12)}", said.strip(), thought, named, finish, prompt_tokens, size)


def _split(text: str, opened: bool) -> tuple[str, str]:
    """The thought in ``<think>`` tags at the beginning of a turn, and what follows."""
    head, closed, rest = text.partition("</think>")
    if not opened and not text.lstrip().startswith("<think>"):
        return "", text
    return re.sub("^\\s*<think>", "", head).strip(), rest if closed else ""


def _several(grammar: ToolCalls, said: str) -> tuple[ToolCall, ...]:
    """The calls of a turn that makes more than one; none if one of them cannot be read."""
    pieces = said.split(grammar.mark)[1:]
    calls = [grammar.read(grammar.mark + piece.rstrip()).call for piece in pieces]
    return tuple(call for call in calls if isinstance(call, ToolCall)) if all(calls) and len(calls) > 1 else ()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A prompt that waits for its batch."""

    who: str
    prompt: tuple[int, ...]
    seed: int
    limit: int
    pause: Pause | None
    form: Form | None
    """Requests with equal ones share a batch."""
    answer: "asyncio.Future[Sample | Failure]"


def loaded(checkpoint: Path, config: RunConfig) -> tuple[RunConfig, Actors, LLMPolicy]:
    """The settings for a checkpoint, its actors and its policy."""
    config = for_checkpoint(config, checkpoint)
    actors, policy = load_actors(checkpoint, config)
    if not isinstance(policy, LLMPolicy):
        raise UserError(f"policy.generator {config.policy.generator!r} gives no token ids, which the doors want")
    return config, actors, policy


class Speaker:
    """Samples answers. Requests that come at the same time go through the generator together."""

    def __init__(self, policy: LLMPolicy, config: RunConfig) -> None:
        self.policy, self.config = policy, config
        self.generator: Generator = policy.generator
        self._formats = dict[str, Format]()
        self._queue = list[_Waiting]()
        self._runner: asyncio.Task[None] | None = None
        self._calls = set[asyncio.Task[None]]()
        self._worker = ThreadPoolExecutor(8 if self.generator.concurrent else 1, "sample")
        self._recent: list[set[str]] = [set(), set()]  # who was in the last two batches
        self._took = 0.0
        """Seconds of the last batch, or more if those before it took longer."""

    def format(self, tools: Sequence[ToolSpec]) -> Format:
        key = tools_key(tools)
        if key not in self._formats:
            if len(self._formats) >= _FORMATS:
                self._formats.clear()
            self._formats[key] = Format(self.policy, self.config, tools)
        return self._formats[key]

    def forget(self) -> None:
        """Drop the texts of earlier conversations."""
        for each in self._formats.values():
            each.chat.forget()

    async def sample(
        self, who: str, form: Format, asked: Asked, prompt: tuple[int, ...], seed: int
    ) -> Sample | Failure:
        """The model's turn after a prompt of the conversation ``who``."""
        settings = self.config.policy
        forced = asked.choice not in ("auto", "none") and bool(asked.tools)
        forced = forced and (settings.generator == "local" or settings.is_structured)
        limit = min(asked.limit or settings.max_new_tokens, settings.max_new_tokens)
        rules, answer = form.form(asked.choice) if forced else None, asyncio.get_running_loop().create_future()
        waiting = _Waiting(who, prompt, seed, limit, form.pause(asked.stop), rules, answer)
        self._queue.append(waiting)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await waiting.answer

    async def _run(self) -> None:
        while self._queue:
            if not self.generator.concurrent:
                await self._gather()
            form = self._queue[0].form
            batch = [each for each in self._queue if each.form is form]
            self._queue = [each for each in self._queue if each.form is not form]
            self._recent = [self._recent[1], {each.who for each in batch}]
            if self.generator.concurrent:
                self._calls.add(call := asyncio.create_task(self._answer(batch)))
                call.add_done_callback(self._calls.discard)
            else:
                await self._answer(batch)

    async def _gather(self) -> None:
        """Wait for requests of conversations that were answered together."""
        quiet, started = max(_QUIET * self._took, 0.004), time.monotonic()
        while len(self._queue) < len(self._recent[0] | self._recent[1]):
            before = len(self._queue)
            await asyncio.sleep(quiet)
            if len(self._queue) == before or time.monotonic() - started > _PATIENCE * self._took:
                return

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        request = SampleRequest(
            [each.prompt for each in batch],
            1,
            [each.seed for each in batch],
            stop_id=self.policy.chat.stop_id,
            other_stops=self.policy.chat.other_stops,
            max_new_tokens=[each.limit for each in batch],
            temperature=self.policy.temperature,
            pauses=[each.pause for each in batch],
            form=batch[0].form,
            turn_prefixes=[()] * len(batch),
        )
        started = time.monotonic()
        try:
            drawn = await asyncio.get_running_loop().run_in_executor(self._worker, self.generator.sample, request)
        except Exception as error:  # what the generator raises becomes the answer to each of its requests
            for each in batch:
                each.answer.set_exception(error)
            return
        self._took = max(time.monotonic() - started, self._took / 2)
        for each, samples in zip(batch, drawn, strict=True):
            each.answer.set_result(samples if isinstance(samples, Failure) else samples[0])
