"""The search methods by their names in ``SearchConfig.method``."""

from collections.abc import Mapping

from treeagent.contrib.methods.ab_mcts import ABMCTS
from treeagent.contrib.methods.entropy_expand import EntropyExpand
from treeagent.contrib.methods.lookahead import Lookahead
from treeagent.contrib.methods.rebase import Rebase
from treeagent.search.batches import Searcher
from treeagent.search.chains import BestOfN, RandomExpand
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.frontier import Beam, BestFirst
from treeagent.search.mcts import Search
from treeagent.search.stopping import Enough
from treeagent.types import (
    Dynamics,
    Policy,
    Value,
)

_METHODS: Mapping[SearchMethod, type[Searcher]] = {
    "mcts": Search,
    "best_of_n": BestOfN,
    "beam": Beam,
    "best_first": BestFirst,
    "random_expand": RandomExpand,
    "entropy_expand": EntropyExpand,
    "lookahead": Lookahead,
    "ab_mcts": ABMCTS,
    "rebase": Rebase,
}


def make_search(
    policy: Policy,
    dynamics: Dynamics,
    config: SearchConfig,
    value: Value | None = None,
    *,
    noise: bool = True,
    enough: Enough | None = None,
) -> Searcher:
    """Create a search of the method that ``config.method`` names. The other arguments are those of ``Searcher``."""
    return _METHODS[config.method](policy, dynamics, config, value, noise=noise, enough=enough)
