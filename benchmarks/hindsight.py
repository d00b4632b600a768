"""Does hindsight divergence find the states at which the choice of the action matters?

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2
    .venv/bin/python -m benchmarks.hindsight --seeds 0 1 2

The divergence of a step is how much its probability changes once the policy knows how the episode ends
(``contrib.hindsight``). The choice matters at a state if the Q of its tried actions differ by at least
``MARGIN``. Each figure is the chance (AUC) that a signal is higher at a state where it matters than at another: the
largest divergence of the actions, and the policy's uncertainty 1 - max P.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.command import parser, record_of
from benchmarks.record import Row, digest
from treeagent.contrib.hindsight.hindsight import hindsight, searching_policy
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.signal import auc

QUESTION = "Does hindsight divergence find the states at which the choice of the action matters?"
ARM = "states of trees"
MARGIN = 0.2
"""In reward units."""


@dataclass(frozen=True)
class Branch:
    """A state with several tried actions whose divergence is known."""

    spread: float
    """The greatest Q minus the lowest."""
    divergence: float
    uncertainty: float


def branches(tree: Tree) -> Iterator[Branch]:
    """The states of a tree whose steps have a divergence (``measure_divergence``)."""
    for node in tree.nodes():
        tried = [edge for edge in node.edges if edge.visits]
        known = [edge.divergence for edge in tried if edge.divergence is not None]
        if len(tried) > 1 and known:
            values = [edge.value for edge in tried]
            yield Branch(max(values) - min(values), max(known), 1 - max(edge.prior for edge in node.edges))


def figures(trees: list[Tree]) -> dict[str, float]:
    found = [branch for tree in trees for branch in branches(tree)]
    matters, others = ([b for b in found if (b.spread >= MARGIN) == decided] for decided in (True, False))
    divergence = auc([branch.divergence for branch in matters], [branch.divergence for branch in others])
    uncertainty = auc([branch.uncertainty for branch in matters], [branch.uncertainty for branch in others])
    assert divergence is not None and uncertainty is not None  # both kinds of states exist
    return {
        "states": len(found),
        "matters, share": len(matters) / len(found),
        "divergence, AUC": divergence,
        "uncertainty, AUC": uncertainty,
    }


def main() -> None:
    options = parser(__doc__, "hindsight")
    options.add_argument("--runs", type=Path, default=Path("runs/quickstart"), help="where benchmarks.quickstart wrote")
    options.add_argument("--trees", type=int, default=100, help="of each seed")
    arguments = options.parse_args()
    settings = digest({"trees": arguments.trees, "margin": MARGIN})
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            if record.has(ARM, seed, settings):
                continue
            run = Run.open(arguments.runs / f"seed{seed}")
            measure = hindsight(searching_policy(run, "--runs"), run.config)
            trees = list(islice(read_as(from_record, run.trees, COLLECTED), arguments.trees))
            for tree in trees:
                measure(tree)
            record.add(Row(ARM, seed, settings, figures=figures(trees)))
            print(f"seed {seed}: {dict(record.result.of(ARM)[seed].figures)}", flush=True)


if __name__ == "__main__":
    main()
