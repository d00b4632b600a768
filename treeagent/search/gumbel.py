"""Gumbel selection (Danihelka et al. 2022): at the root, sequential halving over sampled actions; below it, the action
that brings visits closest to the improved policy. A policy improvement even at a handful of simulations.

Values are completed and rescaled per node, as DeepMind's mctx does.
"""

import math
from collections.abc import Sequence

import numpy as np

from treeagent.search.config import SearchConfig
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import derive_seed

TINY = 1e-38
"""Stands for a prior of zero."""


def gumbel_noise(count: int, scale: float, seed: int) -> list[float]:
    """g(a) of the root's ``count`` edges, in order: standard Gumbel draws times ``scale``, from the tree's seed."""
    rng = np.random.default_rng(derive_seed(seed, "gumbel"))
    return [scale * float(draw) for draw in rng.gumbel(size=count)]


def considered_visits(considered: int, simulations: int) -> list[int]:
    """The number of visits that the action chosen by each simulation at the root has had, under sequential halving.

    ``considered`` actions share each phase equally, the better half goes on to the next (algorithm 2, figure 1).
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
    """v_mix = (V(s) + N / Σ_{visited} P(b) Σ_{visited} P(a) Q(s,a)) / (1 + N)  (equation 33)."""
    visited = [edge for edge in node.edges if edge.visits]
    if not visited:
        return node.value
    visits = sum(edge.visits for edge in visited)
    priors = [max(edge.prior, TINY) for edge in visited]
    mean = sum(prior * edge.value for prior, edge in zip(priors, visited, strict=True)) / sum(priors)
    return (node.value + visits * mean) / (1 + visits)


def transformed_values(node: Node, config: SearchConfig) -> list[float]:
    """σ(q̂) of each edge, σ(q) = (c_visit + max_b N(b)) c_scale q; edges never visited take v_mix (equations 8, 10)."""
    fallback = mixed_value(node)
    completed = [edge.with_critic(edge.value if edge.visits else fallback, config.critic_weight) for edge in node.edges]
    low, high = min(completed), max(completed)
    scale = (config.gumbel_visit_offset + max(edge.visits for edge in node.edges)) * config.gumbel_value_scale
    return [scale * (value - low) / max(high - low, 1e-8) for value in completed]


def improved_policy(node: Node, config: SearchConfig) -> list[float]:
    """π'(a|s) = softmax(log P(s,a) + σ(q̂)), in the order of the edges (equation 11)."""
    values = transformed_values(node, config)
    logits = [_log(edge.prior) + value for edge, value in zip(node.edges, values, strict=True)]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def root_scores(node: Node, noise: Sequence[float], config: SearchConfig) -> list[float]:
    """g(a) + log P(s,a) + σ(q̂)."""
    values = transformed_values(node, config)
    return [g + _log(edge.prior) + value for g, edge, value in zip(noise, node.edges, values, strict=True)]


def visit_deficits(node: Node, policy: Sequence[float]) -> list[float]:
    """π'(a) - N(a) / (1 + Σ_b N(b)), simulations in flight counted as visits (equation 14)."""
    total = node.visits_in_flight
    return [
        share - (edge.visits + edge.in_flight) / (1 + total) for share, edge in zip(policy, node.edges, strict=True)
    ]


def _log(probability: float) -> float:
    return math.log(max(probability, TINY))


def best_root_edge(tree: Tree, config: SearchConfig) -> Edge:
    """The action to take after a Gumbel search: the one of highest g(a) + log P(s,a) + σ(q̂), of those most visited and
    those visited no more because nothing was left to find."""
    edges = tree.root.edges
    most = max(edge.visits for edge in edges)
    scores = root_scores(tree.root, gumbel_noise(len(edges), config.gumbel_scale, tree.seed), config)
    rivals = [(score, edge) for score, edge in zip(scores, edges, strict=True) if edge.visits == most or known(edge)]
    return max(rivals, key=lambda rival: rival[0])[1]


def known(edge: Edge) -> bool:
    """All beyond it was found; beyond a refused call nothing was looked for."""
    return edge.exhausted and edge.child is not None and not edge.child.invalid
