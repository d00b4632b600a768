"""The data path of stored trees: time and memory of an update's rows and of a curriculum, by number of trees.

    .venv/bin/python -m benchmarks.data --trees 1000 10000  # by default also 100,000 and a million

Synthetic trees of seven states lie in shards of 100. Every tenth tree belongs to the task of the tree before it.
"update, held" reads all trees into a list and keeps all rows in memory, as a simple program would. It is left out above
100,000 trees: a million would take 22 GiB. "update" reads the trees of one task at a time and keeps the rows on disk,
as ``treeagent update grpo`` does; "update, one of four" is the share of one of four processes. "curriculum" reads the
spread and the accuracy of every tree, from the trees or from the index. Each kind runs in a process of its own. Times
are CPU times. The memory is the process's peak minus what the process held before reading.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Figures, add_rounds, memory, options_digest, record_of, repeating
from treeagent.pipeline.folder import COLLECTED
from treeagent.pipeline.index import append, tree_rows, write_trees
from treeagent.pipeline.trees import read_trees, trees_by_task
from treeagent.search.node import Edge, Node, Tree, accuracy, return_spread
from treeagent.types import WHOLE, Action, Message, Share, State, Task
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.spilled import Spilled

QUESTION = "What do an update's rows and a curriculum take as the number of trees grows?"
SHARD, REPEATED = 100, 10
KINDS = ("update, held", "update, one of four", "update", "curriculum, trees", "curriculum, index")
MOST_HELD = 100_000
"""Most trees of the first two kinds."""


def tree(number: int) -> Tree:
    """A binary tree of three levels. Every ``REPEATED``-th tree belongs to the task of the tree before it."""
    draw, fresh = random.Random(number), itertools.count()
    task_number = number - (number % REPEATED == 1)
    task = Task(f"task-{task_number}", "Reach the goal.", "train", task_number)

    def below(messages: tuple[Message, ...], depth: int) -> Node:
        node = Node(State(task, messages), draw.random(), tuple(draw.randrange(32_000) for _ in range(12)))
        node.terminated = depth == 2
        for _ in range(2 if depth < 2 else 0):
            ids = tuple(draw.randrange(32_000) for _ in range(8))
            action = Action(f"go {next(fresh)}", "go", "", ids, tuple(-draw.random() for _ in ids))
            turn = Message("assistant", action.text, ids)
            child = below((*messages, turn, Message("user", "You see a door.")), depth + 1)
            reward = float(draw.random() < 0.3) if child.terminated else 0.0
            node.edges.append(Edge(action, 0.5, 2, draw.random() * 2, reward, child))
        return node

    return Tree(task, number, below((Message("user", task.prompt),), 0), place=task_number, policy="./checkpoints/base")


def write(folder: Path, count: int) -> None:
    """Store synthetic trees, with their index."""
    for index in range(count // SHARD):
        trees = map(tree, range(index * SHARD, (index + 1) * SHARD))
        append(folder, COLLECTED, write_trees(folder, COLLECTED, index, trees))


def grpo_rows(group: Sequence[Tree]) -> Iterator[AdvantageRow]:
    """The GRPO rows of the trees of one task."""
    advantage_of = advantages(group, AdvantageConfig())
    return (row for each in group for row in advantage_rows(each, advantage_of))


def read(kind: str, folder: Path) -> int:
    """Run one kind. Returns the number of rows or trees that it read."""
    match kind:
        case "update, held":
            groups: dict[str, list[Tree]] = {}
            for each in list(read_trees(folder)):
                groups.setdefault(each.task.id, []).append(each)
            return len([row for group in groups.values() for row in grpo_rows(group)])
        case "update" | "update, one of four":
            rows = Spilled[AdvantageRow]()
            share = WHOLE if kind == "update" else Share(0, 4)
            for _, group in trees_by_task(folder, [COLLECTED], share=share):
                for row in grpo_rows(group):
                    rows.append(row)
            return len(rows)
        case "curriculum, trees":
            return len([(return_spread(each), accuracy(each)) for each in read_trees(folder)])
        case _:
            return len([(row.spread, row.accuracy) for row in tree_rows(folder, COLLECTED)])


def kinds(count: int) -> tuple[str, ...]:
    """The kinds that are measured at a number of trees."""
    return KINDS if count <= MOST_HELD else KINDS[2:]


def measure(count: int) -> Figures:
    """Figures of every kind at ``count`` trees. Each kind runs in a process of its own."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), count)
        for kind in kinds(count):
            command = [sys.executable, "-m", "benchmarks.data", "--part", kind, name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            seconds, growth, rows = json.loads(done.stdout)
            found[kind] = {"growth MiB": growth, "ms a tree": 1e3 * seconds / count, "rows": rows}
    for what, slow in (
        ("update", "update, held"),
        ("update, one of four", "update"),
        ("curriculum, index", "curriculum, trees"),
    ):
        if slow not in found:
            continue
        found[what]["memory ratio"] = found[what]["growth MiB"] / max(found[slow]["growth MiB"], 1e-9)
        found[what]["time ratio"] = found[what]["ms a tree"] / found[slow]["ms a tree"]
    return {f"{kind}, {count:,} trees": figures for kind, figures in found.items()}


def _at(count: int, number: int) -> Figures:
    return measure(count)


def part(kind: str, folder: Path) -> None:
    """Run one kind in this process. Prints CPU seconds, growth of peak memory in MiB, and number of rows."""
    read(kind, folder / "none")  # warm-up: what a first call loads must not count
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory (Linux)
    before, began = memory("VmRSS"), time.process_time()
    rows = read(kind, folder)
    print(json.dumps([time.process_time() - began, memory("VmHWM") - before, rows]))


def main() -> None:
    options: argparse.ArgumentParser = repeating(__doc__, "data", rounds=1)
    options.add_argument("--trees", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    options.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.part:
        part(arguments.part[0], Path(arguments.part[1]))
        return
    with record_of(arguments, QUESTION) as record:
        for count in arguments.trees:
            arms = [f"{kind}, {count:,} trees" for kind in kinds(count)]
            add_rounds(record, arguments.rounds, options_digest(arguments, "trees"), arms, partial(_at, count))


if __name__ == "__main__":
    main()
