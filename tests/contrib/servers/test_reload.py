"""New weights on running servers: adapters that vLLM loads, and a command that brings a checkpoint."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from openai_server import BRING, OpenAIServer, serving
from toy_llama import CONFIG, tokenizer

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import ConfigError, PolicyConfig, RunConfig, load_config
from treeagent.contrib.servers import reload as reloading
from treeagent.contrib.servers.reload import reload
from treeagent.contrib.servers.servers import adapter_name
from treeagent.generators.base import Failure, Generator, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import LoraConfig, RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.remote import RemoteGenerator
from treeagent.generators.scratch import random_model
from treeagent.learners.lora import with_adapter
from treeagent.types import UserError

CHAT = ChatFormat(tokenizer())
BASE = random_model(tokenizer(), CONFIG, 0).eval()
PROMPTS = [(10, 11, 12), (13, 14)]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)
    monkeypatch.setattr(reloading, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(reloading, "_MOST_SECONDS", 30.0)


def made() -> OpenAIServer:
    return OpenAIServer(LocalGenerator(BASE), CHAT, "toy", CONFIG.context)


@pytest.fixture
def two() -> Iterator[tuple[OpenAIServer, OpenAIServer]]:
    with serving(made()) as one, serving(made()) as other:
        yield one, other


def pool(*servers: OpenAIServer) -> RemoteConfig:
    return RemoteConfig(url=tuple(each.url for each in servers), timeout=20.0)


def whole(folder: Path, seed: int) -> Path:
    network = random_model(tokenizer(), replace(CONFIG, width=32), seed)
    return save_checkpoint(Checkpoint(network, tokenizer()), folder)


def adapted(folder: Path, shift: float) -> Path:
    """Save an adapter of the model that the servers have."""
    base = save_checkpoint(Checkpoint(BASE, tokenizer()), folder.parent / "toy")
    model = with_adapter(load_checkpoint(base).model, LoraConfig(rank=2), 0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(shift)
    return save_checkpoint(Checkpoint(model, tokenizer()), folder)


def draw(generator: Generator) -> list[list[tuple[int, ...]]]:
    request = SampleRequest(PROMPTS, 2, [1, 2], stop_id=len(tokenizer()) - 1, max_new_tokens=6)
    drawn: list[list[tuple[int, ...]]] = []
    for samples in generator.sample(request):
        assert not isinstance(samples, Failure)
        drawn.append([sample.token_ids for sample in samples if isinstance(sample, Sample)])
    return drawn


def test_servers_load_an_adapter_that_they_lack(two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path) -> None:
    one, other = two
    one.loads_adapters = other.loads_adapters = True
    for number, shift in enumerate((0.05, -0.08), start=1):
        folder = adapted(tmp_path / f"round-{number}", shift)
        expected = draw(LocalGenerator(load_checkpoint(folder).model.eval()))
        for _ in range(2):
            generator = RemoteGenerator(pool(one, other), str(folder), 1.0, adapter=folder, versioned=True)
            assert draw(generator) == expected
        assert generator.context == CONFIG.context  # the context of its base model
        assert [each.model for each in generator.servers] == [adapter_name(folder)] * 2
        assert one.loaded == other.loaded and len(one.loaded) == number
    assert expected != draw(LocalGenerator(BASE))


def test_an_adapter_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    names = {adapter_name(adapted(tmp_path / run / "round-1", shift)) for run, shift in (("a", 0.1), ("b", 0.2))}
    assert len(names) == 2 and all(name.startswith("round-1-") for name in names)
    assert adapter_name(tmp_path / "a" / "round-1") in names
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        adapter_name(tmp_path)


def test_a_server_without_adapters_is_refused_with_the_fix(
    two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path
) -> None:
    folder = adapted(tmp_path / "round-1", 0.1)
    two[0].loads_adapters = True
    with pytest.raises(UserError, match=rf"{re.escape(two[1].url)} .*--enable-lora and VLLM_ALLOW_RUNTIME_LORA"):
        RemoteGenerator(pool(*two), str(folder), 1.0, adapter=folder)


@pytest.mark.parametrize("answers_as", ["toy-of-yesterday", None])
def test_an_answer_must_name_its_version_where_weights_change(
    two: tuple[OpenAIServer, OpenAIServer], answers_as: str | None
) -> None:
    one, _ = two
    one.answers_as = answers_as
    assert draw(RemoteGenerator(pool(one), "toy", 1.0)) == draw(LocalGenerator(BASE))
    with pytest.raises(UserError, match=rf"answered as {answers_as!r}, not as 'toy'"):
        RemoteGenerator(pool(one), "toy", 1.0, versioned=True)


def test_a_command_brings_a_checkpoint_to_each_server(two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path) -> None:
    first, second = whole(tmp_path / "a" / "round-1", 1), whole(tmp_path / "b" / "round-1", 2)
    for folder in (first, second):  # they have the same name: only the folder tells them apart
        assert reload(pool(*two), str(folder), [*BRING, "{url}", "{checkpoint}"]) == []
        expected = draw(LocalGenerator(load_checkpoint(folder).model.eval()))
        assert draw(RemoteGenerator(pool(*two), str(folder), 1.0, versioned=True)) == expected
    assert [each.loaded for each in two] == [[str(first), str(second)]] * 2


@pytest.mark.parametrize("served", ["{other}", "round-1"])
def test_a_folder_of_another_run_with_the_same_name_is_not_the_checkpoint(
    two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    """The command leaves the server as it is. A name without a path is trusted."""
    folder, other = whole(tmp_path / "new" / "round-1", 1), tmp_path / "old" / "round-1"
    two[0].model = served.format(other=other)
    if served == "round-1":
        assert reload(pool(two[0]), str(folder), ["true"]) == []
        return
    monkeypatch.setattr(reloading, "_MOST_SECONDS", 0.1)
    with pytest.raises(UserError, match="old/round-1"):
        reload(pool(two[0]), str(folder), ["true"])


def test_a_command_that_names_no_server_runs_once_for_all(
    two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path
) -> None:
    both = " ".join(each.url for each in two)
    script = BRING[3].replace("web.urlopen", "[web.urlopen").replace("sys.argv[1] +", "url +")
    folder = whole(tmp_path / "round-1", 1)
    command = [*BRING[:3], f"{script} for url in sys.argv[1].split()]", both, "{checkpoint}"]
    assert reload(pool(*two), str(folder), command) == []
    assert [each.loaded for each in two] == [[str(folder)]] * 2


def test_a_server_that_is_up_to_date_is_left_alone(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    assert reload(pool(*two), "toy", ["no-such-program", "{url}"]) == []


def test_a_reload_that_fails_is_told_and_stops_the_run_if_none_is_left(
    two: tuple[OpenAIServer, OpenAIServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    folder = whole(tmp_path / "round-1", 1)
    said = "import sys; sys.stderr.write('first\\nno room left\\n\\n'); sys.exit(3)"
    with pytest.raises(UserError, match=r"ended with 3 \(no room left\): correct policy\.reload"):
        reload(pool(*two), str(folder), [sys.executable, "-S", "-c", said, "{url}"])
    with pytest.raises(UserError, match="'no-such-program' cannot be run"):
        reload(pool(*two), str(folder), ["no-such-program"])
    other.kill()
    [why] = reload(pool(*two), str(folder), [*BRING, "{url}", "{checkpoint}"])
    assert "ended with 1" in why and one.loaded == [str(folder)]
    monkeypatch.setattr(reloading, "_MOST_SECONDS", 1.0)
    with pytest.raises(UserError, match=r"serves .*round-1'.* after policy\.reload, not .*round-2'"):
        reload(pool(one), str(whole(tmp_path / "round-2", 2)), ["true"])


def test_settings_under_which_nothing_is_reloaded_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reload is set, but generator is 'local'"):
        PolicyConfig(reload="lora")
    with pytest.raises(ValueError, match="reload is set, but text_only"):
        PolicyConfig(reload="lora", generator="remote", text_only=True)
    with pytest.raises(ValueError, match="at least 1 item"):
        PolicyConfig(reload=(), generator="remote")
    with pytest.raises(ConfigError, match=r"policy\.reload is \"restart\""):
        load_config(None, ["policy.reload=restart", "policy.generator=remote"])


def test_adapters_and_commands_are_settings() -> None:
    assert not RunConfig(policy=PolicyConfig(generator="remote", reload="lora")).reloads
    config = load_config(None, ["policy.generator=remote", "policy.reload=['a', '{url}']"])
    assert config.policy.reload == ("a", "{url}") and config.reloads
