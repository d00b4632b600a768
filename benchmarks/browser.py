"""The environments in a real browser: whether they equal their text, and what they cost.

    python -m benchmarks.browser  # the booking site: contexts and branches
    python -m benchmarks.browser --runs RUNS  # a policy in text and browser; RUNS/seed0: recipe booking
    python -m benchmarks.browser --clone CLONE  # the apps of a clone of WebArena-Infinity

Run it as an unprivileged user: for root the browser's sandbox is off. Memory is PSS, without this process.
"""

import os
import pickle
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import psutil

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import Record, Row, digest
from treeagent.contrib.worlds.booking import BookingEnv, BookingOptions
from treeagent.contrib.worlds.webarena import KNOWN, WebArenaEnv, WebArenaOptions
from treeagent.envs.base import StepResult
from treeagent.pipeline.folder import Run
from treeagent.types import Task

_CLICKABLE = re.compile(r"- (?:button|link|tab|checkbox|menuitem)[^\n]*\[ref=(\w+)\]")
Step = tuple[bytes, str, StepResult, float]  # pickled snapshot before it, call, result, seconds
SANDBOX = os.geteuid() != 0
QUESTION = "Does a browser show what the text shows, and what does it cost?"


def main() -> None:
    options = starting(__doc__, "browser")
    options.set_defaults(runs=None)
    options.add_argument("--clone", type=Path, help="folder of WebArena-Infinity")
    arguments = options.parse_args()
    dials = BookingOptions(view="browser", sandbox=SANDBOX, popups=True, slow=0.2, holds=2, wordings=3, fields=True)
    make, arms = partial(BookingEnv, dials), dict[str, Callable[[], dict[str, float]]]()
    with record_of(arguments, QUESTION) as record:
        if arguments.runs:
            both(record, arguments.runs)
        elif arguments.clone:
            arms |= {f"webarena, {app}": partial(walks, app, arguments.clone) for app in KNOWN}
        else:
            arms |= {f"booking, {count} contexts": partial(contexts, make, count) for count in (1, 16)}
            arms["booking, branches"] = partial(branches, make)
        for arm, measure in arms.items():
            if not record.has(arm, 0, settings := digest({"sandbox": SANDBOX})):
                record.add(Row(arm, 0, settings, figures=measure()))


def both(record: Record, runs: Path) -> None:
    """A policy after one update, greedily, on the same tasks in text and in Chromium."""
    config = Run.open(runs / "seed0").config
    for view in ("text", "browser"):
        options = {**config.environment.options, "view": view, "sandbox": SANDBOX}
        shown, arm = replace(config, environment=replace(config.environment, options=options)), f"policy in {view}"
        settings = digest(settings_of(shown))
        if not record.has(arm, 0, settings):
            record.add(evaluate_arm(shown, start_of(runs, 0, "rft"), "greedy", arm, 0, settings, 100))


def played(env: BookingEnv, task: Task) -> list[Step]:
    """The episode of a hasty user."""
    env.reset(options={"task": task})
    player, rng, steps = env.demonstrator(0.3), random.Random(task.id), list[Step]()
    while env.verdict() is None and len(steps) < 40:
        before, call, began = pickle.dumps(env.snapshot()), player.act(rng)[1], time.perf_counter()
        steps.append((before, call, env.step(call), time.perf_counter() - began))
    return steps


def contexts(make: Callable[[], BookingEnv], count: int) -> dict[str, float]:
    """What environments that play at once cost, each in a context of one browser."""
    envs, pool = [make() for _ in range(count)], ThreadPoolExecutor(count)
    list(pool.map(lambda env: env.reset(seed=0), envs))
    times = [step[3] for steps in pool.map(played, envs, envs[0].tasks("test", count)) for step in steps]
    used = sum(each.memory_full_info().pss for each in psutil.Process().children(recursive=True)) / 2**20
    list(pool.map(BookingEnv.close, envs))
    return {"action ms": 1000 * median(times), "actions a second": count / mean(times), "browser MiB": used}


def branches(make: Callable[[], BookingEnv]) -> dict[str, float]:
    """Steps after a return to a snapshot, in any order in another context, against the same steps of an episode."""
    env, other, equal = make(), make(), list[bool]()
    for task in env.tasks("test", 20):
        steps = played(env, task)
        for before, call, result, _ in random.Random(task.id).choices(steps, k=10):
            other.restore(pickle.loads(before))
            equal.append(other.step(call) == result)
    for each in (env, other):
        each.close()
    return {"branches": len(equal), "equal branches": sum(equal)}


def walks(app: str, clone: Path) -> dict[str, float]:
    """Random clicks in an app, repeated in another context, and what its verifiers say of doing nothing."""
    options = WebArenaOptions(path=clone, app=app, sandbox=SANDBOX)
    env, other, times, equal, idle = WebArenaEnv(options), WebArenaEnv(options), list[float](), list[bool](), 0.0
    for task in env.tasks("train", 3):
        shown, rng = env.reset(options={"task": task})[0], random.Random(task.id)
        idle += env.verify()
        equal.append(other.reset(options={"task": task})[0] == shown)
        for _ in range(6):
            call, began = f"click[{rng.choice(_CLICKABLE.findall(shown))}]", time.perf_counter()
            result = env.step(call)
            times.append(time.perf_counter() - began)
            shown = shown if result[4] else result[0]
            equal.append(other.step(call) == result)
    for each in (env, other):
        each.close()
    return {"step ms": 1000 * median(times), "states": len(equal), "equal states": sum(equal), "idle successes": idle}


if __name__ == "__main__":
    main()
