"""Trees are written as records and JSON, and read back."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, grow, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import (
    ACTION_FIELDS,
    EDGE_FIELDS,
    FORMAT,
    MESSAGE_FIELDS,
    NODE_FIELDS,
    TREE_FIELDS,
    from_record,
    to_record,
)
from treeagent.store import write_shard
from treeagent.types import Action, Message, State, Task, ToolCall

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}

WHILE_GROWING = ("edge_visits", "edge_values", "in_flight", "best", "samples", "unseen", "fresh")
"""Fields of a node that only a search uses."""


def reread(tree: Tree) -> Tree:
    """Write a tree and read it back, as a store does."""
    return from_record(json.loads(json.dumps(to_record(tree))))


def assert_same(one: Tree, two: Tree) -> None:
    """Assert that two trees are equal, field by field, except for what a record leaves out: snapshots, and simulations
    in flight."""
    assert_equal_fields(one, two, but={"root", "order", "spent"})
    walks = list(one.walk()), list(two.walk())
    places, others = ({id(node): place for place, (_, node) in enumerate(walk)} for walk in walks)
    assert [places.get(id(node)) for node in one.order] == [others.get(id(node)) for node in two.order]
    assert len(walks[0]) == len(walks[1])
    assert [each[:2] for each in one.spent] == [each[:2] for each in two.spent]
    assert [each.seconds for each in one.spent] == pytest.approx([each.seconds for each in two.spent], abs=6e-5)
    for (path, node), (other_path, other) in zip(*walks, strict=True):
        assert [edge.action for edge in path] == [edge.action for edge in other_path]
        assert_equal_fields(node, other, but={"edges", *WHILE_GROWING})
        assert node.state.ended == other.state.ended  # not compared by ==
        for edge, other_edge in zip(node.edges, other.edges, strict=True):
            assert_equal_fields(edge, other_edge, but={"child", "in_flight", "best"})
            assert (edge.child is None) == (other_edge.child is None)
        assert one.prompt_ids(path) == two.prompt_ids(other_path)


def assert_equal_fields(one: Tree | Node | Edge, two: Tree | Node | Edge, but: set[str]) -> None:
    for each in fields(one):
        if each.name not in but:
            assert getattr(one, each.name) == getattr(two, each.name), each.name


def test_every_field_has_its_place_in_a_record() -> None:
    """If a field were added to one of these classes but not to the record, it would be lost at the first write."""
    for kind, kept, apart in (
        (Tree, TREE_FIELDS, {"task", "root", "budget", "order", "spent", "place", "policy"}),
        (
            Node,
            (*NODE_FIELDS, *WHILE_GROWING),
            {"state", "context_ids", "left_out", "repeat", "edges"},
        ),
        (Edge, EDGE_FIELDS, {"action", "child", "in_flight", "best", "chance", "group", "own_reward"}),
        (Action, ACTION_FIELDS, {"call", "token_ids", "logprobs", "forced"}),
        (Message, MESSAGE_FIELDS, {"token_ids", "images"}),
        (State, (), {"task", "messages", "key", "snapshot", "ended", "paid", "legal_actions", "place"}),
    ):
        assert {each.name for each in fields(kind)} == {*kept, *apart}, kind


@given(
    st.builds(SearchConfig, limits=st.builds(Limits, simulations=st.integers(1, 20)), candidates=st.integers(1, 4)),
    st.builds(Maze, end_share=st.floats(0, 0.6), limit_share=st.floats(0, 0.4), withheld=st.booleans()),
    st.integers(0, 2**63 - 1),
)
def test_a_searched_tree_comes_back(config: SearchConfig, maze: Maze, seed: int) -> None:
    [tree] = grow(TablePolicy(WORDS), maze, config, HashValue(), seeds=[seed])
    assert_same(tree, reread(tree))


def test_an_unusual_tree_comes_back() -> None:
    """Every field has an unusual value: tool calls, several messages per step, unicode, a malformed step, an error."""
    shop = Task("shop-1", "find a ✂️", "test", 17, {"answer": "B1", "limits": [1, 2.5], "deep": {"x": None}})
    messages = (Message("system", "Be brief."), Message("user", "find a ✂️\nsearch page", images=("one", "two")))
    root = Node(State(shop, messages, "root"), value=0.5, context_ids=(1, 2, 3))
    call = Action("tool", ToolCall("open", {"item": 3, "tags": ["a", {"b": 1}]}), "why", (4, 5), (-0.5, -0.1))
    said, answer = Message("assistant", "tool", (4, 5)), Message("user", "a\u2028b", images=("two",))
    below = Node(
        State(
            shop,
            (*messages, said, answer, Message("system", "hurry")),
            ended=True,
        ),
        value=-0.25,
        context_ids=(6, 7),
        left_out=(1,),
        truncated=True,
        origin="imagined",
        invalid=True,
        exhausted=True,
    )
    bad = Action("\x00 no call", "", "hm", (8,), (-3.0,), "no call in it")
    root.edges = [
        Edge(bad, 0.25, group=2),
        Edge(call, 0.75, visits=3, value_sum=-0.1 + 0.2, reward=None, own_reward=0.5, child=below),
    ]
    root.exhausted = True
    tree = Tree(shop, 2**63 - 1, root, Budget(3, 4, 5, 2, 2, 1, 6, 7, 8, 0.1 + 0.2), "OSError: gone", 0.9)
    tree.place, tree.policy = 7, "./checkpoints/base"
    assert_same(tree, reread(tree))
    again = reread(tree).root.edges[1].child
    assert again is not None
    assert again.state.messages == below.state.messages
    assert again.state.messages[2].token_ids == (4, 5)
    assert to_record(tree)["images"] == ["one", "two"]


messages = st.builds(
    Message,
    st.sampled_from(("system", "user", "assistant")),
    st.text(max_size=2),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.booleans(),
)


@given(st.lists(messages, max_size=4), st.lists(messages, max_size=4), st.integers(0, 5))
def test_a_state_that_rewrites_what_was_said_comes_back(before: list[Message], after: list[Message], kept: int) -> None:
    told = (*before, Message("assistant", "a", (1,)))
    child = Node(State(task(), (*told[:kept], *after)))
    root = Node(State(task(), tuple(before)), edges=[Edge(Action("a", "a", "", (1,)), 1.0, child=child)])
    assert_same(tree := Tree(task(), 0, root), reread(tree))


def record() -> Any:
    [tree] = grow(TablePolicy(WORDS), Maze(), SearchConfig(limits=Limits(simulations=4)), HashValue())
    return json.loads(json.dumps(to_record(tree)))


DOCUMENT = (Path(__file__).parents[2] / "docs" / "files.md").read_text()


def code(language: str) -> str:
    """The only code block of that language in docs/files.md."""
    [block] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(block)


def test_every_key_is_documented() -> None:
    assert f"# Trees on disk, format {FORMAT}\n" in DOCUMENT
    whole = record()
    [*_, node] = whole["nodes"]
    edge = whole["nodes"][0]["edges"][0]
    for row in (whole, whole["task"], whole["budget"], node, node["messages"][0], edge):
        for key in row:
            assert f"`{key}`" in DOCUMENT, key


def test_the_documents_ten_lines_read_a_tree_without_treeagent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = grow(TablePolicy(WORDS), Maze(0.2, 0.0), SearchConfig(), HashValue(), tasks=[task("a"), task("b")])
    monkeypatch.chdir(write_shard(tmp_path, "collect", 0, map(to_record, trees)).parent)
    found: dict[str, Any] = {}
    program = code("python")
    assert "treeagent" not in program and len(program.splitlines()) <= 16
    exec(program, found)
    walk = list(trees[-1].walk())
    assert found["prompts"] == [list(trees[-1].prompt_ids(path)) for path, _ in walk]
    assert [[message["content"] for message in talk] for talk in found["talks"]] == [
        [message.content for message in node.state.messages] for _, node in walk
    ]
