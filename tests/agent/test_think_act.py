"""Thought and action as two edges: tokens, statistics and views are the same as with one edge per turn."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_llama import head, plain_hidden, plain_logprobs
from transformers import PreTrainedModel

from treeagent.agent.policy import HeadValue, LLMPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.envs import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import ReAct
from treeagent.pipeline.demonstrate import demonstrate, tokenise
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Node, Tree
from treeagent.types import Action, Message, Proposal, State, Task, Transition
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.tokens import TokenRow

REACT = ReAct()
CONFIG = ScratchConfig(vocabulary=600, layers=2, width=64, heads=2, context=1024)
SHOP = ShopEnv(ShopOptions(products=200))
TASKS = SHOP.tasks("train", 3)
NEW = 40
"""Maximum tokens of a turn."""


@dataclass(frozen=True)
class Speaker:
    """A model that has learnt to think and act, poorly, with its chat format."""

    model: PreTrainedModel
    chat: ChatFormat

    def policy(self, temperature: float = 1.0, new: int = NEW) -> LLMPolicy:
        generator = LocalGenerator(self.model)
        return LLMPolicy(generator, self.chat, temperature=temperature, max_new_tokens=new)


@lru_cache(maxsize=1)
def shopper() -> Speaker:
    dynamics, player = EnvDynamics(SHOP, max_steps=12), SHOP.demonstrator(0.0)
    assert player is not None
    trees = list(demonstrate(dynamics, player, SHOP.tasks("train", 20), seed=0, grammar=REACT))
    seen = [node.state.messages[-1].content for tree in trees for node in tree.nodes()]
    said = [edge.action.text for tree in trees for node in tree.nodes() for edge in node.edges]
    chat = ChatFormat(train_tokenizer([*seen, *said], CONFIG))
    rows = [row for tree in trees for row in imitation_rows(tokenise(tree, chat), ImitationConfig())]
    return taught(chat, rows, 120)


def taught(chat: ChatFormat, rows: Sequence[TokenRow], steps: int) -> Speaker:
    """Train for a few likelihood steps on two rows each."""
    model = random_model(chat.tokenizer, CONFIG, 0).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shuffler = random.Random(0)
    for _ in range(steps):
        for row in shuffler.choices(rows, k=2):
            labels = [token if said else -100 for token, said in zip(row.token_ids, row.mask, strict=True)]
            loss = model(input_ids=torch.tensor([row.token_ids]), labels=torch.tensor([labels])).loss
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return Speaker(model.eval(), chat)


@dataclass
class Memory:
    """A dynamics that records its calls and answers with the call or the error."""

    key: str | None = "here"
    asked: list[tuple[State, Action]] = field(default_factory=list[tuple[State, Action]])

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", task.prompt),), self.key)

    async def step(self, state: State, action: Action) -> Transition:
        self.asked.append((state, action))
        said = Message("assistant", action.text, action.token_ids)
        return Transition(State(state.task, (*state.messages, said, Message("user", str(action.call or action.error)))))


def propose(policy: LLMPolicy | SplitPolicy, states: Sequence[State], count: int, seed: int = 0) -> list[Proposal]:
    return list(asyncio.run(policy.propose(states, count, [seed + place for place in range(len(states))])))


def step(dynamics: SplitDynamics, state: State, action: Action) -> Transition:
    return asyncio.run(dynamics.step(state, action))


def begun(action: Action) -> bool:
    """Whether an action is a thought whose turn continues."""
    return not action.call and not action.error


@lru_cache(maxsize=1)
def shop_states() -> list[State]:
    """Three states of each task, from greedy play in whole turns."""
    dynamics, greedy = EnvDynamics(SHOP, max_steps=6), shopper().policy(0.0)
    states = []
    for task in TASKS:
        state = asyncio.run(dynamics.reset(task))
        states.append(state)
        for _ in range(2):
            [proposal] = propose(greedy, [state], 1)
            state = asyncio.run(dynamics.step(state, proposal.actions[0])).state
            states.append(state)
    return states


def test_a_thought_ends_with_the_token_that_completes_the_mark() -> None:
    speaker = shopper()
    thoughts = 0
    for proposal in propose(SplitPolicy(speaker.policy(1.2)), shop_states(), 6):
        for action in proposal.actions:
            assert action.text == speaker.chat.decode(action.token_ids)
            if begun(action):
                thoughts += 1
                assert REACT.begins_action(action.text)
                assert not REACT.begins_action(speaker.chat.decode(action.token_ids[:-1]))
                assert len(action.token_ids) == len(action.logprobs) < NEW
                assert "Action:" not in action.thought
            else:
                assert not REACT.begins_action(action.text)
                assert action.token_ids[-1] == speaker.chat.stop_id or len(action.token_ids) == NEW
    assert thoughts > 20


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_joined_turn_is_read_as_if_it_had_come_whole(thought: str, call: str) -> None:
    inner = Memory()
    dynamics = SplitDynamics(inner)
    text = REACT.write(thought, call)
    head, mark, tail = text.partition(REACT.mark)
    first = Action(head + mark, "", REACT.read(head + mark).thought, (1, 2), (-1.0, -2.0))
    second = Action(tail, "?", "", (3,), (-3.0,))
    root = asyncio.run(dynamics.reset(Task("t", "do it")))
    step(dynamics, step(dynamics, root, first).state, second)
    assert inner.asked == [(root, REACT.read(text, (1, 2, 3), (-1.0, -2.0, -3.0)))]


@lru_cache(maxsize=2)
def grown(temperature: float = 1.0, simulations: int = 30) -> tuple[list[Tree], LocalGenerator]:
    """Split trees of the shop, and the generator that sampled them."""
    policy = shopper().policy(temperature)
    assert isinstance(policy.generator, LocalGenerator)
    grower = Search(
        SplitPolicy(policy),
        SplitDynamics(EnvDynamics(SHOP, max_steps=5)),
        SearchConfig(limits=Limits(simulations=simulations), candidates=4),
        HeadValue(policy.generator, policy.chat, head(CONFIG.width)),
    )
    return asyncio.run(grower.run(TASKS, range(len(TASKS)))), policy.generator


def is_thought(node: Node) -> bool:
    return node.state.messages[-1].partial


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_split_tree_holds_exactly_what_the_model_read_and_said(temperature: float) -> None:
    """V of a thought is read at its last token, which was sampled but not yet fed to the model."""
    speaker, values = shopper(), head(CONFIG.width)
    thoughts = turns = 0
    for tree in grown(temperature)[0]:
        assert tree.error == ""
        for path, node in tree.walk():
            prompt = tree.prompt_ids(path)
            assert prompt == speaker.chat.prompt_ids(node.state.messages)
            with torch.no_grad():
                expected = values.value(plain_hidden(speaker.model, prompt)).item()
            assert node.value == pytest.approx(expected, abs=1e-4)
            for edge in node.edges:
                logprobs = plain_logprobs(speaker.model, prompt, edge.action.token_ids, temperature)
                assert edge.action.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)
            assert sum(edge.prior for edge in node.edges) <= 1 + 1e-9
            if is_thought(node):
                thoughts += 1
                assert (node.context_ids, path[-1].reward, node.ended) == ((), 0.0, False)
                assert begun(path[-1].action) and not any(begun(edge.action) for edge in node.edges)
            elif path:
                turns += 1
                assert len({edge.action.text for edge in node.edges}) == len(node.edges)
    assert thoughts > 10 and turns > 20
