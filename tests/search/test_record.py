"""Trees to records, through JSON, and back."""

import copy
import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, act, begin, grow, task

from treeagent.search.mcts import SearchConfig
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import FORMAT, from_record, to_record
from treeagent.types import Action, Message, State, Task, ToolCall

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


def reread(tree: Tree) -> Tree:
    """To disk and back, as a store does it."""
    return from_record(json.loads(json.dumps(to_record(tree))))


def assert_same(one: Tree, two: Tree) -> None:
    """Field by field, but for what a record leaves out: snapshots, and the search's memo of exhausted inner nodes."""
    assert (one.task, one.seed, one.error, one.budget) == (two.task, two.seed, two.error, two.budget)
    walks = list(one.walk()), list(two.walk())
    assert len(walks[0]) == len(walks[1])
    for (path, node), (other_path, other) in zip(*walks, strict=True):
        assert [edge.action for edge in path] == [edge.action for edge in other_path]
        for each in fields(Node):
            if each.name not in ("edges", "exhausted"):
                assert getattr(node, each.name) == getattr(other, each.name), each.name
        assert other.exhausted == other.ended
        for edge, other_edge in zip(node.edges, other.edges, strict=True):
            for each in fields(Edge):
                if each.name != "child":
                    assert getattr(edge, each.name) == getattr(other_edge, each.name), each.name
            assert (edge.child is None) == (other_edge.child is None)
        assert one.prompt_ids(path) == two.prompt_ids(other_path)


@settings(deadline=None)
@given(
    st.builds(SearchConfig, simulations=st.integers(1, 20), candidates=st.integers(1, 4)),
    st.builds(Maze, end_share=st.floats(0, 0.6), limit_share=st.floats(0, 0.4), withheld=st.booleans()),
    st.integers(0, 2**63 - 1),
)
def test_a_searched_tree_comes_back(config: SearchConfig, maze: Maze, seed: int) -> None:
    [tree] = grow(TablePolicy(WORDS), maze, config, HashValue(), seeds=[seed])
    assert_same(tree, reread(tree))


def test_an_unusual_tree_comes_back() -> None:
    """Every field with a value of its own: tool calls, several messages a step, unicode, a malformed step, an error."""
    shop = Task("shop-1", "find a ✂️", "test", 17, {"answer": "B1", "limits": [1, 2.5], "deep": {"x": None}})
    messages = (Message("system", "Be brief."), Message("user", "find a ✂️\nsearch page"))
    root = Node(State(shop, messages, "root"), value=0.5, context_ids=(1, 2, 3))
    call = Action("tool", ToolCall("open", {"item": 3, "tags": ["a", {"b": 1}]}), "why", (4, 5), (-0.5, -0.1))
    said = Message("assistant", "tool", (4, 5))
    below = Node(
        State(shop, (*messages, said, Message("user", "a\u2028b"), Message("system", "hurry"))),
        value=-0.25,
        context_ids=(6, 7),
        truncated=True,
        origin="imagined",
        invalid=True,
        exhausted=True,
    )
    bad = Action("\x00 no call", "", "hm", (8,), (-3.0,), "no call in it")
    root.edges = [
        Edge(bad, 0.25),
        Edge(call, 0.75, visits=3, value_sum=-0.1 + 0.2, reward=None, child=below),
    ]
    tree = Tree(shop, 2**63 - 1, root, Budget(3, 4, 5, 6, 7, 0.1 + 0.2), "OSError: gone")
    assert_same(tree, reread(tree))
    again = reread(tree).root.edges[1].child
    assert again is not None
    assert again.state.messages == below.state.messages
    assert again.state.messages[2].token_ids == (4, 5)


def test_a_chain_far_down_comes_back() -> None:
    """Deeper than Python's recursion limit."""
    root = node = Node(begin(task(), "0"))
    for depth in range(1, 1500):
        said = act(str(depth))
        below = Node(State(node.state.task, (*node.state.messages, Message("assistant", said.text, said.token_ids))))
        node.edges = [Edge(said, 1.0, child=below)]
        node = below
    tree = Tree(root.state.task, 0, root)
    assert len(list(reread(tree).walk())) == 1500


def test_the_tree_given_stays_as_it_is() -> None:
    [tree] = grow(TablePolicy(WORDS), Maze(), SearchConfig(), HashValue())
    before = json.dumps(to_record(tree))
    again = reread(tree)
    again.root.edges[0].visits += 1
    assert json.dumps(to_record(tree)) == before


def record() -> Any:
    [tree] = grow(TablePolicy(WORDS), Maze(), SearchConfig(simulations=4), HashValue())
    return json.loads(json.dumps(to_record(tree)))


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match=f"tree format {version!r} is unknown: this version reads format {FORMAT}"):
        from_record({**record(), "format": version})


def removed(where: Callable[[Any], Any]) -> list[Any]:
    """Copies of a record, each without one key of what ``where`` picks."""
    copies = []
    for key in where(record()):
        spoilt = copy.deepcopy(record())
        del where(spoilt)[key]
        copies.append(spoilt)
    return copies


@pytest.mark.parametrize("where", ["tree", "node", "edge"])
def test_a_missing_key_is_refused(where: str) -> None:
    picks: dict[str, Callable[[Any], Any]] = {
        "tree": lambda whole: whole,
        "node": lambda whole: whole["nodes"][1],
        "edge": lambda whole: whole["nodes"][0]["edges"][0],
    }
    copies = removed(picks[where])
    assert len(copies) >= 6
    for spoilt in copies:
        with pytest.raises(ValueError, match=r"tree record is incomplete|tree format None"):
            from_record(spoilt)


def test_a_record_without_nodes_or_with_a_foreign_key_is_refused() -> None:
    good = record()
    for spoilt in (
        {**good, "nodes": []},
        {**good, "task": {"prompt": "no id"}},
        {**good, "task": {**good["task"], "colour": "red"}},
        {**good, "budget": {"dollars": 3}},
        {**good, "nodes": [*good["nodes"][:1], {**good["nodes"][1], "edge": 99}]},
    ):
        with pytest.raises(ValueError, match="tree record is incomplete"):
            from_record(spoilt)


def test_messages_are_stored_once() -> None:
    """What a node repeats of its parent's conversation is not in its row."""
    [tree] = grow(TablePolicy(WORDS), Maze(0.0, 0.0), SearchConfig(simulations=30), HashValue())
    rows = to_record(tree)["nodes"]
    assert len(rows) == 31
    assert all(len(row["messages"]) == 1 for row in rows)
    assert_same(replace(tree), reread(tree))
