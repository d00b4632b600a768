"""Runs for the viewer: one in which every text is hostile, and one with a large tree."""

import random
from collections.abc import Sequence
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.searcher import Growth, backup
from treeagent.types import Action, Message, State, Task

BREAKS = "<script>window.ran=1</script><img src=x onerror='window.ran=1'><svg onload='window.ran=1'>"
HOSTILE = f'{BREAKS}</script></style>"`${{window.ran=1}}` \x1b[31m\x00\x07 \u202egnirts\u2066 שלום مرحبا \ufffe'
"""Markup, a script, an escape sequence, control characters, bidirectional controls, and right-to-left words."""
LONG = "one line of " + "words " * 180_000
"""More than a megabyte without a line feed."""


def write_run(path: Path, trees: Sequence[Tree]) -> Path:
    """Write a run that holds these trees as searched training trees."""
    with Run.create(path, RunConfig(), resume=False) as run:
        write_trees(run.trees, "collect", 0, trees)
    return path


def hostile_tree() -> Tree:
    """A tree of three steps in which task, texts and observations are hostile."""
    task = Task(f"task {BREAKS}", HOSTILE)
    root = Node(State(task, (Message("user", HOSTILE),)))
    growth = Growth(Tree(task, 0, root, error=HOSTILE))
    for text, said, reward in ((HOSTILE, HOSTILE, 1.0), (f"other {BREAKS}", LONG, 0.0), ("javascript:void 0", "", 0.0)):
        edge = Edge(Action(text, text, thought=HOSTILE, token_ids=(1, 2), logprobs=(-0.5, -3.0)), 0.3, reward=reward)
        told = (Message("user", HOSTILE), Message("assistant", text), Message("user", said))
        edge.child = Node(State(task, told), value=0.5, terminated=True)
        root.edges.append(edge)
        backup(growth, [edge])
    return growth.tree


def large_tree(steps: int, seed: int = 0) -> Tree:
    """A tree of ``steps`` steps with an observation of 60 words each, grown by simulations that prefer visited
    steps."""
    random_ = random.Random(seed)
    task = Task(f"large-{steps}-{seed}", "a large task")
    root = Node(State(task, (Message("user", "a large task"),)))
    growth = Growth(Tree(task, seed, root))
    paths: list[list[Edge]] = [[]]
    for number in range(steps):
        path = max(random_.sample(paths, min(3, len(paths))), key=len) if number % 2 else random_.choice(paths)
        if len(path) > 60:
            path = []
        node = path[-1].child if path else root
        assert node is not None
        text = f"act({number})"
        words = " ".join(random_.choice(["red", "kettle", "door", "north", "list"]) for _ in range(60))
        said = (*node.state.messages, Message("assistant", text), Message("user", f"{number}: {words}"))
        child = Node(State(task, said), value=random_.random(), origin="imagined" if number % 7 == 0 else "real")
        edge = Edge(Action(text, text, token_ids=(1, 2, 3), logprobs=(-0.1, -1.0, -4.0)), random_.random(), child=child)
        node.edges.append(edge)
        paths.append([*path, edge])
        backup(growth, paths[-1])
    return growth.tree
