"""A server's samples against the model that it serves, and the handling of servers that fail."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

import pytest
import torch
from openai_server import Body, OpenAIServer, serving
from toy_llama import CONFIG, make_read, next_logprobs, plain_logprobs, shared_model, tokenizer

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.policy import LLMPolicy
from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.config import RunConfig, load_config
from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.remote import RemoteGenerator, Server
from treeagent.generators.scratch import random_model
from treeagent.generators.structured import Form
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.folder import COLLECTED
from treeagent.pipeline.trees import read_trees
from treeagent.search.node import Edge, Node
from treeagent.types import Message, State, Task, UserError

CHAT = ChatFormat(tokenizer())
PROMPTS = [tuple(range(10, 10 + length)) for length in (9, 23, 1, 14)]
SEEDS = [10, 11, 12, 13]
NEVER = len(tokenizer()) - 1
"""A stop id that these tests never sample."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    made = OpenAIServer(LocalGenerator(shared_model()), CHAT, "toy", CONFIG.context)
    with serving(made):
        yield made


def config(server: OpenAIServer) -> RemoteConfig:
    return RemoteConfig(url=server.url, timeout=60.0)


def remote(server: OpenAIServer, temperature: float = 1.0) -> RemoteGenerator:
    return RemoteGenerator(config(server), "org/toy", temperature)


def draw(
    generator: Generator, count: int = 3, *, new: int = 6, stop_id: int = NEVER, temperature: float = 1.0
) -> list[list[Sample]]:
    return sampled(
        generator.sample(
            SampleRequest(PROMPTS, count, SEEDS, stop_id=stop_id, max_new_tokens=new, temperature=temperature)
        )
    )


def sampled(drawn: Sequence[Sequence[Sample] | Failure]) -> list[list[Sample]]:
    return [list(samples) for samples in drawn if not isinstance(samples, Failure)]


def same(one: list[list[Sample]], two: list[list[Sample]]) -> None:
    for left, right in zip(chain(*one), chain(*two), strict=True):
        assert left.token_ids == right.token_ids
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_the_served_models_own(server: OpenAIServer, temperature: float) -> None:
    generator = remote(server, temperature or 1.0)
    count = 3 if temperature else 1
    drawn = draw(generator, count, temperature=temperature)
    for prompt, samples in zip(PROMPTS, drawn, strict=True):
        assert len({sample.token_ids for sample in samples}) == len(samples) == count
        for sample in samples:
            expected = plain_logprobs(shared_model(), prompt, sample.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)
    same(drawn, draw(LocalGenerator(shared_model()), count, temperature=temperature))
    letters = CHAT.encode("search")
    scores = [next_logprobs(each, PROMPTS, letters) for each in (generator, LocalGenerator(shared_model()))]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
    assert generator.score(PROMPTS, [[]] * 4) == [[]] * 4


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_given_turns_are_scored_as_the_local_generator_scores_them(server: OpenAIServer, temperature: float) -> None:
    generator = RemoteGenerator(config(server), "org/toy", temperature or 1.0, scores="policy.actions=sample")
    candidates: list[list[tuple[int, ...]]] = [
        [(7, 8, 9), (7, 8), (7, 5, 6), (11,)],
        [(9, 9)],
        [],
        [(5, 6, 7), (5, 6, 7)],
    ]
    here = LocalGenerator(shared_model()).score(PROMPTS, candidates, temperature)
    asked = len(server.asked)
    same(sampled(generator.score(PROMPTS, candidates, temperature)), here)
    assert len(server.asked) - asked == 4 + 2 + 0 + 3  # one request for each distinct beginning


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (500, "answered 500: .*not now"),
        (400, "answered 400: .*not now"),
        (3.0, "remote.timeout"),
        ("no json", "cannot be read"),
        ('{"choices": []}', "cannot be read .*0 samples, not 2"),
        ('{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}]}', "2 token ids, 1 log-prob"),
    ],
)
def test_a_prompt_that_fails_costs_itself_alone(server: OpenAIServer, fault: int | str | float, said: str) -> None:
    """The fault becomes the error of a proposal, which is data."""
    generator = RemoteGenerator(config(server), "toy", 1.0)
    if isinstance(fault, float):
        generator.client = generator.client.with_options(timeout=fault / 2, max_retries=0)
    states = [State(Task(name, name), (Message("user", name),)) for name in ("fine", "broken", "good")]
    broken = list(CHAT.prompt_ids(states[1].messages))
    server.fault = lambda body: fault if body["prompt"] == broken else None
    first, second, third = asyncio.run(LLMPolicy(generator, CHAT, max_new_tokens=4).propose(states, 2, [1, 2, 3]))
    assert [len(each.actions) for each in (first, second, third)] == [2, 0, 2]
    assert (first.error, third.error) == ("", "")
    assert re.search(said, second.error) and "\n" not in second.error


def answer_with(status: int, body: Body) -> int:
    return status


def test_log_probabilities_without_the_temperature_are_refused(server: OpenAIServer) -> None:
    server.raw_logprobs = True
    with pytest.raises(UserError, match=r"temperature 0\.7 .*--logprobs-mode processed_logprobs"):
        remote(server, 0.7)
    assert draw(remote(server, 1.0))  # both names are equal


LIES: dict[str, tuple[object, object]] = {
    "no token": ([], []),
    "a negative id": ([-5, 6, 2], [-0.1, -0.2, -0.3]),
    "an id beyond the tokenizer": ([NEVER + 1, 6, 2], [-0.1, -0.2, -0.3]),
    "ids with fractions": ([5.7, 6.2, 2.9], [-0.1, -0.2, -0.3]),
    "log-probability NaN": ([5, 6, 2], [float("nan"), -0.2, -0.3]),
    "log-probability 10**400": ([5, 6, 2], [10**400, -0.2, -0.3]),
    "log-probability +5": ([5, 6, 2], [5.0, 5.0, 5.0]),
    "1,000 tokens where 4 were asked for": ([5] * 1000, [-0.1] * 1000),
    "ids as a text": ("567", [-0.1, -0.2, -0.3]),
}
"""What a server may say: token ids and log-probabilities."""


@pytest.mark.parametrize(("ids", "logprobs"), LIES.values(), ids=LIES)
def test_what_cannot_be_true_costs_its_own_prompt(server: OpenAIServer, ids: object, logprobs: object) -> None:
    generator = RemoteGenerator(config(server), "toy", 1.0, vocabulary=NEVER + 1)
    told = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
    server.fault = lambda body: json.dumps({"choices": [told]}) if body["prompt"] == [3, 4] else None
    lie, other = generator.sample(SampleRequest([(3, 4), (4, 5)], 1, [0, 1], stop_id=NEVER, max_new_tokens=4))
    assert isinstance(lie, Failure) and "cannot be read" in lie.reason
    assert not isinstance(other, Failure)


def test_an_answer_has_a_deadline() -> None:
    """A gateway may send a space now and then for ever."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.begin(json.dumps({"object": "list", "data": [{"id": "toy", "object": "model"}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(OSError):
                self.begin(b"", 1000)
                for _ in range(40):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.1)

        def begin(self, content: bytes, more: int = 0) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content) + more))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, daemon=True).start()
        client = Server(RemoteConfig(url=f"http://127.0.0.1:{http.server_port}/v1", timeout=0.3), "toy", retries=1)
        started = time.monotonic()
        failed = client.ask(partial(client.chat, [Message("user", "a b")], max_tokens=4, temperature=0.0))
        assert time.monotonic() - started < 3
        assert isinstance(failed, Failure) and "remote.timeout" in failed.reason
        http.shutdown()


def test_a_server_holds_turns_to_their_form(server: OpenAIServer) -> None:
    form = Form(CHAT, lambda spelt: f"turn: {spelt('Action: ')} (/[a-z]/ | {spelt('<|pad|>')})")
    server.structured = True
    request = SampleRequest(PROMPTS, 3, SEEDS, stop_id=CHAT.stop_id, max_new_tokens=20, form=form)
    drawn = [sampled(each.sample(request)) for each in (remote(server), LocalGenerator(shared_model()))]
    same(*drawn)
    for sample in chain(*drawn[0]):
        assert re.fullmatch(r"Action: ([a-z]|<\|pad\|>)", CHAT.decode(sample.token_ids))


SHOP = ["environment.options={products=200,difficulty=1}", "environment.max_steps=2", "search.limits={simulations=4}"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[OpenAIServer, Path, RunConfig]]:
    """A server of a model whose context holds the shop, its checkpoint, and the settings of a run on it."""
    shape = replace(CONFIG, context=4096)
    network = random_model(tokenizer(), shape, 0).eval()
    save_checkpoint(Checkpoint(network, tokenizer(), ValueHead(shape.width)), tmp_path / "toy")
    with serving(OpenAIServer(LocalGenerator(network), CHAT, "toy", shape.context)) as server:
        settings = [f"policy.url={server.url}", "policy.generator=remote", "policy.max_new_tokens=8", *SHOP]
        yield server, tmp_path / "toy", load_config(None, [*settings, "search.candidates=2", "evaluate.tasks=2"])


@pytest.mark.parametrize("reads", ["hidden", "logprobs"])
def test_a_remote_policy_collects_the_trees_of_a_local_one(
    shop: tuple[OpenAIServer, Path, RunConfig], reads: str
) -> None:
    """A value head on hidden states runs on a copy of the checkpoint, one on log-probabilities on the server."""
    server, checkpoint, config = shop
    if reads == "logprobs":
        give_logprob_head(checkpoint, server)
    trees = []
    for kind in ("remote", "local"):
        chosen = replace(config, policy=replace(config.policy, generator=kind))
        folder = checkpoint.parent / kind
        folder.mkdir()
        search_batch(SearchJob(chosen, checkpoint, COLLECTED, 0, [0, 1], folder), lambda event: None)
        trees.append(list(read_trees(folder)))
    for one, two in zip(*trees, strict=True):
        assert one.error == "" and one.budget.generated_tokens > 0
        assert [path for path, _ in map(spelt, one.walk())] == [path for path, _ in map(spelt, two.walk())]
        values = [[value for _, value in map(spelt, tree.walk())] for tree in (one, two)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def give_logprob_head(checkpoint: Path, server: OpenAIServer) -> None:
    """Replace the checkpoint's value head by one on log-probabilities."""
    head, loaded = LogprobHead(16), load_checkpoint(checkpoint)
    make_read(head, server.generator, range(3, 60))
    torch.nn.init.normal_(head.output.weight)
    save_checkpoint(Checkpoint(loaded.model, loaded.tokenizer, head), checkpoint)


def spelt(step: tuple[tuple[Edge, ...], Node]) -> tuple[tuple[tuple[int, ...], ...], float]:
    path, node = step
    return tuple(edge.action.token_ids for edge in path), node.value
