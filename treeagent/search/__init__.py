"""Tree search for language agents.

A search asks a ``Policy`` for actions, a ``Dynamics`` for the results of actions and, if there is one, a ``Value`` for
V(s), three protocols of ``treeagent.types``:

    search = Search(policy, dynamics, SearchConfig(Limits(simulations=100)))
    [tree] = asyncio.run(search.run([task], seeds=[0]))
    plan = [edge.action.text for edge in best_path(tree)]

``Search`` is MCTS; ``make_search`` returns the method that ``SearchConfig.method`` names. A ``Tree`` holds a ``Node``
for each state and an ``Edge`` for each action; ``to_record`` and ``from_record`` convert it to JSON values and back.
"""

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path, most_visited_path
from treeagent.search.mcts import Search
from treeagent.search.node import Budget, Edge, Node, Tree, path_return, succeeds
from treeagent.search.record import from_record, to_record
from treeagent.search.searcher import Searcher, make_search

__all__ = [
    "Budget",
    "Edge",
    "Limits",
    "Node",
    "Search",
    "SearchConfig",
    "Searcher",
    "Tree",
    "best_path",
    "from_record",
    "make_search",
    "most_visited_path",
    "path_return",
    "succeeds",
    "to_record",
]
