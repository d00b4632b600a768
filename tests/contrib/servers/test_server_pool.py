"""Pools of servers: trees stay with one server, a server that fails is replaced, and new weights reach all."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from openai_server import OpenAIServer, serving
from toy_llama import CONFIG, make_model, shared_model, tokenizer

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.config import load_config
from treeagent.contrib.servers import pool as pooling
from treeagent.contrib.servers.pool import Pool, Servers, adapter_name
from treeagent.generators.base import Failure, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import LoraConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model

CHAT, NEVER = ChatFormat(tokenizer()), len(tokenizer()) - 1


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)


def made() -> OpenAIServer:
    return OpenAIServer(LocalGenerator(shared_model()), CHAT, "toy", CONFIG.context)


@pytest.fixture
def two() -> Iterator[tuple[OpenAIServer, OpenAIServer]]:
    with serving(made()) as one, serving(made()) as other:
        yield one, other


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(Checkpoint(shared_model(), tokenizer()), tmp_path_factory.mktemp("pool") / "toy")


def pool(checkpoint: Path, *servers: OpenAIServer, **options: object) -> Pool:
    config = load_config(None, ["remote.timeout=20"])
    return Servers(tuple(each.url for each in servers), **options).make(checkpoint, config)  # type: ignore[arg-type]


def draw(generator: Pool | LocalGenerator, *prompts: tuple[int, ...]) -> list[Sequence[Sample] | Failure]:
    return list(generator.sample(SampleRequest(prompts, 2, range(len(prompts)), stop_id=NEVER, max_new_tokens=4)))


def ids(drawn: Sequence[Sequence[Sample] | Failure]) -> list[list[tuple[int, ...]]]:
    return [[each.token_ids for each in samples] for samples in drawn if not isinstance(samples, Failure)]


def asked(server: OpenAIServer) -> set[int]:
    """The first tokens of the prompts that a server was sent, without those of its test."""
    return {body["prompt"][0] for body in server.asked if body["prompt"] != list(range(8))}


def test_a_tree_stays_with_one_server(two: tuple[OpenAIServer, OpenAIServer], toy: Path) -> None:
    generator, local = pool(toy, *two), LocalGenerator(shared_model())
    trees: list[tuple[int, ...]] = [(20 + number, 7) for number in range(6)]
    for _ in range(3):  # each prompt goes on where one before ended
        drawn = draw(generator, *trees)
        assert ids(drawn) == ids(draw(local, *trees))
        trees = [(*tree, *samples[0], 9) for tree, samples in zip(trees, ids(drawn), strict=True)]
    one, other = map(asked, two)
    assert one | other == set(range(20, 26)) and not one & other and len(one) == len(other) == 3
    letters = [[(5,), (6,)]] * 6
    assert [len(each) for each in generator.score(trees, letters) if not isinstance(each, Failure)] == [2] * 6
    assert not asked(two[0]) & asked(two[1])
    assert generator.usage.generated_tokens >= 6 * 3 * 2 * 4


def test_the_others_answer_for_a_server_that_dies_and_it_comes_back(
    two: tuple[OpenAIServer, OpenAIServer], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "_LEFT_OUT_SECONDS", 0.1)
    one, other = two
    generator, prompts = pool(toy, one, other), [(30 + number, 7) for number in range(4)]
    expected, spent = ids(draw(generator, *prompts)), generator.usage.generated_tokens
    port = int(one.url.partition("127.0.0.1:")[2].partition("/")[0])
    one.kill()
    with pytest.warns(UserWarning, match="the other servers answer for it"):
        assert ids(draw(generator, *prompts)) == expected
    assert generator.usage.generated_tokens > spent
    time.sleep(0.12)
    with serving(made(), port) as back:
        assert ids(draw(generator, *prompts, (99, 7), (98, 7)))[:4] == expected
        assert asked(back)


def whole(folder: Path, seed: int) -> Path:
    return save_checkpoint(Checkpoint(random_model(tokenizer(), CONFIG, seed), tokenizer()), folder)


def test_servers_load_an_adapter_that_they_lack(
    two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path, toy: Path
) -> None:
    one, other = two
    model = with_adapter(load_checkpoint(toy).model, LoraConfig(rank=2), 0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1)
    folder = save_checkpoint(Checkpoint(model, tokenizer()), tmp_path / "round-1")
    one.loads_adapters = True
    with pytest.warns(UserWarning, match="--enable-lora and VLLM_ALLOW_RUNTIME_LORA"):
        pool(folder, one, other, reload="lora")
    other.loads_adapters = True
    expected = ids(draw(LocalGenerator(load_checkpoint(folder).model.eval()), (5, 6), (7, 6)))
    assert ids(draw(pool(folder, one, other, reload="lora"), (5, 6), (7, 6))) == expected
    assert expected != ids(draw(LocalGenerator(make_model()), (5, 6), (7, 6)))
    assert one.adapters.keys() == other.adapters.keys() == {adapter_name(folder)} and len(one.loaded) == 1
