"""The figures of hindsight divergence, on a tree by hand."""

from toy_search import act, begin, task

from benchmarks.hindsight import figures
from treeagent.search.node import Edge, Node, Tree


def state(priors: tuple[float, float], values: tuple[float, float], divergence: float, child: Node | None) -> Node:
    """A state with two tried actions. The first leads on."""
    children = (child or Node(begin(task(), "end"), terminated=True), Node(begin(task(), "off"), terminated=True))
    return Node(
        begin(task(), "state"),
        edges=[
            Edge(act(word), prior, 2, 2 * value, child=each, divergence=divergence)
            for word, prior, value, each in zip(("go", "stop"), priors, values, children, strict=True)
        ],
    )


def test_the_figures_by_hand() -> None:
    """The choice matters at the first and the last of three states. Of the two pairs of a state where it matters and
    the middle one, divergence orders one right, and uncertainty both."""
    last = state((0.5, 0.5), (1.0, 0.0), divergence=0.1, child=None)
    middle = state((0.9, 0.1), (0.5, 0.5), divergence=0.2, child=last)
    first = state((0.6, 0.4), (0.8, 0.2), divergence=0.3, child=middle)
    assert figures([Tree(task(), 0, first)]) == {
        "states": 3,
        "matters, share": 2 / 3,
        "divergence, AUC": 0.5,
        "uncertainty, AUC": 1.0,
    }
