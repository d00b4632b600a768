"""Any environment in a process of its own: one that hangs, dies or answers nonsense costs the task that it played.

The parent speaks to the process over a socket, one request and one reply at a time, each under a deadline. A process
that misses one is killed with all that it has started; the next ``reset`` or ``restore`` starts another.
"""

import contextlib
import faulthandler
import fcntl
import os
import pickle
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from treeagent.envs.base import Demonstrator, Env, EnvBroken, SnapshotKind, SnapshotLost, StepResult, ToolSpec
from treeagent.envs.forks import checked_reset, checked_step, checked_verdict
from treeagent.envs.make import importable, make_env
from treeagent.types import Origin, Split, Task, ToolCall, Unanswered, UserError

T = TypeVar("T")

_START = (
    "import sys; _, channel, lifeline, *sys.path = sys.argv; del sys.argv[1:]; "
    "from treeagent.envs.worker import serve; serve(int(channel), int(lifeline))"
)
_LENGTH = struct.Struct("!Q")
_STDERR_BYTES = 2**20
"""Bytes of a process's standard error that are kept."""
_LAST_BYTES, _LAST_LINES = 4000, 10
"""Characters of a failed process's standard error that the error message quotes."""
_EXIT_SECONDS = 1.0
"""Seconds that a process may take to end after it has closed its socket."""
_EPISODE = frozenset({"reset", "step", "legal_actions", "verify", "snapshot", "state_key", "act"})
"""Calls that touch the episode."""


class EnvTimeout(RuntimeError):
    """A call took longer than its limit, and its process was killed."""


class EnvCrashed(RuntimeError):
    """The environment's process ended by itself, or holds no episode since it ended."""


class WorkerEnv(Env):
    """The environment ``make_env(name, options)`` in a process of its own, under limits of wall-clock time.

    Everything that an ``Env`` offers is passed on, arguments and answers pickled. Snapshots are kept as bytes in this
    process, so that they outlive the environment's; those that cannot be pickled, or are not portable, are lost with
    it. An exception out of the environment is raised here as it was there, the worker's traceback in its notes; since
    nobody knows what it left behind, the process of its episode ends with it. Not so for ``Unanswered``, which says
    that nobody can tell what follows of a process that is well.

    The limits hold what goes wrong by mistake: this is no sandbox. POSIX only.

    Args:
        name: as for ``make_env``. The process imports it anew, so a class in ``__main__`` cannot be found.
        options: as for ``make_env``.
        call_seconds: limit of each call; a ``restore`` counts with the call after it.
        episode_seconds: limit of all calls together that lead from a reset to a place; the time between calls, when
            a policy thinks, does not count.
        start_seconds: limit of starting the process and making the environment.

    Raises:
        UserError: a limit that is not positive, an unknown environment or options that it does not take.
        EnvTimeout: a call, here and in all methods below but ``close``, took longer than its limit.
        EnvCrashed: the process died in a call.
        EnvBroken: a call was answered by what the contract has no place for.
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
        limits = {"call_seconds": call_seconds, "episode_seconds": episode_seconds, "start_seconds": start_seconds}
        for limit, seconds in limits.items():
            if seconds is not None and not seconds > 0:
                raise UserError(f"{limit} is {seconds}: give a positive number of seconds")
        self.starts = 0
        """Processes started so far."""
        self._name, self._options = name, dict(options or {})
        self._call_seconds, self._episode_seconds, self._start_seconds = call_seconds, episode_seconds, start_seconds
        self._task_id = ""
        self._spent = 0.0
        self._lost = False
        self._restoring: tuple[_Place, int | None] | None = None
        """A restore, and its ``reseed``, that goes along with the next call: that spares a round trip."""
        self._key: tuple[str | None] | None = None
        """The state's key, where ``reset`` or ``step`` has brought it along."""
        self._demonstrators = 0
        self._process: _Process | None = None
        self._start()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = (options or {}).get("task")
        self._begin(task.id if isinstance(task, Task) else "", 0.0)
        answer, self._key = self._call("reset", _with_key(checked_reset), seed, options)
        return answer

    def step(self, action: str | ToolCall) -> StepResult:
        answer, self._key = self._call("step", _with_key(checked_step), action)
        return answer

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._call("tasks", _sequence_of(Task), split, count, start)

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        """The environment's, drawn from the caller's generator."""
        tasks, state = self._call("variations", lambda answer: (_sequence_of(Task)(answer[0]), answer[1]), task, rng)
        rng.setstate(state)
        return tasks

    def tools(self) -> Sequence[ToolSpec]:
        return self._call("tools", _sequence_of(ToolSpec))

    def legal_actions(self) -> list[str] | None:
        return self._call("legal_actions", _legal_actions)

    def verify(self) -> float | None:
        return self._call("verify", checked_verdict)

    def snapshot(self) -> object:
        content: bytes | int = self._call("snapshot", _any)
        assert self._process is not None
        kept = content if isinstance(content, bytes) else _Handle(self._process, content)
        return _Place(self._task_id, self._spent, kept)

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """As ``Env.restore``, in a new process if need be. An error that it meets there comes out of the next call.

        Raises:
            SnapshotLost: the process that held the snapshot has ended.
        """
        if not isinstance(snapshot, _Place):
            raise ValueError(f"a {type(snapshot).__name__} is no snapshot of a WorkerEnv: restore what snapshot() gave")
        self._begin(snapshot.task_id, snapshot.seconds)
        if isinstance(snapshot.content, _Handle) and snapshot.content.process is not self._process:
            self._lost = True
            raise SnapshotLost(
                f"a snapshot of task {snapshot.task_id!r} was held by a process of {self._name!r} that has ended"
            )
        self._restoring = snapshot, reseed

    def state_key(self) -> str | None:
        if self._key is None:
            self._key = (self._call("state_key", _key),)
        return self._key[0]

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """The environment's demonstrator, which acts in its process but draws from the caller's generator."""
        self._demonstrators += 1
        number = self._demonstrators
        return _RemoteDemonstrator(self, number, noise) if self._call("demonstrator", _any, number, noise) else None

    def _act(self, number: int, noise: float, rng: random.Random) -> tuple[str, str]:
        """Have demonstrator ``number`` act, and ``rng`` move on as if it had acted here."""
        (thought, call), state = self._call("act", _demonstration, number, noise, rng)
        rng.setstate(state)
        return thought, call

    def close(self) -> None:
        """End the process, after the environment's own ``close`` if that returns in time. A later call starts anew."""
        if self._process is not None:
            with contextlib.suppress(Exception):  # whatever its last words, the process ends
                self._call("close", _any)
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        self.starts += 1
        self._process = _Process()
        self._unwatch = weakref.finalize(self, self._process.end).detach
        kind: SnapshotKind
        origin: Origin
        kind, self.stochastic, self.snapshot_portable, origin = self._call(
            "make", _any, importable(self._name), self._options
        )
        self.snapshot_kind, self.origin = kind, origin

    def _begin(self, task_id: str, seconds: float) -> None:
        """An episode that has taken ``seconds`` so far goes on, in a new process if this one has died unnoticed."""
        if self._process is not None and self._process.ended():
            self._end()
        self._task_id, self._spent, self._lost = task_id, seconds, False
        self._restoring = self._key = None

    def _end(self, patience: float = 0.0) -> str:
        """End the process, and the episode with it. Returns how it ended."""
        assert self._process is not None
        process, self._process = self._process, None
        self._lost, self._restoring, self._key = True, None, None
        self._unwatch()
        return process.end(patience)

    def _call(self, method: str, checked: Callable[[Any], T], *arguments: object) -> T:
        if self._lost and method in _EPISODE:
            raise EnvCrashed(f"{self._where(method)} has no episode since the process ended: reset or restore first")
        if self._process is None:
            self._start()
        call = f"step({arguments[0]!r:.80})" if method == "step" else method
        answer = self._exchange(method, call, self._request(method, arguments))
        try:
            return checked(_opened(answer))
        except EnvBroken as error:
            self._end()
            raise EnvBroken(f"{self._where(call)}: {error}") from None
        except Unanswered:
            raise
        except Exception:
            if method in _EPISODE or method == "make":
                self._end()
            raise

    def _request(self, method: str, arguments: Sequence[object]) -> bytes:
        assert self._process is not None
        restoring: tuple[bytes | int, int | None] | None = None
        if method in _EPISODE and self._restoring is not None:
            place, reseed = self._restoring
            restoring = (place.content.number if isinstance(place.content, _Handle) else place.content), reseed
        released = self._process.released[:]
        request = pickle.dumps((method, arguments, restoring, released))
        del self._process.released[: len(released)]
        if restoring is not None:
            self._restoring = None
        return request

    def _exchange(self, method: str, call: str, request: bytes) -> bytearray:
        assert self._process is not None
        limit, seconds = self._limit(method)
        started = time.monotonic()
        try:
            answer = self._process.ask(request, seconds)
        except TimeoutError:
            # Its socket can stay open in what a dead process has started.
            if self._process.ended():
                raise EnvCrashed(f"{self._where(call)}: the process {self._end()}") from None
            raise EnvTimeout(f"{self._where(call)} took longer than {limit}: the process {self._end()}") from None
        except (EOFError, ConnectionError):
            raise EnvCrashed(f"{self._where(call)}: the process {self._end(_EXIT_SECONDS)}") from None
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

    def _where(self, call: str) -> str:
        task = f", task {self._task_id!r}" if self._task_id else ""
        return f"environment {self._name!r}{task}, {call}"


@dataclass(frozen=True, slots=True)
class _RemoteDemonstrator:
    env: WorkerEnv
    number: int
    noise: float

    def act(self, rng: random.Random) -> tuple[str, str]:
        return self.env._act(self.number, self.noise, rng)


class _Handle:
    """A snapshot that stays in its process, which forgets it when this is gone."""

    def __init__(self, process: "_Process", number: int) -> None:
        self.process, self.number = process, number
        weakref.finalize(self, process.released.append, number)

    def __reduce__(self) -> NoReturn:
        raise TypeError("this snapshot is in the process of its environment")


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A snapshot as the parent keeps it."""

    task_id: str
    seconds: float
    """What the episode took up to here."""
    content: bytes | _Handle


class _Process:
    """A process that serves one environment; it leads a group of its own, out of reach of the terminal's Ctrl-C."""

    def __init__(self) -> None:
        self.released: list[int] = []
        """Snapshots that the process may forget."""
        self._channel, theirs = socket.socketpair()
        lifeline, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb")
        # Appended to, so that it can be cut while it is written. A file never blocks who writes, as a pipe would.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), str(lifeline), *sys.path],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(lifeline)

    def ask(self, request: bytes, seconds: float) -> bytearray:
        """One round trip.

        Raises:
            TimeoutError: it takes longer than ``seconds``.
            EOFError, ConnectionError: the process has closed its end.
        """
        deadline = time.monotonic() + seconds
        if os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES:
            self._stderr.truncate(0)
        _send(self._channel, request, deadline)
        return _receive(self._channel, deadline)

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
        self._channel.close()
        self._lifeline.close()
        self._stderr.seek(max(os.fstat(self._stderr.fileno()).st_size - _LAST_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self._stderr.close()
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        )
        return f"{how}; it last wrote: {' | '.join(lines)}" if lines else how


def serve(channel_number: int, lifeline: int) -> None:
    """Answer a ``WorkerEnv`` until it closes its end. What the process runs."""
    faulthandler.enable()
    _die_with_parent(lifeline)
    channel = socket.socket(fileno=channel_number)
    channel.set_inheritable(False)
    host = _Host()
    try:
        while True:
            method, arguments, restoring, released = pickle.loads(_receive(channel, None))
            _send(channel, _answer(host, method, arguments, restoring), None)
            host.forget(released)
    except (EOFError, ConnectionError):
        os.killpg(0, signal.SIGKILL)


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this group when the parent, however it ends, closes the other end of ``lifeline``.

    A thread that waits for that would wait for the interpreter's lock, too, which a hanging environment may hold.
    Unlike PR_SET_PDEATHSIG this follows the parent's process, not the thread that started this one.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        os.killpg(0, signal.SIGKILL)  # the parent has ended before


class _Host:
    """The worker's side: the environment, and the few calls that are more than the environment's own."""

    def __init__(self) -> None:
        self.env: Env
        self._snapshots: dict[int, object] = {}
        self._snapshots_taken = 0
        self._players: dict[int, Demonstrator | None] = {}

    def make(self, name: str, options: Mapping[str, object]) -> tuple[SnapshotKind, bool, bool, Origin]:
        self.env = make_env(name, options)
        return self.env.snapshot_kind, self.env.stochastic, self.env.snapshot_portable, self.env.origin

    def reset(self, seed: int | None, options: Mapping[str, object] | None) -> tuple[object, object]:
        return self.env.reset(seed=seed, options=options), self.env.state_key()

    def step(self, action: str | ToolCall) -> tuple[object, object]:
        return self.env.step(action), self.env.state_key()

    def variations(self, task: Task, rng: random.Random) -> tuple[object, object]:
        return self.env.variations(task, rng), rng.getstate()

    def snapshot(self) -> bytes | int:
        snapshot = self.env.snapshot()
        if self.env.snapshot_portable:
            with contextlib.suppress(Exception):  # whatever a stranger's object raises, it cannot be pickled
                return pickle.dumps(snapshot)
        self._snapshots_taken += 1
        self._snapshots[self._snapshots_taken] = snapshot
        return self._snapshots_taken

    def restore(self, content: bytes | int, reseed: int | None) -> None:
        snapshot = pickle.loads(content) if isinstance(content, bytes) else self._snapshots[content]
        self.env.restore(snapshot, reseed=reseed)

    def forget(self, released: Sequence[int]) -> None:
        for number in released:
            del self._snapshots[number]

    def demonstrator(self, number: int, noise: float) -> bool:
        self._players[number] = self.env.demonstrator(noise)
        return self._players[number] is not None

    def act(self, number: int, noise: float, rng: random.Random) -> tuple[object, object]:
        if number not in self._players:
            self.demonstrator(number, noise)
        player = self._players[number]
        assert player is not None
        return player.act(rng), rng.getstate()


def _answer(
    host: _Host, method: str, arguments: Sequence[object], restoring: tuple[bytes | int, int | None] | None
) -> bytes:
    """(value, error) pickled: an error is (the exception pickled if it can be, its words, its traceback)."""
    try:
        if restoring is not None:
            host.restore(*restoring)
        value = getattr(host if hasattr(host, method) else host.env, method)(*arguments)
    except Exception as error:  # the boundary: raised again in the parent
        try:
            pickled = pickle.dumps(error)
        except Exception:  # whatever a stranger's exception raises
            pickled = b""
        words = f"{type(error).__name__}: {error}"
        return pickle.dumps((None, (pickled, words, traceback.format_exc())))
    try:
        return pickle.dumps((value, None))
    except Exception as error:  # whatever a stranger's object raises
        broken = EnvBroken(f"the answer {value!r:.200} cannot be pickled: {error}")
        return pickle.dumps((None, (pickle.dumps(broken), str(broken), "")))


def _opened(answer: bytearray) -> Any:
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


def _any(answer: Any) -> Any:
    return answer


def _key(answer: object) -> str | None:
    if not isinstance(answer, str | None):
        raise EnvBroken(f"state_key returned {answer!r:.200}: it must return text or None")
    return answer


def _with_key(checked: Callable[[object], T]) -> Callable[[tuple[object, object]], tuple[T, tuple[str | None]]]:
    return lambda answer: (checked(answer[0]), (_key(answer[1]),))


def _sequence_of(kind: type[T]) -> Callable[[object], list[T]]:
    def checked(answer: object) -> list[T]:
        if not isinstance(answer, (list, tuple)) or not all(isinstance(each, kind) for each in answer):
            raise EnvBroken(f"it returned {answer!r:.200}: it must return a list of {kind.__name__}")
        return list(answer)

    return checked


def _legal_actions(answer: object) -> list[str] | None:
    return None if answer is None else _sequence_of(str)(answer)


def _demonstration(answer: tuple[object, tuple[Any, ...]]) -> tuple[tuple[str, str], tuple[Any, ...]]:
    match answer:
        case ((str() as thought, str() as call), state):
            return (thought, call), state
    raise EnvBroken(f"the demonstrator answered {answer[0]!r:.200}: it must answer (thought, call)")


def _send(channel: socket.socket, data: bytes, deadline: float | None) -> None:
    channel.settimeout(_left(deadline))
    channel.sendall(_LENGTH.pack(len(data)) + data)


def _receive(channel: socket.socket, deadline: float | None) -> bytearray:
    (size,) = _LENGTH.unpack(_read(channel, _LENGTH.size, deadline))
    return _read(channel, size, deadline)


def _read(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        channel.settimeout(_left(deadline))
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def _left(deadline: float | None) -> float | None:
    # A timeout of 0 would mean "do not block".
    return None if deadline is None else max(deadline - time.monotonic(), 1e-6)
