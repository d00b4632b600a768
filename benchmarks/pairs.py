"""Are preference pairs true? Monte Carlo episodes after both sides of the pairs of a run's trees.

    .venv/bin/python -m benchmarks.pairs RUN [--pairs 400] [--episodes 8]

The policy that searched the trees plays on from the state after the chosen and after the rejected action. A pair is
right if the chosen side succeeds more often, a tie if both do as often, and wrong otherwise. A side that ended counts
by its own return. Kinds say what was found of the rejected action: its call was refused, it ended the episode, worse
ends were found below it, or none ("open"). In "unproven" pairs the chosen action led to nothing better than the
rejected one, so that a difference of V decides.
"""

import argparse
import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

from benchmarks.command import options_digest
from benchmarks.record import Row, recording
from treeagent.pipeline import build
from treeagent.pipeline.folder import Run
from treeagent.pipeline.play import execute
from treeagent.pipeline.trees import stored_trees
from treeagent.search.node import Edge, Tree, finished_paths, outcome, reaches
from treeagent.types import derive_seed
from treeagent.views.pairs import compared_siblings

KINDS = ("refused", "ended", "explored", "open", "unproven")


def best_ends(tree: Tree) -> dict[int, float]:
    """By ``id`` of the edge, the best return of the paths through it on which the episode is over."""
    found: dict[int, float] = {}
    for path in finished_paths(tree):
        for edge in path:
            found[id(edge)] = max(found.get(id(edge), -inf), outcome(path))
    return found


def kind_of(chosen: Edge, rejected: Edge, found: Mapping[int, float]) -> str:
    assert rejected.child is not None
    if found.get(id(chosen), -inf) <= found.get(id(rejected), -inf):
        return "unproven"
    if rejected.child.invalid or rejected.child.ended:
        return "refused" if rejected.child.invalid else "ended"
    return "explored" if id(rejected) in found else "open"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path)
    options.add_argument("--pairs", type=int, default=400)
    options.add_argument("--episodes", type=int, default=8)
    options.add_argument("--name", default="pairs")
    arguments = options.parse_args()
    luck, settings = random.Random(0), options_digest(arguments, "run")
    run = Run.open(arguments.run)
    config = run.config
    candidates: dict[str, list[tuple[Tree, tuple[Edge, ...], Edge, Edge]]] = defaultdict(list)
    for tree in stored_trees(run.trees, "collect"):
        found = best_ends(tree)
        for path, _, chosen, rejected in compared_siblings(tree, config.update.pairs):
            candidates[kind_of(chosen, rejected, found)].append((tree, tuple(path), chosen, rejected))
    print({kind: len(candidates[kind]) for kind in KINDS}, flush=True)
    policy = run.recorded_checkpoint("collect")
    assert policy is not None
    actors, _ = build.load_actors(policy, config)
    real = build.env_dynamics(build.instances(config), config, "pairs")

    def play(tree: Tree, path: tuple[Edge, ...], edge: Edge) -> float:
        """The mean success after an action, by Monte Carlo."""
        if edge.child is not None and edge.child.ended:
            return float(reaches(outcome((*path, edge)), 1.0))
        tasks = [replace(tree.task, id=f"{tree.task.id}/{number}") for number in range(arguments.episodes)]
        seeds = [derive_seed(0, "pairs", task.id) for task in tasks]
        plans = [(*path, edge)] * len(tasks)
        played, _ = asyncio.run(execute(actors.sampling, real, tasks, seeds, plans))
        return fmean(float(reaches(each.reward, 1.0)) for each in played)

    with recording(arguments.name, "Are preference pairs true, by how the rejected side was proven?") as record:
        for kind in KINDS:
            pairs = candidates[kind]
            drawn = luck.sample(pairs, min(len(pairs), arguments.pairs // len(KINDS)))
            verdicts = Counter[str]()
            for tree, path, chosen, rejected in drawn:
                better, worse = play(tree, path, chosen), play(tree, path, rejected)
                verdicts["right" if better > worse else "tie" if better == worse else "wrong"] += 1
            row: dict[str, float] = {"pairs": len(pairs), "drawn": len(drawn)}
            row |= {each: verdicts[each] / max(len(drawn), 1) for each in ("right", "tie", "wrong")}
            record.add(Row(kind, 0, settings, figures=row))
            print(kind, row, flush=True)


if __name__ == "__main__":
    main()
