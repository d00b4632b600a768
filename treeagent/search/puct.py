"""PUCT: which edge to follow, and the priors of new edges. There is one function per formula, named as in its paper."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treeagent.search.node import Edge, Node
from treeagent.types import Action

C_BASE = 19652.0
"""AlphaZero's c_base (Silver et al. 2018, pseudocode): exploration grows after about this many visits."""
FIRST_PLAY_REDUCTION = 0.1
"""An edge without visits counts this much less than its visited siblings, in normalised Q. Otherwise a good first
candidate would be dropped for candidates that have no estimate yet."""
LEAST_UNSEEN = 0.05
"""Below this P(new) a state counts as having no further calls to sample, because samples rarely find a new one."""


@dataclass(slots=True)
class ValueRange:
    """The lowest and highest Q of one tree, for min-max normalisation (MuZero, appendix B), so that one exploration
    constant suits rewards of any scale."""

    low: float = math.inf
    high: float = -math.inf

    def include(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)

    def normalise(self, value: float) -> float:
        """Q̂ in [0, 1]; 0.5 while all values of the tree are equal."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


def exploration_rate(parent_visits: int, c_init: float) -> float:
    """c(s) = c_init + log((N(s) + c_base + 1) / c_base)  (AlphaZero, Silver et al. 2018)."""
    return c_init + math.log((parent_visits + C_BASE + 1) / C_BASE)


def exploration_at_depth(c_init: float, simulations: float, depth: int) -> float:
    """c_init min(1, sqrt(N) / 2D) for N ``simulations`` that the limits allow and the ``depth`` D of the tree so far.

    Each state on the way to the best leaf gives other actions about c sqrt(N) visits, so D states need c D sqrt(N), and
    deep trees must explore less at each. The factor 2 was chosen by ``benchmarks.horizon``.
    """
    return c_init * min(1.0, math.sqrt(simulations) / (2 * depth)) if depth else c_init


def puct_best(
    node: Node, edges: Sequence[Edge], values: ValueRange, c_init: float, *, revisit: bool = False
) -> tuple[float, Edge | None]:
    """The greatest score Q̂(s,a) + c(s) P(s,a) sqrt(N(s)) / (1 + N(s,a)) of some edges of a node, and the first edge
    with it (AlphaGo Zero, Silver et al. 2017). Exhausted edges have none, except to ``revisit`` them. N(s) includes the
    visit that evaluated s itself, as in AlphaZero and mctx. Simulations in flight count as visits in the exploration
    term only (WU-UCT, Liu et al. 2020, equation 4)."""
    low, span, visits = values.low, values.high - values.low, node.edge_visits
    parent = 1 + visits + node.in_flight
    explore = exploration_rate(parent, c_init) * math.sqrt(parent)
    untried = values.normalise(node.edge_values / visits if visits else node.value) - FIRST_PLAY_REDUCTION
    best, chosen = -math.inf, None
    for edge in edges:
        if (child := edge.child) is not None and child.exhausted and not revisit:
            continue
        visits = edge.visits
        value = untried if not visits else (edge.value_sum / visits - low) / span if span > 0 else 0.5
        score = value + explore * edge.prior / (1 + visits + edge.in_flight)
        if score > best:
            best, chosen = score, edge
    return best, chosen


def new_action_score(node: Node, values: ValueRange, c_init: float) -> float:
    """The PUCT score of an action that is not sampled yet: ``new_action_value`` as its Q̂, P(new) as its prior, and the
    number of samples so far as its visits."""
    parent = 1 + node.edge_visits + node.in_flight
    explore = exploration_rate(parent, c_init) * math.sqrt(parent)
    return new_action_value(node, values) + explore * node.unseen / (1 + len(node.samples or ()))


def new_action_value(node: Node, values: ValueRange) -> float:
    """Q̂ of an action that is not sampled yet: (V(s) + Σ_b W(s,b)) / (1 + N(s)), minus ``FIRST_PLAY_REDUCTION``. V(s)
    estimates the policy's next sample, and W sums the returns of the samples so far. Q̂ is clipped
    to [0, 1], since V(s) may lie outside the range of the returns seen."""
    mean = (node.value + node.edge_values) / (1 + node.edge_visits)
    return min(max(values.normalise(mean), 0.0), 1.0) - FIRST_PLAY_REDUCTION


Key = tuple[bool, str]
"""Two candidates with equal keys become one edge (``merge_key``)."""


def merge_key(action: Action) -> Key:
    """The key by which candidates are merged: that of the call, or of the text of a thought or a malformed turn."""
    if not action.call:
        return False, action.text
    if isinstance(action.call, str):
        return True, action.call
    return True, json.dumps([action.call.name, dict(action.call.arguments)], sort_keys=True)


def given_edges(actions: Sequence[Action], priors: Sequence[float], most: int | None = None) -> list[Edge]:
    """Candidates with priors that the policy knows, as edges in the given order, at most ``most`` of them. The priors
    of equal calls are added, and all are scaled to sum to 1; ``Edge.chance`` keeps them as they were."""
    edges: dict[Key, Edge] = {}
    for action, prior in zip(actions, priors, strict=True):
        _check(action)
        edges.setdefault(merge_key(action), Edge(action, 0.0)).prior += prior
    selected = list(edges.values())[:most]
    total = math.fsum(edge.prior for edge in selected) or 1.0
    for edge in selected:
        edge.chance = edge.prior
        edge.prior /= total
    return selected


def sampled_edges(actions: Sequence[Action], *, widen: bool = True) -> tuple[list[Edge], float]:
    """Sampled candidates as edges, in the order in which they were first sampled, and P(new), the total prior of all
    calls that were not sampled yet, which is 0 unless ``widen``. Together the priors sum to 1.

    The prior P(s,a) estimates π(a|s), the probability that the policy makes the call a, with any thought. The sampled
    texts have known probabilities, which sum to S; texts not sampled yet have the remaining probability R = 1 - S. Of T
    distinct texts, C made distinct calls. The fraction C/T of R is therefore assigned to calls not sampled yet. The
    sampled calls share the rest of R in proportion to their numbers of texts t(a):

        P(new) = R C/T        P(s,a) = Σ_{texts of a} π(text|s) + (1 - S - P(new)) t(a)/T

    If n of D samples are texts sampled once, R is at most (n + 1) / (D + 1), after the estimate n/D of Good (1953).
    Where a call has several texts, most of R lies on calls that were sampled, and P(new) is at most n/D for the n calls
    sampled once, but not below ``LEAST_UNSEEN`` by this rule, so that a few equal samples do not end the sampling. If a
    server reports no probabilities, S is 0, and T and t(a) count samples. Equal calls become one edge, which holds the
    likeliest of them.
    """
    if not actions:
        raise ValueError("the policy proposed no action: ask it for at least one candidate")
    likeliest: dict[Key, tuple[float, Action]] = {}
    texts: dict[Key, dict[str, float]] = {}  # log π of the distinct texts of each call
    for action in actions:
        key, logprob = merge_key(action), _check(action)
        if key not in likeliest or logprob > likeliest[key][0]:
            likeliest[key] = logprob, action
        texts.setdefault(key, {})[action.text] = logprob
    if any(action.token_ids for action in actions):
        known = {key: sum(map(math.exp, each.values())) for key, each in texts.items()}  # Σ π(text|s)
        number = {key: len(each) for key, each in texts.items()}  # t(a)
    else:
        known, number = dict.fromkeys(texts, 0.0), Counter(map(merge_key, actions))
    seen, all_texts, new = math.fsum(known.values()), sum(number.values()), 0.0
    scale = max(seen, 1.0)  # rounding or a server's sampling may make S > 1
    if widen:
        once = _once((merge_key(action), action.text) for action in actions)
        new = min(max(1.0 - seen, 0.0), (once + 1) / (len(actions) + 1)) * len(likeliest) / all_texts
        if sum(map(len, texts.values())) > len(likeliest):
            new = min(new, max(_once(map(merge_key, actions)) / len(actions), LEAST_UNSEEN))
    rest = max(1.0 - seen - new, 0.0) / all_texts
    return [Edge(action, known[key] / scale + rest * number[key]) for key, (_, action) in likeliest.items()], new


def _once(samples: Iterable[object]) -> int:
    """How many were sampled once."""
    return sum(count == 1 for count in Counter(samples).values())


def _check(action: Action) -> float:
    """log π of an action in nats."""
    if len(action.logprobs) != len(action.token_ids):
        tokens, logprobs = len(action.token_ids), len(action.logprobs)
        raise ValueError(f"action {action.text!r} has {tokens} tokens and {logprobs} log-probabilities")
    logprob = action.logprob
    if not math.isfinite(logprob):
        raise ValueError(f"log-probability {logprob} of action {action.text!r} is not finite")
    return logprob
