"""Counts which tiers decided about ends, and how often they agree with the verifier."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from treeagent.contrib.judging.cascade import deciding_tier
from treeagent.contrib.judging.components import components_of
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.search.node import Edge, Node, Tree, reaches

_SUCCESS = 0.5
"""Lowest score by a judge or a value head that counts as a success."""
_NAMED = 3
"""Maximum number of tasks that a warning names."""


class Assessments:
    """Counts over the ends of episodes in trees, which are read one at a time."""

    def __init__(self, config: RewardsConfig) -> None:
        self._config = config
        self._tiers = Counter[str]()
        self._pairs: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
        self._doubted: dict[str, dict[str, None]] = {}
        """For each tier, ids of the tasks with ends on which the judge disagrees, in the order of the trees."""

    def reading(self, trees: Iterable[Tree]) -> Iterator[Tree]:
        """Yield the trees, and add each when it is read."""
        for tree in trees:
            self.add(tree)
            yield tree

    def add(self, tree: Tree) -> None:
        if not self._config.assesses:
            return
        for path, node in tree.walk():
            if path and node.ended and not node.unknown:
                self._add(tree, path, node)

    def _add(self, tree: Tree, path: Sequence[Edge], node: Node) -> None:
        components = components_of(path[-1])
        if self._config.tiers:
            tier = deciding_tier(components, self._config) or "none"
            self._tiers[tier] += 1
            if "spot_check" in components:
                successes = components["verdict"] >= _SUCCESS, components["spot_check"] >= _SUCCESS
                self._pairs.setdefault((tier, "judge"), []).append(successes)
                if successes[0] != successes[1]:
                    self._doubted.setdefault(tier, {})[tree.task.id] = None
        verified = reaches(sum(components_of(edge).get("outcome", 0.0) for edge in path), 1.0)
        for name in ("judge", "learned"):
            if name not in components:
                continue
            success = components[name] >= _SUCCESS and not (name == "judge" and components.get("hacked"))
            self._pairs.setdefault((name, "verifier"), []).append((success, verified))

    def figures(self) -> dict[str, float]:
        """Metrics of all ends added so far. ``tier/NAME`` is the share of ends that a tier decides. ``agreement/...``
        compares ``judge`` and ``learned`` with ``verifier``, and each tier with ``judge`` on spot checks. For each
        pair there is the share of equal verdicts on success, Cohen's κ if it is defined, and the number of ends."""
        ends = self._tiers.total()
        names = (*self._config.tiers, "none") if ends else ()
        found = {f"tier/{name}": self._tiers[name] / ends for name in names}
        for (name, other), pairs in self._pairs.items():
            key = f"agreement/{name}_{other}"
            found |= {key: sum(one == two for one, two in pairs) / len(pairs), f"{key}_ends": float(len(pairs))}
            if (kappa := cohen_kappa(pairs)) is not None:
                found[f"{key}_kappa"] = kappa
        return found

    def doubts(self) -> list[str]:
        """A warning for each tier with which the judge disagrees on spot checks."""
        return [
            f"the judge disagrees with the tier {tier!r} on {sum(one != other for one, other in pairs)} of "
            f"{len(pairs)} spot checks: read the episodes of {', '.join(list(self._doubted[tier])[:_NAMED])}"
            for (tier, by), pairs in self._pairs.items()
            if by == "judge" and tier in self._doubted
        ]


def cohen_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """κ = (p_o - p_e) / (1 - p_e) of two raters (Cohen 1960). p_o is the share of equal ratings, and p_e is the share
    expected by chance from each rater's own shares. None if both raters give only one and the same rating."""
    count = len(pairs)
    first, second = (sum(pair[rater] for pair in pairs) / count for rater in (0, 1)) if count else (0.0, 0.0)
    expected = first * second + (1 - first) * (1 - second)
    if expected == 1.0:
        return None
    return (sum(one == other for one, other in pairs) / count - expected) / (1 - expected)
