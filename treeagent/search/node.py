"""The search tree: N, W, P, V and r on nodes and edges, nothing else."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from treeagent.types import Action, Origin, State, Task


@dataclass(slots=True)
class Budget:
    """What a search has spent, and how far its imagination kept its word."""

    simulations: int = 0
    environment_steps: int = 0
    """Replayed steps included."""
    imagined_steps: int = 0
    """Answers of a world model in place of the environment's."""
    unreadable: int = 0
    """Imagined steps whose answer could not be read."""
    doubted: int = 0
    """Imagined ends that the world model was not sure enough of."""
    claims: int = 0
    """Successes that imagination promised and that were replayed in the environment."""
    claims_kept: int = 0
    """Those that succeeded there too."""
    generated_tokens: int = 0
    """Every sampled token of every candidate, those merged away included."""
    proposals: int = 0
    """States at which the policy was asked for candidates."""
    estimates: int = 0
    """States at which V(s) was asked for."""
    seconds: float = 0.0
    """Wall time; that of a batch is shared equally among its trees."""

    def add(self, other: "Budget") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, eq=False)
class Edge:
    """An action at a state, with its statistics."""

    action: Action
    prior: float
    """P(s,a), over siblings; sums to 1."""
    visits: int = 0
    """N(s,a)."""
    value_sum: float = 0.0
    """W(s,a), of returns from this edge on."""
    reward: float | None = 0.0
    """r(s,a); None where the verifier's word is withheld."""
    child: "Node | None" = None
    process: float = 0.0
    """Process reward of this step."""
    critic: float | None = None
    """Q_critic(s,a), the AI feedback on this action; None where no critic was asked."""
    in_flight: int = 0
    """O(s,a): simulations that have passed here and are not backed up yet."""

    @property
    def value(self) -> float:
        """Q(s,a) = W/N; 0 before the first visit, where selection uses the first-play value instead."""
        return self.value_sum / self.visits if self.visits else 0.0

    def with_critic(self, value: float, weight: float, critic: float | None = None) -> float:
        """α Q_search + (1 - α) Q_critic (Agent Q, equation 10), ``weight`` being 1 - α and ``value`` Q_search;
        ``value`` alone where no critic was asked. ``critic`` is its score on another scale, if ``value`` is on one."""
        if self.critic is None:
            return value
        return (1 - weight) * value + weight * (self.critic if critic is None else critic)

    @property
    def thought(self) -> bool:
        """Half a turn, which takes no step of the dynamics, where think and action are nodes of their own."""
        return not (self.action.call or self.action.error)

    @property
    def exhausted(self) -> bool:
        """Nothing new can be found beyond this edge."""
        return self.child is not None and self.child.exhausted


@dataclass(slots=True, eq=False)
class Node:
    """A state, evaluated once."""

    state: State
    value: float = 0.0
    """V(s), as estimated when the node was made; at a terminal node the estimate of its outcome."""
    context_ids: tuple[int, ...] = ()
    """Tokens that this state adds to the prompt after the action that led here; filled when it is first evaluated."""
    left_out: tuple[int, ...] = ()
    """Places in the conversation of the observations that are left out from here on. Where there are any, the prompt
    starts anew: ``context_ids`` are all of it."""
    terminated: bool = False
    truncated: bool = False
    origin: Origin = "real"
    invalid: bool = False
    """The action that led here was malformed or refused."""
    unknown: bool = False
    """The dynamics could not tell what follows: a dead end of which nothing is known."""
    edges: list[Edge] = field(default_factory=list["Edge"])
    exhausted: bool = False

    @property
    def visits(self) -> int:
        """N(s) = Σ_a N(s,a)."""
        return sum([edge.visits for edge in self.edges])

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def visits_in_flight(self) -> int:
        """N(s) + O(s)."""
        return sum([edge.visits + edge.in_flight for edge in self.edges])

    def leaf_value(self, reward: float | None) -> float:
        """What a leaf adds to the ``reward`` that led to it: V(s), but nothing after a known end. A truncated leaf
        keeps its estimate, and so does an end whose reward is withheld."""
        return 0.0 if self.terminated and reward is not None else self.value


@dataclass(slots=True, eq=False)
class Tree:
    """A search tree for one task: the artifact that every view reads."""

    task: Task
    seed: int
    root: Node = field(repr=False)  # asyncio.run takes the repr of its result for a message that nobody sees
    budget: Budget = field(default_factory=Budget)
    error: str = ""
    """Why the search of this task broke off; the tree up to there stays valid data."""
    discount: float = 1.0
    """γ of the returns in it."""

    def walk(self) -> Iterator[tuple[tuple[Edge, ...], Node]]:
        """Every node with the edges that lead to it, parents first, siblings in order."""
        stack: list[tuple[tuple[Edge, ...], Node]] = [((), self.root)]
        while stack:
            path, node = stack.pop()
            yield path, node
            stack.extend(((*path, edge), edge.child) for edge in reversed(node.edges) if edge.child is not None)

    @property
    def text_only(self) -> bool:
        """Whether an action came without token ids, from a server that gives none: it cannot be trained on."""
        return any(not edge.action.token_ids for node in self.nodes() for edge in node.edges)

    def may_prefer(self, edge: Edge) -> bool:
        """Whether an expanded action may be preferred to others. Where imagined paths were replayed, of which the real
        root tells, one that was not replayed is there to be compared with."""
        return self.root.origin == "imagined" or path_origin([edge]) == "real"

    def nodes(self) -> Iterator[Node]:
        return (node for _, node in self.walk())

    def prompt_ids(self, path: Sequence[Edge]) -> tuple[int, ...]:
        """All tokens that the policy reads at the end of ``path``, exactly as it read and sampled them."""
        *_, (start, edges) = self.segments(path)
        ids = list(start.context_ids)
        for edge in edges:
            ids.extend(edge.action.token_ids)
            if edge.child is not None:
                ids.extend(edge.child.context_ids)
        return tuple(ids)

    def segments(self, path: Sequence[Edge]) -> Iterator[tuple[Node, Sequence[Edge]]]:
        """A path, cut where the prompt starts anew: each part's first node, whose context is its whole prompt, and the
        edges taken behind that prompt, the last of which leads to the next part's first node."""
        start, edges = self.root, list[Edge]()
        for edge in path:
            edges.append(edge)
            if edge.child is not None and edge.child.left_out:
                yield start, edges
                start, edges = edge.child, []
        yield start, edges


def succeeds(path: Sequence[Edge]) -> bool:
    """Whether the rewards of a path to an end of the task sum to 1, the verifier's full marks, however long it took."""
    return reaches(path_return(path), 1.0)


def reaches(total: float, wanted: float) -> bool:
    """Whether rewards add up to ``wanted``, but for rounding: ten of 0.1 are 1."""
    return total >= wanted - 1e-9


def path_return(path: Sequence[Edge], discount: float = 1.0) -> float:
    """G = Σ_t γ^t r_t along a path of expanded edges, closed by the leaf's value."""
    last = path[-1].child
    total = last.leaf_value(path[-1].reward) if last is not None else 0.0
    for edge in reversed(path):
        total = (edge.reward or 0.0) + (1.0 if edge.thought else discount) * total
    return total


def path_origin(path: Sequence[Edge]) -> Origin:
    """Imagined, where a step leads to what nobody has seen."""
    return "imagined" if any(edge.child is not None and edge.child.origin == "imagined" for edge in path) else "real"


def path_logprob(path: Sequence[Edge]) -> float:
    """log π of the path's actions, in nats, as sampled; 0 of one whose tokens nobody told."""
    return sum(edge.action.logprob for edge in path)


def finished_paths(tree: Tree) -> Iterator[Sequence[Edge]]:
    """Paths to an end of the task: its last word, not a limit."""
    return (path for path, node in tree.walk() if path and node.terminated)


def solved(tree: Tree) -> bool:
    """Whether a finished path succeeds."""
    return any(map(succeeds, finished_paths(tree)))


def accuracy(tree: Tree) -> float:
    """Share of finished paths that succeed; 0 where none finished."""
    found = [succeeds(path) for path in finished_paths(tree)]
    return sum(found) / len(found) if found else 0.0


def return_spread(tree: Tree) -> float:
    """Standard deviation of the returns of finished paths: 0 where all went equally, and nothing can be compared."""
    returns = [path_return(path, tree.discount) for path in finished_paths(tree)]
    return statistics.pstdev(returns) if returns else 0.0
