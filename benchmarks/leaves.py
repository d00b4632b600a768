"""What several simulations in flight cost in quality: equal simulations, so many of them at once, on random trees.

    PYTHONPATH=tests/search .venv/bin/python benchmarks/leaves.py

Success is the share of trees of known values (``KnownTree``) in which the most visited action at the root is the best
one; ± is the standard error of its difference from one leaf, over the same trees. Batches are calls of the model.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from games import KnownTree
from numpy.typing import NDArray

from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.types import Task


def successes(trees: Sequence[KnownTree], config: SearchConfig) -> tuple[NDArray[np.bool_], float]:
    """Which of the trees a search succeeds in, and its batches a tree."""
    batches = 0
    found: list[bool] = []

    def note(_: object) -> None:
        nonlocal batches
        batches += 1

    for world in trees:
        search = Search(world, world, config, world)
        [tree] = asyncio.run(search.run([Task("known", "")], [world.seed], note))
        found.append(best_path(tree, "visits")[0].action.text == str(world.best_action))
    return np.array(found), batches / len(trees)


def measure(count: int, simulations: int, selection: Literal["puct", "uct", "gumbel"]) -> None:
    """Print the table."""
    trees = [KnownTree(seed) for seed in range(count)]
    print(f"{selection}, {simulations} simulations, {count} trees")
    print("leaves  success  lost             batches")
    alone: NDArray[np.bool_] | None = None
    for leaves in (1, 2, 4, 8):
        limits = Limits(simulations=simulations)
        config = SearchConfig(limits=limits, selection=selection, widening=None, leaves=leaves, skip_exhausted=False)
        found, batches = successes(trees, config)
        alone = found if alone is None else alone
        lost = alone.astype(float) - found
        error = lost.std() / count**0.5 / alone.mean()
        print(f"{leaves:6} {found.mean():8.1%} {lost.mean() / alone.mean():6.1%} ± {error:5.1%} {batches:8.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--simulations", type=int, default=64)
    arguments = parser.parse_args()
    for selection in ("puct", "uct", "gumbel"):
        measure(arguments.trees, arguments.simulations, selection)
