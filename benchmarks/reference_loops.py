"""Other tree searches of the same synthetic world, for search.py: DeepMind's mctx, and two loops written for this
benchmark. The loops follow published algorithms in the style of their public implementations, but share no code with
them.

The world costs nothing, so only the search itself is timed. A state is a number with ``BRANCHING`` actions of fixed
priors, and episodes are ``DEPTH`` steps deep.
"""

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BRANCHING, DEPTH = 5, 10
LOGPROBS = tuple(-1.0 - 0.2 * action for action in range(BRANCHING))
"""log π(a|s), at every state."""
FIRST_LIMIT = sum(BRANCHING**depth for depth in range(DEPTH))
"""The lowest number of a state at which the episode is cut off."""
KNUTH = 2654435761


def child(state: int, action: int) -> int:
    """The number of a child. States are numbered level by level through the complete tree; the root is 0."""
    return BRANCHING * state + 1 + action


def worth(state: int) -> float:
    """V(s), a hash in [0, 1)."""
    return state * KNUTH % 2**32 / 2**32


@dataclass(frozen=True, slots=True)
class Grown:
    """The result of a search."""

    made: int
    """Nodes created and evaluated, including those of rollouts that are not kept."""
    held: int
    """Nodes in the tree at the end."""
    memory: object = None
    """The object that holds them."""
    bytes: int | None = None
    """Bytes of the nodes in the tree, if the search reports them."""


@dataclass(eq=False)
class TextNode:
    """A node that stores its parent, its action and its observation."""

    number: int
    parent: "TextNode | None" = None
    action: str = ""
    observation: str = ""
    visits: int = 0
    value: float = 0.0
    children: list["TextNode"] = field(default_factory=list["TextNode"])

    def trajectory(self) -> str:
        """The prompt: everything from the root to this node, rebuilt on every call."""
        before = "" if self.parent is None else self.parent.trajectory()
        return f"{before}\nAction: {self.action}\nObservation: {self.observation}"

    def everything(self) -> list["TextNode"]:
        return [self, *(node for below in self.children for node in below.everything())]

    def uct(self) -> float:
        """Q + sqrt(2 log N(parent) / N); unvisited nodes come first."""
        assert self.parent is not None
        if not self.visits:
            return math.inf
        return self.value + math.sqrt(2 * math.log(self.parent.visits) / self.visits)

    def grown(self) -> list["TextNode"]:
        """All children; none at the depth limit. The prompt is rebuilt for the draw, and again for the value of each
        child."""
        if self.number >= FIRST_LIMIT:
            return []
        self.trajectory()
        below = []
        for action in range(BRANCHING):
            number = child(self.number, action)
            node = TextNode(number, self, str(action), f"observation {number}", value=worth(number))
            node.trajectory()
            below.append(node)
        return below


def lats_style(simulations: int, rollouts: bool) -> Grown:
    """After Zhou et al. 2023 (Language Agent Tree Search): UCT. All children of a leaf are created and evaluated at
    once. The rollout follows the best of them and is not kept. Every iteration collects all nodes again to look for a
    solution."""
    root = TextNode(0, observation="observation 0")
    generated, nodes = 1, [root]
    for _ in range(simulations):
        node = root
        while node.children:
            node = max(node.children, key=TextNode.uct)
        node.children = below = node.grown()
        best = node
        while below:
            generated += len(below)
            best = max(below, key=lambda each: each.value)
            below = best.grown() if rollouts else []
        found = best.value
        climber: TextNode | None = node
        while climber is not None:
            climber.visits += 1
            climber.value += (found - climber.value) / climber.visits
            climber = climber.parent
        nodes = root.everything()
        max(nodes, key=lambda each: each.value)
    return Grown(generated, len(nodes), nodes)


@dataclass(eq=False)
class ListNode:
    """A node that keeps a list of its returns and averages it on every access."""

    number: int
    parent: "ListNode | None" = None
    returns: list[float] = field(default_factory=list[float])
    children: list["ListNode"] = field(default_factory=list["ListNode"])

    @property
    def value(self) -> float:
        """Q; a quick reward before the first return."""
        return float(np.mean(self.returns)) if self.returns else worth(self.number)

    def uct(self) -> float:
        """Q + sqrt(log N(parent) / (1 + N))."""
        assert self.parent is not None
        return self.value + math.sqrt(math.log(max(len(self.parent.returns), 1)) / (1 + len(self.returns)))

    def grow(self) -> int:
        """Create all children, unless they exist or this is the depth limit. Returns how many were created."""
        if self.children or self.number >= FIRST_LIMIT:
            return 0
        self.children = [ListNode(child(self.number, action), self) for action in range(BRANCHING)]
        return BRANCHING


def reasoners_style(simulations: int, rollouts: bool) -> Grown:
    """After Hao et al. 2023 (RAP), as llm-reasoners searches: UCT over means of lists of returns. All children of a
    leaf are created at once, with a quick reward. The rollout follows the best of them and stays in the tree. Every
    iteration copies its path into a trace."""
    root = ListNode(0)
    generated, trace = 1, list[list[ListNode]]()
    for _ in range(simulations):
        path = [root]
        while path[-1].children:
            path = [*path, max(path[-1].children, key=ListNode.uct)]
        generated += path[-1].grow()
        while rollouts and path[-1].children:
            path = [*path, max(path[-1].children, key=lambda each: each.value)]
            generated += path[-1].grow()
        found = worth(path[-1].number)
        for node in path:
            node.returns.append(found)
        trace.append(list(path))
    return Grown(generated, generated, (root, trace))


def mctx_search(simulations: int, trees: int) -> Callable[[], Grown] | None:
    """A compiled search by mctx's MuZero policy; None if mctx is not installed."""
    # One thread, like everything else here.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    try:
        # imported by name, because treeagent does not require mctx
        mctx, jax = importlib.import_module("mctx"), importlib.import_module("jax")
    except ImportError:
        return None
    jnp: Any = jax.numpy
    logits = jnp.tile(jnp.array(LOGPROBS), (trees, 1))

    def step(_: object, __: object, action: Any, state: Any) -> Any:
        number = BRANCHING * state + 1 + action
        # Numbers that run past the depth limit wrap around; their values are hashes as before.
        value = (number.astype(jnp.uint32) * jnp.uint32(KNUTH)).astype(jnp.float32) / 2.0**32
        output = mctx.RecurrentFnOutput(
            reward=jnp.zeros(trees), discount=jnp.ones(trees), prior_logits=logits, value=value
        )
        return output, number

    def search() -> Any:
        root = mctx.RootFnOutput(
            prior_logits=logits, value=jnp.zeros(trees), embedding=jnp.zeros(trees, dtype=jnp.int32)
        )
        key = jax.random.PRNGKey(0)
        return mctx.muzero_policy(
            (), key, root, step, num_simulations=simulations, max_depth=DEPTH, dirichlet_fraction=0.0
        ).search_tree

    compiled = jax.jit(search)

    def run() -> Grown:
        arrays = jax.tree_util.tree_leaves(jax.block_until_ready(compiled()))
        nodes = trees * (simulations + 1)
        return Grown(nodes, nodes, bytes=sum(array.nbytes for array in arrays))

    run()
    return run
