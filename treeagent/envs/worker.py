"""Run any environment in its own process, so that one that hangs, crashes or returns nonsense costs only one task. A
process that exceeds a time limit is killed with all that it has started; the next ``reset`` or ``restore`` starts a new
one."""

import contextlib
import faulthandler
import fcntl
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from treeagent.envs.answers import checked_reset, checked_step, checked_verdict
from treeagent.envs.base import Demonstrator, Env, EnvBroken, EnvWrapper
from treeagent.envs.make import make_env

_START = (
    "import sys; _, channel, *sys.path = sys.argv; del sys.argv[1:]; "
    "from treeagent.envs.worker import serve; serve(int(channel))"
)
_SECRET_SUFFIXES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Suffixes of environment variables that are not passed to the process, since an agent might read them there."""
_STDERR_BYTES, _LAST_BYTES, _LAST_LINES = 2**20, 4000, 10
"""Bytes of the process's output beyond which it is dropped, and what an error message quotes of it at most."""
_START_SECONDS, _EXIT_SECONDS = 300.0, 1.0
"""Seconds for starting a process and making its environment, and for its end after it has closed its pipe."""
_EPISODE_STARTS = frozenset({"reset", "restore"})
_EPISODE_CALLS = _EPISODE_STARTS | {"step", "legal_actions", "verify", "snapshot", "state_key", "act"}
"""Calls that use the current episode."""
_CALLS = _EPISODE_CALLS | {"make", "tasks", "tools", "demonstrator", "close"}


class EnvTimeout(RuntimeError):
    """A call took longer than its limit."""


class EnvCrashed(RuntimeError):
    """The environment's process ended by itself, or a call needs the episode of a process that has ended."""


class WorkerEnv(EnvWrapper):
    """The environment ``make_env(name, options)`` in its own process (POSIX only), where each call may take
    ``call_seconds``. The process imports the module itself, so a class in ``__main__`` cannot be found.

    Arguments and results are pickled. An exception of the environment is raised again here, with its traceback as a
    note; in a call of an episode it ends the process. Snapshots outlive the process.
    """

    def __init__(self, name: str, options: Mapping[str, object] | None = None, *, call_seconds: float = 60.0) -> None:
        self._remote = _Remote(name, dict(options or {}), call_seconds)
        super().__init__(cast(Env, self._remote))

    @property
    def starts(self) -> int:
        """Processes started so far."""
        return self._remote.starts

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """The environment's demonstrator, which acts in its process with the caller's random generator."""
        return _RemoteDemonstrator(self._remote, noise) if super().demonstrator(noise) else None

    def close(self) -> None:
        """Close the environment if it does so in time, then end the process. A later call starts a new process."""
        if self._remote.process is not None:
            with contextlib.suppress(Exception):  # the process is ended in any case
                super().close()
        if self._remote.process is not None:
            self._remote.end()


class _Remote:
    """Has the methods of an environment, and calls those of one in a process, which it starts when it needs one."""

    def __init__(self, name: str, options: Mapping[str, object], call_seconds: float) -> None:
        self.starts = 0
        self.process: _Process | None = None
        self._name, self._options, self._call_seconds = name, options, call_seconds
        self._lost = False
        """Whether the process that held the episode has ended."""
        self._start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _CALLS:
            raise AttributeError(name)
        return partial(self._call, name)

    def _start(self) -> None:
        self.starts += 1
        self.process = _Process()
        self._unwatch = weakref.finalize(self, self.process.end).detach
        self.snapshot_kind, self.stochastic, self.only_success_ends = self._call("make", self._name, self._options)

    def end(self, grace_seconds: float = 0.0) -> str:
        """End the process, and the episode with it. Returns how it ended."""
        assert self.process is not None
        process, self.process, self._lost = self.process, None, True
        self._unwatch()
        return process.end(grace_seconds)

    def _call(self, method: str, *arguments: object, **named: object) -> Any:
        if method in _EPISODE_STARTS:
            if self.process is not None and self.process.ended():
                self.end()
            self._lost = False
        call = f"step({arguments[0]!r:.80})" if method == "step" else method
        where = f"environment {self._name!r}, {call}"
        if self._lost and method in _EPISODE_CALLS:
            raise EnvCrashed(f"{where} has no episode since the process ended: reset or restore first")
        if self.process is None:
            self._start()
        assert self.process is not None
        seconds = _START_SECONDS if method == "make" else self._call_seconds
        try:
            answer = self.process.ask(pickle.dumps((method, arguments, named)), seconds)
        except (TimeoutError, EOFError, OSError) as error:
            # A process that it has started can keep the pipe open after its end.
            if isinstance(error, TimeoutError) and not self.process.ended():
                limit = f"{seconds:g}" if method == "make" else f"call_seconds={seconds:g}"
                raise EnvTimeout(f"{where} took longer than {limit}: the process {self.end()}") from None
            raise EnvCrashed(f"{where}: the process {self.end(_EXIT_SECONDS)}") from None
        except BaseException:  # such as Ctrl-C: the reply must not be taken as the reply to a later request
            self.end()
            raise
        try:
            value, trace = pickle.loads(answer)
        except Exception as unreadable:  # a user's object may raise anything
            self.end()
            raise EnvBroken(f"the answer cannot be unpickled: {unreadable}") from None
        if trace is None:
            return value
        if method in _EPISODE_CALLS or method == "make":
            self.end()
        value.add_note(f"In the process of the environment:\n{trace}")
        raise value


@dataclass(frozen=True, slots=True)
class _RemoteDemonstrator:
    remote: _Remote
    noise: float

    def act(self, rng: random.Random) -> tuple[str, str]:
        turn, state = self.remote.act(self.noise, rng)
        rng.setstate(state)
        return cast(tuple[str, str], turn)


class _Process:
    """A process that serves one environment. It leads its own process group, which the terminal's Ctrl-C does not
    reach."""

    def __init__(self) -> None:
        self._channel, theirs = Pipe()
        lifeline, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb")
        # A file never blocks the writer, as a full pipe would. With O_APPEND it can be truncated while it is written.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.upper().endswith(_SECRET_SUFFIXES)},
            )
            kill_at_close(lifeline, -self._process.pid)
        finally:
            theirs.close()
            os.close(lifeline)

    def ask(self, request: bytes, seconds: float) -> bytes:
        if os.fstat(self._stderr.fileno()).st_size > _STDERR_BYTES:
            self._stderr.truncate(0)
        self._channel.send_bytes(request)
        if not self._channel.poll(seconds):
            raise TimeoutError
        return self._channel.recv_bytes()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self, grace_seconds: float = 0.0) -> str:
        """Wait up to ``grace_seconds``, then kill the process and all that it has started. Returns how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._channel.close()
        self._lifeline.close()
        self._stderr.seek(max(os.fstat(self._stderr.fileno()).st_size - _LAST_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self._stderr.close()
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"{how}; it last wrote: {' | '.join(lines)}" if lines else how


def kill_at_close(lifeline: int, process_id: int) -> None:
    """Make the kernel kill ``process_id`` (negative: a process group) when the last writing end of the pipe whose
    reading end is ``lifeline`` is closed, at the latest when the parent that holds it ends. Linux only. Unlike
    PR_SET_PDEATHSIG, it does not depend on the thread that started the process."""
    if sys.platform == "linux":
        # These settings belong to the open pipe: they stay after the parent closes its own reading end.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, process_id)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def serve(channel_number: int) -> None:
    """Main function of the process: answer the requests of a ``WorkerEnv`` until it closes its end of the pipe. An
    answer is the pickle of (value, None), or of (exception, traceback)."""
    faulthandler.enable()
    os.set_inheritable(channel_number, False)
    channel, host = Connection(channel_number), _Host()
    try:
        while True:
            method, arguments, named = pickle.loads(channel.recv_bytes())
            try:
                answer = _pickled((host.call(method, *arguments, **named), None))
            except Exception as error:  # the process boundary: raised again in the parent
                trace = traceback.format_exc()
                try:
                    pickle.loads(answer := pickle.dumps((error, trace)))
                except Exception:  # a user's exception may be impossible to pickle
                    answer = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), trace))
            channel.send_bytes(answer)
    except (EOFError, ConnectionError):
        os.killpg(0, signal.SIGKILL)


class _Host:
    """The environment in the worker process."""

    def __init__(self) -> None:
        self.env: Env
        self._players: dict[float, Demonstrator | None] = {}

    def call(self, method: str, *arguments: Any, **named: Any) -> object:
        match method:
            case "make":
                self.env = env = make_env(*arguments)
                return env.snapshot_kind, env.stochastic, env.only_success_ends
            case "restore":
                arguments = (pickle.loads(arguments[0]),)
            case "demonstrator":
                player = self._players[arguments[0]] = self.env.demonstrator(*arguments)
                return player is not None
            case "act":
                noise, rng = arguments
                player = self._players.get(noise) or self.env.demonstrator(noise)  # asked for in an earlier process
                assert player is not None
                self._players[noise] = player
                return player.act(rng), rng.getstate()
        value = getattr(self.env, method)(*arguments, **named)
        check = {"reset": checked_reset, "step": checked_step, "verify": checked_verdict, "snapshot": _pickled}
        return check[method](value) if method in check else value


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # a user's object may raise anything
        raise EnvBroken(
            f"{value!r:.200} cannot be pickled ({error}): return plain values, or set snapshot_kind = 'replay'"
        ) from None
