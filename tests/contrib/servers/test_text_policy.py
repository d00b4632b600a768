"""Policies on servers of text alone: they are played and evaluated, and never learned from."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai_server import Body, Fault, OpenAIServer, serving
from toy_llama import CONFIG, shared_model, tokenizer

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.agent.policy import LLMPolicy
from treeagent.config import RunConfig, load_config
from treeagent.contrib.servers.chat import ChatPolicy, RemoteChat, _text
from treeagent.contrib.traces.traces import TraceFacts, chat_rows
from treeagent.envs.base import EnvWrapper, StepResult
from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.remote import RemoteGenerator
from treeagent.generators.scratch import random_model
from treeagent.generators.turn import ReAct
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.folder import COLLECTED
from treeagent.pipeline.trees import read_trees
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Message, State, Task, ToolCall, UserError

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


def test_a_thought_that_the_server_took_out_of_a_turn_is_kept() -> None:
    message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "Action: buy", "reasoning_content": "It fits."}
    )
    action = ReAct().read(_text(message))
    assert (action.thought, action.call, action.error) == ("It fits.", "buy", "")


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


class Pictured(EnvWrapper):
    """Shows each observation as a file, too, which holds its text."""

    def reset(self, **given: Any) -> tuple[str, dict[str, object]]:
        said, _ = self.env.reset(**given)
        return said, {"images": [picture(said)]}

    def step(self, action: str | ToolCall) -> StepResult:
        said, reward, terminated, truncated, info = self.env.step(action)
        return said, reward, terminated, truncated, info | {"images": [picture(said)]}


def picture(text: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(text.encode()).decode()}"


def scripted(body: Body) -> str:
    """A chat's answer: as many searches as are asked for."""
    said = [{"role": "assistant", "content": f"Thought: hm\nAction: search[{word}]"} for word in ("lamp", "red")]
    choices = [{"index": index, "message": each, "finish_reason": "stop"} for index, each in enumerate(said)]
    return json.dumps({"id": "0", "object": "chat.completion", "choices": choices[: body["n"]]})


def test_images_reach_server_tree_and_trace_and_a_text_model_refuses_them(tmp_path: Path, server: OpenAIServer) -> None:
    server.fault, checkpoint = scripted, tmp_path / "toy"
    save_checkpoint(Checkpoint(random_model(tokenizer(), CONFIG, 0), tokenizer()), checkpoint)
    settings = [f"environment.wrappers=['{__name__}:Pictured']", "environment.options={products=200}"]
    settings += [f"policy.url={server.url}", "policy.generator=chat", "search={limits={simulations=4},candidates=2}"]
    config = load_config(None, settings)
    search_batch(SearchJob(config, checkpoint, COLLECTED, 0, [0], tmp_path), lambda event: None)
    [tree] = read_as(from_record, tmp_path)
    *_, (path, node) = tree.walk()
    first, turn, *_, last = node.state.messages
    assert path and first.content.endswith(base64.b64decode(first.images[0].partition(",")[2]).decode())
    assert last.images == (picture(last.content),)
    parts = [{"type": "text", "text": first.content}, {"type": "image_url", "image_url": {"url": first.images[0]}}]
    rows = [{"role": "user", "content": parts}, {"role": "assistant", "content": turn.content}]
    assert rows in [body["messages"][:2] for body in server.asked]
    facts = TraceFacts((), "toy", COLLECTED, 0)
    assert all(row["messages"][0] == rows[0] and row["messages"][2]["content"][1:] for row in chat_rows(tree, facts))
    texts = load_config(None, settings[:2])
    with pytest.raises(UserError, match=r"policy\.generator=chat"):
        search_batch(SearchJob(texts, checkpoint, COLLECTED, 1, [0], tmp_path), lambda event: None)


def unsupported(
    parameter: str, said: str, code: str | None = "unsupported_parameter", param: str | None = None
) -> Body:
    """The error as OpenAI words it. Other servers set neither code nor parameter."""
    named = f"Unsupported parameter: '{parameter}' {said}"
    return {"message": named, "type": "invalid_request_error", "param": param, "code": code}


def thinking(body: Body) -> Fault | None:
    """Refuse what OpenAI's reasoning models refuse."""
    if "max_tokens" in body:
        return unsupported("max_tokens", "is not supported. Use 'max_completion_tokens' instead.", param="max_tokens")
    if body.get("temperature", 1) != 1:
        said = "does not support 0 with this model. Only the default (1) value is supported."
        return unsupported("temperature", said, "unsupported_value", "temperature")
    return None


@pytest.mark.parametrize("refused", ["n", "seed"])
def test_a_server_that_takes_no_n_or_no_seed_is_asked_without(server: OpenAIServer, refused: str) -> None:
    chat = RemoteChat(replace(RemoteConfig(url=server.url), concurrency=1), "toy")
    server.fault = lambda body: unsupported(refused, "is not supported here") if refused in body else None
    before = len(server.asked)
    replies = chat.reply(ASKED, 2, [1, 2], max_new_tokens=6, temperature=1.0)
    assert [len(each.texts) for each in replies if not isinstance(each, Failure)] == [2, 2]
    assert len([body for body in server.asked[before:] if refused in body]) == 1


ASKED = [[Message("user", "a b")], [Message("user", "b")]]
