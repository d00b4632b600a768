"""The number format, workers and threads that suit a model on a machine."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy_doors import Doors
from transformers import LlamaConfig

from treeagent.config import RunConfig, load_config
from treeagent.loop import quickstart
from treeagent.pipeline import opening
from treeagent.pipeline.folder import RunError
from treeagent.pipeline.opening import fit_to_machine, for_checkpoint, opened, usable_memory
from treeagent.pipeline.progress import QuietProgress


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A checkpoint with a configuration but without weights, which must not be read here."""
    LlamaConfig(
        vocab_size=70_000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        tie_word_embeddings=True,
        dtype="float32",
    ).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    cores, gib, flags = request.param
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(opening, "usable_memory", lambda: gib << 30)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(flags, True))
    monkeypatch.setattr(opening, "multiplies_bfloat16", lambda: bool(flags))


@pytest.mark.parametrize(
    ("machine", "settings", "chosen"),
    [
        ((2, 24, ["amx_bf16"]), [], (2, 1, "bfloat16", "bfloat16")),
        ((2, 24, ["avx512_bf16"]), [], (2, 1, "auto", "bfloat16")),
        ((64, 256, []), [], (8, 8, "auto", "auto")),
        ((64, 5, []), [], (1, 16, "auto", "auto")),  # 0.14 GiB of weights, 1 of cache, 1.5 of its own: two do not fit
        ((8, 24, []), ["workers=2"], (2, 4, "auto", "auto")),
        ((8, 24, ["amx_bf16"]), ["policy.dtype=float32"], (8, 1, "float32", "bfloat16")),
        ((2, 24, ["amx_bf16"]), ["policy.device_map=cuda"], (1, 1, "auto", "auto")),
        ((8, 24, ["amx_bf16"]), ["policy.generator=vllm"], (1, 1, "auto", "auto")),
    ],
    indirect=["machine"],
)
def test_a_large_model_gets_cores_and_number_format_of_the_machine(
    machine: None, large: Path, settings: list[str], chosen: tuple[int, int, str, str]
) -> None:
    config, told = fit_to_machine(load_config(None, [f"policy.model={large}", *settings]))
    assert (config.workers, config.threads, config.policy.dtype, config.training.precision) == chosen
    assert bool(told) == (not {"policy.device_map=cuda", "policy.generator=vllm"}.intersection(settings))


@pytest.mark.parametrize(
    ("machine", "settings", "gib"),
    [
        ((1, 24, []), [], (24 - 1.5) / 2),
        ((2, 24, []), [], (12 - 1.5) / 2),
        ((1, 2, []), [], 1),
        ((1, 24, []), ["policy.cache_bytes=2147483648"], 2),
        ((1, 24, []), ["policy.generator=vllm"], 1),
    ],
    indirect=["machine"],
)
def test_a_large_model_keeps_prompts_in_half_of_the_memory_that_is_left(
    machine: None, large: Path, settings: list[str], gib: float
) -> None:
    config, _ = fit_to_machine(load_config(None, [f"policy.model={large}", *settings]))
    assert config.policy.cache_bytes / 2**30 == pytest.approx(gib, abs=0.1)  # the weights take 0.14 GiB


@pytest.mark.parametrize(
    ("line", "file", "content", "limit"),
    [
        ("0::/job/step", "job/memory.max", "4096", 4096),
        ("0::/job/step", "job/step/memory.max", "max", 8192),
        ("0::/../elsewhere", "memory.max", "4096", 4096),
        ("4:memory:/job", "memory/job/memory.limit_in_bytes", "4096", 4096),
        ("4:memory:/job", "memory/job/memory.limit_in_bytes", "9223372036854771712", 8192),
        ("2:cpuset:/job", "job/memory.max", "4096", 8192),
    ],
)
def test_the_memory_of_a_container_or_a_job_is_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str, content: str, limit: int
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=8192))
    process, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / file).parent.mkdir(parents=True)
    (groups / file).write_text(content)
    process.write_text(line)
    assert usable_memory(process, groups) == limit
    assert usable_memory(tmp_path / "none", groups) == 8192  # no control groups


class Mute(Doors):
    """Has no demonstrator."""

    def demonstrator(self, noise: float) -> Any:
        return None


def test_a_run_that_wants_a_demonstrator_is_refused_before_it_begins(tmp_path: Path) -> None:
    config = load_config(None, [f"environment.name={__name__}:Mute", "environment.options={}"])
    with pytest.raises(RunError, match="has no demonstrator to warm-start from"):
        quickstart(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_with_which_nothing_was_made_are_replaced_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(QuietProgress, "warn", lambda self, sentence: said.append(sentence))
    for seed in (1, 2):
        config = load_config(None, [f"environment.name={Doors.__module__}:Doors", f"seed={seed}"])
        with opened(config, tmp_path, []) as (run, _):
            assert run.config.seed == seed
    assert said == [f"{tmp_path} holds no work yet, so these settings of it are replaced: seed"]


def test_prompts_tell_pretrained_models_of_format_and_tools_and_policies_from_scratch_not(
    finished_run: Path, tmp_path: Path
) -> None:
    own, moved, pretrained = finished_run / "checkpoints" / "base", tmp_path / "moved", tmp_path / "pretrained"
    for folder in (moved, pretrained):
        shutil.copytree(own, folder)
    (pretrained / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    told = [for_checkpoint(RunConfig(), each).policy.is_told for each in (own, moved, pretrained, Path("org/model"))]
    assert told == [False, False, True, True]
    assert for_checkpoint(load_config(None, ["policy.model=other"]), pretrained).policy.model == "other"
