"""Any OpenEnv server as an environment, and any of ours as an OpenEnv server that can also take snapshots."""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from treeagent.envs.adapters import required
from treeagent.envs.base import Env, SnapshotKind, SnapshotLost, StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import as_call
from treeagent.envs.forks import checked_reset, checked_step
from treeagent.envs.worker import EnvCrashed, EnvTimeout
from treeagent.types import Split, Task, ToolCall, UserError

Observed = Mapping[str, Any]
"""An observation as it comes over the wire."""

_BUCKETS: Mapping[Split, int] = {"train": 0, "validation": 1, "test": 2}


def call_as_action(call: str | ToolCall) -> Mapping[str, Any]:
    """A call as servers of ``to_openenv`` take it."""
    if isinstance(call, str):
        return {"call": call}
    return {"tool": call.name, "arguments": dict(call.arguments)}


def observed_text(observation: Observed) -> str:
    """The ``text`` of an observation, or all of it in JSON, but for what is not for the agent."""
    text = observation.get("text")
    if isinstance(text, str):
        return text
    apart = ("done", "reward", "metadata")
    return json.dumps({key: each for key, each in observation.items() if key not in apart}, sort_keys=True)


class OpenEnvEnv(Env):
    """An OpenEnv server, over WebSocket. Tasks are seeds: train has every third, and so have validation and test.

    OpenEnv has no snapshots, so episodes are replayed; a server of ``to_openenv`` takes them where its environment can,
    and keeps them for this session alone, each as long as somebody here holds it.

    Args:
        connect: the server's address, or what makes a client of it, as ``from_docker_image`` does.
        name: what task ids begin with.
        prompt: the instruction of every task.
        act: call → the action that the server takes.
        render: observation → what the agent reads.
        success: (last observation, its reward) → whether an episode that is done is a success.
        tools: that a ``ToolCall`` can name.
        seconds: limit of each request.

    Raises:
        UserError: the extra is not installed, or the server does not answer.
        EnvCrashed: the server failed or is gone; the next ``reset`` connects anew.
        EnvTimeout: a request took longer than ``seconds``.
    """

    def __init__(
        self,
        connect: str | Callable[[], Any],
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
        self._connect, self._name, self._prompt, self._seconds = connect, name, prompt, seconds
        self._act, self._render, self._success, self._tools = act, render, success, tools
        self._client: Any = None
        self._released: list[int] = []
        """Snapshots of the session that are no longer referenced; the server drops them when it takes the next one."""
        self._last: tuple[Observed, float, bool] | None = None
        try:
            about = _plain(self._started().state())
        except Exception as error:  # whatever a stranger's server or its start raises
            self.close()
            raise UserError(f"the OpenEnv server {connect} does not answer ({error}): start it first") from error
        exact = about.get("snapshot_kind") == "exact"
        self.snapshot_kind: SnapshotKind = "exact" if exact else "replay"
        self.stochastic = bool(about.get("stochastic", False))
        self.snapshot_portable = False
        """A snapshot is a number in the server's session."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        observation, _, _ = self._asked("reset", lambda client: client.reset(seed=task.seed))
        return self._render(observation), {}

    def step(self, action: str | ToolCall) -> StepResult:
        _, _, over = self._here()
        error = "the episode is over"
        if not over:
            try:
                observation, reward, done = self._asked("step", lambda client: client.step(dict(self._act(action))))
            except _Misfit as misfit:
                error = str(misfit)
            else:
                truncated = bool(observation.get("truncated", False))
                info: dict[str, object] = {}
                if observation.get("tool_error"):
                    info["tool_error"] = observation["tool_error"]
                return self._render(observation), reward, done and not truncated, truncated, info
        return error, 0.0, over, False, {"tool_error": error}

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [
            Task(f"{self._name}-{split}-{index}", self._prompt, split, 3 * index + _BUCKETS[split])
            for index in range(start, start + count)
        ]

    def verify(self) -> float:
        """The verdict that a server of ``to_openenv`` sends; of another, 1 for an episode that has ended in success."""
        observation, reward, done = self._here()
        verdict = observation.get("verdict")
        return float(verdict) if verdict is not None else float(done and self._success(observation, reward))

    def snapshot(self) -> object:
        last = self._here()
        released = [self._released.pop() for _ in range(len(self._released))]
        action = {"verb": "snapshot", "released": released}
        observation, _, _ = self._asked("snapshot", lambda client: client.step(action))
        self._last = last
        place = _Place(observation["snapshot"], last, self._client)
        # Only noted: a collection may happen in the middle of another request.
        weakref.finalize(place, self._released.append, place.number).atexit = False
        return place

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """As ``Env.restore``.

        Raises:
            SnapshotLost: the snapshot is of another session, or the server does not have it any more.
        """
        if not isinstance(snapshot, _Place):
            raise UserError(f"a {type(snapshot).__name__} is no snapshot of {self._name}: restore what snapshot() gave")
        if snapshot.client is not self._client:
            raise SnapshotLost(f"the snapshot of {self._name} is of another session with the server")
        last = self._last
        action = {"verb": "restore", "snapshot": snapshot.number, "reseed": reseed}
        observation, _, _ = self._asked("restore", lambda client: client.step(action))
        if observation.get("tool_error"):
            self._last = last
            raise SnapshotLost(str(observation["tool_error"]))
        self._last = snapshot.last

    def state_key(self) -> str | None:
        key = self._here()[0].get("state_key")
        return key if isinstance(key, str) else None

    def close(self) -> None:
        """End the session."""
        client, self._client, self._last = self._client, None, None
        if client is not None:
            client.close()

    def _started(self) -> Any:
        if self._client is None:
            from openenv.core import GenericEnvClient

            if isinstance(self._connect, str):
                client = GenericEnvClient(base_url=self._connect, message_timeout_s=self._seconds)
            else:
                client = self._connect()
            self._client = client.sync() if hasattr(client, "sync") else client
            self._released = []  # what is released later of the last session goes to the list of that one
        return self._client

    def _here(self) -> tuple[Observed, float, bool]:
        if self._last is None:
            raise ValueError("no episode has begun: call reset first")
        return self._last

    def _asked(self, what: str, request: Callable[[Any], Any]) -> tuple[Observed, float, bool]:
        """(observation, reward, done) of a request.

        Raises:
            _Misfit: the action is not of the form that the server takes.
        """
        try:
            result = request(self._started())
        except TimeoutError:
            self.close()
            raise EnvTimeout(f"{what} of {self._name} took longer than {self._seconds:g} seconds") from None
        except Exception as error:  # whatever a stranger's server raises
            if what == "step" and "VALIDATION_ERROR" in str(error):
                raise _Misfit(str(error)) from None
            self.close()
            raise EnvCrashed(f"{what} of {self._name} failed, and with it the episode: {error}") from error
        self._last = _plain(result.observation), float(result.reward or 0.0), bool(result.done)
        return self._last


class _Misfit(Exception):
    """The server does not take the action."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Place:
    number: int
    last: tuple[Observed, float, bool]
    client: object


from_openenv = OpenEnvEnv
"""An OpenEnv server as ours, by the name that the adapters have in common."""


def to_openenv(make: Callable[[], Env], *, sessions: int = 16) -> Any:
    """A FastAPI application that serves environments over OpenEnv, for uvicorn to run.

    ``reset(seed)`` plays training task number ``seed``, or with ``split`` and ``index`` the task there. An action is
    ``{"call": text}`` or ``{"tool": name, "arguments": {…}}``. What OpenEnv has no word for are verbs:
    ``{"verb": "snapshot"}`` is answered by a number, ``{"verb": "restore", "snapshot": number, "reseed": seed}`` goes
    back there, or is answered by a ``tool_error`` where there is no such snapshot. They stay in the session, over every
    reset, until ``{"verb": "snapshot", "released": [number, …]}`` names them.

    Args:
        make: an environment; every session has its own.
        sessions: most at once.

    Raises:
        UserError: the extra is not installed.
    """
    required("openenv")
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from pydantic import create_model

    action_fields: dict[str, Any] = {
        "verb": (Literal["step", "snapshot", "restore"], "step"),
        "call": (str, ""),
        "tool": (str | None, None),
        "arguments": (dict[str, Any], {}),
        "snapshot": (int | None, None),
        "reseed": (int | None, None),
        "released": (list[int], []),
    }
    observation_fields: dict[str, Any] = {
        "text": (str, ""),
        "truncated": (bool, False),
        "tool_error": (str | None, None),
        "verdict": (float | None, None),
        "state_key": (str | None, None),
        "snapshot": (int | None, None),
    }
    taken: Any = create_model("EnvAction", __base__=Action, **action_fields)
    told: Any = create_model("EnvObservation", __base__=Observation, **observation_fields)

    class Served(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

        def __init__(self) -> None:
            super().__init__()
            self.env, self.steps = make(), 0
            self.snapshots: dict[int, object] = {}
            self.numbers = count()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            split: Split | None = None,
            index: int = 0,
            **_: Any,
        ) -> Any:
            options = {"task": self.env.tasks(split, 1, index)[0]} if split is not None else None
            observation, _info = checked_reset(self.env.reset(seed=seed, options=options))
            self.steps = 0
            return told(text=observation, state_key=self.env.state_key())

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if action.verb == "snapshot":
                for number in action.released:
                    self.snapshots.pop(number, None)
                number = next(self.numbers)
                self.snapshots[number] = self.env.snapshot()
                return told(snapshot=number)
            if action.verb == "restore":
                if action.snapshot not in self.snapshots:
                    return told(tool_error=f"snapshot {action.snapshot} is unknown: it is of another session")
                try:
                    self.env.restore(self.snapshots[action.snapshot], reseed=action.reseed)
                except SnapshotLost as lost:
                    return told(tool_error=str(lost))
                return told(state_key=self.env.state_key())
            call = ToolCall(action.tool, action.arguments) if action.tool is not None else action.call
            text, reward, terminated, truncated, info = checked_step(self.env.step(as_call(call, self.env.tools())))
            self.steps += 1
            return told(
                text=text,
                reward=reward,
                done=terminated or truncated,
                truncated=truncated,
                tool_error=str(info["tool_error"]) if "tool_error" in info else None,
                verdict=self.env.verify() if terminated else None,
                state_key=self.env.state_key(),
            )

        @property
        def state(self) -> Any:
            return State(step_count=self.steps, snapshot_kind=self.env.snapshot_kind, stochastic=self.env.stochastic)

        def close(self) -> None:
            self.env.close()

    return create_fastapi_app(Served, taken, told, max_concurrent_envs=sessions)


def _plain(answer: Any) -> Observed:
    """An observation or state as a mapping, where a client makes a model of it."""
    plain: Observed = answer.model_dump() if hasattr(answer, "model_dump") else answer
    return plain
