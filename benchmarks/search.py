"""Speed of the search engine compared with other implementations, all measured in one run.

    .venv/bin/python -m benchmarks.search
    .venv/bin/python -m benchmarks.search --part core    (or model, or tokens)

* core: the search alone, in a world that costs nothing (reference_loops.py).
* model: a model with a million random weights plays the shop. Under the same search, treeagent's generator is compared
  with ``generate``, called as other tree searches call it.
* tokens: how often the same prompt token is encoded.

Slow implementations search fewer of the same tasks, each of them as far. Seconds are CPU seconds on one thread, in
interleaved rounds. Read the ratios: absolute numbers hold for this machine only. mctx is included if it is installed.
"""

import argparse
import asyncio
import gc
import os
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.command import Figures, add_rounds, options_digest, repeating
from benchmarks.record import Record, recording
from benchmarks.reference_loops import (
    BRANCHING,
    FIRST_LIMIT,
    LOGPROBS,
    Grown,
    child,
    lats_style,
    mctx_search,
    reasoners_style,
    worth,
)
from treeagent.generators.turn import ReAct
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.types import Action, Dynamics, Estimate, Policy, Proposal, State, Task, Transition, Value, derive_seed

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

    from treeagent.agent.value_head import ValueHead
    from treeagent.envs.shop import ShopEnv
    from treeagent.generators.chat import ChatFormat

Played = TypeVar("Played")
STUB_SIMULATIONS = 128
"""Simulations per tree in part core."""
TREE_COUNTS = (1, 32, 256)
CANDIDATES, MAX_NEW_TOKENS, MAX_STEPS = 4, 16, 6
PROPOSAL = Proposal((), tuple(Action(str(a), str(a), "", (a,), (logprob,)) for a, logprob in enumerate(LOGPROBS)))


class StubWorld:
    """The synthetic world as policy, value function and dynamics."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [PROPOSAL] * len(states)

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(worth(_number(state))) for state in states]

    async def reset(self, task: Task) -> State:
        return State(task, (), snapshot=0)

    async def step(self, state: State, action: Action) -> Transition:
        number = child(_number(state), action.token_ids[0])
        return Transition(State(state.task, (), snapshot=number), truncated=number >= FIRST_LIMIT)


def _number(state: State) -> int:
    assert isinstance(state.snapshot, int)
    return state.snapshot


def grow_stub(trees: int, leaves: int) -> Grown:
    limits, world = Limits(simulations=STUB_SIMULATIONS), StubWorld()
    search = Search(
        world, world, SearchConfig(limits=limits, candidates=BRANCHING, options={"widening": 0}, leaves=leaves), world
    )
    grown = asyncio.run(search.run([Task(str(number), "") for number in range(trees)], range(trees)))
    nodes = sum(1 for tree in grown for _ in tree.nodes())
    return Grown(nodes, nodes, grown)


def bytes_per_node(grow: Callable[[], Grown]) -> float:
    """Bytes per node that a search still holds when it has finished."""
    grow()
    tracemalloc.start()
    grown = grow()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (used if grown.bytes is None else grown.bytes) / grown.held


@dataclass(frozen=True, slots=True)
class Core:
    """A search loop."""

    name: str
    tree_counts: tuple[int, ...]
    """Numbers of trees to measure it with; 1 for a loop that does not batch trees."""
    grow: Callable[[int], Grown]


def measure_core(record: Record, arguments: argparse.Namespace) -> None:
    """Record part core."""
    cores = [
        Core("treeagent, PUCT", TREE_COUNTS, lambda trees: grow_stub(trees, leaves=1)),
        Core("treeagent, PUCT, 4 leaves in flight", TREE_COUNTS, lambda trees: grow_stub(trees, leaves=4)),
    ]
    for rollouts in (True, False):
        how = "" if rollouts else " without rollouts"
        cores += [
            Core(f"LATS-style{how}", (1,), partial(_one_tree_each, lats_style, rollouts)),
            Core(f"llm-reasoners-style{how}", (1,), partial(_one_tree_each, reasoners_style, rollouts)),
        ]
    compiled = {trees: run for trees in TREE_COUNTS if (run := mctx_search(STUB_SIMULATIONS, trees)) is not None}
    if compiled:
        cores.append(Core("mctx, compiled", TREE_COUNTS, lambda trees: compiled[trees]()))
    arms = {_arm(core, trees): (core, trees) for core in cores for trees in core.tree_counts}

    def measure(number: int) -> Figures:
        speeds = {arm: simulations_per_second(core, trees) for arm, (core, trees) in arms.items()}
        found: dict[str, dict[str, float]] = {}
        for arm, (core, trees) in arms.items():
            found[arm] = {"simulations / s": speeds[arm], "ratio": speeds[_arm(cores[0], trees)] / speeds[arm]}
            if number == 0 and trees == 1:  # the same in every round
                found[arm]["nodes / simulation"] = core.grow(1).made / STUB_SIMULATIONS
                found[arm]["bytes / node"] = bytes_per_node(partial(core.grow, 1))
        return found

    add_rounds(record, arguments.rounds, options_digest(arguments), list(arms), measure)


def _arm(core: Core, trees: int) -> str:
    return f"{core.name}, {trees} tree{'s' * (trees > 1)}"


def simulations_per_second(core: Core, trees: int) -> float:
    repeats = max(16 // trees, 1)  # one small tree is too short for the CPU clock
    started = time.process_time()
    for _ in range(repeats):
        core.grow(trees)
    return repeats * trees * STUB_SIMULATIONS / (time.process_time() - started)


def _one_tree_each(loop: Callable[[int, bool], Grown], rollouts: bool, trees: int) -> Grown:
    assert trees == 1
    return loop(STUB_SIMULATIONS, rollouts)


class AnyCall(ReAct):
    """Reads any text as a call of the shop. Random weights write no valid call, so a search would not get beyond its
    root."""

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        random_number = derive_seed(*token_ids)
        words = ("linen shirt", "canvas lunch box", "striped shirt", "durable box", "washable", "theft proof", "small")
        clicks = ("1", "2", "3", "next >", "buy now")
        call = (
            f"search[{words[random_number % len(words)]}]"
            if random_number & 256
            else f"click[{clicks[random_number % len(clicks)]}]"
        )
        return Action(text, call, "", tuple(token_ids), tuple(logprobs))


@dataclass(slots=True)
class Spent:
    """The cost of driving a model, measured at the calls of the model itself."""

    encoded: int = 0
    """Prompt tokens encoded, without padding."""
    model_seconds: float = 0.0
    """CPU seconds inside the model's forward pass."""
    outside_seconds: float = 0.0
    """CPU seconds in policy, value function and dynamics, including the model."""
    environment_seconds: float = 0.0


@dataclass(slots=True)
class Timed:
    """A policy, value function and dynamics whose calls are timed."""

    policy: Policy
    value: Value
    dynamics: Dynamics
    spent: Spent

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        started = time.process_time()
        proposals = await self.policy.propose(states, count, seeds)
        self.spent.outside_seconds += time.process_time() - started
        return proposals

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        started = time.process_time()
        estimates = await self.value.estimate(states)
        self.spent.outside_seconds += time.process_time() - started
        return estimates

    async def reset(self, task: Task) -> State:
        return await self._played(self.dynamics.reset(task))

    async def step(self, state: State, action: Action) -> Transition:
        return await self._played(self.dynamics.step(state, action))

    async def _played(self, playing: Awaitable[Played]) -> Played:
        started = time.process_time()
        played = await playing
        took = time.process_time() - started
        self.spent.outside_seconds += took
        self.spent.environment_seconds += took
        return played


@dataclass(frozen=True, slots=True)
class Generating:
    """Policy and value function that use transformers' ``generate``, which encodes the whole prompt for every sequence
    that it samples. V(s) is another pass over the whole prompt."""

    model: "Qwen3ForCausalLM"
    chat: "ChatFormat"
    head: "ValueHead"
    together: bool
    """True: one call for all candidates of a state. False: one call per candidate."""
    spent: Spent

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self._draw(state, count, seed) for state, seed in zip(states, seeds, strict=True)]

    def _draw(self, state: State, count: int, seed: int) -> Proposal:
        import torch

        prompt = self.chat.prompt_ids(state.messages)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = (count,) if self.together else (1,) * count
            actions = tuple(action for size in sizes for action in self._generate(prompt, size))
        return Proposal(self.chat.context_ids(state.messages), actions)

    def _generate(self, prompt: tuple[int, ...], count: int) -> list[Action]:
        import torch

        self.spent.encoded += count * len(prompt)
        model: Any = self.model  # transformers types ``generate`` for a class of its own
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=count,
            max_new_tokens=MAX_NEW_TOKENS,
            output_scores=True,
            return_dict_in_generate=True,
        )
        scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        actions = []
        for row, logprobs in zip(output.sequences[:, len(prompt) :].tolist(), scores.tolist(), strict=True):
            length = row.index(self.chat.stop_id) + 1 if self.chat.stop_id in row else len(row)
            actions.append(AnyCall().read(self.chat.decode(row[:length]), row[:length], logprobs[:length]))
        return actions

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self._judge(state), self.chat.context_ids(state.messages)) for state in states]

    def _judge(self, state: State) -> float:
        import torch

        prompt = self.chat.prompt_ids(state.messages)
        self.spent.encoded += len(prompt)
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([prompt]), output_hidden_states=True, logits_to_keep=1)
            return float(self.head.value(output.hidden_states[-1][0, -1]))


@dataclass(frozen=True, slots=True)
class Shopping:
    """A random model, the shop, and the same shop with snapshots by replay."""

    model: "Qwen3ForCausalLM"
    chat: "ChatFormat"
    head: "ValueHead"
    env: "ShopEnv"
    replayed: "ShopEnv"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to drive the model."""

    name: str
    trees: int
    """Trees searched per round."""
    batch: int
    """Trees grown together."""
    leaves: int = 1
    together: bool | None = None
    """As in ``Generating``; None uses treeagent's generator."""


@dataclass(slots=True)
class Measured:
    """Measurements of one way."""

    seconds: list[float] = field(default_factory=list[float])
    """CPU seconds of each round."""
    trees: list[Tree] = field(default_factory=list[Tree])
    """Trees of the last round."""
    spent: Spent = field(default_factory=Spent)
    """Cost of the last round."""
    replayed: int = 0

    @property
    def simulations(self) -> int:
        return sum(tree.budget.simulations for tree in self.trees)

    @property
    def speed(self) -> float:
        """Simulations per CPU second."""
        return self.simulations / statistics.median(self.seconds)


def go_shopping(width: int, layers: int) -> Shopping:
    from treeagent.agent.value_head import ValueHead
    from treeagent.envs import EnvDynamics
    from treeagent.envs.shop import ShopEnv, ShopOptions
    from treeagent.generators.chat import ChatFormat
    from treeagent.generators.config import ScratchConfig
    from treeagent.generators.scratch import random_model, train_tokenizer
    from treeagent.pipeline.demonstrate import demonstrate

    class ReplayedShop(ShopEnv):
        snapshot_kind = "replay"

    options = ShopOptions(labels="number")
    env = ShopEnv(options)
    player = env.demonstrator(0.5)
    assert player is not None
    demonstrations = demonstrate(
        EnvDynamics(env, max_steps=10), player, env.tasks("train", 200), seed=0, grammar=ReAct()
    )
    texts = [
        message.content for tree in demonstrations for node in tree.nodes() for message in node.state.messages[-2:]
    ]
    scratch = ScratchConfig(width=width, layers=layers)
    chat = ChatFormat(train_tokenizer(texts, scratch))
    model = random_model(chat.tokenizer, scratch, 0).eval()
    return Shopping(model, chat, ValueHead(width), env, ReplayedShop(options))


def search_shop(shopping: Shopping, way: Way, simulations: int, measurement: Measured) -> None:
    """Search the shop for one round and add its measurements to ``measurement``."""
    from treeagent.agent.policy import HeadValue, LLMPolicy
    from treeagent.envs import EnvDynamics
    from treeagent.generators.local import LocalGenerator

    usage, chat, head = Spent(), shopping.chat, shopping.head
    generator: LocalGenerator | None = None
    policy: LLMPolicy | Generating
    if way.together is None:
        generator = LocalGenerator(shopping.model)
        policy = LLMPolicy(generator, chat, AnyCall(), max_new_tokens=MAX_NEW_TOKENS)
        value: Value = HeadValue(generator, chat, head)
    else:
        policy = value = Generating(shopping.model, chat, head, way.together, usage)
    dynamics = EnvDynamics(shopping.env if way.together is None else shopping.replayed, max_steps=MAX_STEPS)
    timed = Timed(policy, value, dynamics, usage)
    limits = Limits(simulations=simulations)
    search = Search(
        timed,
        timed,
        SearchConfig(limits=limits, candidates=CANDIDATES, options={"widening": 0}, leaves=way.leaves),
        timed,
    )
    tasks = shopping.env.tasks("train", way.trees)
    trees: list[Tree] = []
    hooks = _time_model(shopping.model, usage)
    started = time.process_time()
    for first in range(0, way.trees, way.batch):
        batch = tasks[first : first + way.batch]
        trees += asyncio.run(search.run(batch, [derive_seed(task.id) for task in batch]))
    measurement.seconds.append(time.process_time() - started)
    for hook in hooks:
        hook.remove()
    if failed := [tree.error for tree in trees if tree.error]:
        raise RuntimeError(failed[0])
    if generator is not None:
        usage.encoded = generator.usage.encoded_tokens
    measurement.trees, measurement.spent, measurement.replayed = trees, usage, dynamics.replayed_steps


def _time_model(model: "Qwen3ForCausalLM", usage: Spent) -> list[Any]:
    started = 0.0

    def begin(*_: object) -> None:
        nonlocal started
        started = time.process_time()

    def finish(*_: object) -> None:
        usage.model_seconds += time.process_time() - started

    return [model.register_forward_pre_hook(begin), model.register_forward_hook(finish)]


def tokens_to_read(tree: Tree) -> int:
    """Number of a tree's prompt tokens that have to be encoded once. Sampling has already fed all tokens of an action
    to the model except the last, so only that one is counted."""
    return sum(len(node.context_ids) + (1 if path else 0) for path, node in tree.walk())


WAYS = (
    Way("generate, a call a candidate", trees=2, batch=1, together=False),
    Way("generate, num_return_sequences", trees=4, batch=1, together=True),
    Way("treeagent, 1 tree", trees=8, batch=1),
    Way("treeagent, 1 tree, 4 leaves in flight", trees=8, batch=1, leaves=4),
    Way("treeagent, 100 trees", trees=100, batch=100),
)


def measure_model(record: Record, arguments: argparse.Namespace, simulations: int = 16) -> None:
    """Record part model."""
    shopping = go_shopping(width=128, layers=4)
    for way in WAYS:
        search_shop(shopping, way, 2, Measured())
    gc.freeze()  # else a walk through torch's objects counts as part of whatever it interrupts

    def measure(number: int) -> Figures:
        found = {way.name: Measured() for way in WAYS}
        for way in WAYS:
            search_shop(shopping, way, simulations, found[way.name])
        one_tree, together = found["treeagent, 1 tree"].speed, found["treeagent, 100 trees"].speed
        return {name: _figures(each, one_tree, together) for name, each in found.items()}

    add_rounds(record, arguments.rounds, options_digest(arguments), [way.name for way in WAYS], measure)


def _figures(found: Measured, one_tree: float, together: float) -> dict[str, float]:
    """Figures of one way and round. ``one_tree`` and ``together`` are treeagent's speeds with one tree and with 100
    trees."""
    candidates = sum(CANDIDATES * tree.budget.proposals for tree in found.trees)
    tokens = sum(tree.budget.generated_tokens for tree in found.trees)
    [total], usage = found.seconds, found.spent
    return {
        "simulations / s": found.speed,
        "ratio": together / found.speed,
        "ratio, 1 tree": one_tree / found.speed,
        "candidates / simulation": candidates / found.simulations,
        "tokens / candidate": tokens / candidates,
        "tokens / s": tokens / total,
        "share of the model": usage.model_seconds / total,
        "of tokens, cache, sampling": (usage.outside_seconds - usage.model_seconds - usage.environment_seconds) / total,
        "of the environment": usage.environment_seconds / total,
        "of the search": (total - usage.outside_seconds) / total,
    }


def measure_tokens(record: Record, arguments: argparse.Namespace, simulations: int = 16) -> None:
    """Record part tokens."""
    shopping = go_shopping(width=32, layers=2)

    def measure(_: int) -> Figures:
        found: dict[str, dict[str, float]] = {}
        for way in WAYS:
            measurement = Measured()
            search_shop(shopping, way, simulations, measurement)
            needed = sum(map(tokens_to_read, measurement.trees))
            nodes = sum(1 for tree in measurement.trees for _ in tree.nodes())
            found[way.name] = {
                "tokens encoded": measurement.spent.encoded,
                "tokens that had to be read": needed,
                "encoded / needed": measurement.spent.encoded / needed,
                "transitions": nodes - len(measurement.trees),
                "environment steps": sum(tree.budget.environment_steps for tree in measurement.trees),
                "of them replayed": measurement.replayed,
            }
        return found

    add_rounds(record, 1, options_digest(arguments), [way.name for way in WAYS], measure)


PARTS = {
    "core": (measure_core, "How many simulations a second does the search alone make, with an instant policy?"),
    "tokens": (measure_tokens, "How often is the same prompt token read, and how often is an environment replayed?"),
    "model": (measure_model, "How many simulations a second does a small model make, driven in several ways?"),
}


def main() -> None:
    options = repeating(__doc__, "search", rounds=3)
    options.add_argument("--part", choices=tuple(PARTS), nargs="+", default=list(PARTS))
    arguments = options.parse_args()
    if arguments.part != ["core"]:
        import torch

        torch.set_num_threads(1)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for part in arguments.part:
        measure, question = PARTS[part]
        with recording(f"{arguments.name}_{part}", question, folder=arguments.results) as record:
            measure(record, arguments)


if __name__ == "__main__":
    main()
