"""Trees for the views: one with round numbers, and random ones in which every token id occurs once."""

import itertools
import random
from collections.abc import Iterator

from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task

TASK = Task("hand-1", "do it")


def node(context: tuple[int, ...], *edges: Edge, value: float = 0.0, end: str = "") -> Node:
    state = State(TASK, (Message("user", str(context)),))
    return Node(state, value, context, terminated=end == "terminated", truncated=end == "truncated", edges=list(edges))


def edge(
    name: str, ids: tuple[int, ...], visits: int, value_sum: float, child: Node | None, reward: float | None = 0.0
) -> Edge:
    """An edge whose tokens have the log-probabilities -id / 100."""
    action = Action(name, name, "", ids, tuple(-each / 100 for each in ids))
    return Edge(action, 0.25, visits, value_sum, reward, child)


def hand_tree() -> Tree:
    """A leads to a win (A1) and to an open state (A2), B to a limit, C to a loss; D was not tried.

    Q: A 3/4, B 1/4, C 0; A1 1, A2 1/2; B1 1/2.
    """
    won = edge("A1", (30,), 1, 1.0, node((40,), end="terminated"), 1.0)
    open_ = edge("A2", (31, 32), 2, 1.0, node((41,), value=0.5))
    a = edge("A", (10, 11), 4, 3.0, node((20, 21), won, open_, value=1.0))
    limit = edge("B1", (33,), 1, 0.5, node((42,), value=0.5, end="truncated"))
    b = edge("B", (12,), 2, 0.5, node((22,), limit))
    c = edge("C", (13,), 1, 0.0, node((23,), end="terminated"))
    return Tree(TASK, 0, node((1, 2), a, b, c, edge("D", (14,), 0, 0.0, None), value=0.5))


def random_tree(shuffler: random.Random) -> Tree:
    """Up to three levels of up to three siblings, some of them untried; Q in steps of 1/10, so that there are ties."""
    fresh = itertools.count(1)

    def ids(fewest: int) -> tuple[int, ...]:
        return tuple(itertools.islice(fresh, shuffler.randint(fewest, 3)))

    def below(depth: int) -> Node:
        end = shuffler.choice(["", "", "terminated", "truncated"]) if depth else ""
        made = node(ids(1), value=shuffler.randint(0, 10) / 10, end=end)
        if not end and depth < 3:
            made.edges = list(siblings(depth))
        return made

    def siblings(depth: int) -> Iterator[Edge]:
        for place in range(shuffler.randint(0, 3)):
            visits = shuffler.randint(0, 4)
            sampled = ids(1)
            child = below(depth + 1) if visits else None
            reward = shuffler.choice([0.0, 1.0]) if child is not None and child.terminated else 0.0
            yield edge(f"{depth}{place}", sampled, visits, visits * shuffler.randint(0, 10) / 10, child, reward)

    return Tree(TASK, 0, below(0))


def edges(tree: Tree) -> list[Edge]:
    return [each for made in tree.nodes() for each in made.edges]
