"""Replay the best paths of imagined trees in the environment before anything learns from the trees."""

import math
from collections.abc import Sequence
from dataclasses import replace

from treeagent.search.config import SearchConfig
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_logprob, path_return, succeeds
from treeagent.search.searcher import Growth, take_step
from treeagent.types import Dynamics
from treeagent.world_model.transition import last_answer

_ROUNDING = 0.0015
"""Largest difference of two returns that count as equal: a world model may round rewards."""


async def verify_all(trees: Sequence[Tree], environment: Dynamics, steps: int, config: SearchConfig) -> None:
    """Mark freshly grown trees as imagined and verify them; after ``steps`` environment steps in a tree, no further
    replay starts."""
    for tree in trees:
        for node in tree.nodes():
            node.origin = "imagined"
        if steps:
            await verify(tree, environment, steps, config)


async def verify(tree: Tree, environment: Dynamics, steps: int, config: SearchConfig) -> None:
    """Replay the tree's finished paths in the environment, best first, and remove what these replays did not confirm.

    Paths are replayed until no imagined return exceeds the best return of a replay. While the environment answers as
    imagined, the path's nodes become real. Its first different answer replaces the imagined node and subtree; the rest
    of the path is then played only for its return. The value of a replayed action is the best return of its replays.

    A sibling with an imagined value at least as high as the best replayed action's is dropped; the others stay as
    worse alternatives, without their subtrees. If the environment raises an error, the tree keeps the error and no
    edges.
    """
    growth, before, best = Growth(tree), tree.budget.environment_steps, -math.inf
    tree.root.origin = "real"
    while tree.budget.environment_steps - before < steps and (plan := _best_imagined_path(tree)):
        imagined_return = path_return(plan, tree.discount)
        if imagined_return <= best + _ROUNDING:
            break
        claimed = succeeds(plan)
        replayed_path = await _replay(growth, plan, environment, config.step_seconds)
        if replayed_path is None:  # the values of the replayed steps are unknown
            tree.root.edges = []
            return
        if claimed:
            tree.budget.claims += 1
            tree.budget.claims_kept += succeeds(replayed_path)
        best = max(best, path_return(replayed_path, tree.discount))
    _keep_verified(tree.root, tree.discount)


def _best_imagined_path(tree: Tree) -> Sequence[Edge]:
    """The finished path with an imagined end and the highest return (ties: likelier, then shorter), or (). One that a
    limit cut off before it earned anything does not count."""

    def rank(path: Sequence[Edge]) -> tuple[float, float, int]:
        return path_return(path, tree.discount), path_logprob(path), -len(path)

    imagined_paths = (
        path
        for path in finished_paths(tree)
        if _end(path).origin == "imagined" and (_end(path).terminated or path_return(path, tree.discount) > 0)
    )
    return max(imagined_paths, key=rank, default=())


async def _replay(
    growth: Growth, plan: Sequence[Edge], environment: Dynamics, seconds: float | None
) -> Sequence[Edge] | None:
    """Play a path in the environment. Returns the path with its answers; None after an error of the environment."""
    discount = growth.tree.discount
    known = next(index for index, edge in enumerate(plan) if _end([edge]).origin == "imagined")
    path = list(plan[:known])
    agrees = True
    while agrees and len(path) < len(plan):
        path.append(plan[len(path)])
        agrees = await _step(growth, path, environment, seconds)
        if _end(path).origin == "imagined":
            return None
    rest: list[Edge] = []
    for edge in plan[len(path) :]:
        if _end([*path, *rest]).ended:
            break
        rest.append(Edge(edge.action, prior=1.0))
        await take_step(environment, growth, [*path, *rest], seconds)
        if rest[-1].child is None:
            return None
    if rest:
        _end(path).value = path_return(rest, discount)
    for index, edge in enumerate(path):
        returned = path_return(path[index:], discount)
        edge.value_sum = edge.visits * (max(edge.value, returned) if index < known else returned)
    return [*path, *rest]


async def _step(growth: Growth, path: Sequence[Edge], environment: Dynamics, seconds: float | None) -> bool:
    """Replace the imagined node at the end of ``path`` by the environment's. Returns whether the two are the same: in
    flags, reward and, up to white space at the end, observation."""
    imagined, reward = _end(path), path[-1].reward
    await take_step(environment, growth, path, seconds)
    real = _end(path)
    texts = [last_answer(node.state.messages).rstrip() for node in (imagined, real)]
    flags = [(node.terminated, node.truncated, node.invalid) for node in (imagined, real)]
    same = texts[0] == texts[1] and flags[0] == flags[1]
    if real is imagined or not same or abs((reward or 0.0) - (path[-1].reward or 0.0)) > _ROUNDING:
        return False
    # The actions below were sampled after exactly these messages and token ids.
    real.state = replace(real.state, messages=imagined.state.messages)
    real.value, real.edges = imagined.value, imagined.edges
    real.context_ids, real.left_out = imagined.context_ids, imagined.left_out
    return True


def _keep_verified(node: Node, discount: float) -> None:
    replayed = [edge for edge in node.edges if edge.child is not None and edge.child.origin == "real"]
    best = max((edge.value for edge in replayed), default=-math.inf)
    node.edges = [
        edge for edge in node.edges if edge.child is None or edge in replayed or edge.value < best - _ROUNDING
    ]
    for edge in node.edges:
        if edge in replayed:
            _keep_verified(_end([edge]), discount)
        elif edge.child is not None and edge.child.edges:
            # The subtree is removed, but the value that its visits found is kept.
            edge.child.value = (edge.value - (edge.reward or 0.0)) / edge.discount(discount)
            edge.child.edges = []


def _end(path: Sequence[Edge]) -> Node:
    node = path[-1].child
    assert node is not None
    return node
