"""A run with hand-made trees to review: two trees and two episodes of one task."""

from pathlib import Path

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard
from treeagent.types import Action, Message, State, Task, ToolCall

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31m\u202e"


def grow(
    tree: Tree,
    node: Node,
    text: str,
    visits: int,
    value: float,
    reward: float | None = None,
    *,
    exhausted: bool = False,
) -> Node:
    """Add an action with Q ``value`` below ``node``. With a reward it ends the task. Returns the new node."""
    number = len(text) + len(node.state.messages)
    said = (Message("assistant", text, (number, number + 1)), Message("user", f"{text} was done {HOSTILE}"))
    child = Node(
        State(tree.task, (*node.state.messages, *said)), 0.5, (7,), terminated=reward is not None, exhausted=exhausted
    )
    call = ToolCall(text, {"path": "/a"}) if text == "remove" else text
    action = Action(f"Thought: so\nAction: {text}", call, "so", (number, number + 1), (-0.5, -0.5))
    node.edges.append(Edge(action, 0.5, visits, visits * value, reward or 0.0, child))
    return child


def planted(task_id: str, split: str = "train") -> Tree:
    task = Task(task_id, f"do {HOSTILE}", split)  # type: ignore[arg-type]
    return Tree(task, 5, Node(State(task, (Message("user", task.prompt),)), 0.5, (1, 2)))


def close_tree(task_id: str) -> Tree:
    """A root with "left" (Q 1/2) and "remove" (Q 1/4), with 4 visits each. Below "left" are a success with 1 visit and
    a failure with 3."""
    tree = planted(task_id)
    left = grow(tree, tree.root, "left", 4, 0.5)
    grow(tree, tree.root, "remove", 4, 0.25)
    grow(tree, left, "lose", 3, 0.0, 0.0, exhausted=True)
    grow(tree, left, "win", 1, 1.0, 1.0, exhausted=True)
    return tree


def episode(task_id: str, reward: float) -> Tree:
    tree = planted(task_id, "test")
    grow(tree, grow(tree, tree.root, "look", 0, 0.0), f"buy {reward:g}", 0, 0.0, reward)
    return tree


def sample_run(path: Path, trees: int = 2) -> Run:
    with Run.create(path, RunConfig(), resume=False) as run:
        write_shard(run.trees, "collect", 0, [to_record(close_tree(f"t{number}")) for number in range(trees)])
        run.episodes.mkdir()
        for stage, reward in (("evaluate-base-greedy", 0.0), ("evaluate-base-mcts", 1.0)):
            write_shard(run.episodes, stage, 0, [to_record(episode("e0", reward)), to_record(episode("e1", 1.0))])
    return Run.open(path)
