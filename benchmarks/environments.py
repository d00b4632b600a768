"""Checks and times every built-in environment, measures how 16 environments scale over two processes, and makes a long
run with faults.

    python -m benchmarks.environments                  # what each call costs, and whether branches equal replays
    python -m benchmarks.environments --faults 10000   # crashes, hangs, garbage and slow steps in the mix
"""

import math
import multiprocessing
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from benchmarks.record import recording
from treeagent.cli.envs import Findings, find
from treeagent.envs import BUILT_IN, Env, make_env
from treeagent.envs.calls import as_call
from treeagent.seams import names
from treeagent.types import UserError

QUESTION = "What does each call of an environment cost, and do branches equal their replays?"
SCALING = "How many steps a second do 16 environments make in one process, and in two?"
FAULTS = "What happens to episodes in which the environment crashes, hangs or returns invalid values?"
SCALED = "shop"
ENVIRONMENTS = 16
SPAWN = multiprocessing.get_context("spawn")
_envs: list[Env] = []
_barrier: list[Barrier] = []
"""The barrier of this process in the scaling benchmark; ``_envs`` holds the environments of this process."""


def main() -> None:
    options = repeating(__doc__, "environments", rounds=5)
    options.add_argument(
        "--only",
        nargs="+",
        default=list(names("environment.name", BUILT_IN)),
        metavar="NAME",
        help="environments to check",
    )
    options.add_argument("--tasks", type=int, default=3, help="tasks to check each on")
    options.add_argument("--steps", type=int, default=2000, help="of each of the 16 environments that are scaled")
    options.add_argument("--faults", type=int, metavar="EPISODES", help="run episodes with faults instead")
    options.add_argument("--seconds", type=float, default=math.inf, help="after which that run stops early")
    arguments = options.parse_args()
    if arguments.faults:
        with recording("faults", FAULTS, folder=arguments.results) as record:
            arm = f"{arguments.faults} episodes"
            add_rounds(
                record,
                1,
                options_digest(arguments),
                [arm],
                lambda _: {arm: faults(arguments.faults, arguments.seconds)},
            )
        return
    with record_of(arguments, QUESTION) as record:
        for name in arguments.only:
            measure = partial(checked, name, arguments.tasks)
            add_rounds(record, 1, options_digest(arguments, "steps", "faults", "seconds"), [name], measure)
    with recording("scaling", SCALING, folder=arguments.results) as record:
        arms = [f"{ENVIRONMENTS} {SCALED}s, {count} process{'es' * (count > 1)}" for count in (1, 2)]
        settings = options_digest(arguments, "tasks", "faults", "seconds")
        add_rounds(record, arguments.rounds, settings, arms, partial(scaled, arms, arguments.steps))


def checked(name: str, tasks: int, _: int) -> Figures:
    """Figures of one environment: the median time of each call, and how many branches equalled their replay. Empty if
    the environment is not installed."""
    try:
        env, other = make_env(name), make_env(name)
    except UserError as refused:
        print(refused)
        return {}
    try:
        found: Findings = find(name, env, other, tasks)
        times: dict[str, float] = {} if found.violations else medians(env)
    finally:
        env.close()
        other.close()
    branches = {"branches": found.branches, "equal branches": found.equal_branches}
    return {name: branches | times | {"violations": len(found.violations)}}


def medians(env: Env) -> dict[str, float]:
    """Median milliseconds of each call, in ten demonstrated or random episodes of the first task."""
    seconds: dict[str, list[float]] = {}

    def timed(call: str, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        answer = getattr(env, call)(*arguments, **named)
        seconds.setdefault(call, []).append(time.perf_counter() - began)
        return answer

    [task], rng = env.tasks("train", 1), random.Random(0)
    for _ in range(10):
        timed("reset", seed=task.seed, options={"task": task})
        player = env.demonstrator(0.5)
        for _ in range(6):
            legal = env.legal_actions()
            if player is None and not legal:
                break
            call = player.act(rng)[1] if player is not None else rng.choice(legal or [])
            _, _, terminated, truncated, _ = timed("step", as_call(call, env.tools()))
            if env.snapshot_kind == "exact":
                timed("restore", timed("snapshot"))
            if terminated or truncated:
                break
    return {f"{call} ms": 1000 * median(each) for call, each in seconds.items()}


def scaled(arms: Sequence[str], steps: int, _: int) -> Figures:
    """Steps per second of 16 environments in one process and divided over two, measured in turns."""
    one, two = (ENVIRONMENTS * steps / seconds(processes, steps) for processes in (1, 2))
    return {arms[0]: {"steps / s": one, "ratio": 1.0}, arms[1]: {"steps / s": two, "ratio": two / one}}


def seconds(processes: int, steps: int) -> float:
    """Seconds that ``processes`` take to play ``steps`` steps in each environment. Making the environments is not
    timed."""
    share, barrier = ENVIRONMENTS // processes, SPAWN.Barrier(processes)
    with ProcessPoolExecutor(processes, SPAWN, _start, (barrier, share)) as pool:
        spans = list(pool.map(_play, range(processes), [steps] * processes))
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _start(barrier: Barrier, share: int) -> None:
    _envs[:] = [make_env(SCALED) for _ in range(share)]
    _barrier[:] = [barrier]


def _play(number: int, steps: int) -> tuple[float, float]:
    """Play demonstrations in this process's environments, one step in each per turn. Returns the start and end time on
    a clock that all processes share."""
    _barrier[0].wait()
    players = [env.demonstrator(0.3) for env in _envs]
    rng, episodes = random.Random(number), [0] * len(_envs)
    began = time.monotonic()
    over = [True] * len(_envs)
    for _ in range(steps):
        for index, (env, player) in enumerate(zip(_envs, players, strict=True)):
            assert player is not None
            if over[index]:
                episodes[index] += 1
                env.reset(options={"task": env.tasks("train", 1, episodes[index])[0]})
            _, _, terminated, truncated, _ = env.step(player.act(rng)[1])
            over[index] = terminated or truncated
    return began, time.monotonic()


def faults(episodes: int, seconds: float) -> dict[str, float]:
    """Play episodes with injected faults. Returns what became of them, and what this process holds afterwards."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "envs"))
    from faulty_envs import endure

    began = time.monotonic()
    endured = endure(episodes, seconds=seconds)
    warm, after = endured.warm, endured.after
    print("\n".join(endured.lost))
    return {
        "with a fault": sum(count for fault, count in endured.faults.items() if fault),
        "solved": endured.solved,
        "lost": len(endured.lost),
        "stuck": endured.stuck,
        "processes started": endured.starts,
        "growth, MiB": (after.resident - warm.resident) / 2**20,
        "more descriptors": after.descriptors - warm.descriptors,
        "more processes": after.processes - warm.processes,
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    main()
