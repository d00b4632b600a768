"""Policies on servers of text alone: they are played and evaluated, and never learned from."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from openai_server import OpenAIServer, serving
from toy_llama import CONFIG, shared_model, tokenizer

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.agent.policy import LLMPolicy
from treeagent.config import RunConfig, load_config
from treeagent.contrib.servers.chat import ChatPolicy
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.remote import RemoteChat, RemoteGenerator
from treeagent.generators.scratch import random_model
from treeagent.generators.turn import ReAct
from treeagent.pipeline.build import load_actors
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.folder import COLLECTED
from treeagent.pipeline.trees import read_trees
from treeagent.types import Message, State, Task, UserError

CHAT = ChatFormat(tokenizer())


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with serving(OpenAIServer(LocalGenerator(shared_model()), CHAT, "toy", CONFIG.context, token_ids=False)) as made:
        yield made


def test_turns_are_those_of_the_model_without_ids(server: OpenAIServer) -> None:
    with pytest.raises(UserError, match=r"cannot be read .* plays by text alone"):
        RemoteGenerator(RemoteConfig(url=server.url), "toy", 1.0)
    policy = ChatPolicy(RemoteChat(RemoteConfig(url=server.url), "toy"), ReAct(), max_new_tokens=8)
    states = [
        State(Task("a", "a"), (Message("user", "a b"),)),
        State(Task("b", "b"), (Message("user", "a"), Message("assistant", "hm"), Message("user", "b"))),
    ]
    proposals = asyncio.run(policy.propose(states, 3, [1, 2]))
    local = LLMPolicy(LocalGenerator(shared_model()), CHAT, max_new_tokens=8)
    [expected] = asyncio.run(local.propose(states[:1], 3, [1]))
    read = [(action.text, action.call, action.error) for action in proposals[0].actions]
    assert read == [(action.text, action.call, action.error) for action in expected.actions]
    for proposal in proposals:
        assert len(proposal.actions) == 3 and not proposal.error and 0 < proposal.generated_tokens <= 24
        assert all((action.token_ids, action.logprobs) == ((), ()) for action in proposal.actions)
    server.fault = lambda body: 400
    assert [each.error[-7:] for each in asyncio.run(policy.greedy().propose(states, 1, [1, 2]))] == ["not now"] * 2


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Path, RunConfig]]:
    shape = replace(CONFIG, context=4096)
    network = random_model(tokenizer(), shape, 0).eval()
    save_checkpoint(Checkpoint(network, tokenizer()), tmp_path / "toy")
    with serving(OpenAIServer(LocalGenerator(network), CHAT, "toy", shape.context, token_ids=False)) as server:
        settings = [f"policy.url={server.url}", "policy.generator=chat", "policy.max_new_tokens=8"]
        settings += ["environment.options={products=200,difficulty=1}", "search.limits={simulations=4}"]
        yield tmp_path / "toy", load_config(None, [*settings, "search.candidates=2", "environment.max_steps=20"])


def test_trees_are_collected_but_not_learned_from(shop: tuple[Path, RunConfig]) -> None:
    checkpoint, config = shop
    (checkpoint.parent / "trees").mkdir()
    job = SearchJob(config, checkpoint, COLLECTED, 0, [0, 1], checkpoint.parent / "trees")
    cost = search_batch(job, lambda event: None)
    assert (cost.trees, cost.failed) == (2, 0) and cost.encoded_tokens > 0
    with pytest.raises(UserError, match="holds actions without token ids"):
        list(read_trees(checkpoint.parent / "trees"))


def test_instructions_and_shots_are_read_as_messages(shop: tuple[Path, RunConfig]) -> None:
    checkpoint, config = shop
    policy = replace(config.policy, model="toy", shots=1, instructions="Be brief.")
    _, told = load_actors(checkpoint, replace(config, policy=policy))
    assert isinstance(told, ChatPolicy)
    system, user, agent, *_ = told.opening
    assert system.role == "system" and system.content.startswith("Be brief.\n\n") and "Action: " in system.content
    assert (user.role, agent.role) == ("user", "assistant") and "Action: " in agent.content
    _, untold = load_actors(checkpoint, replace(config, policy=replace(policy, shots=0, instructions="")))
    assert isinstance(untold, ChatPolicy) and untold.opening == ()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["policy.structured=true"], r"policy\.structured"),
        (["policy.actions=score"], r"policy\.actions"),
        (["search.granularity=split"], r"search\.granularity"),
        (["policy.options.why=1"], "why"),
    ],
)
def test_what_wants_token_ids_is_refused(shop: tuple[Path, RunConfig], overrides: list[str], named: str) -> None:
    checkpoint, config = shop
    own = [f"policy.url={config.policy.url}", "policy.generator=chat", *overrides]
    with pytest.raises(UserError, match=named):
        load_actors(checkpoint, load_config(None, own))
