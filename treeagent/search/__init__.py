"""Tree search for language agents.

A search asks a ``Policy`` for actions, a ``Dynamics`` for what they lead to and, if there is one, a ``Value`` for V(s)
(three protocols of ``treeagent.types``). It knows no model and no environment:

    search = Search(policy, dynamics, SearchConfig(Limits(simulations=100)))
    [tree] = asyncio.run(search.run([task], seeds=[0]))
    plan = [edge.action.text for edge in best_path(tree)]

``Search`` is MCTS. ``make_search`` gives the method that ``SearchConfig.method`` names, best-of-N and beam search among
them. ``ask_tell`` lets a loop of your own drive any of them. A ``Tree`` holds a ``Node`` for each state and an ``Edge``
for each action; ``to_record`` and ``from_record`` turn it into JSON values and back.
"""

from treeagent.search.asking import AskTell, WantActions, Wanted, WantScores, WantStep, WantValue
from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path, most_visited_path
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.methods import ask_tell, make_search
from treeagent.search.node import Budget, Edge, Node, Tree, path_return, succeeds
from treeagent.search.record import from_record, to_record
from treeagent.search.values import MixedValue, RolloutValue

__all__ = [
    "AskTell",
    "Budget",
    "Edge",
    "Limits",
    "MixedValue",
    "Node",
    "RolloutValue",
    "Search",
    "SearchConfig",
    "Tree",
    "WantActions",
    "WantScores",
    "WantStep",
    "WantValue",
    "Wanted",
    "ask_tell",
    "best_path",
    "from_record",
    "make_search",
    "most_visited_path",
    "path_return",
    "succeeds",
    "to_record",
]
