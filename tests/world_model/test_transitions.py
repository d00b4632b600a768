"""Trees as transitions: each step once, as the environment received it."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task
from treeagent.views.transitions import transitions
from treeagent.world_model.transition import Experience

TASK = Task("t", "find a lamp")
OPENING = Message("user", "find a lamp\nsearch page")


def step(parent: State, action: Action, answer: str, **arrival: object) -> Edge:
    said = Message("assistant", action.text, action.token_ids)
    child = Node(State(TASK, (*parent.messages, said, Message("user", answer)), "2 page"))
    reward = arrival.pop("reward", 0.0)
    assert isinstance(reward, float | None)
    return Edge(action, 1.0, 1, 0.0, reward, replace(child, **arrival))  # type: ignore[arg-type]


def search_tree() -> Tree:
    """A search that found a lamp and whose purchase is refused; beside it a malformed turn and an untried edge."""
    root = Node(State(TASK, (OPENING,), "1 page"))
    found = step(root.state, Action("Thought: look\nAction: search[lamp]", "search[lamp]", "look"), "1 lamp $9")
    assert found.child is not None
    refused = step(found.child.state, Action("Action: click[buy]", "click[buy]"), "open one first", invalid=True)
    malformed = step(root.state, Action("hello", "", error="no action"), "Invalid action: no action", invalid=True)
    found.child.edges = [refused]
    root.edges = [found, malformed, Edge(Action("Action: back", "back"), 0.0)]
    return Tree(TASK, 0, root)


def test_steps_by_hand() -> None:
    first, second = transitions(search_tree())
    start = (Message("user", "find a lamp"), Message("user", "search page"))
    assert first == Experience("t", start, "search[lamp]", "1 lamp $9")
    said = (Message("assistant", "search[lamp]"), Message("user", "1 lamp $9"))
    assert second == Experience("t", (*start, *said), "click[buy]", "open one first", invalid=True, depth=1)
    assert (first.kind, second.kind, second.seen) == ("search", "click", "1 lamp $9")


def random_tree(shuffler: random.Random) -> Tree:
    """Three levels of up to three siblings, some of them untried. All calls differ."""

    def grow(node: Node, depth: int) -> None:
        for place in range(shuffler.randint(0, 3) if depth < 3 and not node.ended else 0):
            call = f"go[{depth} {place} {shuffler.random()}]"
            action = Action(f"Action: {call}", call)
            if shuffler.random() < 0.3:
                node.edges.append(Edge(action, 0.1))
                continue
            ends = shuffler.random() < 0.3
            edge = step(node.state, action, f"page {call}", terminated=ends, reward=float(ends))
            node.edges.append(edge)
            assert edge.child is not None
            grow(edge.child, depth + 1)

    root = Node(State(TASK, (OPENING,)))
    grow(root, 0)
    return Tree(TASK, 0, root)


@given(st.randoms(use_true_random=False).map(random_tree))
def test_each_tried_edge_once_and_the_tree_untouched(tree: Tree) -> None:
    before = repr(tree.root)
    paths = [path for path, _ in tree.walk() if path]
    found = list(transitions(tree))
    assert repr(tree.root) == before
    assert [one.action for one in found] == [path[-1].action.call for path in paths]
    assert [one.depth for one in found] == [len(path) - 1 for path in paths]
    assert [one.observation for one in found] == [f"page {one.action}" for one in found]
    assert [one.reward for one in found] == [float(one.terminated) for one in found]
