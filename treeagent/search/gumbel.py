"""Gumbel selection (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"; equations below are theirs).

PUCT needs many simulations before its visit counts are a better policy than the prior. Gumbel selection improves on the
prior even with a handful. At the root, sequential halving gives all sampled actions equal visits and drops the worse
half, again and again. Below it, each simulation takes the action whose visits lag most behind the improved policy.

Values are completed and rescaled per node, as DeepMind's mctx does.

The paper counts simulations and knows all actions. Here phases of sequential halving have equal shares of whatever
limits the search (``Halving``). Where candidates are sampled one after another, PUCT's rule says when to sample another
one, at the root during the first phase only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeagent.search.config import SearchConfig
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import derive_seed

TINY = 1e-38
"""Replaces a prior of 0, which has no logarithm."""
VISIT_OFFSET = 50.0
"""c_visit of equation 8, as in the paper and in mctx (``maxvisit_init``)."""
VALUE_SCALE = 0.1
"""c_scale of equation 8, as in mctx (``value_scale``), where Q is rescaled to [0, 1]."""


def gumbel_noise(count: int, seed: int) -> list[float]:
    """g(a) of the root's ``count`` edges, in order: standard Gumbel samples, as the paper takes them; ``seed`` is the
    tree's."""
    rng = np.random.default_rng(derive_seed(seed, "gumbel"))
    return [float(draw) for draw in rng.gumbel(size=count)]


@dataclass(slots=True)
class Halving:
    """Sequential halving's schedule, written as the search spends its limits (algorithm 2, figure 1).

    m considered actions make ceil(log2 m) phases of equal shares of the limits. A phase consists of rounds, in each of
    which all actions that are left get one visit. It ends when another round as costly as the last one would exceed its
    share, but has one round at least; then the better half goes on. With 4 actions and a limit of 8 simulations alone,
    simulations choose actions that have had 0 0 0 0 1 1 2 2 visits: each of the four once, then the best two of them
    twice more. Under such a limit every schedule is the paper's and mctx's.
    """

    considered: int
    """m."""
    visits: list[int]
    """Entry i is the number of visits that the root's action must already have had for simulation ``first`` + i to
    choose it. To begin with, it holds what is left of the round in progress: 0, m times, where no action has visits."""
    first: int = 0
    """Simulations before this schedule."""
    rounds: int = 1
    """Rounds so far, the one in progress included."""
    left: int = field(init=False)
    """Actions that are left."""
    began: int = 0
    """``rounds`` when the phase began."""
    spent: tuple[float, float] = (0.0, 0.0)
    """Shares of the limits that were spent when the phase and when the last round began."""

    def __post_init__(self) -> None:
        self.left = self.considered

    def due(self, simulation: int, share: float) -> int:
        """How many visits the root's action must already have had for this simulation, counted from 0, to choose it.

        Args:
            share: of the limits that is spent once the simulations before it are finished.
        """
        place = max(simulation - self.first, 0)  # one that was given up in flight comes again
        while place >= len(self.visits):
            phase, last = self.spent
            if self.rounds > self.began and share - phase + share - last > 1 / phases(self.considered) + 1e-9:
                self.left = max(min(2, self.considered), self.left // 2)
                self.began, phase = self.rounds, share
            self.visits += [self.rounds] * self.left
            self.rounds, self.spent = self.rounds + 1, (phase, share)
        return self.visits[place]


def phases(considered: int) -> int:
    """ceil(log2 m), and 1 for a single action."""
    return max(math.ceil(math.log2(considered)), 1)


def mixed_value(node: Node) -> float:
    """v_mix = (V(s) + N / Σ_{visited} P(b) Σ_{visited} P(a) Q(s,a)) / (1 + N)  (equation 33).

    The value of the state under the prior, as far as search knows it: it completes Q of the edges without visits.
    """
    visited = [edge for edge in node.edges if edge.visits]
    if not visited:
        return node.value
    visits = sum(edge.visits for edge in visited)
    priors = [max(edge.prior, TINY) for edge in visited]
    mean = sum(prior * edge.value for prior, edge in zip(priors, visited, strict=True)) / sum(priors)
    return (node.value + visits * mean) / (1 + visits)


def transformed_values(node: Node, config: SearchConfig) -> list[float]:
    """σ(q̂) of each edge, in order: σ(q) = (c_visit + max_b N(b)) c_scale q. An edge without visits takes v_mix as its q
    (equations 8 and 10)."""
    fallback = mixed_value(node)
    completed = [edge.with_critic(edge.value if edge.visits else fallback, config.critic_weight) for edge in node.edges]
    low, high = min(completed), max(completed)
    scale = (VISIT_OFFSET + max(edge.visits for edge in node.edges)) * VALUE_SCALE
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
    """g(a) + log P(s,a) + σ(q̂) of each edge at the root, in order (equation 6); ``noise`` holds g."""
    values = transformed_values(node, config)
    return [g + _log(edge.prior) + value for g, edge, value in zip(noise, node.edges, values, strict=True)]


def visit_deficits(node: Node, policy: Sequence[float]) -> list[float]:
    """π'(a) - N(a) / (1 + Σ_b N(b)) of each edge, in order (equation 14). Simulations in flight count as visits."""
    total = node.visits_in_flight
    return [
        share - (edge.visits + edge.in_flight) / (1 + total) for share, edge in zip(policy, node.edges, strict=True)
    ]


def _log(probability: float) -> float:
    return math.log(max(probability, TINY))


def best_root_edge(tree: Tree, config: SearchConfig, *, noise: bool) -> Edge:
    """The action to take after a Gumbel search: the one with the greatest g(a) + log P(s,a) + σ(q̂) among the most
    visited; without ``noise``, as at evaluation, g is 0. An exhausted action competes, too: it has fewer visits only
    because there was nothing left to find."""
    edges = tree.root.edges
    most = max(edge.visits for edge in edges)
    g = gumbel_noise(len(edges), tree.seed) if noise else [0.0] * len(edges)
    scores = root_scores(tree.root, g, config)
    rivals = [(score, edge) for score, edge in zip(scores, edges, strict=True) if edge.visits == most or known(edge)]
    return max(rivals, key=lambda rival: rival[0])[1]


def known(edge: Edge) -> bool:
    """Whether search has seen everything beyond this edge. Beyond a refused call it did not look at all."""
    return edge.exhausted and edge.child is not None and not edge.child.invalid
