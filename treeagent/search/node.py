"""The search tree. A node is a state with V(s); an edge is an action with P, N, W and r, as in AlphaZero.

Statistics are stored on edges: Q(s,a) = W/N belongs to an action at a state, and N(s) is a sum over edges.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treeagent.types import Action, Origin, State, Task


@dataclass(slots=True)
class Budget:
    """What a search has spent, and how often its world model was wrong."""

    simulations: int = 0
    environment_steps: int = 0
    """Including replayed steps."""
    imagined_steps: int = 0
    """Steps of a world model that replaced the environment."""
    unreadable: int = 0
    """Imagined steps with an answer that could not be parsed."""
    claims: int = 0
    """Imagined successes that were replayed in the environment; ``claims_kept`` were successes there, too."""
    claims_kept: int = 0
    generated_tokens: int = 0
    """Sampled tokens of all candidates, including merged duplicates, and of rollouts."""
    proposals: int = 0
    """Number of states at which the policy proposed candidates; at ``estimates``, V(s) was estimated."""
    estimates: int = 0
    seconds: float = 0.0
    """Wall time in seconds; the trees of a batch share its time equally."""

    def add(self, other: "Budget") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Spent(NamedTuple):
    """What a search had spent when a simulation ended: sampled tokens, steps (imagined ones included), seconds."""

    tokens: int
    steps: int
    seconds: float


@dataclass(slots=True, eq=False)
class Edge:
    """An action at a state, with its statistics."""

    action: Action
    prior: float
    """P(s,a). The priors of siblings sum to 1, or to 1 - P(new) where further candidates may be sampled."""
    visits: int = 0
    """N(s,a)."""
    value_sum: float = 0.0
    """W(s,a): the sum of the returns of all visits, each from this edge on."""
    reward: float | None = 0.0
    """r(s,a); None if it is withheld, as at evaluation."""
    child: "Node | None" = None
    own_reward: float | None = None
    """The environment's own reward, where a function of ``rewards.function`` gave ``reward``. At the end of a path that
    was planned without rewards, the sum of those on the path, set once planning is over."""
    group: int = 0
    """For an edge at the root, the group of chains that starts with it (Tree-GRPO)."""
    chance: float | None = None
    """π(a|s) among all actions of the state, if the policy knows them all (``Proposal.priors``)."""
    in_flight: int = 0
    """O(s,a): simulations that have passed this edge and are not backed up yet. They count as virtual visits."""
    best: float | None = None
    """The greatest return beyond this edge, if it is exhausted. Kept while the tree grows."""

    @property
    def value(self) -> float:
        """Q(s,a) = W/N; 0 before the first visit."""
        return self.value_sum / self.visits if self.visits else 0.0

    @property
    def outcome(self) -> float | None:
        """The environment's own reward of this step, which decides on success; None if it is withheld."""
        return self.reward if self.own_reward is None else self.own_reward

    @property
    def logprob(self) -> float:
        """log π(a|s) in nats: of ``chance`` if that is known, otherwise of the action as it was sampled."""
        return self.action.logprob if self.chance is None else math.log(max(self.chance, sys.float_info.min))

    @property
    def thought(self) -> bool:
        """Whether this is a thought alone; its action is an edge further down (granularity "split")."""
        return not (self.action.call or self.action.error)

    @property
    def exhausted(self) -> bool:
        return self.child is not None and self.child.exhausted

    def discount(self, gamma: float) -> float:
        """γ of this step. A thought alone is half a turn and is not discounted."""
        return 1.0 if gamma == 1.0 or self.thought else gamma

    def leaf_return(self, gamma: float) -> float:
        """The return from this edge on, if the path ends at its child: r + γ V(s'), and r alone at an end. If r of an
        end is withheld, V(s') takes its place."""
        child, reward = self.child, self.reward
        if child is None:
            return reward or 0.0
        if child.final:
            return child.value if reward is None else reward
        return (reward or 0.0) + self.discount(gamma) * child.value


Path = list[Edge]
"""The edges from the root to a node or an untried edge of the tree."""


@dataclass(slots=True, eq=False)
class Node:
    """A state with V(s), which is estimated once, when the node is created."""

    state: State
    value: float = 0.0
    """V(s) in reward units; at the end of a task, the estimate of its outcome."""
    context_ids: tuple[int, ...] = ()
    """Tokens that this state adds to the prompt after the action that led here."""
    left_out: tuple[int, ...] = ()
    """As in ``Proposal``. If there are any, the prompt starts anew here, and ``context_ids`` holds all of it."""
    terminated: bool = False
    truncated: bool = False
    origin: Origin = "real"
    invalid: bool = False
    """The action that led here was malformed or refused."""
    repeat: bool = False
    """The path led back to an earlier state of its own and counts as a failure (``SearchConfig.prune_repeats``)."""
    unknown: bool = False
    """A dead end without a value: the dynamics has no answer, or a request for V(s) or for actions failed."""
    edges: list[Edge] = field(default_factory=list)
    exhausted: bool = False
    """Nothing new can be found below, except by calls that the policy is unlikely to make."""

    # What follows is kept while the tree grows, and not stored.
    edge_visits: int = 0  # N(s)
    edge_values: float = 0.0  # Σ_a W(s,a)
    in_flight: int = 0  # O(s) = Σ_a O(s,a)
    best: float = -math.inf  # the greatest ``Edge.best``
    samples: list[Action] | None = None
    """All candidates sampled here, if they are sampled on demand: each sample changes the priors of all candidates."""
    unseen: float = 0.0
    """P(new): the total prior of all calls that were not sampled here yet; 0 if none are to be sampled."""
    fresh: list[Edge] | None = None
    """The edges of the latest candidates. A simulation that waited for them continues through one of them."""

    @property
    def visits(self) -> int:
        """N(s) = Σ_a N(s,a)."""
        return sum([edge.visits for edge in self.edges])

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def final(self) -> bool:
        """Whether the episode is over: the task ended, or its limit was reached."""
        return self.terminated or (self.truncated and not self.unknown)


@dataclass(slots=True, eq=False)
class Tree:
    """A search tree for one task: the data that every view reads."""

    task: Task
    seed: int
    root: Node = field(repr=False)  # asyncio.run calls repr on its result, which would walk the whole tree
    budget: Budget = field(default_factory=Budget)
    error: str = ""
    """Why the search of this task stopped early. The tree up to that point is valid data."""
    discount: float = 1.0
    """γ of the returns in this tree, per step."""
    order: list[Node | None] = field(default_factory=list, repr=False)
    """The node at which each simulation ended; None if a replay has since removed it from a stored tree."""
    spent: list[Spent] = field(default_factory=list, repr=False)
    """What the search had spent when each simulation ended, aligned with ``order``."""
    place: int | None = None
    """Index of the task in its split; None if unknown. A variation has the index of the task that it varies."""
    policy: str = ""
    """The checkpoint that searched: a path, relative if it lies in the run's folder, or a hub name."""

    def walk(self) -> Iterator[tuple[tuple[Edge, ...], Node]]:
        """Every node with the edges that lead to it, parents first, siblings in order."""
        stack: list[tuple[tuple[Edge, ...], Node]] = [((), self.root)]
        while stack:
            path, node = stack.pop()
            yield path, node
            stack.extend(((*path, edge), edge.child) for edge in reversed(node.edges) if edge.child is not None)

    def nodes(self) -> Iterator[Node]:
        return (node for _, node in self.walk())

    def states(self, path: Sequence[Edge]) -> list[Node]:
        """The nodes along a path: the root, and the node below each expanded edge."""
        return [self.root, *[edge.child for edge in path if edge.child is not None]]

    @property
    def text_only(self) -> bool:
        """Whether some action has no token ids, because its server returns none. Such a tree cannot be trained on."""
        return any(not edge.action.token_ids for node in self.nodes() for edge in node.edges)

    def may_prefer(self, edge: Edge) -> bool:
        """Whether training may make the agent take this expanded action more often. Refused calls and pruned steps back
        are never taught; if imagined paths were replayed (the root is real), only replayed actions are."""
        refused = edge.child is not None and (edge.child.invalid or edge.child.repeat)
        return not refused and (self.root.origin == "imagined" or path_origin([edge]) == "real")

    def prompt_ids(self, path: Sequence[Edge]) -> tuple[int, ...]:
        """All tokens of the policy's prompt at the end of ``path``, exactly as they were read and sampled."""
        *_, (start, edges) = self.segments(path)
        ids = list(start.context_ids)
        for edge in edges:
            ids.extend(edge.action.token_ids)
            if edge.child is not None:
                ids.extend(edge.child.context_ids)
        return tuple(ids)

    def segments(self, path: Sequence[Edge]) -> Iterator[tuple[Node, Sequence[Edge]]]:
        """Split ``path`` where the prompt starts anew: the first node of each part, and the edges that follow it."""
        start, edges = self.root, list[Edge]()
        for edge in path:
            edges.append(edge)
            if edge.child is not None and edge.child.left_out:
                yield start, edges
                start, edges = edge.child, []
        yield start, edges


def edges_below(edge: Edge) -> list[Edge]:
    """``edge`` and all edges below it, each before those below it."""
    found = [edge]
    for each in found:  # grows on the way
        if each.child is not None:
            found.extend(each.child.edges)
    return found


def succeeds(path: Sequence[Edge]) -> bool:
    """Whether the undiscounted outcomes of a finished path sum to at least 1, which counts as full success."""
    return reaches(outcome(path), 1.0)


def reaches(total: float, threshold: float) -> bool:
    """Whether ``total`` is at least ``threshold``, up to rounding: ten rewards of 0.1 reach 1."""
    return total >= threshold - 1e-9


def path_return(path: Sequence[Edge], discount: float = 1.0) -> float:
    """G = Σ_t γ^t r_t + γ^T V(s_T) along a path of T expanded edges; ``Edge.leaf_return`` at its end."""
    total = path[-1].leaf_return(discount)
    for edge in reversed(path[:-1]):
        total = (edge.reward or 0.0) + edge.discount(discount) * total
    return total


def outcome(path: Sequence[Edge]) -> float:
    """The undiscounted return of a path by the environment's own rewards, with V(s) at its end."""
    last, reward = path[-1].child, path[-1].outcome
    known = last is None or (last.final and reward is not None)
    return sum(edge.outcome or 0.0 for edge in path) + (0.0 if known or last is None else last.value)


def path_origin(path: Sequence[Edge]) -> Origin:
    """'imagined' if a world model produced any step of the path, else 'real'."""
    return "imagined" if any(edge.child is not None and edge.child.origin == "imagined" for edge in path) else "real"


def path_logprob(path: Sequence[Edge]) -> float:
    """Σ log π of the path's actions in nats (``Edge.logprob``)."""
    return sum(edge.logprob for edge in path)


def mean_logprob(path: Sequence[Edge]) -> float:
    """ℓ: the mean of log π over the turns of a path, in nats."""
    return path_logprob(path) / max(sum(not edge.thought for edge in path), 1)


def finished_paths(tree: Tree) -> Iterator[Sequence[Edge]]:
    """All paths on which the episode is over (``Node.final``)."""
    return (path for path, node in tree.walk() if path and node.final)


def sees_rewards(tree: Tree) -> bool:
    """Whether the search saw the rewards of its steps; at evaluation they are withheld."""
    tried = (edge for node in tree.nodes() for edge in node.edges if edge.visits and not edge.thought)
    return any(edge.reward is not None for edge in tried)


def solved(tree: Tree) -> bool:
    """Whether a path to an end of the task succeeds."""
    return any(map(succeeds, finished_paths(tree)))
