"""PUCT and UCT: which edge to follow, and the priors of new edges. One function a formula, named as in its paper."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
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


def exploration_at_depth(c_init: float, simulations: float, depth: int) -> float:
    """c_init min(1, sqrt(N) / 2D), where N is the number of ``simulations`` that the limits allow in all, and D the
    ``depth`` of the tree so far.

    By PUCT, each state on the way to the best leaf tries other actions in a number of visits that grows like c sqrt(N).
    D such states together need c D sqrt(N), and have N. So deep trees must explore less at each state to get to an end,
    and short ones can afford more. The factor 2 was chosen by ``benchmarks.horizon``.
    """
    return c_init * min(1.0, math.sqrt(simulations) / (2 * depth)) if depth else c_init


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


def new_action_value(node: Node, value_range: ValueRange) -> float:
    """Q̂ of an action that is not sampled yet: (V(s) + Σ_b W(s,b)) / (1 + N(s)), less ``FIRST_PLAY_REDUCTION``.

    V(s) is the value of the policy's next sample, and W the returns of those sampled so far. Where these disappoint,
    V(s) keeps the estimate above them: the policy must have better actions.
    """
    mean = (node.value + sum([edge.value_sum for edge in node.edges])) / (1 + node.visits)
    return value_range.normalise(mean) - FIRST_PLAY_REDUCTION


Key = tuple[bool, str]
"""What two candidates must share to become one edge."""


def merge_key(action: Action) -> Key:
    """Two candidates with equal keys become one edge: those that make the same call.

    A thought or a malformed text makes no call. Its key is its text, and differs from the key of every call, even of
    one that reads the same.
    """
    if not action.call:
        return False, action.text
    if isinstance(action.call, str):
        return True, action.call
    return True, json.dumps([action.call.name, dict(action.call.arguments)], sort_keys=True)


def edges_from(actions: Sequence[Action]) -> list[Edge]:
    """Sampled candidates as edges whose priors sum to 1. See ``sampled_edges``: here P(new) is 0."""
    return _Pool.of(actions).edges(0.0)


def given_edges(actions: Sequence[Action], priors: Sequence[float], most: int | None = None) -> list[Edge]:
    """Candidates whose priors the policy knows, as edges in their order. Candidates of equal ``merge_key`` become one
    edge, which holds the first of them and the sum of their priors.

    Args:
        most: only the first so many edges are made. Their priors are scaled to sum to 1.

    Raises:
        ValueError: an action's log-probability is NaN or infinite, or not one a token, or there is not one prior an
            action.
    """
    edges: dict[Key, Edge] = {}
    for action, prior in zip(actions, priors, strict=True):
        _check(action)
        edges.setdefault(merge_key(action), Edge(action, 0.0)).prior += prior
    kept = list(edges.values())[:most]
    total = math.fsum(edge.prior for edge in kept) or 1.0
    for edge in kept:
        edge.prior /= total
    return kept


def sampled_edges(actions: Sequence[Action]) -> tuple[list[Edge], float]:
    """Sampled candidates as edges, in the order in which they were first sampled, and P(new), the prior of all calls
    that were not sampled yet. Together the priors sum to 1.

    The prior P(s,a) estimates π(a|s), the probability that the policy makes the call a, whatever its thought. The
    sampled texts have known probabilities, which sum to S; texts not sampled yet hold R = 1 - S. Of T distinct texts, C
    made distinct calls. So the share C/T of R is taken to make calls not sampled yet, and the sampled calls get the
    rest of it by their numbers t(a) of texts:

        P(new) = R C/T        P(s,a) = Σ_{texts of a} π(text|s) + (1 - S - P(new)) t(a)/T

    Samples that repeat show that less is left. Of D samples, n texts were sampled once, and R is taken to be at most
    (n + 1) / (D + 1), after the estimate n/D of Good (1953). It matters where a server samples from the likeliest
    tokens alone and yet reports the probabilities of all. Where a server reports none, S is 0, and T and t(a) count
    samples.

    Candidates of equal ``merge_key`` become one edge, which holds the likeliest of them.

    Raises:
        ValueError: an action's log-probability is NaN or infinite, or not one a token, or there are no actions.
    """
    pool = _Pool.of(actions)
    new = pool.unseen * len(pool.action) / pool.texts.total()
    return pool.edges(new), new


@dataclass(frozen=True, slots=True)
class _Pool:
    """The samples of one state, by the key of their call."""

    action: Mapping[Key, Action]
    """The likeliest sample of each call."""
    known: Mapping[Key, float]
    """Σ π(text|s) over its distinct texts; together S."""
    texts: Counter[Key]
    """t(a)."""
    unseen: float
    """R."""

    @classmethod
    def of(cls, actions: Sequence[Action]) -> "_Pool":
        if not actions:
            raise ValueError("the policy proposed no action: ask it for at least one candidate")
        best: dict[Key, Action] = {}
        for action in actions:
            _check(action)
            key = merge_key(action)
            if key not in best or action.logprob > best[key].logprob:
                best[key] = action
        samples = Counter((merge_key(action), action.text) for action in actions)
        if not any(action.token_ids for action in actions):
            texts, known = Counter(map(merge_key, actions)), dict.fromkeys(best, 0.0)
        else:
            texts = Counter(key for key, _ in samples)
            each = {(merge_key(action), action.text): math.exp(action.logprob) for action in actions}
            total = max(math.fsum(each.values()), 1.0)  # rounding, or a server's own sampling, may lift S above 1
            known = dict.fromkeys(best, 0.0)
            for (key, _), probability in each.items():
                known[key] += probability / total
        once = sum(count == 1 for count in samples.values())
        unseen = min(max(1.0 - math.fsum(known.values()), 0.0), (once + 1) / (len(actions) + 1))
        return cls(best, known, texts, unseen)

    def edges(self, new: float) -> list[Edge]:
        """The calls as edges, whose priors sum to 1 - ``new``."""
        rest = max(1.0 - math.fsum(self.known.values()) - new, 0.0) / self.texts.total()
        return [Edge(action, self.known[key] + rest * self.texts[key]) for key, action in self.action.items()]


def _check(action: Action) -> None:
    if len(action.logprobs) != len(action.token_ids):
        tokens, logprobs = len(action.token_ids), len(action.logprobs)
        raise ValueError(f"action {action.text!r} has {tokens} tokens and {logprobs} log-probabilities")
    if not math.isfinite(action.logprob):
        raise ValueError(f"log-probability {action.logprob} of action {action.text!r} is not finite")
