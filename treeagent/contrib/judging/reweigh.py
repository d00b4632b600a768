"""Trees under other rewards: pure functions of stored trees, without inference. The original tree is not changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from treeagent.contrib.judging.components import (
    Components,
    Rule,
    components_of,
    is_unjudged,
    spreads,
    stored_step,
    total,
    whole_turn,
    with_rules,
)
from treeagent.contrib.judging.config import DERIVED, RewardsConfig
from treeagent.search.node import Edge, Node, Tree, cancelling_reward, task_groups

_NOTHING: Mapping[int, Components] = {}


def reweighed(
    trees: Sequence[Tree],
    config: RewardsConfig,
    rules: Mapping[str, Rule],
    process_weight: float = 0.0,
) -> list[Tree]:
    """The trees of one task with the rewards that ``config`` gives their components; without weights, the environment's
    own rewards. Rules are evaluated again; all other components are taken from the trees.

    Args:
        process_weight: ``search.process_weight`` with which the trees grew. Without weights, the new W mixes in process
            rewards by it, too.
    """
    weights = dict(config.weights)
    components = {
        id(path[-1]): with_rules(components_of(path[-1], whole_turn(path)), rules, stored_step(tree, path))
        for tree in trees
        for path, _ in tree.walk()
        if path
    }
    if config.normalise == "std":
        spread = spreads([with_rewards(tree, _reward, components) for tree in trees], list(weights))
        weights = {name: weight / spread[name] for name, weight in weights.items()}

    def base_reward(edge: Edge) -> float | None:
        withheld = edge.reward is None and DERIVED[0] not in edge.components
        if withheld or edge.thought or edge.child is None or edge.child.unknown:
            return edge.reward
        if not config.weights:
            return edge.outcome
        if is_unjudged(config, components[id(edge)], edge.child.ended):
            return None
        return total(weights, components[id(edge)])

    def base_process(edge: Edge) -> float:
        return components[id(edge)].get("process", edge.process)  # a hacked end has another process reward

    stored = components if config.active else {}
    return [
        with_rewards(
            tree,
            _with_hacked_cancelled(tree, base_reward),
            stored,
            process=_with_hacked_cancelled(tree, base_process),
            process_weight=process_weight,
            new_process_weight=0.0 if config.weights else process_weight,
        )
        for tree in trees
    ]


def _with_hacked_cancelled(tree: Tree, reward: Callable[[Edge], float | None]) -> Callable[[Edge], float | None]:
    """A function that gives the ``reward`` of each edge, except that the last edge of a hacked episode takes back what
    the earlier edges paid."""
    cancelling = {
        id(path[-1]): cancelling_reward(path, lambda edge: reward(edge) or 0.0, tree.discount)
        for path, _ in tree.walk()
        if path and path[-1].hacked
    }
    return lambda edge: cancelling[id(edge)] if id(edge) in cancelling else reward(edge)


def rescored(
    trees: Sequence[Tree],
    config: RewardsConfig,
    rules: Mapping[str, Rule],
    process_weight: float = 0.0,
) -> list[Tree]:
    """Apply ``reweighed`` to trees of any tasks, and keep their order."""
    changed: dict[int, Tree] = {}
    for indices in task_groups(trees):
        group = [trees[index] for index in indices]
        changed |= zip(indices, reweighed(group, config, rules, process_weight), strict=True)
    return [changed[index] for index in range(len(trees))]


def _reward(edge: Edge) -> float | None:
    return edge.reward


def _process(edge: Edge) -> float | None:
    return edge.process


def with_rewards(
    tree: Tree,
    reward: Callable[[Edge], float | None],
    components: Mapping[int, Components] = _NOTHING,
    *,
    process: Callable[[Edge], float | None] = _process,
    process_weight: float = 0.0,
    new_process_weight: float = 0.0,
    blank: bool = False,
) -> Tree:
    """A copy of a tree with the reward that ``reward`` gives each expanded edge, and with the W that the same visits
    would have summed.

    If Δr is the change of a reward in W, Q changes by ΔQ(s,a) = Δr + γ Σ_b N(s',b) ΔQ(s',b) / (n + Σ_b N(s',b)), where
    n is the number of visits that ended at s'. This is exact for every search in which the visits of an edge continued
    through the edges below it. If MCTS also counted revisits of exhausted edges, it is the mean over all counted
    visits. If no reward changes, no W changes.

    Args:
        components: the components of edges by their ``id``; other edges keep theirs.
        process: the process reward of each expanded edge.
        process_weight: η of the old W, which mixed in process rewards.
        new_process_weight: η of the new W.
        blank: whether the old rewards, W and V count as 0, for example because ``reward`` is a cost.
    """
    weights = process_weight, new_process_weight
    copies = _copies(tree.root, _RewardChange(reward, process, components, *weights, blank, tree.discount))
    order = [None if node is None else copies.get(id(node)) for node in tree.order]
    return replace(tree, root=copies[id(tree.root)], order=order)


@dataclass(frozen=True, slots=True)
class _RewardChange:
    reward: Callable[[Edge], float | None]
    process: Callable[[Edge], float | None]
    components: Mapping[int, Components]
    process_weight: float
    new_process_weight: float
    blank: bool
    discount: float


def _copies(node: Node, new_rewards: _RewardChange) -> dict[int, Node]:
    """Copies of a node and of all nodes below it, by ``id`` of the originals. It does not recurse, because paths may be
    long."""
    copies: dict[int, Node] = {}
    changes: dict[int, list[float]] = {}
    """ΔQ of each edge of a node, by ``id`` of the node."""
    order, stack = list[Node](), [node]
    while stack:
        current = stack.pop()
        order.append(current)
        stack.extend(edge.child for edge in current.edges if edge.child is not None)
    for current in reversed(order):  # children first
        edges, changed = list[Edge](), list[float]()
        for edge in current.edges:
            change = 0.0
            reward, process = edge.reward, edge.process
            if edge.child is not None:
                reward, process = new_rewards.reward(edge), new_rewards.process(edge) or 0.0
                change = _change(edge, reward, process, changes[id(edge.child)], new_rewards)
            summed = 0.0 if new_rewards.blank else edge.value_sum
            edges.append(
                replace(
                    edge,
                    reward=reward,
                    process=process,
                    value_sum=summed + edge.visits * change,
                    child=copies.get(id(edge.child)),
                    components=new_rewards.components.get(id(edge), edge.components),
                )
            )
            changed.append(change)
        copies[id(current)] = replace(current, edges=edges, value=0.0 if new_rewards.blank else current.value)
        changes[id(current)] = changed
    return copies


def _change(
    edge: Edge, reward: float | None, process: float, below: Sequence[float], new_rewards: _RewardChange
) -> float:
    child, weight, new_weight = edge.child, new_rewards.process_weight, new_rewards.new_process_weight
    assert child is not None
    old = 0.0 if new_rewards.blank else (1 - weight) * (edge.reward or 0.0) + weight * edge.process
    change = (1 - new_weight) * (reward or 0.0) + new_weight * process - old
    visits = [each.visits for each in child.edges]
    ended = max(edge.visits - sum(visits), 0)
    counted = ended + sum(visits)
    if counted:
        old_leaf, new_leaf = (1 - weight) * child.leaf_value(edge.reward), (1 - new_weight) * child.leaf_value(reward)
        leaf = 0.0 if new_rewards.blank else new_leaf - old_leaf
        beyond = ended * leaf + sum(number * each for number, each in zip(visits, below, strict=True))
        change += edge.discount(new_rewards.discount) * beyond / counted
    return change
