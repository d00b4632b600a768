"""Any environment in a process of its own: one that hangs, dies or answers nonsense costs the task that it played.

The parent speaks to the process over a socket, one request and one reply at a time, each under a time limit. A process
that misses one is killed with all that it has started; the next ``reset`` or ``restore`` starts another.
"""

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from treeagent.envs.answers import checked_reset, checked_step, checked_verdict
from treeagent.envs.base import Demonstrator, Env, EnvBroken, SnapshotKind, StepResult, ToolSpec
from treeagent.envs.lifeline import kill_at_close
from treeagent.envs.make import importable, make_env
from treeagent.types import Origin, Split, Task, ToolCall, Unanswered

_START = (
    "import sys; _, channel, *sys.path = sys.argv; del sys.argv[1:]; "
    "from treeagent.envs.worker import serve; serve(int(channel))"
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Ends of the names of environment variables that an environment's process does not get: an agent might read them."""
_STDERR_BYTES = 2**20
"""Bytes of a process's standard error that are kept."""
_LAST_BYTES, _LAST_LINES = 4000, 10
"""Characters of a failed process's standard error that the error message quotes."""
_EXIT_SECONDS = 1.0
"""Seconds that a process may take to end after it has closed its socket."""
_BEGINNING = frozenset({"reset", "restore"})
"""Calls that begin an episode or go back to one."""
_EPISODE = _BEGINNING | {"step", "legal_actions", "reference", "verify", "snapshot", "state_key", "act"}
"""Calls that touch the episode."""

_About = tuple[SnapshotKind, bool, Origin, bool, tuple[str, ...]]
"""What a process tells of its environment: the attributes of an ``Env``, portability left out."""


class EnvTimeout(RuntimeError):
    """A call took longer than its limit, and its process was killed."""


class EnvCrashed(RuntimeError):
    """The environment's process ended by itself, or holds no episode since it ended."""


class WorkerEnv(Env):
    """The environment ``make_env(name, options)`` in a process of its own, under limits of wall-clock time.

    All methods of an ``Env`` work; arguments and answers are pickled. This process keeps the snapshots as bytes, so
    that they outlive the environment's process. An environment whose snapshots are not portable is replayed.

    An exception of the environment is raised here again, with the worker's traceback in its notes. The environment may
    be in any state then, so its process ends. ``Unanswered`` is the exception: it reports an answer that cannot be
    known, and the process goes on.

    The limits guard against mistakes; they are no sandbox. POSIX only.

    Args:
        name: as for ``make_env``. The process imports it anew, so a class in ``__main__`` cannot be found.
        options: as for ``make_env``.
        call_seconds: limit of each call.
        episode_seconds: limit of all calls together that lead from a reset to a place; the time between calls, when
            a policy thinks, does not count.
        start_seconds: limit of starting the process and making the environment.

    Raises:
        UserError: an unknown environment or options that it does not take.
        EnvTimeout: a call, here and in all methods below but ``close``, took longer than its limit.
        EnvCrashed: the process died in a call.
        EnvBroken: a call was answered by what the contract has no place for, or by what cannot be pickled.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, object] | None = None,
        *,
        call_seconds: float = 60.0,
        episode_seconds: float | None = None,
        start_seconds: float = 300.0,
    ) -> None:
        self.starts = 0
        """Processes started so far."""
        self._name, self._options = name, dict(options or {})
        self._call_seconds, self._episode_seconds, self._start_seconds = call_seconds, episode_seconds, start_seconds
        self._task_id = ""
        self._spent = 0.0
        """Seconds that the calls of the episode have taken."""
        self._lost = False
        """The process of the episode has ended."""
        self._process: _Process | None = None
        self._start()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = (options or {}).get("task")
        self._task_id, self._spent = task.id if isinstance(task, Task) else "", 0.0
        return cast(tuple[str, dict[str, object]], self._call("reset", seed, options))

    def step(self, action: str | ToolCall) -> StepResult:
        return cast(StepResult, self._call("step", action))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return cast(Sequence[Task], self._call("tasks", split, count, start))

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        return cast(Sequence[Task], self._drawn(rng, "variations", task))

    def tools(self) -> Sequence[ToolSpec]:
        return cast(Sequence[ToolSpec], self._call("tools"))

    def legal_actions(self) -> list[str] | None:
        return cast(list[str] | None, self._call("legal_actions"))

    def verify(self) -> float | None:
        return cast(float | None, self._call("verify"))

    def reference(self) -> Sequence[str | ToolCall] | None:
        return cast(Sequence[str | ToolCall] | None, self._call("reference"))

    def snapshot(self) -> object:
        return self._task_id, self._spent, self._call("snapshot")

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """As ``Env.restore``, in a new process if need be."""
        assert isinstance(snapshot, tuple)
        self._task_id, self._spent, content = snapshot
        self._call("restore", content, reseed)

    def state_key(self) -> str | None:
        return cast(str | None, self._call("state_key"))

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """The environment's demonstrator, which acts in its process but draws from the caller's generator."""
        return _RemoteDemonstrator(self, noise) if self._call("demonstrator", noise) else None

    def close(self) -> None:
        """End the process, after the environment's own ``close`` if that returns in time. A later call starts anew."""
        if self._process is not None:
            with contextlib.suppress(Exception):  # whatever its last words, the process ends
                self._call("close")
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        self.starts += 1
        self._process = _Process()
        self._unwatch = weakref.finalize(self, self._process.end).detach
        about: _About = self._call("make", importable(self._name), self._options)
        self.snapshot_kind, self.stochastic, self.origin, self.only_success_ends, self.components = about

    def _end(self, patience: float = 0.0) -> str:
        """End the process, and the episode with it. Returns how it ended."""
        assert self._process is not None
        process, self._process, self._lost = self._process, None, True
        self._unwatch()
        return process.end(patience)

    def _drawn(self, rng: random.Random, method: str, *arguments: object) -> Any:
        """The answer to a call that draws from ``rng``, which moves on as if the call had been made here."""
        answer, state = self._call(method, *arguments, rng)
        rng.setstate(state)
        return answer

    def _call(self, method: str, *arguments: object) -> Any:
        if method in _BEGINNING:
            if self._process is not None and self._process.ended():
                self._end()
            self._lost = False
        call = f"step({arguments[0]!r:.80})" if method == "step" else method
        task = f", task {self._task_id!r}" if self._task_id else ""
        where = f"environment {self._name!r}{task}, {call}"
        if self._lost and method in _EPISODE:
            raise EnvCrashed(f"{where} has no episode since the process ended: reset or restore first")
        if self._process is None:
            self._start()
        answer = self._exchange(method, where, pickle.dumps((method, arguments)))
        try:
            return _opened(answer)
        except Unanswered:
            raise
        except Exception:
            if method in _EPISODE or method == "make":
                self._end()
            raise

    def _exchange(self, method: str, where: str, request: bytes) -> bytes:
        assert self._process is not None
        limit, seconds = self._limit(method)
        started = time.monotonic()
        try:
            answer = self._process.ask(request, seconds)
        except TimeoutError:
            # Its socket can stay open in what a dead process has started.
            if self._process.ended():
                raise EnvCrashed(f"{where}: the process {self._end()}") from None
            raise EnvTimeout(f"{where} took longer than {limit}: the process {self._end()}") from None
        except (EOFError, ConnectionError, pickle.UnpicklingError):
            raise EnvCrashed(f"{where}: the process {self._end(_EXIT_SECONDS)}") from None
        except BaseException:
            # Such as Ctrl-C: the answer may still come and must not be taken for that of another request.
            self._end()
            raise
        if method in _EPISODE:
            self._spent += time.monotonic() - started
        return answer

    def _limit(self, method: str) -> tuple[str, float]:
        """The limit of a call in words and in seconds."""
        if method == "make":
            return f"start_seconds={self._start_seconds:g}", self._start_seconds
        if self._episode_seconds is not None and method in _EPISODE:
            left = max(self._episode_seconds - self._spent, 0.0)
            if left < self._call_seconds:
                return f"episode_seconds={self._episode_seconds:g}", left
        return f"call_seconds={self._call_seconds:g}", self._call_seconds


@dataclass(frozen=True, slots=True)
class _RemoteDemonstrator:
    env: WorkerEnv
    noise: float

    def act(self, rng: random.Random) -> tuple[str, str]:
        return cast(tuple[str, str], self.env._drawn(rng, "act", self.noise))


class _Process:
    """A process that serves one environment; it leads a group of its own, out of reach of the terminal's Ctrl-C."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._answers = self._channel.makefile("rb")
        lifeline, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb")
        # Appended to, so that it can be cut while it is written. A file never blocks who writes, as a pipe would.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.upper().endswith(_SECRET)},
            )
            kill_at_close(lifeline, -self._process.pid)
        finally:
            theirs.close()
            os.close(lifeline)

    def ask(self, request: bytes, seconds: float) -> bytes:
        """The answer to one request.

        Raises:
            TimeoutError: nothing comes for ``seconds``.
            EOFError, ConnectionError, UnpicklingError: the process has closed its end.
        """
        if os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES:
            self._stderr.truncate(0)
        self._channel.settimeout(max(seconds, 1e-6))  # 0 would mean "do not block"
        self._channel.sendall(request)
        answer: bytes = pickle.load(self._answers)
        return answer

    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def end(self, patience: float = 0.0) -> str:
        """Kill what is left of the process, and all that it started, after ``patience`` seconds.

        Returns how it ended and what it last wrote.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._answers.close()
        self._channel.close()
        self._lifeline.close()
        self._stderr.seek(max(os.fstat(self._stderr.fileno()).st_size - _LAST_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self._stderr.close()
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        )
        return f"{how}; it last wrote: {' | '.join(lines)}" if lines else how


def serve(channel_number: int) -> None:
    """Answer a ``WorkerEnv`` until it closes its end. What the process runs."""
    faulthandler.enable()
    channel = socket.socket(fileno=channel_number)
    channel.set_inheritable(False)
    requests, host = channel.makefile("rb"), _Host()
    try:
        while True:
            method, arguments = pickle.load(requests)
            # A pickle tells its own length. The answer is one in another, as what is in it may be what cannot be read.
            channel.sendall(pickle.dumps(_answer(host, method, arguments)))
    except (EOFError, ConnectionError):
        os.killpg(0, signal.SIGKILL)


class _Host:
    """The worker's side: the environment, and the calls that are more than the environment's own."""

    def __init__(self) -> None:
        self.env: Env
        self._players: dict[float, Demonstrator | None] = {}

    def make(self, name: str, options: Mapping[str, object]) -> _About:
        self.env = make_env(name, options)
        kind = self.env.snapshot_kind
        if kind == "exact" and not self.env.snapshot_portable:
            kind = "replay"
        env = self.env
        return kind, env.stochastic, env.origin, env.only_success_ends, env.components

    def reset(self, seed: int | None, options: Mapping[str, object] | None) -> tuple[str, dict[str, object]]:
        return checked_reset(self.env.reset(seed=seed, options=options))

    def step(self, action: str | ToolCall) -> StepResult:
        return checked_step(self.env.step(action))

    def verify(self) -> float | None:
        return checked_verdict(self.env.verify())

    def variations(self, task: Task, rng: random.Random) -> tuple[Sequence[Task], object]:
        return self.env.variations(task, rng), rng.getstate()

    def snapshot(self) -> bytes:
        return _pickled(self.env.snapshot())

    def restore(self, content: bytes, reseed: int | None) -> None:
        self.env.restore(pickle.loads(content), reseed=reseed)

    def demonstrator(self, noise: float) -> bool:
        self._players[noise] = self.env.demonstrator(noise)
        return self._players[noise] is not None

    def act(self, noise: float, rng: random.Random) -> tuple[tuple[str, str], object]:
        if noise not in self._players:  # an earlier process was asked for it
            self.demonstrator(noise)
        player = self._players[noise]
        assert player is not None
        return player.act(rng), rng.getstate()


def _answer(host: _Host, method: str, arguments: Sequence[object]) -> bytes:
    """(value, error) pickled: an error is (the exception pickled if it can be, its words, its traceback)."""
    try:
        return _pickled((getattr(host if hasattr(host, method) else host.env, method)(*arguments), None))
    except Exception as error:  # the boundary: raised again in the parent
        try:
            pickled = pickle.dumps(error)
        except Exception:  # whatever a stranger's exception raises
            pickled = b""
        return pickle.dumps((None, (pickled, f"{type(error).__name__}: {error}", traceback.format_exc())))


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # whatever a stranger's object raises
        raise EnvBroken(
            f"{value!r:.200} cannot be pickled ({error}): return plain values, and for snapshots set "
            "snapshot_portable = False"
        ) from None


def _opened(answer: bytes) -> Any:
    """The value of an answer, or its exception raised."""
    try:
        value, error = pickle.loads(answer)
    except Exception as unreadable:  # whatever a stranger's object raises
        raise EnvBroken(f"the answer cannot be unpickled: {unreadable}") from None
    if error is None:
        return value
    pickled, words, trace = error
    raised: Exception
    try:
        raised = pickle.loads(pickled)
    except Exception:  # a stranger's exception need not survive its own pickle
        raised = RuntimeError(words)
    raised.add_note(f"In the process of the environment:\n{trace}")
    raise raised
