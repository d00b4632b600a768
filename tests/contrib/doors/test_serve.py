"""The server that plans: it answers as ``treeagent eval`` plays, tells what it spent, and stops when asked."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from toy_llama import tokenizer

from treeagent import loop
from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import RunConfig, load_config
from treeagent.contrib.doors.serve import Agent, Planner, Server
from treeagent.contrib.doors.wire import application, running
from treeagent.envs import make_env
from treeagent.envs.base import opening
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model
from treeagent.pipeline.trees import stored_trees

SETTINGS = [
    "environment.name=frozenlake",
    "environment.max_steps=5",
    "policy.actions=score",
    "search.limits.simulations=12",
    "evaluate.tasks=3",
    'evaluate.modes=["mcts"]',
    "workers=1",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    shape = ScratchConfig(vocabulary=320, layers=2, width=32, heads=2, context=4096)
    model = random_model(tokenizer(), shape, 0)
    return save_checkpoint(Checkpoint(model, tokenizer(), ValueHead(32)), folder / "policy")


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_config(None, SETTINGS)


@pytest.fixture
def address(checkpoint: Path, config: RunConfig) -> Iterator[str]:
    server = Server(Planner(checkpoint, config), "policy")
    with running(application("policy", "", {"/v1/chat/completions": server.chat})) as found:
        yield found


def first_message(config: RunConfig, index: int) -> str:
    env = make_env(config.environment.name, {})
    [task] = env.tasks("test", 1, index)
    return opening(task, env.reset(seed=task.seed, options={"task": task})[0])


def ask(address: str, *said: str, **fields: Any) -> httpx.Response:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    body = {"model": "policy", "messages": messages, **fields}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)


def test_the_answers_are_those_of_eval(checkpoint: Path, config: RunConfig, address: str, tmp_path: Path) -> None:
    loop.evaluate(config, tmp_path / "run", checkpoint)
    world = make_env(config.environment.name, {})
    agent = Agent(checkpoint, make_env(config.environment.name, {}), config)
    client = OpenAI(base_url=f"{address}/v1", api_key="x")
    for episode in stored_trees(tmp_path / "run" / "episodes"):
        *_, (path, _) = episode.walk()
        task = episode.task
        observation, _ = world.reset(seed=task.seed, options={"task": task})
        agent.begin(task)
        messages: list[Any] = [{"role": "user", "content": opening(task, observation)}]
        for edge in path:
            answer: Any = client.chat.completions.create(model="policy", messages=messages)
            assert answer.choices[0].message.content == edge.action.text
            call = agent.act(observation)
            assert call == edge.action.call
            observation, *_ = world.step(call)
            messages += [{"role": "assistant", "content": edge.action.text}, {"role": "user", "content": observation}]
        assert len(path) > 1


def test_an_answer_tells_its_plan_and_keeps_to_the_budget_of_its_request(address: str, config: RunConfig) -> None:
    first = first_message(config, 0)
    told = ask(address, first).json()["treeagent"]
    assert told["simulations"] == 12 and told["value"] is not None and told["seconds"] > 0
    few = ask(address, first, budget={"simulations": 3}).json()
    assert (
        few["treeagent"]["simulations"] == 3 and few["treeagent"]["plan"][0] == few["choices"][0]["message"]["content"]
    )
    lines = ask(address, first, stream=True, budget={"simulations": 40}).text
    assert '"id":"planning"' in lines and '"simulations":40' in lines and lines.endswith("data: [DONE]\n\n")


def test_what_cannot_be_planned_is_told(address: str, config: RunConfig) -> None:
    def sentence(*said: str, **fields: Any) -> str:
        return str(ask(address, *said, **fields).json()["error"]["message"])

    first = first_message(config, 0)
    assert "evaluate.tasks" in sentence("hello")
    assert "no budget" in sentence(first, budget={"simulations": -1})
    assert "cannot go on" in sentence(first, "Action: fly", "You fly.")


def test_a_client_that_goes_away_stops_its_search(
    address: str, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, scored = list[float](), LocalGenerator.score

    def slow(self: LocalGenerator, *given: Any) -> Any:
        calls.append(time.monotonic())
        time.sleep(0.05)
        return scored(self, *given)

    monkeypatch.setattr(LocalGenerator, "score", slow)
    body = {"model": "policy", "messages": [{"role": "user", "content": first_message(config, 1)}]}
    url = f"{address}/v1/chat/completions"

    def stopped() -> bool:
        time.sleep(1.0)
        count = len(calls)
        time.sleep(0.5)
        return len(calls) == count > 0

    with httpx.stream("POST", url, json=body | {"stream": True, "budget": {"simulations": 100_000}}) as events:
        lines = events.iter_lines()
        while len(calls) < 3:
            next(lines)
    assert stopped()
    calls.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body | {"budget": {"simulations": 100_001}}, timeout=2)
    assert stopped()
