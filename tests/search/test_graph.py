"""Trees as graphs: networkx, GraphML and DOT."""

import html
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import treeagent.visible
from treeagent.search.graph import to_dot, to_graphml, to_networkx, write_graph
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task, ToolCall, UserError

# All characters, with surrogates and control characters more often.
texts = st.text(st.characters() | st.characters(categories=["Cc", "Cs"]), max_size=60)


def small_tree(task_id: str = "shop-1", call: str = "left", seen: str = "cell 1") -> Tree:
    """Two actions at the root, one of which leads one step further to an end, and a candidate that was never tried."""
    task = Task(task_id, "walk")

    def node(text: str, **fields: Any) -> Node:
        return Node(State(task, (Message("user", text),)), **fields)

    end = node("bought", value=0.9, terminated=True, invalid=False)
    tool = Action("buy it", ToolCall("buy", {"item": 3, "name": "é"}), "enough", (4,), (-0.5,))
    left = node(seen, value=0.25, edges=[Edge(tool, 1.0, visits=1, value_sum=1.0, reward=1.0, child=end)])
    right = node("wall", value=-0.5, truncated=True, origin="imagined", invalid=True)
    root = node(
        "cell 2",
        value=0.5,
        edges=[
            Edge(Action(call, call, "", (1, 2), (-0.25, -0.5)), 0.5, visits=2, value_sum=1.25, child=left),
            Edge(Action("up", "up"), 0.125),
            Edge(
                Action("right", "right", "wall?", (3,), (-2.0,)),
                0.375,
                visits=1,
                value_sum=-0.5,
                reward=None,
                child=right,
            ),
        ],
    )
    return Tree(task, 2**63 - 1, root, discount=0.5)


def test_every_number_of_the_tree_is_an_attribute() -> None:
    graph = to_networkx(small_tree())
    assert graph.graph == {"task": "shop-1", "prompt": "walk", "seed": 2**63 - 1, "discount": 0.5, "error": ""}
    state = {"origin": "real", "terminated": False, "truncated": False, "invalid": False}
    best = [place for place, marked in graph.nodes(data="best") if marked]
    assert best == [two for _, two, marked in graph.edges(data="best") if marked] == [1, 2]
    for _, attributes in graph.nodes(data=True):
        del attributes["best"]
    for *_, attributes in graph.edges(data=True):
        del attributes["best"]
    assert dict(graph.nodes(data=True)) == {
        0: {"V": 0.5, "N": 3, **state, "text": "cell 2"},
        1: {"V": 0.25, "N": 1, **state, "text": "cell 1"},
        2: {"V": 0.9, "N": 0, **state, "terminated": True, "text": "bought"},
        3: {"V": -0.5, "N": 0, "origin": "imagined", "terminated": False}
        | {"truncated": True, "invalid": True, "text": "wall"},
    }
    assert {(one, two): attributes for one, two, attributes in graph.edges(data=True)} == {
        (0, 1): {"N": 2, "Q": 0.625, "P": 0.5, "W": 1.25, "r": 0.0}
        | {"text": "left", "call": "left", "thought": "", "logprob": -0.75},
        (0, 3): {"N": 1, "Q": -0.5, "P": 0.375, "W": -0.5}
        | {"text": "right", "call": "right", "thought": "wall?", "logprob": -2.0},
        (1, 2): {"N": 1, "Q": 1.0, "P": 1.0, "W": 1.0, "r": 1.0}
        | {"text": "buy it", "call": '{"name": "buy", "arguments": {"item": 3, "name": "é"}}'}
        | {"thought": "enough", "logprob": -0.5},
    }


def visible(text: str) -> str:
    """The definition of visible text that tests/security/test_visible.py tests."""
    return treeagent.visible.visible(text, lines=True)


@given(texts, texts, texts)
@example("\x00\x1b[31m", "a\r\nb", "\ud800 \ufffe \x85 \u2028 ]]> <&\"'")
@example("", " ", "\n")
def test_graphml_comes_back_with_equal_structure_and_attributes(task_id: str, call: str, seen: str) -> None:
    tree = small_tree(task_id, call, seen)
    again = networkx.read_graphml(BytesIO(to_graphml(tree).encode()), node_type=int)
    graph = to_networkx(tree)
    assert again.is_directed()

    assert (graph.graph["task"], graph.nodes[1]["text"]) == (visible(task_id), visible(seen))
    assert graph.edges[0, 1]["call"] == visible(call)

    assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
    assert {(one, two): data for one, two, data in again.edges(data=True)} == {
        (one, two): data for one, two, data in graph.edges(data=True)
    }
    assert {name: again.graph[name] for name in graph.graph} == graph.graph


DOT_LINE = re.compile(r'  (graph|node|edge|\d+(?: -> \d+)?) \[((?:\w+=(?:"(?:[^"\\]|\\.)*"|[\w.]+) ?)+)\];')
"""A statement of the DOT language whose strings are properly closed."""


def labels(dot: str) -> dict[str, str]:
    """The label of each node, edge and the graph as Graphviz shows it, by the head of the statement."""
    first, *lines, last, rest = dot.split("\n")
    assert (first, last, rest) == ("digraph tree {", "}", "")
    shown = {}
    for line in lines:
        match = DOT_LINE.fullmatch(line)
        assert match is not None, line
        label = re.search(r'label="((?:[^"\\]|\\.)*)"', match[2])
        if label is not None:
            text = re.sub(r"\\(.)", lambda escape: {"l": "\n", "n": "\n"}.get(escape[1], escape[1]), label[1])
            shown[match[1]] = html.unescape(text)
    return shown


@given(texts, texts, texts)
@example('"', '\\"', "\\")
@example("a\\", "\\N \\l &lt;", "\x00\n\n\r\u2028end")
def test_dot_holds_any_text(task_id: str, call: str, seen: str) -> None:
    shown = labels(to_dot(small_tree(task_id, call, seen)))
    assert set(shown) == {"graph", "0", "1", "2", "3", "0 -> 1", "0 -> 3", "1 -> 2"}
    assert shown["graph"] == visible(task_id)
    assert shown["0"] == "0   V 0.50   N 3\ncell 2\n"
    for head, text in (("0 -> 1", call), ("1", seen)):
        lines = shown[head].splitlines()[1:]
        assert len(lines) <= 9 and all(len(line) <= 44 for line in lines)
        kept = "".join("".join(lines).removesuffix("…").split())
        assert "".join(visible(text).split()).startswith(kept)


@pytest.mark.parametrize(("ending", "writer"), [(".graphml", to_graphml), (".dot", to_dot)])
def test_the_ending_of_the_name_chooses_the_form(tmp_path: Path, ending: str, writer: Any) -> None:
    path = tmp_path / f"tree{ending}"
    write_graph(small_tree(), path)
    assert path.read_text(encoding="utf-8") == writer(small_tree())


def test_another_ending_and_an_unwritable_file_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tree\.png ends in '\.png', .* let it end in \.graphml or \.dot$"):
        write_graph(small_tree(), tmp_path / "tree.png")
    with pytest.raises(UserError, match=r"cannot write .*nowhere/tree\.dot: No such file or directory: check the path"):
        write_graph(small_tree(), tmp_path / "nowhere" / "tree.dot")
    assert list(tmp_path.iterdir()) == []
