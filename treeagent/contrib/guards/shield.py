"""Limits on an agent's calls and observations: forbidden calls never reach the environment, and the bytes of
observations are bounded."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.guards.approval import Approve, Request, ask, history_key
from treeagent.envs.answers import checked_key, checked_legal, checked_reset, checked_step, checked_verdict
from treeagent.envs.base import Demonstrator, Env, StepResult, ToolSpec
from treeagent.envs.calls import arguments_of, as_call, read_call
from treeagent.envs.make import imported
from treeagent.types import REACHES_OUT, Split, Task, ToolCall, UserError, only_text

FORBIDDEN = "Forbidden call: "
"""First words of the observation after a forbidden call."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Shield:
    """Which calls are forbidden, and how much each of them costs."""

    deny: tuple[str, ...] = ()
    """Regular expressions for forbidden calls, case-insensitive. They are searched in the call written as
    ``tool[argument, argument]`` with each argument as plain text, and in the action as the agent wrote it."""
    predicate: Annotated[str, REACHES_OUT] = ""
    """A function of yours, "module:function", that takes a call and returns the reason why it is forbidden, or None.
    It gets a ``ToolCall`` for a well-formed tool call, and otherwise the text."""
    penalty: Annotated[float, Field(ge=0)] = 0.0
    """Cost of each forbidden call, in units of reward. It lowers the outcome (a verifier's verdict not below 0)."""


@dataclass(frozen=True, slots=True)
class _EpisodeState:
    """What an episode has used so far."""

    forbidden: int = 0
    """Number of forbidden calls."""
    read: int = 0
    """Bytes of observations."""
    terminated: bool = False
    calls: tuple[str, ...] = ()
    """The calls made so far. Like the next two fields, kept only if some calls need approval."""
    task: Task | None = None
    observation: str = ""


class ShieldedEnv(Env):
    """A wrapper of ``env`` that refuses forbidden calls and limits the bytes of observations.

    A forbidden call never reaches ``env``. The agent gets an observation with the reason, which is also in
    ``info["tool_error"]``. This holds for search, replay, demonstrator and evaluation, and also if ``env`` runs in
    another process.

    Args:
        env: the environment; nothing else may step it.
        shield: which calls are forbidden.
        observation_bytes: most bytes of an observation, in UTF-8; the rest is cut, and a note says how many bytes.
        episode_bytes: bytes of all observations together beyond which the episode is truncated.
        approve: which calls wait for a person's approval.

    Raises:
        UserError: a pattern is not a valid regular expression, the predicate cannot be imported, or a folder is
            missing.
    """

    def __init__(
        self,
        env: Env,
        shield: Shield | None = None,
        *,
        observation_bytes: int | None = None,
        episode_bytes: int | None = None,
        approve: Approve | None = None,
    ) -> None:
        self._env, self._shield = env, shield or Shield()
        self._observation_bytes, self._episode_bytes = observation_bytes, episode_bytes
        self._denied = [(_compiled(each, "shield.deny"), f"it matches {each!r}") for each in self._shield.deny]
        self._predicate = _imported(self._shield.predicate)
        self._approve = approve or Approve()
        self._needs_approval = [_compiled(each, "approve.calls") for each in self._approve.calls]
        if self._needs_approval and not self._approve.folder:
            raise UserError("environment.approve.calls wants a folder for the requests: set environment.approve.folder")
        self._tools = env.tools() if self._denied or self._predicate or self._needs_approval else ()
        self._episode = _EpisodeState()
        self.snapshot_kind, self.stochastic = env.snapshot_kind, env.stochastic
        self.snapshot_portable, self.origin = env.snapshot_portable, env.origin
        self.only_success_ends = env.only_success_ends

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        observation, info = checked_reset(self._env.reset(seed=seed, options=options))
        task = (options or {}).get("task")
        self._episode = _EpisodeState(task=task if self._needs_approval and isinstance(task, Task) else None)
        return self._read(observation), info

    def step(self, action: str | ToolCall) -> StepResult:
        reason = self.forbidden(action)
        if reason is None and self._needs_approval:
            reason = self._disapproved(action)
        if reason is not None:
            return self._refuse(reason)
        observation, reward, terminated, truncated, info = checked_step(self._env.step(action))
        self._episode = replace(self._episode, terminated=terminated)
        if self._needs_approval:
            self._episode = replace(self._episode, calls=(*self._episode.calls, format_named(action)))
        return self._read(observation), reward, terminated, truncated or self._full(), info

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._env.tasks(split, count, start)

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        return self._env.variations(task, rng)

    def tools(self) -> Sequence[ToolSpec]:
        return self._env.tools()

    def legal_actions(self) -> list[str] | None:
        """Return the environment's legal actions without forbidden ones. If all are forbidden, return all; the shield
        refuses them when they are tried."""
        legal = checked_legal(self._env.legal_actions())
        if legal is None:
            return None
        return [each for each in legal if self.forbidden(each) is None] or list(legal)

    def verify(self) -> float | None:
        """Return the environment's verdict minus the penalties, but not below 0 unless the verdict itself is."""
        verdict, cost = checked_verdict(self._env.verify()), self._shield.penalty * self._episode.forbidden
        return verdict if verdict is None else max(verdict - cost, min(verdict, 0.0))

    def reference(self) -> Sequence[str | ToolCall] | None:
        return self._env.reference()

    def snapshot(self) -> object:
        return self._env.snapshot(), self._episode

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        inner_snapshot, episode = snapshot
        self._env.restore(inner_snapshot, reseed=reseed)
        self._episode = episode

    def state_key(self) -> str | None:
        """Return the environment's key, preceded by the forbidden calls and the bytes read so far, as far as these
        influence the rest of the episode."""
        key, episode = self._env.state_key(), self._episode
        used = (episode.forbidden if self._shield.penalty else 0, episode.read if self._episode_bytes else 0)
        return None if key is None else f"{used[0]}/{used[1]} {key}"

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return self._env.demonstrator(noise)

    def close(self) -> None:
        self._env.close()

    def interrupt(self) -> None:
        self._env.interrupt()

    def forbidden(self, action: str | ToolCall) -> str | None:
        """Return why the call is forbidden, or None if it is allowed."""
        if not self._denied and self._predicate is None:
            return None
        call, texts = self._call_and_texts(action)
        for pattern, why in self._denied:
            if any(map(pattern.search, texts)):
                return why
        reason = self._predicate(call) if self._predicate is not None else None
        if reason is not None and not isinstance(reason, str):
            raise UserError(
                f"shield.predicate {self._shield.predicate!r} returned {reason!r:.80}: give a reason in words or None"
            )
        return reason

    def _call_and_texts(self, action: str | ToolCall) -> tuple[str | ToolCall, set[str]]:
        """Return the call that an action makes, its arguments in the order of the schema, and all texts to match the
        patterns against. If the only tool takes one text, that text alone makes the call, and is matched, too."""
        read = read_call(as_call(action, self._tools), self._tools) if self._tools else action
        call = self._in_order(read if isinstance(read, ToolCall) else action)
        texts = {each for written in (action, call) for each in _call_formats(written)}
        argument = only_text([tool.parameters for tool in self._tools])
        if isinstance(call, ToolCall) and argument in call.arguments:
            texts.add(str(call.arguments[argument]))
        return call, texts | set(map(_without_spare_blanks, texts))

    def _in_order(self, call: str | ToolCall) -> str | ToolCall:
        """Return a call with its arguments in the order in which a text in brackets holds them (``calls``)."""
        tool = next((tool for tool in self._tools if isinstance(call, ToolCall) and tool.name == call.name), None)
        if tool is None or isinstance(call, str):
            return call
        schemas, required = arguments_of(tool)
        order = [key for key in (*required, *schemas) if key in call.arguments]
        return replace(call, arguments={key: call.arguments[key] for key in (*order, *call.arguments)})

    def _disapproved(self, action: str | ToolCall) -> str | None:
        """Wait for a person's approval if the call needs it. Returns why it must not be made, or None if it may."""
        call, texts = self._call_and_texts(action)
        if not any(pattern.search(text) for pattern in self._needs_approval for text in texts):
            return None
        episode = self._episode
        key = checked_key(self._env.state_key())
        state_key = history_key(episode.calls) if key is None else key
        task = ("", "") if episode.task is None else (episode.task.id, episode.task.prompt)
        # As JSON, because without the arguments' names two different calls can look the same.
        request = Request(*task, state_key, episode.observation, format_named(call))
        return ask(Path(self._approve.folder), request, self._approve.seconds)

    def _refuse(self, reason: str) -> StepResult:
        self._episode = replace(self._episode, forbidden=self._episode.forbidden + 1)
        cost = 0.0 - self._shield.penalty
        observation = self._read(FORBIDDEN + reason)
        info: dict[str, object] = {"tool_error": observation}
        return observation, cost, self._episode.terminated, self._full(), info

    def _read(self, observation: str) -> str:
        """Return an observation as the agent reads it, cut if it is too long, and count its bytes."""
        content, limit = observation.encode(), self._observation_bytes
        if limit is not None and len(content) > limit:
            text = content[:limit].decode(errors="ignore")
            observation = f"{text}\n[{len(content) - len(text.encode())} more bytes cut]"
        self._episode = replace(self._episode, read=self._episode.read + len(observation.encode()))
        if self._needs_approval:
            self._episode = replace(self._episode, observation=observation)
        return observation

    def _full(self) -> bool:
        """Whether the episode has used more than its budget of bytes. Always False once the task is over."""
        episode = self._episode
        return self._episode_bytes is not None and episode.read > self._episode_bytes and not episode.terminated


def _compiled(pattern: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)  # DOTALL, so that a line break cannot hide a call
    except re.error as error:
        raise UserError(f"{key} holds {pattern!r}, which is no regular expression: {error}") from error


def _imported(predicate: str) -> Callable[[str | ToolCall], object] | None:
    if not predicate:
        return None
    found: object = imported(predicate, "shield.predicate")
    if not callable(found):
        raise UserError(f"shield.predicate {predicate!r} is a {type(found).__name__}: name a function")
    return found


def format_call(call: str | ToolCall) -> str:
    """Return a call in the form that ``Shield.deny`` matches: ``tool[argument, argument]``, or the text itself."""
    return _call_formats(call)[0]


def format_named(call: str | ToolCall) -> str:
    """Return a call with the names of its arguments: ``tool {"argument": value}``, or the text itself."""
    return _call_formats(call)[-1]


def _call_formats(call: str | ToolCall) -> tuple[str, ...]:
    """Return a call written as text in both ways: with its arguments in brackets, and as JSON."""
    if isinstance(call, str):
        return (call,)
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
    return f"{call.name}[{', '.join(_texts(call.arguments))}]", f"{call.name} {arguments}"


def _without_spare_blanks(text: str) -> str:
    """Return a call as most environments read it: several blanks count as one, and those next to a bracket as none."""
    return re.sub(r" ?([\[\]]) ?", r"\1", " ".join(text.split()))


def _texts(value: object) -> Iterator[str]:
    """Yield all values of an argument as plain text, including nested ones."""
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case _:
            yield str(value)
