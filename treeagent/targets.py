"""Supervised targets: rows to imitate, of paths or of visit counts, and value rows, as pure views of trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree, path_logprob, path_origin, path_return, reaches
from treeagent.types import Origin


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation with the tokens to be imitated and the positions whose value is known."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the token carries likelihood loss: the agent's own tokens, never an observation's but in
    ``early_experience.world_rows``."""
    value_positions: tuple[int, ...] = ()
    """Indices into ``token_ids``: the last token of each state, from which V(s) is read."""
    value_targets: tuple[float, ...] = ()
    """The return from that state, in reward units; aligned with ``value_positions``."""
    weight: float = 1.0
    """Factor of this row's likelihood loss."""
    origin: Origin = "real"
    """Imagined, where a step of its path, which may go on behind it, leads to an imagined state."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TargetConfig:
    """What is imitated and what a state is worth."""

    imitate: Literal["paths", "states"] = "paths"
    """The best finished paths of a tree (RFT), or the best way on from every state that search reached: so the policy
    learns to leave the states into which its own errors lead, which no best path shows."""
    min_return: float = 1.0
    """Least return of a path worth imitating, however long it took: undiscounted."""
    paths_per_tree: Annotated[int, Field(gt=0)] = 1
    """Of "paths": how many, those of highest return."""
    policy_temperature: Annotated[float, Field(gt=0)] = 1.0
    """τ of visit-count targets: below 1 the most visited action stands out more."""
    value: Literal["mean", "best", "lambda"] = "best"
    """V(s): visit-weighted mean of Q(s,a), the highest return found below s (deterministic dynamics only), or
    λ-returns."""
    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of λ-returns: 0 trusts the value function after one step, 1 never before the end, as befits chains, in which it
    is not asked on the way."""


def imitation_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """What search found to be good: the best finished paths (rejection-sampling fine-tuning, RFT), or the best action
    of every state from which it found a good end (expert iteration, Anthony et al. 2017, on all states of the tree).

    Ties go to the path that the policy itself finds likelier, as those of ``best_path`` do: the mode of π exp(G/λ) for
    a small λ. Of the successes that a world model imagined it is also the one most often true. Then they go to the
    shorter path, and to the one found first.

    It ends with an action that ``tree.may_prefer``.
    """
    ended = [path for path, node in tree.walk() if path and node.terminated and tree.may_prefer(path[-1])]
    good = [path for path in ended if reaches(path_return(path), config.min_return)]
    good.sort(key=lambda path: (-path_return(path, tree.discount), -path_logprob(path), len(path)))
    if config.imitate == "paths":
        good = good[: config.paths_per_tree]
    taught: set[int] = set()
    for path in good:
        states = [id(tree.root), *(id(edge.child) for edge in path[:-1])]
        # A better path through a state goes through all states before it, too.
        start = sum(state in taught for state in states) if config.imitate == "states" else 0
        taught.update(states)
        if start < len(path):
            found = [path_return(path[place:], tree.discount) for place in range(start, len(path))]
            yield from path_rows(tree, path, [None] * start + found + [path[-1].reward], imitate_from=start)


def policy_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """The search's improved policy, π(a|s) = N(s,a)^(1/τ) / Σ_b N(s,b)^(1/τ) (Silver et al. 2017): one row for each
    action tried where two or more were, weighted by π(a|s), with the action alone to imitate."""
    for path, node in tree.walk():
        tried = [edge for edge in node.edges if edge.visits]
        if len(tried) < 2:
            continue
        prompt, most = tree.prompt_ids(path), max(edge.visits for edge in tried)
        shares = [(edge.visits / most) ** (1 / config.policy_temperature) for edge in tried]
        for edge, share in zip(tried, shares, strict=True):
            said = edge.action.token_ids
            mask = (False,) * len(prompt) + (True,) * len(said)
            yield TokenRow(tree.task.id, (*prompt, *said), mask, weight=share / sum(shares))


def value_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """Every state whose return search has seen, once, on root-to-leaf rows without likelihood loss."""
    told: set[int] = set()
    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        nodes = [tree.root, *(edge.child for edge in path if edge.child is not None)]
        arrivals = [None, *path]
        targets = [
            None
            if id(visited) in told or not _is_read(visited)
            else state_return(visited, arrival, config, tree.discount)
            for visited, arrival in zip(nodes, arrivals, strict=True)
        ]
        told.update(map(id, nodes))
        yield from path_rows(tree, path, targets, imitate_from=len(path))


def _is_read(node: Node) -> bool:
    """The tokens of its state are known: it was evaluated or expanded, or it ends in the policy's own tokens."""
    return bool(node.context_ids) or any(message.partial for message in node.state.messages[-1:])


def state_return(node: Node, arrival: Edge | None, config: TargetConfig, discount: float = 1.0) -> float | None:
    """What search found V(s) to be; the outcome itself at an end, None where nothing below was tried.

    The arrival's reward stands for a terminal state's value, since at evaluation the head must judge the outcome there.
    """
    if node.terminated:
        return arrival.reward if arrival is not None else None
    tried = [edge for edge in node.edges if edge.visits]
    if not tried:
        return None
    if config.value == "best":
        return max(best_return(edge, discount) for edge in tried)
    if config.value == "lambda":
        return _visit_mean(tried, [lambda_return(edge, config.lambda_, discount) for edge in tried])
    return sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)


def best_return(edge: Edge, discount: float = 1.0) -> float:
    """The highest return of any path found from this edge on, in a deterministic dynamics."""
    reward, node = edge.reward or 0.0, edge.child
    if node is None:
        return reward
    below = [best_return(lower, discount) for lower in node.edges if lower.visits]
    return reward + _discount(edge, discount) * (max(below) if below else node.leaf_value(edge.reward))


def lambda_return(edge: Edge, lambda_: float, discount: float = 1.0) -> float:
    """G^λ(s,a) = r + γ [(1 - λ) V(s') + λ G^λ(s')], the visit-weighted mean over the actions tried at s' being G^λ(s')
    (Sutton and Barto 2018, section 12.8); r + γ V(s') where none was, and nothing after a known end."""
    reward, node = edge.reward or 0.0, edge.child
    if node is None:
        return reward
    after = node.leaf_value(edge.reward)
    tried = [lower for lower in node.edges if lower.visits]
    if tried:
        found = _visit_mean(tried, [lambda_return(lower, lambda_, discount) for lower in tried])
        after = (1 - lambda_) * after + lambda_ * found
    return reward + _discount(edge, discount) * after


def _visit_mean(edges: Sequence[Edge], values: Sequence[float]) -> float:
    total = sum(edge.visits * value for edge, value in zip(edges, values, strict=True))
    return total / sum(edge.visits for edge in edges)


def _discount(edge: Edge, discount: float) -> float:
    """γ of a step; a thought takes none."""
    return 1.0 if edge.thought else discount


def path_rows(
    tree: Tree, path: Sequence[Edge], value_targets: Sequence[float | None] = (), *, imitate_from: int = 0
) -> Iterator[TokenRow]:
    """The tokens of a path, those of its actions from the one numbered ``imitate_from`` on with likelihood loss;
    ``value_targets`` belong to its states, root first, None where unknown.

    One row for each segment of the path that has anything to learn, so that every action stands behind the prompt that
    it was sampled behind, and every state is valued behind its own.
    """
    first = 0
    for start, edges in tree.segments(path):
        ids = list(start.context_ids)
        mask = [False] * len(ids)
        ends = [len(ids) - 1]
        for place, edge in enumerate(edges, start=first):
            ids += edge.action.token_ids
            mask += [place >= imitate_from] * len(edge.action.token_ids)
            if edge.child is None or not edge.child.left_out:
                context = edge.child.context_ids if edge.child is not None else ()
                ids += context
                mask += [False] * len(context)
                ends.append(len(ids) - 1)
        targets = zip(ends, value_targets[first:], strict=False)
        known = [(end, target) for end, target in targets if target is not None]
        first += len(edges)
        if any(mask) or known:
            yield TokenRow(
                tree.task.id,
                tuple(ids),
                tuple(mask),
                tuple(end for end, _ in known),
                tuple(target for _, target in known),
                origin=path_origin(path),
            )
