"""Ways to fit V, on a hand-made tree and on states whose outcome is given by one number."""

import pytest
import torch

from benchmarks.values import States, Way, fit_way, indexed_rows, signal_of
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task
from treeagent.views.values import found_success


def tree(number: int) -> Tree:
    """Two actions: the first leads to a success, the second to a failure."""
    task = Task(f"t{number}", "go")
    state = State(task, (Message("user", "go"),))
    root = Node(state, context_ids=(1, 2))
    for token, reward in ((3, 1.0), (4, 0.25)):
        action = Action("go", "go", "", (token,), (0.0,))
        end = Node(state, context_ids=(5, 6), terminated=True)
        root.edges.append(Edge(action, 0.5, visits=1, value_sum=reward, reward=reward, child=end))
    return Tree(task, 0, root)


def test_each_state_is_read_once_at_its_last_token() -> None:
    one = tree(0)
    places = {id(node): place for place, node in enumerate(one.nodes())}
    rows = list(indexed_rows(one, places))
    read = [
        (row.token_ids[: position + 1], index)
        for row in rows
        for position, index in zip(row.value_positions, row.value_targets, strict=True)
    ]
    good, bad = (places[id(edge.child)] for edge in one.root.edges)
    assert sorted(read) == [((1, 2), 0.0), ((1, 2, 3, 5, 6), float(good)), ((1, 2, 4, 5, 6), float(bad))]


@pytest.mark.parametrize(
    "way",
    [
        Way(),
        Way(target="success"),
        Way(linear=True, standardised=False),
        Way("all layers"),
        Way(heads=2, lower=True),
    ],
)
def test_every_way_learns_what_one_number_tells(way: Way) -> None:
    trees = [tree(number) for number in range(40)]
    nodes = [node for each in trees for node in each.nodes()]
    success = torch.tensor([float(found_success(each)[id(node)]) for each in trees for node in each.nodes()])
    noise = torch.randn(2, len(nodes), 4, generator=torch.Generator().manual_seed(0))
    noise[-1, :, 0] = 4 * success - 2
    states = States(
        trees,
        nodes,
        torch.arange(40).repeat_interleave(3),
        torch.tensor([node.final for node in nodes]),
        torch.ones(len(nodes), dtype=torch.bool),
        noise,
        noise[-1],
        {"best": success, "success": success},
        [],
    )
    values, _ = fit_way(way, states, 30, (0.0, 1.0), seed=0)
    figures = signal_of(states, values, 30)
    assert figures["value_auc_ends"] > 0.95  # the linear head learns slowly
    assert ((values >= -0.5) & (values <= 1)).all()
