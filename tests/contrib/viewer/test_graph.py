"""A tree as a networkx graph."""

from treeagent.contrib.viewer.graph import to_networkx
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task


def small_tree() -> Tree:
    """Two tried actions at the root, of which the second one succeeds, and one that was never tried."""
    task = Task("t", "go")

    def state(text: str) -> State:
        return State(task, (Message("user", text),))

    lost = Edge(Action("a", "a"), prior=0.5, visits=1, value_sum=0.0, reward=0.0)
    lost.child = Node(state("lost\x1b"), terminated=True)
    found = Edge(Action("b", "b", logprobs=(-0.7,)), prior=0.4, visits=3, value_sum=3.0, reward=1.0)
    found.child = Node(state("found"), terminated=True)
    return Tree(task, 7, Node(state("start"), value=0.25, edges=[lost, found, Edge(Action("c", "c"), prior=0.1)]))


def test_states_are_nodes_and_tried_actions_are_edges() -> None:
    graph = to_networkx(small_tree())
    assert list(graph.edges) == [(0, 1), (0, 2)]
    assert (graph.nodes[0]["V"], graph.nodes[0]["N"], graph.nodes[1]["text"]) == (0.25, 4, "lost\\x1b")
    found = graph.edges[0, 2]
    assert (found["Q"], found["P"], found["r"], found["logprob"], found["best"]) == (1.0, 0.4, 1.0, -0.7, True)
    assert not graph.edges[0, 1]["best"]
