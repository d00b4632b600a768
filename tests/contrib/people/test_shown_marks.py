"""The viewer shows marks of reviewers at the step and the episode, and the report shows them in numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from review_sample import HOSTILE, close_tree, episode, sample_run

from treeagent.config import RunConfig
from treeagent.contrib.people.marks import FILE, Mark, Verdict, append_mark, new_mark, state_hash
from treeagent.contrib.viewer.collect import Collector
from treeagent.contrib.viewer.pack import FLAGS, pack
from treeagent.search.node import Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard


def texts(tree: Tree) -> dict[str, str]:
    """The text of each action, by its first word."""
    return {edge.action.text.split()[-1]: edge.action.text for node in tree.nodes() for edge in node.edges}


def compared(tree: Tree, who: str, choice: int | None, **fields: Any) -> Mark:
    """A comparison of "left" (Q 1/2) and "remove" (Q 1/4) at the root."""
    shown = (texts(tree)["left"], texts(tree)["remove"])
    calls, state = ("left", "remove[/a]"), state_hash(tree.task.id, tree.root.state.messages)
    verdict: Verdict = "tie" if choice is None else "better"
    told = {"task_id": tree.task.id, "state": state, "shown": shown, "calls": calls, "choice": choice}
    return new_mark(who, verdict, **(told | fields))


def judged(tree: Tree, who: str, verdict: str, **fields: Any) -> Mark:
    """A judgement of the episode."""
    path, node = [], tree.root
    while node.edges and (child := node.edges[0].child) is not None:
        path.append(node.edges[0].action.text)
        node = child
    told = {"task_id": tree.task.id, "state": state_hash(tree.task.id, node.state.messages), "shown": tuple(path)}
    return new_mark(who, verdict, **(told | fields))  # type: ignore[arg-type]


def test_a_comparison_stands_at_both_actions_and_a_judgement_at_the_end() -> None:
    tree = close_tree("t0")
    mark = compared(tree, "ada", 1, note=f"it deletes {HOSTILE}")
    packed = pack(tree, RunConfig(), "training", marks=[mark])
    said = {row["call"]: row["marks"] for row in packed.rows["steps"] if "marks" in row}
    [[left], [remove]] = said.values()
    assert (left["said"], left["other"], left["who"]) == ("worse", "remove[/a]", "ada")
    assert (remove["said"], remove["other"]) == ("better", "left")
    assert "\x1b" not in left["note"] and "\\x1b[31m\\u202e" in left["note"]
    assert packed.summary["marks"] == 1
    bit = 1 << FLAGS.index("marked")
    assert [bool(row["flags"] & bit) for row in packed.rows["steps"]] == [True, False, False, True]

    veto = replace(compared(tree, "ben", 0), verdict="veto")
    rows = pack(tree, RunConfig(), "training", marks=[veto]).rows["steps"]
    assert [row["marks"][0]["said"] for row in rows if "marks" in row] == ["veto"]

    played = episode("e0", 0.0)
    rows = pack(played, RunConfig(), "episode", marks=[judged(played, "ada", "solved")]).rows["steps"]
    assert [[mark["said"] for mark in row.get("marks", ())] for row in rows] == [[], ["solved"]]
    assert pack(played, RunConfig(), "episode").summary.get("marks") is None


def test_a_new_mark_packs_the_trees_of_its_task_anew_and_no_others(tmp_path: Path) -> None:
    run = sample_run(tmp_path / "run", trees=1)
    write_shard(run.trees, "collect", 1, [to_record(close_tree("t9"))])
    collector = Collector()
    before = collector.collect([run.path])
    mark = compared(close_tree("t0"), "ada", 0)
    append_mark(run.path / FILE, mark)
    after = collector.collect([run.path])
    assert [each.get("marks") for each in after.index["trees"][:2]] == [1, None]
    assert after.pieces[0] != before.pieces[0] and after.pieces[1] is before.pieces[1]
    append_mark(run.path / FILE, new_mark("ada", "withdraw", withdraws=mark.id))
    assert collector.collect([run.path]).pieces == before.pieces
