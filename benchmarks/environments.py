"""Every built-in environment checked and timed, the scaling of 16 over two processes, and a long run with faults.

python benchmarks/environments.py                  # what each call costs, and whether branches equal replays
python benchmarks/environments.py --faults 10000   # crashes, hangs, garbage and slow steps in the mix
"""

import argparse
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

from treeagent.cli.envs import Findings, find
from treeagent.envs import BUILT_IN, Env, make_env
from treeagent.types import UserError

SCALED = "shop"
ENVIRONMENTS = 16
CALLS = ("reset", "step", "snapshot", "restore")
SPAWN = multiprocessing.get_context("spawn")
_envs: list[Env] = []
_barrier: list[Barrier] = []
"""Of a process of the scaling benchmark, as are its environments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(BUILT_IN), metavar="NAME", help="environments to check")
    parser.add_argument("--tasks", type=int, default=3, help="tasks to check each on")
    parser.add_argument("--steps", type=int, default=2000, help="of each of the 16 environments that are scaled")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of the scaling")
    parser.add_argument("--faults", type=int, metavar="EPISODES", help="run episodes with faults instead")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which that run stops early")
    arguments = parser.parse_args()
    if arguments.faults:
        print("\n".join(faults(arguments.faults, arguments.seconds)))
        return
    print("| environment | equal branches | snapshots |", " | ".join(f"{call} ms" for call in CALLS), "| violations |")
    print("|---" * (len(CALLS) + 4) + "|")
    for name in arguments.only:
        print(row(name, arguments.tasks), flush=True)
    print()
    print("\n".join(scaling(arguments.steps, arguments.rounds)))


def row(name: str, tasks: int) -> str:
    """One environment's: medians of its calls, and how many branches equalled their replay."""
    try:
        env, other = make_env(name), make_env(name)
    except UserError as refused:
        return f"| {name} | {refused} |" + " |" * (len(CALLS) + 2)
    try:
        found: Findings = find(name, env, other, tasks)
    finally:
        env.close()
        other.close()
    times = [f"{found.milliseconds[call].median:.3f}" if call in found.milliseconds else "" for call in CALLS]
    said = "; ".join(found.violations) or "none"
    branches = f"{found.equal_branches} of {found.branches}"
    return f"| {name} | {branches} | {found.snapshots} | {' | '.join(times)} | {said} |"


def scaling(steps: int, rounds: int) -> Iterator[str]:
    """Steps a second of 16 environments in one process and shared by two, measured in turns; the best round of each, as
    what else the machine does only slows."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, measured in rates.items():
            measured.append(ENVIRONMENTS * steps / seconds(processes, steps))
    yield f"| {SCALED} × {ENVIRONMENTS} | steps / s, best of {rounds} | times one process |"
    yield "|---|---|---|"
    for processes, measured in rates.items():
        yield f"| {processes} processes | {max(measured):.0f} | {max(measured) / max(rates[1]):.2f} |"


def seconds(processes: int, steps: int) -> float:
    """Until ``processes``, which have made their environments before, have played ``steps`` of each."""
    share, barrier = ENVIRONMENTS // processes, SPAWN.Barrier(processes)
    with ProcessPoolExecutor(processes, SPAWN, _start, (barrier, share)) as pool:
        spans = list(pool.map(_play, range(processes), [steps] * processes))
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _start(barrier: Barrier, share: int) -> None:
    _envs[:] = [make_env(SCALED) for _ in range(share)]
    _barrier[:] = [barrier]


def _play(number: int, steps: int) -> tuple[float, float]:
    """Play demonstrations on this process's environments, a step of each in turn. Returns when it began and ended, on
    the clock that all processes share."""
    _barrier[0].wait()
    players = [env.demonstrator(0.3) for env in _envs]
    rng, begun = random.Random(number), [0] * len(_envs)
    began = time.monotonic()
    over = [True] * len(_envs)
    for _ in range(steps):
        for place, (env, player) in enumerate(zip(_envs, players, strict=True)):
            assert player is not None
            if over[place]:
                begun[place] += 1
                env.reset(options={"task": env.tasks("train", 1, begun[place])[0]})
            _, _, terminated, truncated, _ = env.step(player.act(rng)[1])
            over[place] = terminated or truncated
    return began, time.monotonic()


def faults(episodes: int, seconds: float) -> Sequence[str]:
    """What became of the episodes, and what this process holds after them."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "envs"))
    from faulty_envs import endure

    began = time.monotonic()
    endured = endure(episodes, seconds=seconds)
    warm, after = endured.warm, endured.after
    injected = ", ".join(f"{count} {fault or 'sound'}" for fault, count in sorted(endured.faults.items()))
    return [
        f"{sum(endured.faults.values())} episodes in {time.monotonic() - began:.0f} s: {injected}",
        "",
        "| solved | lost | stuck | processes started | resident MiB | descriptors | processes |",
        "|---|---|---|---|---|---|---|",
        f"| {endured.solved} | {len(endured.lost)} | {endured.stuck} | {endured.starts} | "
        f"{warm.resident / 2**20:.1f} → {after.resident / 2**20:.1f} | {warm.descriptors} → {after.descriptors} | "
        f"{warm.processes} → {after.processes} |",
        *endured.lost,
    ]


if __name__ == "__main__":
    main()
