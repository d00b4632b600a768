"""Small environments that fail on demand, helpers that observe their processes, and a long run of faulty episodes."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from treeagent.envs import Demonstrator, Env
from treeagent.envs.base import SnapshotKind, StepResult
from treeagent.types import Action, Proposal, Split, State, Task, ToolCall

STAIRS = f"{__name__}:Stairs"
TELLING = f"{__name__}:Telling"
FAULTS = ("sleep", "hog", "exit", "leave", "crash", "garbage", "no number", "no text", "unpicklable", "raise")


def stairs_task(number: int, fault: str = "", at: str = "step") -> Task:
    """Climbing three steps up is a success. The fault occurs at the second stair, or at ``at``."""
    return Task(f"stairs-{number}", "climb", seed=number, data={"fault": fault, "at": at})


class Lock:
    """A snapshot that cannot be pickled."""

    def __init__(self, level: int) -> None:
        self.level, self.lock = level, threading.Lock()


class Stairs(Env):
    """``up`` and ``down`` three stairs. The info of a step holds the process id."""

    snapshot_kind: SnapshotKind = "exact"

    def __init__(self, snapshots: str = "plain") -> None:
        """``snapshots`` is "plain", "locked" (cannot be pickled) or "none"."""
        self.snapshots = snapshots
        self.snapshot_kind = "replay" if snapshots == "none" else "exact"
        self.task = stairs_task(0)
        self.level = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task, self.level = cast(Task, (options or {})["task"]), 0
        if self.task.data["at"] == "reset":
            return cast(tuple[str, dict[str, object]], fail(self.task))
        return "stair 0", {"process": os.getpid()}

    def step(self, action: str | ToolCall) -> StepResult:
        if action not in ("up", "down"):
            return "no such move", 0.0, False, False, {"tool_error": f"{action} is no move"}
        self.level += 1 if action == "up" else -1
        if self.level == 2 and self.task.data["at"] == "step" and self.task.data["fault"]:
            return fail(self.task)
        return f"stair {self.level}", 0.0, self.level == 3, False, {"process": os.getpid()}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if start + count > 100:
            raise ValueError(f"split {split!r} holds 100 tasks")
        return [stairs_task(number) for number in range(start, start + count)]

    def legal_actions(self) -> list[str] | None:
        return ["up", "down"]

    def verify(self) -> float | None:
        if self.task.data["at"] == "verify" and self.level == 3:
            return fail(self.task)[1]
        return float(self.level == 3)

    def snapshot(self) -> object:
        match self.snapshots:
            case "locked":
                return self.task, Lock(self.level)
        return self.task, self.level

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.task, where = cast(tuple[Task, object], snapshot)
        match where:
            case Lock():
                self.level = where.level
            case int():
                self.level = where

    def state_key(self) -> str | None:
        return f"{self.task.id} {self.level}"

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return Climber(noise)

    def close(self) -> None:
        if self.task.data["at"] == "close":
            fail(self.task)


class Telling(Stairs):
    """Its observation holds the environment variables that its process was started with and has now."""

    def step(self, action: str | ToolCall) -> StepResult:
        return f"{dict(os.environ)} {Path('/proc/self/environ').read_bytes()!r}", 0.0, True, False, {}


class Climber:
    def __init__(self, noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is {noise}")
        self.noise = noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        return "higher", "down" if rng.random() < self.noise else "up"


def fail(task: Task) -> StepResult:
    """Do what the task's fault says."""
    answer = ("stair 2", 0.0, False, False, dict[str, object]())
    match task.data["fault"]:
        case "sleep":
            subprocess.Popen(["sleep", "1000"])
            while True:
                time.sleep(1000)
        case "hog":
            re.match(r"(a+)+$", "a" * 100 + "b")  # blocks while holding the GIL
        case "exit":
            print("out of\nstairs", file=sys.stderr, flush=True)
            os._exit(3)
        case "leave":
            sys.exit(4)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "garbage":
            return cast(StepResult, {"stair": 2})
        case "no number":
            return cast(StepResult, ("stair 2", "much", False, False, {}))
        case "no text":
            return cast(StepResult, (2, *answer[1:]))
        case "unpicklable":
            return (*answer[:4], {"lock": threading.Lock()})
        case "raise":
            raise KeyError("stair 2")
    return answer


class Dice(Env):
    """``roll`` adds to a hidden total and shows the roll. A snapshot copies the random generator."""

    snapshot_kind: SnapshotKind = "exact"
    stochastic = True

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.total = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.rng, self.total = random.Random(seed), 0
        return "shake", {}

    def step(self, action: str | ToolCall) -> StepResult:
        rolled = self.rng.randrange(1_000_000)
        self.total += rolled
        return f"rolled {rolled}", rolled / 1_000_000, False, False, {"total": self.total}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"dice-{number}", "roll", seed=number) for number in range(start, start + count)]

    def snapshot(self) -> object:
        return self.total, self.rng.getstate()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.total, state = cast(tuple[int, tuple[int, ...]], snapshot)
        self.rng.setstate(state)
        if reseed is not None:
            self.rng.seed(reseed)


class WordsPolicy:
    """Proposes every word once, in order, with equal probabilities."""

    def __init__(self, *words: str) -> None:
        self.words = words

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        actions = tuple(Action(word, word, token_ids=(1,), logprobs=(-1.0,)) for word in self.words)
        return [Proposal((1,), actions) for _ in states]


def children(parent: int | None = None) -> list[int]:
    """Running processes that ``parent`` has started, by default this process. The resource tracker of multiprocessing
    is left out."""
    found = list[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = stat.read_text().rpartition(")")[2].split()[:2]
            tracker = b"resource_tracker" in (stat.parent / "cmdline").read_bytes()
        except OSError:  # the process has just ended
            continue
        if int(its_parent) == (parent or os.getpid()) and state != "Z" and not tracker:
            found.append(int(stat.parent.name))
    return found


def runs(process: int) -> bool:
    """Whether a process runs. A zombie, which has ended but was not waited for, does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(process: int, seconds: float = 10.0) -> bool:
    """Whether the process ends within ``seconds``."""
    deadline = time.monotonic() + seconds
    while runs(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not runs(process)
