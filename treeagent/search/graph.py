"""A tree as a networkx graph, and as files that graph tools read: GraphML and Graphviz DOT.

These are for drawings and graph algorithms. A graph cannot be converted back to a tree; use the tree's record for that
(``record.py``).
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx

from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import UserError
from treeagent.visible import visible

_WIDTH = 44
"""Characters in a line of a drawn label."""
_LINES = 8
"""Most lines of text in a drawn label."""


def to_networkx(tree: Tree) -> networkx.DiGraph:
    """States as nodes, numbered as in the tree's record, and the tried actions between them as edges.

    Nodes have V, N, origin, terminated, truncated, invalid and text (the last message, which is the environment's);
    edges have N, Q, P, W, r, text, call, thought and logprob (in nats). r is absent if it was
    withheld. Candidates that were never tried lead to no state and are left
    out, so the P of siblings may sum to less than 1. The graph has task, prompt, seed, discount and error. ``best``
    marks the best path. Characters that XML cannot hold, that would control a terminal or that are invisible are
    written as Python escapes (``\\x1b``).
    """
    task, best = tree.task, {id(edge) for edge in best_path(tree)}
    attributes = {"task": _visible(task.id), "prompt": _visible(task.prompt), "error": _visible(tree.error)}
    graph = networkx.DiGraph(seed=tree.seed, discount=tree.discount, **attributes)
    indices: dict[int, int] = {}
    for index, (path, node) in enumerate(tree.walk()):
        indices[id(node)] = index
        graph.add_node(index, **_node(node), best=bool(path) and id(path[-1]) in best)
        if path:
            above = path[-2].child if len(path) > 1 else tree.root
            graph.add_edge(indices[id(above)], index, **_edge(path[-1]), best=id(path[-1]) in best)
    return graph


def to_graphml(tree: Tree) -> str:
    """GraphML, as Gephi, yEd and ``networkx.read_graphml(path, node_type=int)`` read it."""
    file = BytesIO()
    networkx.write_graphml_xml(to_networkx(tree), file)
    return file.getvalue().decode()


def to_dot(tree: Tree) -> str:
    """A drawing for Graphviz (``dot -Tsvg``). Texts are wrapped and cut, numbers are rounded, and the best path is bold
    and green.

    Ends have a double border, imagined states a dashed one.
    """
    graph = to_networkx(tree)
    lines = [
        "digraph tree {",
        f'  graph [label="{_escaped(graph.graph["task"])}" labelloc=t fontname="Helvetica"];',
        '  node [shape=box fontname="Helvetica" fontsize=10];',
        '  edge [fontname="Helvetica" fontsize=9];',
    ]
    for number, node in graph.nodes(data=True):
        marks = [name for name in ("terminated", "truncated", "invalid") if node[name]]
        figures = " ".join([f"{number}   V {node['V']:.2f}   N {node['N']}", *marks])
        border = " peripheries=2" if node["terminated"] or node["truncated"] else ""
        border += " style=dashed" if node["origin"] == "imagined" else ""
        lines.append(f'  {number} [label="{_label(figures, node["text"])}"{border}{_bold(node)}];')
    for parent, number, edge in graph.edges(data=True):
        reward = f"   r {edge['r']:.2f}" if "r" in edge else ""
        figures = f"N {edge['N']}   Q {edge['Q']:.2f}   P {edge['P']:.2f}{reward}"
        lines.append(f'  {parent} -> {number} [label="{_label(figures, edge["call"] or edge["text"])}"{_bold(edge)}];')
    return "\n".join([*lines, "}", ""])


def write_graph(tree: Tree, path: Path) -> None:
    """Write the tree in the format of the path's suffix: .graphml or .dot.

    Raises:
        UserError: the suffix is another one, or the file cannot be written.
    """
    writers = {".graphml": to_graphml, ".dot": to_dot}
    if path.suffix not in writers:
        raise UserError(
            f"{path} ends in {path.suffix!r}, which is no form of graph: let it end in {' or '.join(writers)}"
        )
    text = writers[path.suffix](tree)
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: check the path and its permissions") from error


def _node(node: Node) -> dict[str, Any]:
    messages = node.state.messages
    return {
        "V": float(node.value),
        "N": node.visits,
        "origin": node.origin,
        "terminated": node.terminated,
        "truncated": node.truncated,
        "invalid": node.invalid,
        "text": _visible(messages[-1].content) if messages else "",
    }


def _visible(text: str) -> str:
    return visible(text, lines=True)


def _edge(edge: Edge) -> dict[str, Any]:
    call, known = edge.action.call, {"r": edge.reward}
    return {
        "N": edge.visits,
        "Q": float(edge.value),
        "P": float(edge.prior),
        "W": float(edge.value_sum),
        **{name: float(value) for name, value in known.items() if value is not None},
        "text": _visible(edge.action.text),
        "call": _visible(call if isinstance(call, str) else json.dumps(asdict(call), ensure_ascii=False)),
        "thought": _visible(edge.action.thought),
        "logprob": float(edge.action.logprob),
    }


def _bold(attributes: Mapping[str, Any]) -> str:
    return ' color="#1a7f37" penwidth=3' if attributes["best"] else ""


def _label(figures: str, text: str) -> str:
    """Lines that end in ``\\l``, which aligns them to the left."""
    lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, _WIDTH)]
    shown = [*lines[:_LINES], "…"] if len(lines) > _LINES else lines
    return "".join(f"{_escaped(line)}\\l" for line in [figures, *shown])


def _escaped(text: str) -> str:
    """Escape text for a quoted label, in which Graphviz interprets backslashes and HTML entities."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
