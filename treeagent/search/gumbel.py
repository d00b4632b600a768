"""Gumbel selection (Danihelka et al. 2022): at the root, sequential halving over sampled actions; below it, the action
that brings visits closest to the improved policy. A policy improvement even at a handful of simulations.

Values are completed and rescaled per node, as DeepMind's mctx does.
"""

import math
from collections.abc import Sequence

import numpy as np

from treeagent.search.node import Edge, Node


def gumbel_noise(count: int, scale: float, seed: int) -> list[float]:
    """``count`` standard Gumbel draws times ``scale``."""
    return [scale * float(draw) for draw in np.random.default_rng(seed).gumbel(size=count)]


def considered_visits(considered: int, simulations: int) -> list[int]:
    """The number of visits that the action chosen by each simulation at the root has had, under sequential halving.

    ``considered`` actions share each phase equally, and the better half of them goes on to the next (figure 2).
    """
    if considered <= 1:
        return list(range(simulations))
    phases = math.ceil(math.log2(considered))
    visits = [0] * considered
    sequence: list[int] = []
    left = considered
    while len(sequence) < simulations:
        for _ in range(max(1, simulations // (phases * left))):
            sequence += visits[:left]
            visits = [count + 1 if place < left else count for place, count in enumerate(visits)]
        left = max(2, left // 2)
    return sequence[:simulations]


def mixed_value(node: Node) -> float:
    """v_mix = (V(s) + N / Σ_{visited} P(b) Σ_{visited} P(a) Q(s,a)) / (1 + N)  (appendix D)."""
    visited = [edge for edge in node.edges if edge.visits]
    if not visited:
        return node.value
    visits = sum(edge.visits for edge in visited)
    mass = sum(edge.prior for edge in visited)
    if mass == 0:
        return (node.value + sum(edge.value_sum for edge in visited)) / (1 + visits)
    mean = sum(edge.prior * edge.value for edge in visited) / mass
    return (node.value + visits * mean) / (1 + visits)


def transformed_values(node: Node, visit_offset: float, value_scale: float) -> list[float]:
    """σ(q̂) of each edge, σ(q) = (c_visit + max_b N(b)) c_scale q; edges never visited take v_mix."""
    fallback = mixed_value(node)
    completed = [edge.value if edge.visits else fallback for edge in node.edges]
    low, high = min(completed), max(completed)
    scale = (visit_offset + max(edge.visits for edge in node.edges)) * value_scale
    return [scale * (value - low) / max(high - low, 1e-8) for value in completed]


def improved_policy(node: Node, visit_offset: float, value_scale: float) -> list[float]:
    """π'(a|s) = softmax(log P(s,a) + σ(q̂)), in the order of the edges."""
    values = transformed_values(node, visit_offset, value_scale)
    logits = [_log(edge.prior) + value for edge, value in zip(node.edges, values, strict=True)]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def root_scores(node: Node, noise: Sequence[float], visit_offset: float, value_scale: float) -> list[float]:
    """g(a) + log P(s,a) + σ(q̂): the action of the highest, among those most visited, is the one to take."""
    values = transformed_values(node, visit_offset, value_scale)
    return [g + _log(edge.prior) + value for g, edge, value in zip(noise, node.edges, values, strict=True)]


def visit_deficits(node: Node, policy: Sequence[float]) -> list[float]:
    """π'(a) - N(a) / (1 + Σ_b N(b)), simulations in flight counted as visits."""
    total = node.visits_in_flight
    return [
        share - (edge.visits + edge.in_flight) / (1 + total) for share, edge in zip(policy, node.edges, strict=True)
    ]


def _log(probability: float) -> float:
    return math.log(max(probability, 1e-38))


def best_root_edge(node: Node, noise: Sequence[float], visit_offset: float, value_scale: float) -> Edge:
    """The action that the search recommends."""
    most = max(edge.visits for edge in node.edges)
    scores = root_scores(node, noise, visit_offset, value_scale)
    ranked = [(score, edge) for score, edge in zip(scores, node.edges, strict=True) if edge.visits == most]
    return max(ranked, key=lambda pair: pair[0])[1]
