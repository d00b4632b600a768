"""Trees are written as records and JSON, and read back."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, act, begin, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
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
from treeagent.types import Action, Message, State, Task, ToolCall, UserError

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
            {"state", "context_ids", "left_out", "bootstrap", "repeat", "edges", "paid"},
        ),
        (Edge, EDGE_FIELDS, {"action", "child", "in_flight", "best", "chance", "group", "own_reward"}),
        (Action, ACTION_FIELDS, {"call", "token_ids", "logprobs", "forced"}),
        (Message, MESSAGE_FIELDS, {"token_ids"}),
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
    messages = (Message("system", "Be brief."), Message("user", "find a ✂️\nsearch page"))
    root = Node(State(shop, messages, "root"), value=0.5, context_ids=(1, 2, 3))
    call = Action("tool", ToolCall("open", {"item": 3, "tags": ["a", {"b": 1}]}), "why", (4, 5), (-0.5, -0.1))
    said = Message("assistant", "tool", (4, 5))
    below = Node(
        State(shop, (*messages, said, Message("user", "a\u2028b"), Message("system", "hurry")), ended=True),
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


def test_a_thought_whose_turn_goes_on_comes_back() -> None:
    """The turn of a thought is written again, whole, once its action is chosen."""
    toy = task()
    asked = Message("user", "cell 2")
    half, whole = Message("assistant", "go on", (1, 2), partial=True), Message("assistant", "go on, right", (1, 2, 3))
    acted = Node(State(toy, (asked, whole, Message("user", "cell 3"))), context_ids=(9,))
    thought = Node(
        State(toy, (asked, half)), edges=[Edge(Action(", right", "right", "", (3,), (-1.0,)), 1.0, child=acted)]
    )
    root = Node(
        State(toy, (asked,)), context_ids=(7,), edges=[Edge(Action("go on", "", "go on", (1, 2)), 1.0, child=thought)]
    )
    tree = Tree(toy, 0, root)
    assert_same(tree, reread(tree))
    assert reread(tree).prompt_ids([root.edges[0], thought.edges[0]]) == (7, 1, 2, 3, 9)
    assert [row["history"] for row in to_record(tree)["nodes"]] == [0, 1, 1]


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


@pytest.mark.parametrize("leaves", [1, 4])
def test_what_each_simulation_had_spent_rises_to_what_the_search_spent(leaves: int) -> None:
    config = SearchConfig(limits=Limits(simulations=30), leaves=leaves)
    trees = grow(TablePolicy(WORDS), Maze(), config, HashValue(), tasks=[task("a"), task("b")])
    for tree in trees:
        assert len(tree.spent) == len(tree.order) == tree.budget.simulations
        for column in zip(*tree.spent, strict=True):
            assert list(column) == sorted(column)
        assert tree.spent[0].seconds > 0
        budget, last = tree.budget, tree.spent[-1]
        assert last == (budget.generated_tokens, budget.environment_steps, budget.seconds)
        assert reread(tree).spent[3].tokens == tree.spent[3].tokens


def test_trees_of_older_versions_lack_what_simulations_had_spent() -> None:
    whole = record()
    del whole["spent"]
    assert from_record(whole).spent == []
    with pytest.raises(UserError, match="tree record is incomplete"):
        from_record({**record(), "spent": {"tokens": [1], "steps": [], "seconds": [0.1]}})


def record() -> Any:
    [tree] = grow(TablePolicy(WORDS), Maze(), SearchConfig(limits=Limits(simulations=4)), HashValue())
    return json.loads(json.dumps(to_record(tree)))


@pytest.mark.parametrize("version", [2, FORMAT + 1, str(FORMAT), None])
def test_another_format_is_refused(version: object) -> None:
    with pytest.raises(
        UserError, match=f"tree format {version!r} is unknown: this version reads formats 3 and {FORMAT}; coll"
    ):
        from_record({**record(), "format": version})


def removed(where: Callable[[Any], Any]) -> list[Any]:
    """Copies of a record, each with one key removed from the part that ``where`` picks."""
    copies = []
    for key in where(record()):
        spoilt = copy.deepcopy(record())
        del where(spoilt)[key]
        copies.append(spoilt)
    return copies


@pytest.mark.parametrize("where", ["tree", "node", "edge", "message"])
def test_a_missing_key_is_refused(where: str) -> None:
    picks: dict[str, Callable[[Any], Any]] = {
        "tree": lambda whole: whole,
        "node": lambda whole: whole["nodes"][1],
        "edge": lambda whole: whole["nodes"][0]["edges"][0],
        "message": lambda whole: whole["nodes"][1]["messages"][0],
    }
    copies = removed(picks[where])
    if where == "tree":  # older versions store neither the order of the simulations nor their cost
        copies = [copy for copy in copies if "order" in copy and "spent" in copy]
    assert len(copies) >= 4
    for spoilt in copies:
        with pytest.raises(UserError, match=r"tree record is incomplete|tree format None"):
            from_record(spoilt)


def test_a_record_without_nodes_or_with_a_foreign_key_is_refused() -> None:
    good = record()
    for spoilt in (
        {**good, "nodes": []},
        {**good, "task": {"prompt": "no id"}},
        {**good, "task": {**good["task"], "colour": "red"}},
        {**good, "budget": 3},
        {**good, "nodes": [*good["nodes"][:1], {**good["nodes"][1], "edge": 99}]},
        {**good, "nodes": [*good["nodes"][:1], {**good["nodes"][1], "messages": ["said"]}]},
        {**good, "nodes": [{**good["nodes"][0], "context_ids": 3}]},
        {**good, "nodes": "none"},
    ):
        with pytest.raises(UserError, match="tree record is incomplete"):
            from_record(spoilt)


def test_messages_are_stored_once() -> None:
    """A node's row leaves out what the conversation of its parent already has."""
    [tree] = grow(TablePolicy(WORDS), Maze(0.0, 0.0), SearchConfig(limits=Limits(simulations=30)), HashValue())
    rows = to_record(tree)["nodes"]
    assert len(rows) == 31
    assert all(len(row["messages"]) == 1 for row in rows)
    assert len(tree.order) == 30
    assert_same(tree, reread(tree))


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


def test_the_documents_command_reads_a_tree(tmp_path: Path) -> None:
    trees = grow(TablePolicy(WORDS), Maze(0.2, 0.0), SearchConfig(), HashValue(), tasks=[task("a"), task("b")])
    (tmp_path / "RUN" / "trees").mkdir(parents=True)
    write_shard(tmp_path / "RUN" / "trees", "collect", 0, map(to_record, trees))
    if not (shutil.which("zstd") and shutil.which("jq")):
        pytest.skip("zstd or jq is not installed")
    shown = subprocess.run(["sh", "-c", code("sh")], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    rewards = [[edge.reward or 0.0 for node in tree.nodes() for edge in node.edges if edge.visits] for tree in trees]
    assert [json.loads(line) for line in shown.splitlines()] == [
        {"task": tree.task.id, "nodes": len(list(tree.nodes())), "best": max(paid)}
        for tree, paid in zip(trees, rewards, strict=True)
    ]
