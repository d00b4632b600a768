"""The search methods by their names in ``SearchConfig.method``."""

from collections.abc import Mapping

from treeagent.search.batches import Searcher
from treeagent.search.chains import BestOfN, RandomExpand
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.frontier import Beam, BestFirst
from treeagent.search.lookahead import Lookahead
from treeagent.search.mcts import Search
from treeagent.types import Critic, Dynamics, Policy, Value

_METHODS: Mapping[SearchMethod, type[Searcher]] = {
    "mcts": Search,
    "best_of_n": BestOfN,
    "beam": Beam,
    "best_first": BestFirst,
    "random_expand": RandomExpand,
    "lookahead": Lookahead,
}


def make_search(
    policy: Policy,
    dynamics: Dynamics,
    config: SearchConfig,
    value: Value | None = None,
    critic: Critic | None = None,
    *,
    noise: bool = True,
) -> Searcher:
    """A search by the method that ``config.method`` names; the other arguments are ``Searcher``'s."""
    return _METHODS[config.method](policy, dynamics, config, value, critic, noise=noise)
