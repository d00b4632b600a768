"""Updates of trees whose values a perfect critic gave: what is left to gain for pairs and advantages?

    .venv/bin/python -m benchmarks.updates --config envs/tireworld --runs runs/tireworld \\
        --name updates_tireworld_steps --out runs/steps --grid 2e-3 --variants states dpo awr
    .venv/bin/python -m benchmarks.perfect --runs runs/tireworld --trees runs/steps --grid 2e-3 --variants dpo awr

The planner gives each tried action of the stored trees its true value: 1 if a plan leads from there to the goal, or if
the episode ended at the goal, and 0 otherwise. Nothing else about the trees changes. The rows stand beside those of
``benchmarks.updates``, whose trees have the values of the search.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.command import limits_of, record_of, start_of, starting
from benchmarks.endings import can_succeed
from benchmarks.updates import QUESTION, VARIANTS, Job, config_of, run
from treeagent.contrib.worlds.planning import PlanningEnv
from treeagent.pipeline.build import environment
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.search.node import Tree
from treeagent.search.record import from_record, to_record
from treeagent.store import read_as, shards, write_shard


def judged(env: PlanningEnv, tree: Tree) -> Tree:
    """The tree, in which Q of each tried action is now the truth."""
    for path, node in tree.walk():
        for edge in node.edges:
            refused = edge.child is not None and edge.child.invalid
            good = edge.visits > 0 and not refused and can_succeed(env, tree, [*path, edge])
            edge.value_sum = float(good) * edge.visits
    return tree


def judge(source: Run, out: Path) -> None:
    """Write the trees of ``source``, judged, as the collection of a run ``out``."""
    env = environment(source.config)
    assert isinstance(env, PlanningEnv)
    with Run.create(out, source.config, resume=True) as copy:
        start = source.recorded_checkpoint(COLLECTED)
        if copy.is_done(COLLECTED) or start is None:
            return
        copy.record_checkpoint(COLLECTED, start)
        for index in range(len(shards(source.trees, COLLECTED))):
            write_shard(copy.trees, COLLECTED, index, _records(env, source, index))
        copy.finish(COLLECTED, source.facts(COLLECTED))


def _records(env: PlanningEnv, source: Run, index: int) -> Iterator[dict[str, object]]:
    for tree in read_as(from_record, source.trees, COLLECTED, index):
        yield to_record(judged(env, tree))


def main() -> None:
    options = starting(__doc__, "updates_tireworld_steps", out="runs/perfect")
    options.add_argument("--config", default="envs/tireworld", help="a recipe of planning")
    options.add_argument("--trees", type=Path, required=True, help="where benchmarks.updates collected the trees")
    from_trees = [name for name, variant in VARIANTS.items() if not variant.search]
    options.add_argument("--variants", nargs="+", required=True, choices=from_trees)
    options.add_argument("--grid", nargs="+", type=float, required=True, help="learning rates of every variant")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, **limits_of(config_of(arguments.config, 0, arguments.set))) as record:
        for seed in arguments.seeds:
            judge(Run.open(arguments.trees / f"seed{seed}"), arguments.out / f"seed{seed}")
            start = start_of(arguments.runs, seed)
            chosen = (arguments.out, arguments.set, ["greedy"], 1, arguments.grid)
            for row in run(Job(arguments.config, seed, arguments.variants, start, *chosen)):
                if row.arm != "before":
                    record.add(replace(row, arm=f"{row.arm}, perfect critic"))


if __name__ == "__main__":
    main()
