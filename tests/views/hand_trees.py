"""Trees for the views: one with round numbers, and random ones in which every token id occurs once."""

import itertools
import random
from collections.abc import Iterator

from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.types import Action, Message, State, Task

TASK = Task("hand-1", "do it")


def node(context: tuple[int, ...], *edges: Edge, value: float = 0.0, end: str = "") -> Node:
    state = State(TASK, (Message("user", str(context)),))
    terminated, truncated = end == "terminated", end == "truncated"
    return Node(state, value, context, terminated=terminated, truncated=truncated, edges=list(edges))


def edge(
    name: str, ids: tuple[int, ...], visits: int, value_sum: float, child: Node | None, reward: float | None = 0.0
) -> Edge:
    """An edge in which token id has log-probability -id / 100."""
    action = Action(name, name, "", ids, tuple(-each / 100 for each in ids))
    return Edge(action, 0.25, visits, value_sum, reward, child)


def hand_tree() -> Tree:
    """A leads to a win (A1) and to an open state (A2), B to another one, C to a loss; D was not tried.

    Q: A 3/4, B 1/4, C 0; A1 1, A2 1/2; B1 1/2.
    """
    won = edge("A1", (30,), 1, 1.0, node((40,), end="terminated"), 1.0)
    open_ = edge("A2", (31, 32), 2, 1.0, node((41,), value=0.5))
    a = edge("A", (10, 11), 4, 3.0, node((20, 21), won, open_, value=1.0))
    limit = edge("B1", (33,), 1, 0.5, node((42,), value=0.5))
    b = edge("B", (12,), 2, 0.5, node((22,), limit))
    c = edge("C", (13,), 1, 0.0, node((23,), end="terminated"))
    return Tree(TASK, 0, node((1, 2), a, b, c, edge("D", (14,), 0, 0.0, None), value=0.5), Budget(estimates=1))


def random_tree(shuffler: random.Random, first: int = 1) -> Tree:
    """Up to three levels of up to three siblings, some of them untried. Q is a multiple of 1/10, so that there are
    ties. Token ids count up from ``first``."""
    fresh = itertools.count(first)

    def ids(fewest: int) -> tuple[int, ...]:
        return tuple(itertools.islice(fresh, shuffler.randint(fewest, 3)))

    def below(depth: int) -> Node:
        end = shuffler.choice(["", "", "terminated", "terminated"]) if depth else ""
        made = node(ids(1), value=shuffler.randint(0, 10) / 10, end=end)
        if not end and depth < 3:
            made.edges = list(siblings(depth))
        return made

    def siblings(depth: int) -> Iterator[Edge]:
        for place in range(shuffler.randint(0, 3)):
            visits = shuffler.randint(0, 4)
            sampled = ids(1)
            child = below(depth + 1) if visits else None
            reward = shuffler.choice([0.0, 0.5, 1.0]) if child is not None and child.terminated else 0.0
            yield edge(f"{depth}{place}", sampled, visits, visits * shuffler.randint(0, 10) / 10, child, reward)

    return Tree(TASK, 0, below(0), Budget(estimates=1))


def random_group(shuffler: random.Random) -> list[Tree]:
    """Up to three trees of one task with the same prompt."""
    group = [random_tree(shuffler, 1 + 1000 * number) for number in range(shuffler.randint(1, 3))]
    for tree in group:
        tree.root.context_ids = (0,)
    return group


def leaf_paths(tree: Tree) -> list[tuple[Edge, ...]]:
    return [path for path, here in tree.walk() if path and not any(each.child for each in here.edges)]


def shuffle_siblings(tree: Tree, shuffler: random.Random) -> None:
    for here in tree.nodes():
        shuffler.shuffle(here.edges)


def edges(tree: Tree) -> list[Edge]:
    return [each for made in tree.nodes() for each in made.edges]
