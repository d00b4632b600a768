"""Rows to imitate: the best paths of a tree, or the best continuation from each of its states."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Tree, finished_paths, outcome, path_logprob, path_return, reaches
from treeagent.views.tokens import TokenRow, path_rows
from treeagent.world_model.transition import call_text


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ImitationConfig:
    """Which actions of a tree are imitated."""

    what: Literal["paths", "states"] = "paths"
    """What is imitated. "paths" takes the best finished paths of a tree (RFT). "states" takes the best continuation
    from every state that the search reached, which also teaches the policy to recover from its own errors."""
    min_return: float = 1.0
    """Lowest undiscounted return of a path that is imitated, by the environment's own rewards."""
    paths_per_tree: Annotated[int, Field(gt=0)] = 1
    """Maximum number of paths per tree that "paths" imitates, highest return first. Paths that make the same calls
    count as one."""


def imitation_rows(tree: Tree, config: ImitationConfig) -> Iterator[TokenRow]:
    """Rows of the actions that search found to be good: those of the best finished paths (rejection-sampling
    fine-tuning, RFT; one of those that make the same calls, Yuan et al. 2023), or the best action of every state from
    which a good end was found (expert iteration, Anthony et al. 2017, on all states of the tree).

    Actions that ``tree.may_prefer`` excludes carry no loss, and a path that ends with one is left out. Paths are ranked
    by return; ties go to the path with the fewest excluded actions, then to the likelier, then to the shorter one.
    """
    ended = [path for path in finished_paths(tree) if tree.may_prefer(path[-1])]
    good = [path for path in ended if reaches(outcome(path), config.min_return)]

    def rank(path: Sequence[Edge]) -> tuple[float, int, float, int]:
        untaught = sum(not tree.may_prefer(edge) for edge in path)
        return -path_return(path, tree.discount), untaught, -path_logprob(path), len(path)

    good.sort(key=rank)
    if config.what == "paths":
        distinct: dict[tuple[str, ...], Sequence[Edge]] = {}
        for path in good:
            distinct.setdefault(tuple(call_text(edge.action.call) for edge in path if not edge.thought), path)
        good = list(distinct.values())[: config.paths_per_tree]
    taught: set[int] = set()
    for path in good:
        states = [id(tree.root), *(id(edge.child) for edge in path[:-1])]
        # A better path through a state also passed all states before it, so the states taught already come first.
        start = sum(state in taught for state in states) if config.what == "states" else 0
        taught.update(states)
        if start < len(path):
            imitated = [edge for edge in path[start:] if tree.may_prefer(edge)]
            targets = path_targets(path, tree.discount)[start:]
            yield from path_rows(tree, path, [*[None] * start, *targets], imitated=imitated)


def path_targets(path: Sequence[Edge], discount: float) -> list[float]:
    """The value target of each state on a path, the root first and the end last: the reward on the way there plus the
    return from there, in reward units."""
    paid = list(accumulate((edge.reward or 0.0 for edge in path), initial=0.0))
    return [paid[index] + path_return(path[index:], discount) for index in range(len(path))] + [paid[-1]]
