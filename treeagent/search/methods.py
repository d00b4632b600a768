"""The search methods by their names in ``SearchConfig.method``."""

from collections.abc import Mapping, Sequence

from treeagent.contrib.methods.ab_mcts import ABMCTS
from treeagent.contrib.methods.entropy_expand import EntropyExpand
from treeagent.contrib.methods.lookahead import Lookahead
from treeagent.contrib.methods.rebase import Rebase
from treeagent.search.batches import Searcher
from treeagent.search.chains import BestOfN, RandomExpand
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.frontier import Beam, BestFirst
from treeagent.search.growth import begin
from treeagent.search.mcts import Search
from treeagent.search.node import Node, Tree
from treeagent.search.requests import AskTell, Broker
from treeagent.search.stopping import Enough
from treeagent.types import (
    Action,
    Critic,
    Dynamics,
    Estimate,
    Policy,
    Proposal,
    State,
    Task,
    Transition,
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
    critic: Critic | None = None,
    *,
    noise: bool = True,
    enough: Enough | None = None,
) -> Searcher:
    """Create a search of the method that ``config.method`` names. The other arguments are those of ``Searcher``."""
    return _METHODS[config.method](policy, dynamics, config, value, critic, noise=noise, enough=enough)


def ask_tell(
    config: SearchConfig,
    states: Sequence[State],
    seeds: Sequence[int],
    *,
    value: bool = True,
    critic: bool = False,
    enough: Enough | None = None,
) -> AskTell:
    """Create a search of the method that ``config.method`` names, for a loop that answers its requests.

    Args:
        states: where the searches begin, one for each task; ``State.task`` is the task.
        seeds: one for each task. Equal seeds and answers give equal trees, whatever other tasks are searched at the
            same time.
        value: whether V(s) is requested. Without it, a leaf adds 0 to the rewards on its path.
        critic: whether scores of candidates are requested, if ``config.critic_weight`` is above 0.
        enough: as for ``Searcher``.
    """
    placeholder = _Placeholder()
    search = make_search(
        placeholder,
        placeholder,
        config,
        placeholder if value else None,
        placeholder if critic else None,
        enough=enough,
    )
    pairs = zip(states, seeds, strict=True)
    growths = [begin(Tree(state.task, seed, Node(state)), config) for state, seed in pairs]
    return AskTell(Broker(growths, map(search.request_generator, growths)))


class _Placeholder:
    """Placeholder for the policy, dynamics, value and critic of a search that is answered by ``AskTell.tell``. Only
    ``Searcher.run`` would call these methods, so none of them is ever called."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        raise NotImplementedError

    async def reset(self, task: Task) -> State:
        raise NotImplementedError

    async def step(self, state: State, action: Action) -> Transition:
        raise NotImplementedError

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        raise NotImplementedError

    async def rank(self, states: Sequence[State], candidates: Sequence[Sequence[Action]]) -> Sequence[Sequence[float]]:
        raise NotImplementedError
