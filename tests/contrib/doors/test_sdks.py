"""Agents of several SDKs come in as they are: each calls a tool twice, in two turns, and then ends."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from door import Scripted, door

from treeagent.contrib.doors import send_outcome
from treeagent.generators.base import Sample
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.trees import stored_trees
from treeagent.search.node import finished_paths
from treeagent.types import ToolCall


class Adder(Scripted):
    """Calls ``add`` once, then twice in one turn, then says a text, or calls smolagents' ``final_answer``."""

    def _say(self, prompt: tuple[int, ...], seed: int) -> Sample:
        text, grammar = self.chat.decode(prompt), make_grammar("tools")
        turn = text.count("I think")
        calls = [ToolCall("add", {"a": 2, "b": 3})] * (turn + 1 if turn < 2 else 0)
        if turn == 2 and "final_answer" in text:
            calls = [ToolCall("final_answer", {"answer": "it is 5"})]
        said = grammar.write("I think", "\n".join(grammar.write("", call) for call in calls) or "it is 5")
        ids = (*(each for letter in said for each in self.chat.encode_within(letter)), self.chat.stop_id)
        self.said[prompt, ids] = (-0.5,) * len(ids)
        return Sample(ids, self.said[prompt, ids])


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def openai_agents(url: str, streamed: bool = False) -> str:
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")

    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key="x") as client:
            model = agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client)
            agent = agents.Agent(name="adder", tools=[agents.function_tool(add)], model=model)
            if not streamed:
                return str((await agents.Runner.run(agent, "2+3")).final_output)
            running = agents.Runner.run_streamed(agent, "2+3")
            async for _ in running.stream_events():
                pass
            return str(running.final_output)

    return asyncio.run(run())


def pydantic_ai(url: str) -> str:
    ai, models = pytest.importorskip("pydantic_ai"), pytest.importorskip("pydantic_ai.models.openai")
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(base_url=url, api_key="x")
    agent = ai.Agent(models.OpenAIChatModel("tiny", provider=provider), tools=[add])
    return str(asyncio.run(agent.run("2+3")).output)  # ``run_sync`` leaves its event loop open


def langchain(url: str) -> str:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(model="tiny", base_url=url, api_key="x")
    tool = pytest.importorskip("langchain_core.tools").tool(add)
    agent = pytest.importorskip("langchain.agents").create_agent(chat, [tool])
    return str(agent.invoke({"messages": [("user", "2+3")]})["messages"][-1].content)


def smolagents(url: str) -> str:
    smol = pytest.importorskip("smolagents")
    model = smol.OpenAIServerModel("tiny", api_base=url, api_key="x")
    return str(smol.ToolCallingAgent([smol.tool(add)], model, verbosity_level=0, max_steps=4).run("2+3"))


def _plays(play: Callable[[str], str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    model = Adder()
    with door(out, model, group=1) as address:
        url = f"{address}/e/sum:1/v1"
        assert play(url) == "it is 5"
        send_outcome(url, 1.0)
    (tree,) = stored_trees(out / "trees")
    (path,) = finished_paths(tree)
    assert len(path) == len(model.said) == 3 and path[-1].reward == 1.0
    assert [len(re.findall("<tool_call>", edge.action.text)) for edge in path[:2]] == [1, 2]
    prompts = [tree.prompt_ids(path[:turn]) for turn in range(3)]
    assert [(prompt, edge.action.token_ids) for prompt, edge in zip(prompts, path, strict=True)] == [*model.said]


def test_openai_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plays(openai_agents, tmp_path / "whole", monkeypatch)
    _plays(lambda url: openai_agents(url, streamed=True), tmp_path / "streamed", monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of packages that are not ours
@pytest.mark.parametrize("play", [pydantic_ai, langchain, smolagents])
def test_other_sdks(play: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plays(play, tmp_path / "run", monkeypatch)
