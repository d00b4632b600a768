"""Gumbel selection (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"; equations below are theirs).

At the root, sequential halving gives all sampled actions equal visits, drops the worse half, and repeats this. Below
the root, each simulation takes the action whose share of visits is furthest below its probability in the improved
policy. Values are completed and rescaled per node, as in mctx. Unlike in the paper, the phases of sequential halving
have equal shares of whichever limits the search has, and candidates may be sampled one after another: PUCT's rule
decides when, and at the root only during the first phase.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeagent.search.node import Edge, Node, Tree
from treeagent.types import derive_seed

TINY = 1e-38
"""Replaces a prior of 0, which has no logarithm."""
VISIT_OFFSET = 50.0
"""c_visit of equation 8, as in the paper and in mctx (``maxvisit_init``)."""
VALUE_SCALE = 0.1
"""c_scale of equation 8, as in mctx (``value_scale``), where Q is rescaled to [0, 1]."""


def gumbel_noise(count: int, seed: int) -> list[float]:
    """g(a) of the root's ``count`` edges, in order: standard Gumbel samples by the tree's ``seed``."""
    rng = np.random.default_rng(derive_seed(seed, "gumbel"))
    return [float(draw) for draw in rng.gumbel(size=count)]


@dataclass(slots=True)
class Halving:
    """The schedule of sequential halving, extended as the search spends its limits (algorithm 2, figure 1).

    m considered actions make ceil(log2 m) phases with equal shares of the limits. A phase has at least one round, which
    gives one visit to every remaining action; then the better half of the actions remains. With 4 actions and a limit
    of 8 simulations, these choose actions that have had 0 0 0 0 1 1 2 2 visits, as in the paper and in mctx.
    """

    considered: int  # m
    visits: list[int]
    """Simulation ``first`` + i chooses a root action that already has as many visits as entry i says. The initial value
    is the rest of the round in progress: m zeros if no action has visits."""
    first: int = 0  # number of simulations before this schedule
    rounds: int = 1  # number of rounds so far, including the one in progress
    remaining: int = field(init=False)  # number of remaining actions
    began: int = 0  # value of ``rounds`` when the phase began
    spent: tuple[float, float] = (0.0, 0.0)  # shares of the limits when the phase and when the last round began

    def __post_init__(self) -> None:
        self.remaining = self.considered

    def required_visits(self, simulation: int, share: float) -> int:
        """How many visits a root action must already have so that this simulation, counted from 0, may choose it.
        ``share`` is the share of the limits that is spent once all earlier simulations are finished."""
        index = max(simulation - self.first, 0)  # a simulation that was given up is repeated
        while index >= len(self.visits):
            phase, last = self.spent
            if self.rounds > self.began and share - phase + share - last > 1 / phases(self.considered) + 1e-9:
                self.remaining = max(min(2, self.considered), self.remaining // 2)
                self.began, phase = self.rounds, share
            self.visits += [self.rounds] * self.remaining
            self.rounds, self.spent = self.rounds + 1, (phase, share)
        return self.visits[index]


def phases(considered: int) -> int:
    """ceil(log2 m), and 1 for a single action."""
    return max(math.ceil(math.log2(considered)), 1)


def mixed_value(node: Node) -> float:
    """v_mix = (V(s) + N / Σ_{visited} P(b) Σ_{visited} P(a) Q(s,a)) / (1 + N)  (equation 33)."""
    visited = [edge for edge in node.edges if edge.visits]
    if not visited:
        return node.value
    visits = sum(edge.visits for edge in visited)
    priors = [max(edge.prior, TINY) for edge in visited]
    mean = sum(prior * edge.value for prior, edge in zip(priors, visited, strict=True)) / sum(priors)
    return (node.value + visits * mean) / (1 + visits)


def transformed_values(node: Node) -> list[float]:
    """σ(q̂) of each edge, in order: σ(q) = (c_visit + max_b N(b)) c_scale q. An edge without visits takes v_mix as its q
    (equations 8 and 10)."""
    fallback = mixed_value(node)
    completed = [edge.value if edge.visits else fallback for edge in node.edges]
    low, high = min(completed), max(completed)
    scale = (VISIT_OFFSET + max(edge.visits for edge in node.edges)) * VALUE_SCALE
    return [scale * (value - low) / max(high - low, 1e-8) for value in completed]


def improved_policy(node: Node) -> list[float]:
    """π'(a|s) = softmax(log P(s,a) + σ(q̂)), in the order of the edges (equation 11)."""
    logits = root_scores(node, [0.0] * len(node.edges))
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def root_scores(node: Node, noise: Sequence[float]) -> list[float]:
    """g(a) + log P(s,a) + σ(q̂) of each edge at the root, in order (equation 6). ``noise`` holds g."""
    values = transformed_values(node)
    return [
        g + math.log(max(edge.prior, TINY)) + value for g, edge, value in zip(noise, node.edges, values, strict=True)
    ]


def visit_deficits(node: Node, policy: Sequence[float]) -> list[float]:
    """π'(a) - N(a) / (1 + Σ_b N(b)) of each edge, in order (equation 14). Simulations in flight count as visits."""
    total = node.edge_visits + node.in_flight
    return [
        share - (edge.visits + edge.in_flight) / (1 + total) for share, edge in zip(policy, node.edges, strict=True)
    ]


def best_root_edge(tree: Tree, *, noise: bool) -> Edge:
    """The action to take after a Gumbel search: of the most visited and the explored actions, the one with the greatest
    score g(a) + log P(s,a) + σ(q̂). Without ``noise``, as at evaluation, g is 0."""
    edges = tree.root.edges
    most = max(edge.visits for edge in edges)
    scores = root_scores(tree.root, gumbel_noise(len(edges), tree.seed) if noise else [0.0] * len(edges))
    competing = [place for place, edge in enumerate(edges) if edge.visits == most or is_explored(edge)]
    return edges[max(competing, key=lambda place: scores[place])]


def is_explored(edge: Edge) -> bool:
    """Whether search has seen everything beyond this edge."""
    node = edge.child
    return node is not None and node.exhausted and not (node.invalid or node.repeat or node.unknown)
