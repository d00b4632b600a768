"""PUCT and UCT: which edge to follow, and the priors of new edges. One function a formula, named as in its paper."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.search.node import Edge, Node
from treeagent.types import Action

C_BASE = 19652.0
"""AlphaZero's c_base (Silver et al. 2018, pseudocode). Exploration grows noticeably only after about so many visits."""
FIRST_PLAY_REDUCTION = 0.1
"""An edge without visits counts this much less than its visited siblings, in normalised Q. With several candidates and
few simulations, it keeps a good first find from being dropped for candidates without any estimate yet."""


@dataclass(slots=True)
class ValueRange:
    """The least and greatest value backed up in one tree, by which Q is min-max normalised (MuZero, appendix B).

    Rewards of environments have any scale, while the exploration term of PUCT is about 1. Normalising makes one
    exploration constant fit them all.
    """

    low: float = math.inf
    high: float = -math.inf
    fixed: bool = False
    """The range was given in the settings, so that values seen do not widen it."""

    def include(self, value: float) -> None:
        if self.fixed:
            return
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def normalise(self, value: float) -> float:
        """Q̂ in [0, 1]; 0.5 while all values of the tree are equal."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


def exploration_rate(parent_visits: int, c_init: float) -> float:
    """c(s) = c_init + log((N(s) + c_base + 1) / c_base)  (AlphaZero, Silver et al. 2018)."""
    return c_init + math.log((parent_visits + C_BASE + 1) / C_BASE)


def puct_score(q: float, prior: float, parent_visits: int, visits: int, c: float) -> float:
    """Q̂(s,a) + c(s) P(s,a) sqrt(N(s)) / (1 + N(s,a))  (AlphaGo Zero, Silver et al. 2017)."""
    return q + c * prior * math.sqrt(parent_visits) / (1 + visits)


def uct_score(q: float, parent_visits: int, visits: int, c: float) -> float:
    """Q̂(s,a) + c sqrt(log N(s) / (1 + N(s,a)))  (Agent Q, equation 7)."""
    return q + c * math.sqrt(math.log(max(parent_visits, 1)) / (1 + visits))


def first_play_value(node: Node, value_range: ValueRange) -> float:
    """Q̂ of an edge without visits: the mean Q of its visited siblings, or V(s) if there are none, less
    ``FIRST_PLAY_REDUCTION``."""
    visits = node.visits
    parent = sum([edge.value_sum for edge in node.edges]) / visits if visits else node.value
    return value_range.normalise(parent) - FIRST_PLAY_REDUCTION


def merge_key(action: Action) -> tuple[bool, str]:
    """Two candidates with equal keys become one edge: those that make the same call.

    A thought or a malformed text makes no call. Its key is its text, and differs from the key of every call, even of
    one that reads the same.
    """
    if not action.call:
        return False, action.text
    if isinstance(action.call, str):
        return True, action.call
    return True, json.dumps([action.call.name, dict(action.call.arguments)], sort_keys=True)


def edges_from(actions: Sequence[Action], temperature: float = 1.0) -> list[Edge]:
    """Sampled candidates as edges with priors, in the order in which they were first sampled.

    P(s,a) ∝ Σ_{distinct texts of a} exp(log π(text|s) / |text| / temperature), |text| in tokens. The division by length
    keeps long thoughts from being improbable merely because they are long. Candidates of equal ``merge_key`` become one
    edge, which holds the likeliest of them. A text sampled twice counts once, because its probability already says how
    often it is sampled. Where a server returns neither tokens nor probabilities, the prior is the share of samples.

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
        key = merge_key(action)
        if key not in best or action.logprob > best[key].logprob:
            best[key] = action
        length = max(len(action.token_ids), 1)
        scores.setdefault(key, {})[action.text] = action.logprob / length / temperature
    # Subtracting the greatest score before exp() keeps long, improbable actions from underflowing to 0 all together.
    top = max(score for texts in scores.values() for score in texts.values())
    mass = {key: sum(math.exp(score - top) for score in texts.values()) for key, texts in scores.items()}
    if not any(action.token_ids for action in actions):
        mass = {key: float(count) for key, count in Counter(merge_key(action) for action in actions).items()}
    total = sum(mass.values())
    return [Edge(action=best[key], prior=mass[key] / total) for key in best]
