"""Supervised targets: rows to imitate, of paths or of visit counts, and value rows, as pure views of trees."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Tree, path_logprob, path_return, reaches
from treeagent.views.tokens import TokenRow, path_rows


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TargetConfig:
    """What is imitated and what a state is worth."""

    imitate: Literal["paths", "states"] = "paths"
    """The best finished paths of a tree (RFT), or the best way on from every state that search reached: so the policy
    learns to leave the states into which its own errors lead, which no best path shows."""
    min_return: float = 1.0
    """Least return of a path worth imitating, however long it took: undiscounted."""
    paths_per_tree: Annotated[int, Field(gt=0)] = 1
    """Of "paths": how many, those of highest return."""
    policy_temperature: Annotated[float, Field(gt=0)] = 1.0
    """τ of visit-count targets: below 1 the most visited action stands out more."""
    value: Literal["mean", "best", "lambda"] = "best"
    """V(s): visit-weighted mean of Q(s,a), the highest return found below s (deterministic dynamics only), or
    λ-returns."""
    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of λ-returns: 0 trusts the value function after one step, 1 never before the end, as befits chains, in which it
    is not asked on the way."""


def imitation_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """What search found to be good: the best finished paths (rejection-sampling fine-tuning, RFT), or the best action
    of every state from which it found a good end (expert iteration, Anthony et al. 2017, on all states of the tree).

    Ties go to the path that the policy itself finds likelier, as those of ``best_path`` do: the mode of π exp(G/λ) for
    a small λ. Of the successes that a world model imagined it is also the one most often true. Then they go to the
    shorter path, and to the one found first.

    It ends with an action that ``tree.may_prefer``.
    """
    ended = [path for path, node in tree.walk() if path and node.terminated and tree.may_prefer(path[-1])]
    good = [path for path in ended if reaches(path_return(path), config.min_return)]
    good.sort(key=lambda path: (-path_return(path, tree.discount), -path_logprob(path), len(path)))
    if config.imitate == "paths":
        good = good[: config.paths_per_tree]
    taught: set[int] = set()
    for path in good:
        states = [id(tree.root), *(id(edge.child) for edge in path[:-1])]
        # A better path through a state goes through all states before it, too.
        start = sum(state in taught for state in states) if config.imitate == "states" else 0
        taught.update(states)
        if start < len(path):
            found = [path_return(path[place:], tree.discount) for place in range(start, len(path))]
            yield from path_rows(tree, path, [None] * start + found + [path[-1].reward], imitate_from=start)


def policy_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """The search's improved policy, π(a|s) = N(s,a)^(1/τ) / Σ_b N(s,b)^(1/τ) (Silver et al. 2017): one row for each
    action tried where two or more were, weighted by π(a|s), with the action alone to imitate."""
    for path, node in tree.walk():
        tried = [edge for edge in node.edges if edge.visits]
        if len(tried) < 2:
            continue
        prompt, most = tree.prompt_ids(path), max(edge.visits for edge in tried)
        shares = [(edge.visits / most) ** (1 / config.policy_temperature) for edge in tried]
        for edge, share in zip(tried, shares, strict=True):
            said = edge.action.token_ids
            mask = (False,) * len(prompt) + (True,) * len(said)
            yield TokenRow(tree.task.id, (*prompt, *said), mask, weight=share / sum(shares))
