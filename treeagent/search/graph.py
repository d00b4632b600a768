"""A tree as a networkx graph, and as the files that graph tools read: GraphML, Graphviz DOT and node-link JSON.

For drawings and graph algorithms. A graph cannot be turned back into a tree; use its record (``record.py``) for that.
"""

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx

from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, UserError

_CONTROL = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold or would change (a carriage return), or that would control a terminal."""
_WIDTH = 44
"""Characters in a line of a drawn label."""
_LINES = 8
"""Most lines of text in one."""


def to_networkx(tree: Tree) -> networkx.DiGraph:
    """States as nodes, numbered as in the tree's record, and the actions tried between them as edges.

    Nodes have V, N, origin, terminated, truncated, invalid and text (the last message: what the environment said);
    edges N, Q, P, W, r, process, critic, text, call, thought and logprob (in nats). r is absent where withheld, critic
    where none was asked. Candidates never tried lead to no state and are left out, so that the P of siblings may sum
    to less than 1. The graph has task, prompt, seed, discount and error.
    """
    graph = networkx.DiGraph(
        task=tree.task.id, prompt=tree.task.prompt, seed=tree.seed, discount=tree.discount, error=tree.error
    )
    for place, parent, edge, node in _numbered(tree):
        graph.add_node(place, **_node_attributes(node))
        if edge is not None:
            graph.add_edge(parent, place, **_edge_attributes(edge))
    return graph


def to_graphml(tree: Tree) -> str:
    """GraphML, as Gephi, yEd and ``networkx.read_graphml(path, node_type=int)`` read it.

    Characters that XML cannot hold are written as Python escapes (``\\x1b``); empty texts are left out.
    """
    graph = to_networkx(tree)
    for attributes in _attributes(graph):
        texts = {name: _visible(value) for name, value in attributes.items() if isinstance(value, str)}
        attributes.update(texts)
        for name in [name for name, text in texts.items() if not text]:
            del attributes[name]
    file = BytesIO()
    networkx.write_graphml_xml(graph, file)
    return file.getvalue().decode()


def to_dot(tree: Tree) -> str:
    """A drawing for Graphviz (``dot -Tsvg``): texts wrapped and cut, numbers rounded, the best path in bold green.

    Ends have a double border, imagined states a dashed one.
    """
    best = {id(edge) for edge in best_path(tree)}
    lines = [
        "digraph tree {",
        f'  graph [label="{_escaped(_visible(tree.task.id))}" labelloc=t fontname="Helvetica"];',
        '  node [shape=box fontname="Helvetica" fontsize=10];',
        '  edge [fontname="Helvetica" fontsize=9];',
    ]
    for place, parent, edge, node in _numbered(tree):
        bold = ' color="#1a7f37" penwidth=3' if id(edge) in best else ""
        lines.append(f'  {place} [label="{_node_label(place, node)}"{_border(node)}{bold}];')
        if edge is not None:
            lines.append(f'  {parent} -> {place} [label="{_edge_label(edge)}"{bold}];')
    return "\n".join([*lines, "}", ""])


def to_json(tree: Tree) -> str:
    """networkx's node-link JSON, which D3 and Cytoscape read too; the record of the tree is on disk already."""
    return json.dumps(networkx.node_link_data(to_networkx(tree), edges="edges"), indent=1)


def write_graph(tree: Tree, path: Path) -> None:
    """Write the tree in the format of the path's suffix: .graphml, .dot or .json.

    Raises:
        UserError: another ending, or the file cannot be written.
    """
    writers = {".graphml": to_graphml, ".dot": to_dot, ".json": to_json}
    if path.suffix not in writers:
        raise UserError(
            f"{path} ends in {path.suffix!r}, which is no form of graph: let it end in {', '.join(writers)}"
        )
    text = writers[path.suffix](tree)
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: check the path and its permissions") from error


def _numbered(tree: Tree) -> Iterator[tuple[int, int, Edge | None, Node]]:
    """(place, place of the parent, edge that leads here, state); -1 and None at the root."""
    places: dict[int, int] = {}
    for place, (path, node) in enumerate(tree.walk()):
        places[id(node)] = place
        above = path[-2].child if len(path) > 1 else tree.root
        yield place, places[id(above)] if path else -1, path[-1] if path else None, node


def _node_attributes(node: Node) -> dict[str, Any]:
    messages = node.state.messages
    return {
        "V": float(node.value),
        "N": node.visits,
        "origin": node.origin,
        "terminated": node.terminated,
        "truncated": node.truncated,
        "invalid": node.invalid,
        "text": messages[-1].content if messages else "",
    }


def _edge_attributes(edge: Edge) -> dict[str, Any]:
    action = edge.action
    known = {"r": edge.reward, "critic": edge.critic}
    return {
        "N": edge.visits,
        "Q": float(edge.value),
        "P": float(edge.prior),
        "W": float(edge.value_sum),
        "process": float(edge.process),
        **{name: float(value) for name, value in known.items() if value is not None},
        "text": action.text,
        "call": _call(action),
        "thought": action.thought,
        "logprob": float(action.logprob),
    }


def _call(action: Action) -> str:
    return action.call if isinstance(action.call, str) else json.dumps(asdict(action.call), ensure_ascii=False)


def _attributes(graph: networkx.DiGraph) -> Iterator[dict[str, Any]]:
    yield graph.graph
    yield from (attributes for _, attributes in graph.nodes(data=True))
    yield from (attributes for *_, attributes in graph.edges(data=True))


def _node_label(place: int, node: Node) -> str:
    marks = [name for name in ("terminated", "truncated", "invalid") if getattr(node, name)]
    figures = f"{place}   V {node.value:.2f}   N {node.visits}"
    return _label(_node_attributes(node)["text"], " ".join([figures, *marks]))


def _edge_label(edge: Edge) -> str:
    figures = f"N {edge.visits}   Q {edge.value:.2f}   P {edge.prior:.2f}"
    reward = "" if edge.reward is None else f"   r {edge.reward:.2f}"
    return _label(_call(edge.action) or edge.action.text, figures + reward)


def _border(node: Node) -> str:
    return (" peripheries=2" if node.ended else "") + (" style=dashed" if node.origin == "imagined" else "")


def _label(text: str, figures: str) -> str:
    """Lines that end in ``\\l``, which aligns them to the left."""
    lines = [piece for line in _visible(text).splitlines() for piece in textwrap.wrap(line, _WIDTH)]
    shown = [*lines[:_LINES], "…"] if len(lines) > _LINES else lines
    return "".join(f"{_escaped(line)}\\l" for line in [figures, *shown])


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def _escaped(text: str) -> str:
    """For a quoted label: Graphviz reads backslashes and HTML entities in it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
