"""Adapters from an OpenEnv server to an environment, and from an environment to an OpenEnv server with snapshots."""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NamedTuple

from treeagent.contrib.worlds.adapters import required, seeded_tasks
from treeagent.envs.base import Env, SnapshotKind, SnapshotLost, StepResult, ToolSpec, opening, task_to_play
from treeagent.envs.calls import as_call
from treeagent.envs.worker import EnvCrashed, EnvTimeout
from treeagent.types import Split, Task, ToolCall, UserError

Observed = Mapping[str, Any]
"""An observation as the server sends it."""


def call_as_action(call: str | ToolCall) -> Mapping[str, Any]:
    """Return a call in the form that servers of ``to_openenv`` accept."""
    return {"call": call} if isinstance(call, str) else {"tool": call.name, "arguments": dict(call.arguments)}


def observed_text(observation: Observed) -> str:
    """Return the ``text`` of an observation; without one, its fields as JSON, except ``done``, ``reward`` and
    ``metadata``."""
    if isinstance(observation.get("text"), str):
        return str(observation["text"])
    envelope = ("done", "reward", "metadata")
    return json.dumps({key: each for key, each in observation.items() if key not in envelope}, sort_keys=True)


class OpenEnvEnv(Env):
    """An OpenEnv server, over WebSocket. Tasks are seeds; each split has every third seed.

    OpenEnv has no snapshots, so episodes are replayed. A server of ``to_openenv`` adds snapshots if its environment has
    exact ones. It keeps them for this session only, and each only as long as it is referenced in this process.

    Args:
        address: address of the server.
        name: prefix of the task ids.
        prompt: the instruction of every task.
        act: call → the action to send to the server.
        render: observation → the text that the agent reads.
        success: (last observation, its reward) → whether a finished episode is a success.
        tools: the tools that a ``ToolCall`` can name.
        seconds: time limit of each request.

    Raises:
        UserError: the extra is not installed, or the server does not answer.
        EnvCrashed: the server failed or has ended; the next ``reset`` connects again.
        EnvTimeout: a request took longer than ``seconds``.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        prompt: str,
        act: Callable[[str | ToolCall], Mapping[str, Any]] = call_as_action,
        render: Callable[[Observed], str] = observed_text,
        success: Callable[[Observed, float], bool] = lambda observation, reward: reward > 0,
        tools: Sequence[ToolSpec] = (),
        seconds: float = 60.0,
    ) -> None:
        required("openenv")
        self._address, self._name, self._prompt, self._seconds = address, name, prompt, seconds
        self._act, self._render, self._success, self._tools = act, render, success, tools
        self._client: Any = None
        self._last: _Answer | None = None
        try:
            about = self._open_client().state()
        except Exception as error:  # connecting to an unknown server may raise anything
            self.close()
            raise UserError(f"the OpenEnv server {address} does not answer ({error}): start it first") from error
        self.snapshot_kind: SnapshotKind = "exact" if about.get("snapshot_kind") == "exact" else "replay"
        self.stochastic = bool(about.get("stochastic", False))
        self.only_success_ends = bool(about.get("only_success_ends", False))
        self.snapshot_portable = False
        """False, since a snapshot is a number that is valid only in one session with the server."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self._last = self._request("reset", seed=task.seed)
        return self._render(self._last.observation), {}

    def step(self, action: str | ToolCall) -> StepResult:
        over = "the episode is over"
        if self._last_answer().done:
            return over, 0.0, True, False, {"tool_error": over}
        try:
            observation, reward, done = self._last = self._request("step", dict(self._act(action)))
        except _Misfit as misfit:
            return str(misfit), 0.0, False, False, {"tool_error": str(misfit)}
        truncated = bool(observation.get("truncated", False))
        error = observation.get("tool_error")
        info = {"tool_error": error} if error else {}
        return self._render(observation), reward, done and not truncated, truncated, info

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return seeded_tasks(self._name, self._prompt, split, count, start)

    def verify(self) -> float | None:
        """Return the verdict that a server of ``to_openenv`` sends, or None if its environment has no verifier. For
        other servers, return 1 if the episode has ended in success, otherwise 0."""
        observation, reward, done = self._last_answer()
        if observation.get("verifies") is False:
            return None
        verdict = observation.get("verdict")
        return float(verdict) if verdict is not None else float(done and self._success(observation, reward))

    def snapshot(self) -> object:
        last, released = self._last_answer(), [self._released.pop() for _ in range(len(self._released))]
        answer = self._request("step", {"verb": "snapshot", "released": released})
        result = _Place(answer.observation["snapshot"], last, self._client)
        # Only recorded here: garbage collection may happen in the middle of another request.
        weakref.finalize(result, self._released.append, result.number).atexit = False
        return result

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """Restore a snapshot as ``Env.restore`` does.

        Raises:
            SnapshotLost: the snapshot belongs to another session, or the server no longer has it.
        """
        assert isinstance(snapshot, _Place)
        if snapshot.client is not self._client:
            raise SnapshotLost(f"the snapshot of {self._name} is of another session with the server")
        answer = self._request("step", {"verb": "restore", "snapshot": snapshot.number, "reseed": reseed})
        if answer.observation.get("tool_error"):
            raise SnapshotLost(str(answer.observation["tool_error"]))
        self._last = snapshot.last

    def state_key(self) -> str | None:
        key: str | None = self._last_answer().observation.get("state_key")
        return key

    def close(self) -> None:
        """End the session."""
        client, self._client, self._last = self._client, None, None
        if client is not None:
            client.close()

    def _open_client(self) -> Any:
        if self._client is None:
            from openenv.core import GenericEnvClient

            self._client = GenericEnvClient(base_url=self._address, message_timeout_s=self._seconds).sync()
            self._released: list[int] = []
            """Numbers of snapshots that are no longer referenced. The next request for a snapshot tells the server to
            delete them."""
        return self._client

    def _last_answer(self) -> "_Answer":
        if self._last is None:
            raise ValueError("no episode has begun: call reset first")
        return self._last

    def _request(self, method: str, *arguments: object, **keywords: object) -> "_Answer":
        """Send a request and return the server's answer.

        Raises:
            _Misfit: the server does not accept the form of the action.
        """
        try:
            answer = getattr(self._open_client(), method)(*arguments, **keywords)
        except TimeoutError:
            self.close()
            raise EnvTimeout(f"{method} of {self._name} took longer than {self._seconds:g} seconds") from None
        except Exception as error:  # a request to an unknown server may raise anything
            if method == "step" and "VALIDATION_ERROR" in str(error):
                raise _Misfit(str(error)) from None
            self.close()
            raise EnvCrashed(f"{method} of {self._name} failed, and with it the episode: {error}") from error
        return _Answer(answer.observation, float(answer.reward or 0.0), bool(answer.done))


class _Misfit(Exception):
    """The server rejected the form of the action."""


class _Answer(NamedTuple):
    observation: Observed
    reward: float
    done: bool


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Place:
    number: int
    last: _Answer
    client: object


from_openenv = OpenEnvEnv
"""Alias, named like the functions of the other adapters."""


def to_openenv(make: Callable[[], Env], *, sessions: int = 16) -> Any:
    """Return a FastAPI application that serves environments over OpenEnv; run it with uvicorn.

    ``reset(seed)`` starts training task number ``seed``; ``split`` and ``index`` choose another task. The first
    observation contains the task's prompt. An action is
    ``{"call": text}`` or ``{"tool": name, "arguments": {…}}``. Snapshots, which OpenEnv lacks, are actions with a verb.
    ``{"verb": "snapshot"}`` returns a number. ``{"verb": "restore", "snapshot": number, "reseed": seed}`` returns to
    that snapshot, or returns a ``tool_error`` if there is no such snapshot. A session keeps its snapshots, also across
    resets, until ``{"verb": "snapshot", "released": [number, …]}`` releases them.

    Args:
        make: creates an environment; each session has its own.
        sessions: most sessions at the same time.
    """
    required("openenv")
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from pydantic import Field

    class EnvAction(Action):  # type: ignore[misc]
        verb: Literal["step", "snapshot", "restore"] = "step"
        call: str = ""
        tool: str | None = None
        arguments: dict[str, Any] = Field(default_factory=dict)
        snapshot: int | None = None
        reseed: int | None = None
        released: list[int] = Field(default_factory=list)

    class EnvObservation(Observation):  # type: ignore[misc]
        text: str = ""
        truncated: bool = False
        tool_error: str | None = None
        verdict: float | None = None
        verifies: bool = True
        state_key: str | None = None
        snapshot: int | None = None

    class Served(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

        def __init__(self) -> None:
            super().__init__()
            self.env, self.steps = make(), 0
            self.verifies = False
            self.snapshots: dict[int, object] = {}
            self.numbers = count()

        def reset(self, seed: int | None = None, split: Split | None = None, index: int = 0, **_: Any) -> Any:
            options = {"task": self.env.tasks(split, 1, index)[0]} if split is not None else None
            task = task_to_play(self.env, seed, options)
            observation, _ = self.env.reset(seed=task.seed, options={"task": task})
            self.steps, self.verifies = 0, self.env.verify() is not None
            return EnvObservation(
                text=opening(task, observation), verifies=self.verifies, state_key=self.env.state_key()
            )

        def step(self, action: Any, **_: Any) -> Any:
            if action.verb == "snapshot":
                for number in action.released:
                    self.snapshots.pop(number, None)
                number = next(self.numbers)
                self.snapshots[number] = self.env.snapshot()
                return EnvObservation(snapshot=number)
            if action.verb == "restore":
                if action.snapshot not in self.snapshots:
                    return EnvObservation(tool_error=f"snapshot {action.snapshot} is unknown: it is of another session")
                self.env.restore(self.snapshots[action.snapshot], reseed=action.reseed)
                return EnvObservation(state_key=self.env.state_key())
            call = ToolCall(action.tool, action.arguments) if action.tool is not None else action.call
            text, reward, terminated, truncated, info = self.env.step(as_call(call, self.env.tools()))
            self.steps += 1
            return EnvObservation(
                text=text,
                reward=reward,
                done=terminated or truncated,
                truncated=truncated,
                tool_error=str(info["tool_error"]) if "tool_error" in info else None,
                verdict=self.env.verify() if terminated else None,
                verifies=self.verifies,
                state_key=self.env.state_key(),
            )

        @property
        def state(self) -> Any:
            return State(
                step_count=self.steps,
                snapshot_kind=self.env.snapshot_kind,
                stochastic=self.env.stochastic,
                only_success_ends=self.env.only_success_ends,
            )

        def close(self) -> None:
            self.env.close()

    return create_fastapi_app(Served, EnvAction, EnvObservation, max_concurrent_envs=sessions)
