"""Results, trees, steps and episodes in words, for the terminal and the page alike."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeagent.pipeline.outcomes import CURES, OFTEN
from treeagent.search.node import Edge, Node, Tree, reaches
from treeagent.types import Action, Message

Row = Mapping[str, Any]
"""The results of one policy in one mode (``outcomes.summarise``)."""
RESULT_COLUMNS = {
    "policy": "policy",
    "mode": "mode",
    "success": "success [95 %]",
    "reward": "mean reward",
    "tasks": "tasks",
    "errors": "errors",
    "environment_steps": "environment steps",
    "generated_tokens": "generated tokens",
    "seconds": "seconds",
}
"""Keys of a row with their headings."""


def result_columns(rows: Sequence[Row]) -> dict[str, str]:
    """The columns to show; that of errors only if an episode failed."""
    failed = any(row.get("errors") for row in rows)
    return {key: heading for key, heading in RESULT_COLUMNS.items() if key != "errors" or failed}


def cell(row: Row, key: str) -> str:
    """The text of one value of a results row; a dash if there is none."""
    value = row.get(key)
    if value is None:
        return "–"
    if key == "mode" and row.get("pass_at_n"):
        return f"{value} *"
    if key == "success":
        interval = f" [{_percent(row['success_low'])}, {_percent(row['success_high'])}]" if "success_low" in row else ""
        return f"{_percent(value)} %{interval}"
    if key in ("reward", "seconds"):
        return f"{value:.3f}" if key == "reward" else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def headline(rows: Sequence[Row]) -> str:
    """What the rows show: the most successful row, of equals the cheapest, against the first policy, greedy if it was
    played so; tree search against best-of-N; and imitation of trees against imitation of sampled episodes."""
    if not rows:
        return "Nothing has been evaluated yet."
    first = {row["mode"]: row for row in rows if row["policy"] == rows[0]["policy"]}
    start = first.get("greedy", rows[0])
    best = max(rows, key=lambda row: (row["success"], -row.get("generated_tokens", 0)))
    sentences = [f"{_label(best)} solves {_percent(best['success'])} % of {best['tasks']} held-out tasks"]
    if best is start:
        return f"{sentences[0]}; nothing else did better."
    gain = 100 * (best["success"] - start["success"])
    separate = start.get("success_high", 1) < best.get("success_low", 0)
    certainty = "the 95 % intervals do not overlap" if separate else "the 95 % intervals overlap"
    sentences[0] += f", {_label(start)} {_percent(start['success'])} %: {gain:+.1f} points; {certainty}."
    if "mcts" in first and "best_of_n" in first:
        tree, chains = (_percent(first[mode]["success"]) for mode in ("mcts", "best_of_n"))
        sentences.append(f"With {start['policy']}, tree search solves {tree} % and best-of-N {chains} %.")
    plain = {row["policy"]: _percent(row["success"]) for row in rows if row["mode"] == start["mode"]}
    if "sampled" in plain and "rft" in plain:  # the same loss on both
        sentences.append(
            f"Without search, imitation of the trees (rft) solves {plain['rft']} %, imitation of episodes sampled for "
            f"the same tasks {plain['sampled']} %."
        )
    return " ".join(sentences)


def limits(rows: Sequence[Row]) -> list[str]:
    """Sentences that name the limits that cut off many episodes."""
    sentences = []
    for limit, cure in CURES.items():
        shares = [(row, row.get("limits", {}).get(limit, 0.0)) for row in rows]
        if cut := [f"{_label(row)} {_percent(share)} %" for row, share in shares if share >= OFTEN]:
            sentences.append(f"Cut off by {limit}: {', '.join(cut)} of the episodes: {cure}.")
    return sentences


def notes(rows: Sequence[Row]) -> list[str]:
    """Sentences below the table: the star of a mode, and what each search found, took, and left to the policy."""
    sentences = []
    if any(row.get("pass_at_n") for row in rows):
        sentences.append(
            "* pass@N: only a success ends an episode here, so an end betrays a success to a search without rewards."
        )
    for row in rows:
        if (found := row.get("found")) is not None:
            taken = row.get("taken") or 0.0
            clause = f" and took one in {_percent(taken)} % of these" if row.get("taken") is not None else ""
            if (rest := row["success"] - found * taken) > 1e-9:
                clause += f"; {_percent(rest)} % were solved by the policy, which goes on greedily after a plan"
            sentences.append(f"{_label(row)}: search found a success for {_percent(found)} % of the tasks{clause}.")
        if "planning_tokens" in row:
            sentences.append(
                f"{_label(row)}: {row['planning_tokens']:,} of the generated tokens are of planning, whose limit is "
                f"{row['token_limit']:,} a task; the policy sampled the others after it."
            )
    return sentences


def failures(rows: Sequence[Row]) -> list[str]:
    """One sentence for each row in which episodes failed."""
    return [
        f"{_label(row)}: {row['errors']} of {row['tasks']} episodes failed, the first: {row.get('error') or 'untold'}"
        for row in rows
        if row.get("errors")
    ]


def call_text(action: Action) -> str:
    """The call of an action in one line; for a malformed action, the reason."""
    if action.error:
        return f"malformed: {action.error}"
    if isinstance(action.call, str):
        return action.call or "(thinks)"
    arguments = ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in action.call.arguments.items())
    return f"{action.call.name}({arguments})"


def statistics(edge: Edge) -> dict[str, str]:
    """N, Q and P of an edge; once it was tried, also V of its child and the reward r."""
    figures = {"N": str(edge.visits), "Q": f"{edge.value:.3f}" if edge.visits else "–", "P": f"{edge.prior:.3f}"}
    if edge.child is not None:
        figures["V"] = f"{edge.child.value:.3f}"
        figures["r"] = "withheld" if edge.reward is None else f"{edge.reward:.3f}"
    return figures


def marks(edge: Edge) -> list[str]:
    """The flags that apply to a step; "untried" alone if it has none."""
    child = edge.child
    if child is None:
        return ["untried"]
    found = ["imagined"] if child.origin == "imagined" else []
    return found + [name for name in ("invalid", "repeat", "terminated", "truncated") if getattr(child, name)]


def observation(parent: Node, child: Node) -> str:
    """What the environment answered to the step from ``parent`` to ``child``."""
    return "\n".join(map(shown, answers(parent, child)))


def answers(parent: Node, child: Node) -> tuple[Message, ...]:
    """The environment's messages of the step from ``parent`` to ``child``."""
    before = parent.state.messages
    # + 1 skips the action, if it began a turn
    start = len(before) + (not any(message.partial for message in before[-1:]))
    return child.state.messages[start:]


def shown(message: Message) -> str:
    """The text of a message, and the beginning of a hash of each image."""
    names = (hashlib.sha256(each.encode()).hexdigest()[:8] for each in message.images)
    return "\n".join((message.content, *(f"[image {name}…]" for name in names)))


def steps(episode: Tree) -> list[Edge]:
    """The steps of an episode. The last has no child if the environment failed in it."""
    path = list[Edge]()
    node: Node | None = episode.root
    while node is not None and node.edges:
        path.append(node.edges[0])
        node = path[-1].child
    return path


def is_solved(episode: Tree) -> bool:
    """Whether the rewards sum to at least 1, as for ``Outcome.success``."""
    return reaches(sum(edge.reward or 0.0 for edge in steps(episode)), 1.0)


def ending(episode: Tree) -> str:
    """A phrase that says how an episode ended."""
    path = steps(episode)
    last = path[-1].child if path else None
    if episode.error or last is None or not last.ended:
        return f"broke off: {episode.error}" if episode.error else "broke off"
    if last.terminated:
        return "solved" if is_solved(episode) else "wrong end"
    return "cut off by a limit"


def reasons(episode: Tree) -> Iterator[str]:
    """Why a failed episode failed: how it ended, and each malformed turn and refused call."""
    yield ending(episode)
    parent = episode.root
    for edge in steps(episode):
        if edge.action.error:
            yield f"malformed turn: {edge.action.error}"
        elif edge.child is not None and edge.child.invalid:
            yield f"refused call: {observation(parent, edge.child).strip()}"
        if edge.child is not None:
            parent = edge.child


def _label(row: Row) -> str:
    return f"{row['policy']} with {row['mode']}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
