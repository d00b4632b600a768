"""A proxy before a scripted model, for the tests of the doors."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI
from toy_llama import tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.config import load_config
from treeagent.contrib.doors.capture import Capture
from treeagent.contrib.doors.proxy import Proxy, Verifier
from treeagent.contrib.doors.wire import running
from treeagent.generators.base import Generator, Sample, SampleRequest, Usage
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.folder import Run
from treeagent.types import ToolCall

SETTINGS = load_config(None, ["policy.format=tools"])
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class Scripted(Generator):
    """Says thoughts, one or several calls of ``add``, or a text, by the seed of the prompt: in tokens that no tokenizer
    would choose. It records what it was given and what it said."""

    def __init__(self) -> None:
        self.usage, self.context, self.said = (
            Usage(),
            1 << 20,
            dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]](),
        )
        self.sizes = list[int]()
        self.chat = ChatFormat(tokenizer())

    def sample(self, request: SampleRequest) -> list[list[Sample]]:
        self.sizes.append(len(request.prompts))
        return [[self._say(*each)] for each in zip(request.prompts, request.seeds, strict=True)]

    def _say(self, prompt: tuple[int, ...], seed: int) -> Sample:
        rng, grammar = random.Random(seed), make_grammar("tools")
        thought = rng.choice(["", "I add.", "so\nit goes"])
        calls = [ToolCall("add", {"a": rng.randrange(9), "b": 2}) for _ in range(rng.randrange(3))]
        texts = [grammar.write("", call) for call in calls] or [f"it is {rng.randrange(99)}"]
        text = grammar.write(thought, "\n".join(texts))
        ids = tuple(each for letter in text for each in self.chat.encode_within(letter))  # letter by letter
        ids = (*ids, self.chat.stop_id)
        noise = random.Random(repr(ids))
        sample = Sample(ids, tuple(-noise.random() for _ in ids))
        self.said[prompt, ids] = sample.logprobs
        return sample

    def score(self, *given: Any, **more: Any) -> list[list[Sample]]:
        raise NotImplementedError

    def forget(self) -> None:
        pass


@contextmanager
def door(
    out: Path,
    generator: Generator | None = None,
    *,
    group: int = 8,
    key: str = "",
    verifier: Verifier | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
) -> Iterator[str]:
    """Context in which the proxy runs; yields its address."""
    policy = LLMPolicy(generator or Scripted(), ChatFormat(tokenizer()))
    config = load_config(None, ["policy.format=tools", *settings])
    with Run.create(out, config, resume=resume) as run:
        capture = Capture(run, "tiny", group)
        proxy = Proxy(policy, capture, config, "tiny", verifier)
        with closing(capture), running(proxy.app(key)) as address:
            yield address


def client(address: str, episode: str = "", key: str = "x") -> OpenAI:
    start = f"/e/{episode}" if episode else ""
    return OpenAI(base_url=f"{address}{start}/v1", api_key=key, max_retries=0)


def play(agent: OpenAI, task: str, most: int = 6) -> list[Any]:
    """Talk until the model says a text, rewriting the arguments as clients do. Returns the answers."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}]
    answers: list[Any] = []
    for _ in range(most):
        answer: Any = agent.chat.completions.create(model="tiny", messages=messages, tools=[ADD])
        message = answer.choices[0].message
        answers.append(answer)
        calls = [
            {"id": each.id, "type": "function", "function": {"name": "add", "arguments": rewritten(each)}}
            for each in message.tool_calls or ()
        ]
        messages.append({"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})})
        if not calls:
            return answers
        for each in calls:
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": f"5 for {each['id'][-4:]}"})
    return answers


def rewritten(call: Any) -> str:
    return json.dumps(json.loads(call.function.arguments), indent=1)
