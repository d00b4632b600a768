"""What each call of an environment costs, and whether branches equal their replays.

python -m benchmarks.environments
"""

import random
import time
from functools import partial
from statistics import median
from typing import Any

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.cli.envs import Findings, find
from treeagent.envs import BUILT_IN, Env, make_env
from treeagent.envs.calls import as_call
from treeagent.seams import names
from treeagent.types import UserError

QUESTION = "What does each call of an environment cost, and do branches equal their replays?"


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
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for name in arguments.only:
            measure = partial(checked, name, arguments.tasks)
            add_rounds(record, 1, options_digest(arguments), [name], measure)


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


if __name__ == "__main__":
    main()
