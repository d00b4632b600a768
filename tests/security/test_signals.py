"""Signals that end a run leave no process and no broken store, and environments do not get the run's API keys."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from command import CONFIG, PROGRAM, treeagent
from faulty_envs import STAIRS, TELLING, runs, stairs_task

from treeagent.envs.worker import WorkerEnv
from treeagent.pipeline.metrics import Emit
from treeagent.store import digest, read_as

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

SECONDS = 2.0
"""All workers of a run must have ended within this time."""
MARK = "TREEAGENT_TEST_MARK"


class Started:
    """A process and its descendants, found by a mark in their environment even if they lead sessions of their own."""

    def __init__(self, *command: str | Path) -> None:
        self.mark, self.helpers = uuid.uuid4().hex, set[int]()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def all(self) -> list[int]:
        found = list[int]()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                pid = int(path.parent.name)
                if f"{MARK}={self.mark}".encode() in path.read_bytes() and runs(pid):
                    found.append(pid)
                    if self._helps(pid):
                        self.helpers.add(pid)
            except OSError:  # the process has just ended, or belongs to another user
                continue
        return found

    def left(self) -> list[int]:
        """Processes that still run after ``SECONDS``. The started process, and the resource tracker and the fork server
        of multiprocessing, which end with it, are left out, because Python takes longer to unload torch on a busy
        machine."""
        deadline = time.monotonic() + SECONDS
        while (found := set(self.all()) - {self.process.pid} - self.helpers) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sorted(found)

    def _helps(self, pid: int) -> bool:
        """Whether it is the resource tracker or the fork server. Workers have the command line of the server, but not
        its parent."""
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return b"resource_tracker" in command or (b"forkserver" in command and parent == self.process.pid)


Send = Callable[[int, int], None]
"""Sends a signal to a process or to its process group."""


def collection(run: Path, out: Path) -> list[str | Path]:
    settings = ["workers=2", "environment.worker=true", "collect.tasks=16", "collect.batch=2"]
    return ["collect", run / "checkpoints" / "warm", "--config", CONFIG, "--out", out, "--resume", *settings]


def trees(run: Path) -> str:
    return digest(read_as(dict, run / "trees"))


@pytest.fixture(scope="module")
def whole(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The trees of an undisturbed collection."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = treeagent(*collection(finished_run, out), "workers=1")
    assert done.returncode == 0, done.stderr
    return trees(out)


def end(started: Started, send: Send, number: int) -> None:
    """Send a signal to a collection at work, and check that it ends properly."""
    send(started.process.pid, number)
    left = started.left()
    _, said = started.process.communicate(timeout=20)
    assert not left, f"{len(left)} processes are left"
    assert started.process.returncode == 128 + number, said
    assert "--resume" in said
    assert "Traceback" not in said and "Error" not in said


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.kill, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(os.killpg, signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_an_ended_collection_leaves_no_process_and_resumes_to_the_same_trees(
    finished_run: Path, whole: str, tmp_path: Path, send: Send, number: int
) -> None:
    command = collection(finished_run, tmp_path / "run")
    started = Started(PROGRAM, *command)
    while not list(tmp_path.glob("run/trees/*.zst")) and started.process.poll() is None:
        time.sleep(0.01)
    assert len(started.all()) >= 5  # the command, two workers and their environments
    end(started, send, number)
    assert treeagent(*command, "workers=1").returncode == 0
    assert trees(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("before", "sent", "code"),
    [
        ("", "SIGTERM", 143),
        ("", "SIGINT", 130),
        ("SIGHUP", "SIGHUP", 0),  # as under nohup
    ],
)
def test_a_signal_while_the_command_line_is_imported_is_silent(before: str, sent: str, code: int) -> None:
    program = f"""
import os, sys
from signal import *
for ignored in [{before}]: signal(ignored, SIG_IGN)
class Send:
    def find_spec(self, name, path=None, target=None):
        if name == 'treeagent.cli':
            pthread_sigmask(SIG_BLOCK, {{SIGTERM, SIGHUP, SIGINT}})
            for number in [{sent}]: os.kill(os.getpid(), number)
            pthread_sigmask(SIG_UNBLOCK, {{SIGTERM, SIGHUP, SIGINT}})
sys.meta_path.insert(0, Send())
sys.argv = ["treeagent", "recipes"]
from treeagent.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def play(job: str, emit: Emit) -> None:
    """A job that never ends, in its own process or in that of an environment."""
    if job == "environment":
        env = WorkerEnv(STAIRS, call_seconds=1000)
        print(env.reset(options={"task": stairs_task(1, "sleep")})[1]["process"], flush=True)
        env.step("up")
        env.step("up")
    print(os.getpid(), flush=True)
    re.match(r"(a+)+$", "a" * 100 + "b")  # blocks while holding the GIL


def parent(then: str) -> str:
    return (
        "from treeagent.pipeline.processes import Processes\n"
        "if __name__ == '__main__':\n"
        "    pool = Processes(2)\n"
        f"    {then}\n"
    )


def test_workers_that_hang_die_with_a_killed_parent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from test_signals import play\n" + parent("list(pool.run(play, ['environment', 'lock'], print))")
    )
    started = Started(sys.executable, program)
    assert started.process.stdout is not None
    for _ in range(2):
        started.process.stdout.readline()
    time.sleep(0.5)
    assert len(started.all()) >= 5  # the parent, two workers, the environment and its child process
    started.process.kill()
    assert not started.left()
    started.process.communicate()


SECRET = ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "wandb_api_key", "CLIENT_SECRET", "PGPASSWORD")
OPEN = ("TOKENIZERS_PARALLELISM", "KEYBOARD", "SHOP_LANGUAGE", "SECRETARY")


def test_the_process_of_an_environment_gets_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRET, *OPEN):
        monkeypatch.setenv(name, f"value of {name}")
    env = WorkerEnv(TELLING)
    env.reset(options={"task": stairs_task(1)})
    told = env.step("up")[0]
    env.close()
    assert [name for name in (*SECRET, *OPEN) if f"value of {name}" in told] == list(OPEN)
    assert all(os.environ[name] == f"value of {name}" for name in SECRET)
