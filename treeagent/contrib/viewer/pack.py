"""Converts a search tree to the rows that the viewer draws: one row per action, tried or not, with invisible characters
of untrusted text escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treeagent.config import RunConfig
from treeagent.pipeline.report.describe import answers, call_text, ending, is_solved, observation, steps
from treeagent.search.decide import best_path, most_visited_path
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_return, sees_rewards, succeeds
from treeagent.views.advantages import advantages
from treeagent.views.pairs import compared_siblings, compared_trajectories
from treeagent.visible import visible

FLAGS = (
    *("tried", "imagined", "refused", "terminated", "truncated", "unknown", "exhausted", "chosen", "preferred"),
    *("rejected", "thought", "success", "restart"),
)
"""Flags of a step, in the order of the bits of ``flags``. "chosen": on the path that was or would be executed.
"preferred", "rejected": a side of a preference pair. "success": the task ends here, and the rewards of the path sum to
at least 1. "restart": the prompt starts anew here."""
_BIT = {name: 1 << place for place, name in enumerate(FLAGS)}
_PROMPT = 160
"""How many characters of a task's prompt the list shows."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tree as JSON values for the page."""

    summary: dict[str, Any]
    """The entry of the tree in the list."""
    rows: dict[str, Any]
    """The data that is loaded when the tree is opened."""


def pack(tree: Tree, config: RunConfig, kind: str, episode: Tree | None = None) -> Packed:
    """Pack a tree for the page. ``kind``: "training" for a searched training task, which has advantages and preference
    pairs; "plan" for a plan made at evaluation, after which ``episode`` was played; "episode" for a path."""
    chosen = _chosen(tree, config, kind)
    scored = advantages([tree], config.update.advantages) if kind == "training" else {}
    margins = _sides(tree, config) if kind == "training" else {}
    drops = criticality(tree)
    numbers: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    root = tree.root
    opening = [
        {"role": each.role, "text": visible(each.content, lines=True), "images": each.images}
        for each in root.state.messages
    ]
    # Steps are numbered in the order of a depth-first walk, so links to them stay valid while the tree is unchanged.
    stack: list[tuple[int, tuple[Edge, ...], Node, Edge]] = [(-1, (), root, edge) for edge in reversed(root.edges)]
    while stack:
        parent, before, node, edge = stack.pop()
        path, number = (*before, edge), len(rows) + 1
        child = edge.child
        row = _step(node, edge, path)
        row["parent"] = parent + 1
        flags = row["flags"] | _BIT["chosen"] * (id(edge) in chosen)
        if (margin := margins.get(id(edge))) is not None:
            flags |= _BIT["preferred" if margin > 0 else "rejected"]
            row["margin"] = _short(abs(margin))
        row["flags"] = flags
        if (advantage := scored.get(id(edge))) is not None:
            row["advantage"] = _short(advantage)
        if (drop := drops.get(id(edge))) is not None:
            row["drop"] = _short(drop)
        rows.append({name: value for name, value in row.items() if value not in ("", [], 0, None) or name == "parent"})
        if child is not None:
            numbers[id(child)] = number
            stack.extend((number - 1, path, child, each) for each in reversed(child.edges))
    order = [numbers.get(id(node), 0 if node is root else -1) for node in tree.order]
    packed = {
        "prompt": visible(tree.task.prompt, lines=True),
        "opening": opening,
        "value": _short(root.value),
        "flags": _flags(root),
        "steps": rows,
        **({"order": order} if order else {}),
        "budget": {name: round(getattr(tree.budget, name), 2) for name in tree.budget.__slots__},
        "error": visible(tree.error, lines=True),
    }
    return Packed(_summary(tree, kind, episode, chosen, drops, len(rows)), packed)


def criticality(tree: Tree) -> dict[int, float]:
    """How much each step mattered, by ``id`` of its edge: D(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b) in reward
    units, over the other actions b that were tried at s. Steps without a tried sibling are left out."""
    drops: dict[int, float] = {}
    for node in tree.nodes():
        visits = node.visits
        total = sum(edge.value_sum for edge in node.edges)
        for edge in node.edges:
            if edge.visits and (others := visits - edge.visits):
                drops[id(edge)] = edge.value - (total - edge.value_sum) / others
    return drops


def _short(value: float) -> float:
    """Round to the four significant digits that the page shows."""
    return float(f"{value:.4g}")


def _flags(node: Node) -> int:
    found = {
        "imagined": node.origin == "imagined",
        "refused": node.invalid,
        "terminated": node.terminated,
        "truncated": node.truncated,
        "unknown": node.unknown,
        "exhausted": node.exhausted,
        "restart": bool(node.left_out),
    }
    return sum(_BIT[name] for name, is_so in found.items() if is_so)


def _step(parent: Node, edge: Edge, path: Sequence[Edge]) -> dict[str, Any]:
    action, child = edge.action, edge.child
    row: dict[str, Any] = {
        "text": visible(action.text, lines=True),
        "thought": visible(action.thought, lines=True),
        "call": visible(call_text(action), lines=True),
        "error": visible(action.error, lines=True),
        "tokens": list(action.token_ids),
        "logprobs": [round(each, 2) for each in action.logprobs],
        "prior": _short(edge.prior),
        "visits": edge.visits,
        "sum": _short(edge.value_sum),
        "flags": _BIT["thought"] * edge.thought,
    }
    if child is not None:
        success = child.final and edge.outcome is not None and succeeds(path)
        row["flags"] |= _BIT["tried"] | _flags(child) | _BIT["success"] * success
        row |= {"value": _short(child.value), "said": visible(observation(parent, child), lines=True)}
        row["images"] = [image for each in answers(parent, child) for image in each.images]
        row |= {"withheld": True} if edge.reward is None else {"reward": _short(edge.reward)}
    return row


def _chosen(tree: Tree, config: RunConfig, kind: str) -> set[int]:
    """The ``id`` of each edge of an episode, of the path that evaluation would execute of a plan, and of the most
    visited path of a training tree."""
    if kind == "episode":
        return {id(edge) for edge in steps(tree)}
    if config.search.method == "lookahead":
        return {id(edge) for edge in most_visited_path(tree)}
    if kind == "training":
        return {id(edge) for edge in best_path(tree, "visits")}
    settings = config.evaluate
    return {id(edge) for edge in best_path(tree, settings.decision, settings.weight)}


def _sides(tree: Tree, config: RunConfig) -> dict[int, float]:
    """The margin of each edge in a preference pair, by the edge's ``id``: positive if it is preferred, negative if it
    is rejected. An edge in several pairs has the margin of greatest absolute value."""
    margins: dict[int, float] = {}

    def note(edge: Edge, margin: float) -> None:
        if abs(margin) > abs(margins.get(id(edge), 0.0)):
            margins[id(edge)] = margin

    if config.update.pairs.rule == "trajectory":
        for _, best, worst, margin in compared_trajectories([tree], config.update.pairs):
            for edge in best:
                note(edge, margin)
            for edge in worst:
                if id(edge) not in margins:
                    note(edge, -margin)
        return margins
    for _, margin, preferred, rejected in compared_siblings(tree, config.update.pairs):
        note(preferred, margin)
        note(rejected, -margin)
    return margins


def _summary(
    tree: Tree, kind: str, episode: Tree | None, chosen: set[int], drops: dict[int, float], count: int
) -> dict[str, Any]:
    ends = list(finished_paths(tree))
    depth = max((len(path) for path, _ in tree.walk()), default=0)
    summary: dict[str, Any] = {
        "task": visible(tree.task.id),
        "prompt": visible(" ".join(tree.task.prompt.split())[:_PROMPT]),
        "steps": count,
        "depth": depth,
        "simulations": tree.budget.simulations,
        "tokens": tree.budget.generated_tokens,
        "imagined": any(node.origin == "imagined" for node in tree.nodes()) or tree.budget.imagined_steps > 0,
        "wrong": tree.budget.claims - tree.budget.claims_kept,
        "error": visible(tree.error)[:_PROMPT],
        "drop": max((_short(drops[edge]) for edge in chosen if edge in drops), default=None),
    }
    if kind == "episode":
        total = sum(edge.reward or 0.0 for edge in steps(tree))
        summary |= {"solved": is_solved(tree), "return": _short(total), "ending": visible(ending(tree))[:_PROMPT]}
    elif sees_rewards(tree):
        chosen_paths = [path for path in ends if all(id(edge) in chosen for edge in path)]
        got = max((path_return(path) for path in chosen_paths), default=None)
        best = max((path_return(path) for path in ends), default=None)
        summary |= {
            "found": any(map(succeeds, ends)),
            "solved": any(map(succeeds, chosen_paths)),
            "return": None if got is None else _short(got),
            "best": None if best is None else _short(best),
            "regret": None if best is None else _short(max(best - (got or 0.0), 0.0)),
        }
    elif episode is not None:
        total = sum(edge.reward or 0.0 for edge in steps(episode))
        summary |= {"solved": is_solved(episode), "return": _short(total)}
    return {name: value for name, value in summary.items() if value not in (None, False, "", 0) or name == "solved"}
