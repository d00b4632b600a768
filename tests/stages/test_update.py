"""An update from stored trees: which trees it refuses, and by how many processes it is done."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import CONFIG, treeagent
from transformers import PreTrainedTokenizerBase

from treeagent.agent.checkpoint import Checkpoint
from treeagent.config import PolicyConfig, RunConfig, UpdateConfig, load_config
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.run.folder import Run
from treeagent.search.node import Edge, Node, Tree
from treeagent.stages.update import TrainJob, refuse_foreign, train
from treeagent.types import Action, Message, NothingToLearn, State, Task, UserError

SCRATCH = ScratchConfig(vocabulary=300, width=16, heads=2, layers=1)
TASK = Task("shop-train-0", "Buy a red kettle.")


def tokenizer(text: str) -> PreTrainedTokenizerBase:
    return train_tokenizer([text], SCRATCH)


def checkpoint(tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    return Checkpoint(random_model(tokenizer, SCRATCH, 0), tokenizer)


def searched(tokenizer: PreTrainedTokenizerBase) -> Tree:
    """A tree of one action, in the tokens of a policy with this tokenizer."""
    chat, messages = ChatFormat(tokenizer), (Message("user", TASK.prompt),)
    root = Node(State(TASK, messages), context_ids=chat.prompt_ids(messages))
    root.edges = [Edge(Action("go", "go", token_ids=chat.encode_action("go")), prior=1.0)]
    return Tree(TASK, 0, root)


def job(config: RunConfig, folder: Path) -> TrainJob:
    return TrainJob(config, folder / "base", "grpo", folder / "trees", ("collect",), folder / "grpo", folder / ".grpo")


def test_trees_of_the_same_tokenizer_and_template_are_taken(tmp_path: Path) -> None:
    own = tokenizer("Buy a red kettle. " * 20)
    refuse_foreign([searched(own)], checkpoint(own), job(RunConfig(), tmp_path))


def test_trees_of_another_tokenizer_or_template_are_refused(tmp_path: Path) -> None:
    tree = searched(tokenizer("Buy a red kettle. " * 20))
    with pytest.raises(UserError, match=r"writes task shop-train-0 in .*trees in other tokens"):
        refuse_foreign([tree], checkpoint(tokenizer("nothing of the kind")), job(RunConfig(), tmp_path))
    other = tokenizer("Buy a red kettle. " * 20)
    other.chat_template = str(other.chat_template).replace("<|assistant|>", "<|assistant|> ")
    with pytest.raises(UserError, match="tokenizer or chat template of"):
        refuse_foreign([tree], checkpoint(other), job(RunConfig(), tmp_path))


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    own = tokenizer("Buy a red kettle. " * 20)
    tree = searched(own)
    tree.root.edges[0].action = replace(tree.root.edges[0].action, token_ids=(5, len(own)))
    with pytest.raises(UserError, match=rf"holds token {len(own)}, but .*base knows {len(own)} tokens"):
        refuse_foreign([tree], checkpoint(own), job(RunConfig(), tmp_path))


def accelerate(folder: Path, fsdp: Mapping[str, object] | None = None, **settings: object) -> Path:
    """A file as configs/models/fsdp.yaml but for some settings, those of FSDP by their names without "fsdp_"."""
    asked = yaml.safe_load((CONFIG.parent / "models" / "fsdp.yaml").read_text()) | settings
    asked["fsdp_config"] |= {f"fsdp_{name}": value for name, value in (fsdp or {}).items()}
    file = folder / "accelerate.yaml"
    file.write_text(yaml.safe_dump(asked))
    return file


def refusal(folder: Path, file: Path, update: Mapping[str, Any] | None = None, **policy: Any) -> str:
    settings = UpdateConfig(processes=2, accelerate_config=str(file), **(update or {}))
    config = RunConfig(update=settings, policy=PolicyConfig(**policy))
    with pytest.raises(UserError) as refused:
        train(job(config, folder), lambda event: None)
    assert not list(folder.glob(".grpo/*"))  # no process was started
    return str(refused.value)


def test_a_file_that_accelerate_cannot_read_is_refused(tmp_path: Path) -> None:
    assert "accelerate.yaml" in refusal(tmp_path, tmp_path / "accelerate.yaml")
    for text in ("", "distributed_type: [", "distributed_type: FDSP", "distributed_type: FSDP\nfsdp: {}"):
        (tmp_path / "accelerate.yaml").write_text(text)
        said = refusal(tmp_path, tmp_path / "accelerate.yaml")
        assert str(tmp_path / "accelerate.yaml") in said and "accelerate config" in said


def test_what_cannot_train_an_update_is_refused_with_what_can(tmp_path: Path) -> None:
    said = refusal(tmp_path, accelerate(tmp_path, distributed_type="MEGATRON_LM", megatron_lm_config={}))
    assert "MEGATRON_LM" in said and "choose FSDP" in said
    for name, wrong, right in (
        ("version", 1, "2"),
        ("auto_wrap_policy", "NO_WRAP", "TRANSFORMER_BASED_WRAP"),
        ("state_dict_type", "FULL_STATE_DICT", "SHARDED_STATE_DICT"),
        ("offload_params", True, "false"),
        ("activation_checkpointing", True, "false"),
    ):
        said = refusal(tmp_path, accelerate(tmp_path, {name: wrong}, use_cpu=True))
        assert f"has fsdp_{name}: {wrong}, with which an update cannot train" in said
        assert said.endswith(f"set it to {right}")
    parallel = {"parallelism_config_dp_replicate_size": 2}
    said = refusal(tmp_path, accelerate(tmp_path, parallelism_config=parallel, use_cpu=True))
    assert "has parallelism_config: {" in said and said.endswith("leave it out")
    assert refusal(tmp_path, accelerate(tmp_path, {"ignored_modules": ".*head"})).endswith("leave it out")


def test_a_file_that_contradicts_the_settings_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, accelerate(tmp_path, mixed_precision="bf16", use_cpu=True))
    assert "has mixed_precision: bf16, but the update's precision is 'float32'" in said
    said = refusal(tmp_path, accelerate(tmp_path))
    assert (
        "has use_cpu: False, but the policy trains on the CPU: set use_cpu: true, or policy.device_map to 'cuda'"
        in said
    )
    said = refusal(tmp_path, accelerate(tmp_path, use_cpu=True), device_map="cuda")
    assert "has use_cpu: True, but the policy trains on a GPU: set use_cpu: false" in said


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_two_processes_train_an_adapter_that_merges_to_a_stock_model(
    finished_run: Path, tmp_path: Path, shared: bool
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "trees").symlink_to(finished_run / "trees")
    base = finished_run / "checkpoints" / "base"
    settings = ["policy.lora.rank=4", "update.processes=2"]
    if shared:
        settings.append(f"update.accelerate_config={accelerate(tmp_path, use_cpu=True)}")
    done = treeagent("update", "grpo", base, "--config", CONFIG, "--out", out, *settings)
    assert done.returncode == 0, done.stderr
    facts = Run.open(out).facts("grpo")
    assert facts["update"]["steps"] > 0 and facts["value"]["epochs"] > 0
    rows = [row for row in Run.open(out).metrics() if row["stage"] == "grpo"]
    assert {"loss", "validation"} <= {name for row in rows for name in row}
    assert not list((out / "checkpoints").glob(".*"))
    done = treeagent("merge", out / "checkpoints" / "grpo", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "merged" / "model.safetensors").is_file()


@pytest.mark.slow
def test_what_several_processes_refuse_is_one_sentence(finished_run: Path, tmp_path: Path) -> None:
    config = replace(load_config(CONFIG), update=UpdateConfig(processes=2))
    nothing = replace(job(config, tmp_path), checkpoint=finished_run / "checkpoints" / "base")
    with pytest.raises(NothingToLearn, match="carry value targets of 0 task"):
        train(nothing, lambda event: None)
