"""How far an update has moved a policy at the states of the trees that it learnt from: the terms of the
policy-improvement bound that are the policy's (``world_model.fidelity.improvement_bound``)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeagent.learners.common import Model
from treeagent.learners.likelihood import token_logprobs
from treeagent.search.node import Edge, Tree

Score = Callable[[Sequence[tuple[tuple[int, ...], tuple[int, ...]]]], Sequence[float]]
"""Log-probability of an action's tokens behind a prompt's, for each pair of them, in nats."""


@dataclass(frozen=True, slots=True)
class Change:
    """Means over states, of policies restricted to the actions that search has tried there."""

    gain: float
    """E_{a~π'}[A^π(s, a)] in reward units, A = Q - Σ π Q by the trees' own Q."""
    drift: float
    """δ, the total variation between π' and π, in [0, 1]."""
    states: int


def change(trees: Sequence[Tree], score: Score, most: int = 256) -> Change | None:
    """From the policy π that searched the trees to the one that ``score`` asks, π'.

    Of the states where two actions or more were tried at most ``most`` are looked at, evenly spread; None if there are
    none, or their actions came without log-probabilities.
    """
    found = [
        (tree, path, tried)
        for tree in trees
        for path, node in tree.walk()
        if len(tried := [edge for edge in node.edges if edge.visits and edge.action.logprobs]) > 1
    ]
    found = found[:: max(1, math.ceil(len(found) / most))]
    if not found:
        return None
    asked = [(tree.prompt_ids(path), edge.action.token_ids) for tree, path, tried in found for edge in tried]
    scores = iter(score(asked))
    changes = [_at_state(tried, [next(scores) for _ in tried]) for _, _, tried in found]
    gains, drifts = zip(*changes, strict=True)
    return Change(sum(gains) / len(found), sum(drifts) / len(found), len(found))


def _at_state(tried: Sequence[Edge], after: Sequence[float]) -> tuple[float, float]:
    """(gain, drift)."""
    old, new = _shares([edge.action.logprob for edge in tried]), _shares(after)
    gain = sum((late - early) * edge.value for edge, early, late in zip(tried, old, new, strict=True))
    return gain, sum(abs(late - early) for early, late in zip(old, new, strict=True)) / 2


def _shares(logprobs: Sequence[float]) -> list[float]:
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]


def scorer(model: Model, temperature: float) -> Score:
    """Scores by a model's distribution at the policy's temperature, as actions were drawn from it."""
    return lambda pairs: [sum(logprobs) for logprobs in token_logprobs(model, pairs, temperature)]
