"""Selection: which edge to follow. Formulas on one line each, as in their papers."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.search.node import Edge, Node
from treeagent.types import Action


@dataclass(slots=True)
class ValueRange:
    """Smallest and largest value backed up in one tree, for min-max normalised Q (MuZero, appendix B)."""

    low: float = math.inf
    high: float = -math.inf
    fixed: bool = False
    """The range is given, not seen."""

    def include(self, value: float) -> None:
        if self.fixed:
            return
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def normalise(self, value: float) -> float:
        """Q̂ in [0, 1]; 0.5 while the tree has seen a single value."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


def exploration_rate(parent_visits: int, c_init: float, c_base: float) -> float:
    """c(s) = c_init + log((N(s) + c_base + 1) / c_base)  (AlphaZero)."""
    return c_init + math.log((parent_visits + c_base + 1) / c_base)


def puct_score(q: float, prior: float, parent_visits: int, visits: int, c: float) -> float:
    """Q̂(s,a) + c(s) P(s,a) sqrt(N(s)) / (1 + N(s,a))  (Silver et al. 2017)."""
    return q + c * prior * math.sqrt(parent_visits) / (1 + visits)


def uct_score(q: float, parent_visits: int, visits: int, c: float) -> float:
    """Q(s,a) + c sqrt(log N(s) / (1 + N(s,a)))  (Agent Q, equation 7)."""
    return q + c * math.sqrt(math.log(max(parent_visits, 1)) / (1 + visits))


def merge_key(action: Action, by: str) -> tuple[bool, str]:
    """What makes two candidates the same: the call they make, or their whole text. A thought or a malformed text, which
    make no call, are told by their text, and are never the same as a call, even where they read like one."""
    if by != "call" or not action.call:
        return bool(action.call), action.text
    if isinstance(action.call, str):
        return True, action.call
    return True, json.dumps([action.call.name, dict(action.call.arguments)], sort_keys=True)


def edges_from(actions: Sequence[Action], *, merge: str, temperature: float, length_power: float) -> list[Edge]:
    """Candidates as edges with priors.

    P(s,a) ∝ Σ_{duplicates} exp(log π(a|s) / |a|^length_power / temperature). Duplicates (equal ``merge_key``) are
    merged first, the likeliest kept and the mass of distinct texts summed; a text drawn twice counts once, since its
    probability already says how often it is drawn. Where a server tells neither tokens nor probabilities, how often a
    candidate was drawn is all that is known of it. Order: first drawn first.

    Raises:
        ValueError: an action's log-probability is NaN or infinite, or not one a token, or there are no actions.
    """
    if not actions:
        raise ValueError("the policy proposed no action: ask it for at least one candidate")
    best: dict[tuple[bool, str], Action] = {}
    scores: dict[tuple[bool, str], dict[str, float]] = {}
    for action in actions:
        if len(action.logprobs) != len(action.token_ids):
            tokens, logprobs = len(action.token_ids), len(action.logprobs)
            raise ValueError(f"action {action.text!r} has {tokens} tokens and {logprobs} log-probabilities")
        if not math.isfinite(action.logprob):
            raise ValueError(f"log-probability {action.logprob} of action {action.text!r} is not finite")
        key = merge_key(action, merge)
        if key not in best or action.logprob > best[key].logprob:
            best[key] = action
        length = max(len(action.token_ids), 1)
        scores.setdefault(key, {})[action.text] = action.logprob / length**length_power / temperature
    top = max(score for texts in scores.values() for score in texts.values())
    mass = {key: sum(math.exp(score - top) for score in texts.values()) for key, texts in scores.items()}
    if not any(action.token_ids for action in actions):
        mass = {key: float(count) for key, count in Counter(merge_key(action, merge) for action in actions).items()}
    total = sum(mass.values())
    return [Edge(action=best[key], prior=mass[key] / total) for key in best]


def first_play_value(node: Node, value_range: ValueRange, reduction: float) -> float:
    """Q̂ of an edge never visited: the mean of what its visited siblings found (V(s) if none), less a reduction."""
    visits = node.visits
    parent = sum([edge.value_sum for edge in node.edges]) / visits if visits else node.value
    return value_range.normalise(parent) - reduction
