"""Replay in the environment what imagined trees promise, before it counts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from treeagent.search.growth import Growth, take_step
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_logprob, path_return, succeeds
from treeagent.types import Dynamics
from treeagent.world_model.transition import answered

if TYPE_CHECKING:
    pass  # its package is an extra


_ROUNDING = 0.0015
"""Returns that differ by no more are equal: a world model writes its rewards in three decimals."""


async def settle(trees: Sequence[Tree], environment: Dynamics, steps: int, seconds: float | None = None) -> None:
    """Say of freshly grown trees that they are imagined, and verify them; ``steps`` of 0 take them at their word.

    Args:
        environment: the one that opened their tasks.
        steps: of the environment, most for each tree; a replay under way is finished.
        seconds: wall time after which a step is given up.
    """
    call_imagined(trees)
    for tree in trees if steps else ():
        await verify(tree, environment, steps, seconds)


def call_imagined(trees: Iterable[Tree]) -> None:
    """Say so of every node, the root as well."""
    for tree in trees:
        for node in tree.nodes():
            node.origin = "imagined"


async def verify(tree: Tree, environment: Dynamics, steps: int, seconds: float | None = None) -> None:
    """Replay what the tree promises, the best first, and keep what can be believed after that.

    Finished paths are replayed until none promises more than a replay has returned. Where the environment answers as
    imagined, a node becomes real. Where it first answers otherwise, its answer takes the node's place, what was
    imagined below goes, and the rest of the plan is played to its end for the return alone: its actions were drawn
    behind prompts that never came about. A replayed action is worth the best return of its replays.

    Of its siblings, those that promise as much or more were not replayed: they are dropped. The others stay, without
    what is below them, as what to prefer the replayed action to. So the best action of a state and the best path of the
    tree were replayed, and a winner that failed is left as the failure that it is. Where the environment breaks down,
    the tree keeps the reason and nothing else.
    """
    growth, before, best = Growth(tree), tree.budget.environment_steps, -math.inf
    tree.root.origin = "real"
    while tree.budget.environment_steps - before < steps and (plan := _best_promise(tree)):
        promised = path_return(plan, tree.discount)
        if promised <= best + _ROUNDING:
            break
        claimed = succeeds(plan)
        played = await _replay(growth, plan, environment, seconds)
        if played is None:  # nobody knows what the replayed steps are worth
            tree.root.edges = []
            return
        if claimed:
            tree.budget.claims += 1
            tree.budget.claims_kept += succeeds(played)
        best = max(best, path_return(played, tree.discount))
    _keep_believable(tree.root, tree.discount)


def _best_promise(tree: Tree) -> Sequence[Edge]:
    """The finished path of highest return whose end is imagined, of equals the likeliest and then the shortest; empty
    where there is none."""

    def rank(path: Sequence[Edge]) -> tuple[float, float, int]:
        return path_return(path, tree.discount), path_logprob(path), -len(path)

    return max((path for path in finished_paths(tree) if _end(path).origin == "imagined"), key=rank, default=())


async def _replay(
    growth: Growth, plan: Sequence[Edge], environment: Dynamics, seconds: float | None
) -> Sequence[Edge] | None:
    """The plan as the environment answers it; None where that failed, of which the tree keeps the reason."""
    discount = growth.tree.discount
    known = next(place for place, edge in enumerate(plan) if _end([edge]).origin == "imagined")
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
    for place, edge in enumerate(path):
        returned = path_return(path[place:], discount)
        edge.value_sum = edge.visits * (max(edge.value, returned) if place < known else returned)
    return [*path, *rest]


async def _step(growth: Growth, path: Sequence[Edge], environment: Dynamics, seconds: float | None) -> bool:
    """Take the last edge of ``path``, so far imagined, in the environment, whose answer takes the place of the imagined
    one; whether they are the same. An environment that fails leaves the edge as it is."""
    imagined, reward = _end(path), path[-1].reward
    await take_step(environment, growth, path, seconds)
    real = _end(path)
    if real is imagined or not _same(imagined, real) or abs((reward or 0.0) - (path[-1].reward or 0.0)) > _ROUNDING:
        return False
    real.state = replace(real.state, messages=imagined.state.messages)  # what the actions below were drawn behind
    real.value, real.edges = imagined.value, imagined.edges
    real.context_ids, real.left_out = imagined.context_ids, imagined.left_out
    return True


def _same(imagined: Node, real: Node) -> bool:
    """Whether the agent reads the same, but for white space at the end, which a served model's answers lack, and the
    same is possible from there on."""
    told, heard = answered(imagined.state.messages), answered(real.state.messages)
    flags = ("terminated", "truncated", "invalid")
    return told.rstrip() == heard.rstrip() and all(getattr(imagined, flag) == getattr(real, flag) for flag in flags)


def _keep_believable(node: Node, discount: float) -> None:
    replayed = [edge for edge in node.edges if edge.child is not None and edge.child.origin == "real"]
    best = max((edge.value for edge in replayed), default=-math.inf)
    node.edges = [
        edge for edge in node.edges if edge.child is None or edge in replayed or edge.value < best - _ROUNDING
    ]
    for edge in node.edges:
        if edge in replayed:
            _keep_believable(_end([edge]), discount)
        elif edge.child is not None and edge.child.edges:
            # What its visits found stands for what is cut off below.
            edge.child.value = (edge.value - (edge.reward or 0.0)) / (1.0 if edge.thought else discount)
            edge.child.edges = []


def _end(path: Sequence[Edge]) -> Node:
    node = path[-1].child
    assert node is not None
    return node
