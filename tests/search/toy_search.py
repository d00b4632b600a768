"""Small worlds, table policies and value functions for the protocols, and a digest of trees."""

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treeagent.search.config import SearchConfig
from treeagent.search.mcts import GumbelSearch, Search
from treeagent.search.node import Node, Path, Tree
from treeagent.search.record import to_record
from treeagent.search.searcher import Growth, make_search
from treeagent.types import (
    Action,
    Dynamics,
    Estimate,
    Message,
    Policy,
    Proposal,
    State,
    Task,
    Transition,
    Value,
    derive_seed,
)


def task(name: str = "toy") -> Task:
    return Task(name, f"do {name}")


def act(call: str, logprob: float = -1.0, *, text: str = "", error: str = "", tokens: int = 1) -> Action:
    """An action of ``tokens`` tokens whose log-probabilities sum to ``logprob``."""
    ids = tuple(derive_seed(text or call, place) % 1000 for place in range(tokens))
    return Action(text or call, "" if error else call, "", ids, (logprob / tokens,) * tokens, error)


def begin(toy: Task, observation: str) -> State:
    return State(toy, (Message("user", observation),), observation)


def after(state: State, action: Action, observation: str) -> State:
    said = Message("assistant", action.text, action.token_ids)
    return State(state.task, (*state.messages, said, Message("user", observation)), observation)


def calls(state: State) -> tuple[str, ...]:
    """The calls so far."""
    return tuple(message.content for message in state.messages if message.role == "assistant")


class Revisiting(Search):
    """Goes on through exhausted subtrees and explores alike at every depth, as AlphaZero and mctx do."""

    def exploration(self, growth: Growth) -> float:
        return self.options.c_init

    def back_up(self, growth: Growth, path: Path) -> None:
        super().back_up(growth, path)
        reopen(growth, path)


class RevisitingGumbel(GumbelSearch):
    """As ``Revisiting``."""

    def back_up(self, growth: Growth, path: Path) -> None:
        super().back_up(growth, path)
        reopen(growth, path)


def reopen(growth: Growth, path: Path) -> None:
    for node in growth.tree.states(path):
        node.exhausted, node.best = False, -math.inf


class Corridor:
    """Walk from cell 2 to cell 4, which pays 1 and ends the task. Cell 0 ends it, too; other words are invalid; six
    steps at most."""

    async def reset(self, task: Task) -> State:
        return begin(task, "cell 2")

    async def step(self, state: State, action: Action) -> Transition:
        cell = int(state.messages[-1].content.split()[1])
        move = {"left": -1, "right": 1}.get(str(action.call))
        cell += move or 0
        return Transition(
            after(state, action, f"cell {cell}"),
            reward=float(cell == 4),
            terminated=cell in (0, 4),
            truncated=cell not in (0, 4) and len(calls(state)) >= 5,
            invalid=move is None,
        )


@dataclass(frozen=True)
class Maze:
    """The result of a step is a hash of the steps so far: an end that pays something in [0, 1], a limit, or neither.
    The word "wrong" is refused."""

    end_share: float = 0.3
    limit_share: float = 0.1
    withheld: bool = False

    async def reset(self, task: Task) -> State:
        return begin(task, task.id)

    async def step(self, state: State, action: Action) -> Transition:
        steps = (state.task.id, *calls(state), str(action.call))
        luck = share("luck", *steps)
        ends = luck < self.end_share
        reward = share("reward", *steps) if ends else 0.0
        return Transition(
            after(state, action, "/".join(steps)),
            reward=None if self.withheld else reward,
            terminated=ends,
            truncated=self.end_share <= luck < self.end_share + self.limit_share,
            invalid=str(action.call) == "wrong",
        )


@dataclass(frozen=True)
class Treasure:
    """Four steps deep. Only one path pays 1, and every other less than a half."""

    path: tuple[str, ...] = ("c", "a", "d", "b")

    async def reset(self, task: Task) -> State:
        return begin(task, "start")

    async def step(self, state: State, action: Action) -> Transition:
        steps = (*calls(state), str(action.call))
        ends = len(steps) == len(self.path)
        reward = 1.0 if steps == self.path else 0.5 * share(*steps)
        return Transition(after(state, action, " ".join(steps)), reward=reward if ends else 0.0, terminated=ends)


@dataclass
class TablePolicy:
    """Draws from a table of words and probabilities. ``by_state`` overrides it for known last observations."""

    table: Mapping[str, float]
    by_state: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """(task, seed) of every draw."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self._draw(state, count, seed) for state, seed in zip(states, seeds, strict=True)]

    def _draw(self, state: State, count: int, seed: int) -> Proposal:
        self.asked.append((state.task.id, seed))
        table = self.by_state.get(state.messages[-1].content, self.table)
        words = random.Random(seed).choices(list(table), list(table.values()), k=count)
        context = (len(state.messages), 7)
        return Proposal(context, tuple(act(word, math.log(table[word]), tokens=2) for word in words))


class AllPolicy:
    """Proposes every word once, in order, with equal probabilities."""

    def __init__(self, *words: str) -> None:
        self.words = words

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        each = -math.log(max(len(self.words), 1))
        return [Proposal((1,), tuple(act(word, each) for word in self.words)) for _ in states]


@dataclass
class HashValue:
    """V(s) is a hash of the conversation, in [0, 1)."""

    calls: list[int] = field(default_factory=list[int])
    """The number of states in each call."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        self.calls.append(len(states))
        return [Estimate(self.of(state), (len(state.messages), 7)) for state in states]

    @staticmethod
    def of(state: State) -> float:
        return share("value", *(message.content for message in state.messages))


@dataclass(frozen=True)
class ConstantValue:
    value: float

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self.value) for _ in states]


def counted(node: Node) -> Node:
    """The node with the sums that a search keeps of its edges."""
    node.edge_visits, node.edge_values = node.visits, sum(edge.value_sum for edge in node.edges)
    node.in_flight = sum(edge.in_flight for edge in node.edges)
    return node


def share(*parts: str) -> float:
    """A number in [0, 1) that depends on every part."""
    return derive_seed(*parts) / 2**63


def grow(
    policy: Policy,
    dynamics: Dynamics,
    config: SearchConfig,
    value: Value | None = None,
    tasks: Sequence[Task] = (task(),),
    seeds: Sequence[int] | None = None,
    *,
    noise: bool = True,
) -> list[Tree]:
    """Search each task. By default the seeds follow from the tasks' names."""
    seeds = [derive_seed(each.id) for each in tasks] if seeds is None else seeds
    return asyncio.run(make_search(policy, dynamics, config, value, noise=noise).run(tasks, seeds))


def plain(tree: Tree) -> Any:
    """The tree's record as read back from JSON, without wall time."""
    record = to_record(tree)
    record["budget"]["seconds"] = 0.0
    record.get("spent", {}).pop("seconds", None)
    return json.loads(json.dumps(record))


def digest(tree: Tree) -> str:
    return hashlib.sha256(json.dumps(plain(tree), sort_keys=True).encode()).hexdigest()
