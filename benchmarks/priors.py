"""What a pretrained prior changes in search: how sure policies are, and what their V knows, in trees of the same tasks.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1  # a small model from scratch
    make runs/smollm2
    .venv/bin/python -m benchmarks.quickstart --config quickstart_llm --seeds 0 1
    .venv/bin/python -m benchmarks.priors --runs runs/store_short runs/quickstart_llm --seeds 0 1

Reads the training trees of finished runs; an arm is the folder of a recipe's runs. ``greatest P`` is the mean over
expanded states of the greatest prior, ``entropy`` that of the entropy in nats, with all calls that were not sampled as
one, and ``calls`` that of the number of calls. ``P of successes`` is the geometric mean of the priors on the best path
of each tree with a success. ``malformed or refused`` is the share of such steps. AUC is as in
``views.signal``.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.command import parser, record_of, settings_of
from benchmarks.record import Row, digest
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_return, succeeds
from treeagent.views.figures import tree_figures
from treeagent.views.signal import signal_figures, value_signal

QUESTION = "What does a pretrained prior change in search?"


def figures(trees: Sequence[Tree]) -> dict[str, float]:
    """The figures of one run's trees. Those that cannot be computed are left out."""
    expanded = [node for tree in trees for node in tree.nodes() if node.edges]
    best_paths = (_best_success(tree) for tree in trees)
    steps = [math.log(edge.prior) for path in best_paths for edge in path]
    signal = signal_figures(value_signal(trees))
    values = {
        "greatest P": _mean(max(edge.prior for edge in node.edges) for node in expanded),
        "entropy": _mean(map(_entropy, expanded)),
        "calls": _mean(len(node.edges) for node in expanded),
        "P of successes": math.exp(statistics.fmean(steps)) if steps else None,
        "malformed or refused": tree_figures(trees)["invalid"],
        "AUC": signal.get("value_auc"),
        "AUC at ends": signal.get("value_auc_ends"),
        "AUC of siblings": signal.get("value_siblings"),
    }
    return {name: value for name, value in values.items() if value is not None}


def _best_success(tree: Tree) -> Sequence[Edge]:
    """The path with the greatest return if it is a success; empty if not."""
    paths = list(finished_paths(tree))
    best = max(paths, key=lambda path: path_return(path, tree.discount)) if paths else []
    return best if best and succeeds(best) else []


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def _entropy(node: Node) -> float:
    """Entropy in nats of the calls at a state. All calls that were not sampled count as one."""
    chances = [edge.prior for edge in node.edges]
    return -sum(chance * math.log(chance) for chance in [*chances, 1 - sum(chances)] if chance > 0)


def main() -> None:
    options = parser(__doc__, "priors", seeds=(0, 1))
    options.add_argument("--runs", type=Path, nargs="+", required=True, help="folders of runs seed0, seed1, ...")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for folder in arguments.runs:
            for seed in arguments.seeds:
                run = Run.open(folder / f"seed{seed}")
                settings = digest(settings_of(run.config))
                if not record.has(folder.name, seed, settings):
                    row = Row(folder.name, seed, settings, figures=figures(list(read_trees(run.trees))))
                    record.add(row)
                    print(f"{folder.name}, seed {seed}: {dict(row.figures)}", flush=True)


if __name__ == "__main__":
    main()
