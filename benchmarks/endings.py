"""What pairs of siblings prefer on tireworld, and how the greedy episodes of policies that learnt from them end.

    .venv/bin/python -m benchmarks.quickstart --config envs/tireworld
    .venv/bin/python -m benchmarks.updates --config envs/tireworld --runs runs/tireworld --name updates_tireworld \\
        --out runs/updates_tireworld --variants states dpo dpo-trajectory grpo
    .venv/bin/python -m benchmarks.endings --runs runs/updates_tireworld

The planner judges each pair: it is right if a plan leads to the goal after the preferred action, and none does after
the rejected one. Episodes are those that ``benchmarks.updates`` played.
"""

import random
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from benchmarks.command import parser, record_of
from benchmarks.record import Row, digest
from treeagent.contrib.worlds.planning import PlanningEnv
from treeagent.contrib.worlds.planning.planner import FINISH, STUCK
from treeagent.pipeline.build import environment
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.outcomes import evaluation_stage
from treeagent.search.node import Edge, Tree, finished_paths, succeeds
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.pairs import compared_siblings

QUESTION = "Why do pairs of siblings teach less than pairs of whole paths on a long horizon?"
PAIRS = "pairs of siblings"
PLAYED = re.compile(r"evaluate-((.+?)(-\d+e-6)?)-greedy-0+\.")
"""A file of greedy episodes: the policy's name, that without the rate that ``benchmarks.updates --grid`` chose,
and the rate."""
ENDS = (
    "finished at the goal",
    "finished too early",
    "finished when lost",
    "at the goal, not finished",
    "never at the goal",
)
"""How episodes end. An episode is lost when no plan leads from its state to the goal any more."""


def at_goal(env: PlanningEnv) -> bool:
    return env.problem.solved(env.visit.state)


def play(env: PlanningEnv, tree: Tree, edges: Sequence[Edge]) -> Iterator[bool]:
    """Play the actions of a path. Yields after each one whether the goal holds."""
    env.reset(options={"task": tree.task})
    for edge in edges:
        if edge.action.call and not edge.action.error and not env.visit.finished:
            env.step(edge.action.call)
        yield at_goal(env)


def can_succeed(env: PlanningEnv, tree: Tree, edges: Sequence[Edge]) -> bool:
    """Whether a plan leads to the goal after these actions, or they have finished there."""
    *_, now = [False, *play(env, tree, edges)]
    if env.visit.finished:
        return now
    return env.demonstrator(0.0).act(random.Random(0))[0] != STUCK


def ending(env: PlanningEnv, episode: Tree) -> str:
    """The element of ``ENDS`` that describes a greedy episode."""
    [path] = [path for path, node in episode.walk() if not node.edges]
    reached = any(list(play(env, episode, path)))
    if not env.visit.finished:
        return ENDS[3] if reached else ENDS[4]
    if at_goal(env):
        return ENDS[0]
    return ENDS[1] if can_succeed(env, episode, path[:-1]) else ENDS[2]


def pair_figures(env: PlanningEnv, trees: Sequence[Tree], run: Run) -> dict[str, float]:
    """What the pairs of siblings in ``trees`` compare."""
    compared = [
        (tree, path, chosen, rejected)
        for tree in trees
        for path, _, chosen, rejected in compared_siblings(tree, run.config.update.pairs)
    ]
    right = [
        can_succeed(env, tree, [*path, chosen]) and not can_succeed(env, tree, [*path, rejected])
        for tree, path, chosen, rejected in compared
    ]
    nodes = {id(path[-1].child if path else tree.root) for tree, path, _, _ in compared}
    on_success = {
        id(node): id(node) in nodes
        for tree in trees
        for path in finished_paths(tree)
        if succeeds(path)
        for node in tree.states(path[:-1])
    }
    return {
        "pairs per tree": len(compared) / len(trees),
        "right": _percent(right),
        "prefers finish": _percent(_finishes(chosen) for _, _, chosen, _ in compared),
        "rejects finish": _percent(_finishes(rejected) for _, _, _, rejected in compared),
        "states before a success that have a pair": _percent(on_success.values()),
        "states at the goal where only finish was tried": _percent(
            all(_finishes(edge) for edge in node.edges if edge.visits)
            for tree in trees
            for path, node in tree.walk()
            if any(edge.visits for edge in node.edges) and [False, *play(env, tree, path)][-1]
        ),
    }


def _percent(marks: Iterable[bool]) -> float:
    return 100 * statistics.fmean(marks)


def _finishes(edge: Edge) -> bool:
    return FINISH in str(edge.action.call)


def main() -> None:
    options = parser(__doc__, "endings")
    options.add_argument("--runs", type=Path, default=Path("runs/updates_tireworld"))
    options.add_argument("--trees", type=int, default=300, help="trees of each seed whose pairs are judged")
    arguments = options.parse_args()
    settings = digest({"trees": arguments.trees})
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            run = Run.open(arguments.runs / f"seed{seed}")
            env = environment(run.config)
            assert isinstance(env, PlanningEnv)
            if not record.has(PAIRS, seed, settings):
                trees = list(islice(read_as(from_record, run.trees, COLLECTED), arguments.trees))
                record.add(Row(PAIRS, seed, settings, figures=pair_figures(env, trees, run)))
            for found in filter(None, map(PLAYED.match, sorted(file.name for file in run.episodes.iterdir()))):
                if not record.has(policy := found[2], seed, settings):
                    stage = evaluation_stage(found[1], "greedy")
                    ends = Counter(ending(env, episode) for episode in read_as(from_record, run.episodes, stage))
                    figures = {end: 100 * ends[end] / ends.total() for end in ENDS}
                    record.add(Row(policy, seed, settings, figures=figures))
                    print(f"seed {seed} {policy}: {figures}", flush=True)


if __name__ == "__main__":
    main()
