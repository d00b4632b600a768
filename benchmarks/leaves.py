"""What several simulations in flight cost in quality: the same number of simulations, 1 to 8 at once, on random trees.

    PYTHONPATH=tests/search .venv/bin/python -m benchmarks.leaves

Success is the share of trees with known values (``KnownTree``) in which the most visited action at the root is the best
one. Every repetition has its own trees and tries every number of leaves on them. Batches are calls of the model.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from games import KnownTree
from numpy.typing import NDArray

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.mcts import GumbelSearch, Search
from treeagent.types import Task

QUESTION = "What do several simulations in flight cost in quality, at equal simulations?"
SELECTIONS = {"puct": Search, "gumbel": GumbelSearch}
LEAVES = (1, 2, 4, 8)


def successes(
    trees: Sequence[KnownTree], config: SearchConfig, method: type[Search]
) -> tuple[NDArray[np.bool_], float]:
    """For each tree, whether the search finds the best action; and the mean number of batches per tree."""
    batches = 0
    found: list[bool] = []

    def note(_: object) -> None:
        nonlocal batches
        batches += 1

    for world in trees:
        search = method(world, world, config, world)
        [tree] = asyncio.run(search.run([Task("known", "")], [world.seed], note))
        found.append(best_path(tree, "visits")[0].action.text == str(world.best_action))
    return np.array(found), batches / len(trees)


def measure(trees: Sequence[KnownTree], simulations: int) -> Figures:
    """Success of each selection rule and number of leaves, on the same trees."""
    found: dict[str, dict[str, float]] = {}
    for selection, method in SELECTIONS.items():
        sequential = 0.0
        for leaves in LEAVES:
            limits = Limits(simulations=simulations)
            config = SearchConfig(limits=limits, options={"widening": 0}, leaves=leaves)
            right, batches = successes(trees, config, method)
            share = float(right.mean())
            sequential = share if leaves == 1 else sequential
            found[arm(selection, leaves)] = {
                "success": share,
                "lost, %": 100 * (1 - share / sequential),
                "batches": batches,
            }
    return found


def arm(selection: str, leaves: int) -> str:
    return f"{selection}, {leaves} {'leaves' if leaves > 1 else 'leaf'}"


def main() -> None:
    options = repeating(__doc__, "leaves", rounds=10)
    options.add_argument("--trees", type=int, default=100, help="of a repetition, its own ones")
    options.add_argument("--simulations", type=int, default=64)
    arguments = options.parse_args()
    arms = [arm(selection, leaves) for selection in SELECTIONS for leaves in LEAVES]
    with record_of(arguments, QUESTION, simulations=arguments.simulations) as record:
        add_rounds(
            record, arguments.rounds, options_digest(arguments), arms,
            lambda number: measure(
                [KnownTree(seed) for seed in range(number * arguments.trees, (number + 1) * arguments.trees)],
                arguments.simulations,
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main()
