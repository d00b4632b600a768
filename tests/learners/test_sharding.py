"""Updates in two processes that share the weights out (FSDP2): they end as those of one process do."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import make_model, make_tokenizer, weights

from treeagent.checkpoint import load_checkpoint

FSDP = Path(__file__).parents[2] / "configs" / "models" / "fsdp.yaml"

PROGRAM = """
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from tiny import HIDDEN, make_model, make_tokenizer, pairs, token_rows, weights

from treeagent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.generators.local import LocalGenerator
from treeagent.learners.config import DPOConfig, LoraConfig, SFTConfig, ValueConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.sharding import led, whole_weights
from treeagent.learners.value import fit_value
from treeagent.value_head import ValueHead

torch.set_num_threads(1)
processes, folder, killed = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "killed"
leads = PartialState(cpu=True).is_main_process
tokenizer, told = make_tokenizer(), {}
sft = SFTConfig(batch_size=4, accumulation=2 // processes, epochs=4, log_every=1, save_every=2)
dpo = DPOConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, learning_rate=1e-3)


def base():
    # With the weights of one process alone, as fsdp_cpu_ram_efficient_loading has it.
    return load_checkpoint(folder / "base").model


def saved(name, model, head=None):
    whole = whole_weights(model)
    if leads:
        save_checkpoint(Checkpoint(model, tokenizer, head), folder / name, whole)


def die(done, total):
    if killed and done == 5 and leads:
        os.kill(os.getpid(), 9)


model = base()
result = train_sft(model, tokenizer, token_rows(16), sft, checkpoint_dir=folder / "killed", on_progress=die)
told["killed"] = result.steps, result.metrics["loss"]
saved("sft", model)

model = base()  # again, as if it had not come to be saved
again = train_sft(model, tokenizer, token_rows(16), sft, checkpoint_dir=folder / "killed")
told["again"] = again.steps, weights(model)

scores = iter([0.0, 2.0, 1.0, 0.5])
model = base()
generator, drawn = LocalGenerator(model), []


def score():
    generator.forget()
    drawn.append(generator.sample([(4, 5, 6)], 2, [0], stop_id=1, max_new_tokens=5)[0][0].token_ids)
    return next(scores)


def nobody():
    raise AssertionError("the process that leads validates")


best = train_sft(
    model, tokenizer, token_rows(16), replace(sft, validate_every=2, patience=2), validate=score if leads else nobody
)
told["best"] = best.steps, best.best_step, drawn
head = ValueHead(HIDDEN)
fitted = led(model, lambda: fit_value(model, head, token_rows(16), ValueConfig(epochs=2)), leads=leads)
told["value"] = fitted and fitted.held_out_loss
saved("best", model, head)

model = with_adapter(base(), LoraConfig(rank=2), 0)
result = train_dpo(model, tokenizer, pairs(make_model(), 15, shift=1.0), dpo)
saved("lora", model)

model = base()
train_sft(model, tokenizer, token_rows(16), replace(sft, optimiser="muon"))
saved("muon", model)

model = base().to(torch.bfloat16)
train_sft(model, tokenizer, token_rows(16), replace(sft, precision="bfloat16", validate_every=4), validate=lambda: 1.0)
saved("bfloat16", model)
torch.save(told, folder / f"told-{PartialState().process_index}.pt")
"""


def ends(folder: Path, processes: int, *, killed: bool = False) -> int:
    """Runs the program to its end. Returns its exit status."""
    make_model().save_pretrained(folder / "base")
    make_tokenizer().save_pretrained(folder / "base")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "fsdp.yaml").write_text(yaml.safe_dump(yaml.safe_load(FSDP.read_text()) | {"use_cpu": True}))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    launch = [
        "-m", "accelerate.commands.launch", f"--config_file={folder / 'fsdp.yaml'}", "--num_processes=2",
        "--num_machines=1", "--main_process_port=0",
    ]  # fmt: skip
    how = launch if processes == 2 else []
    command = [*how, str(folder / "program.py"), str(processes), str(folder), "killed" if killed else "whole"]
    return subprocess.run([sys.executable, *command], env=environment, check=False, timeout=140).returncode


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """The folders of one process, and of two that were killed in the middle of an update and started again."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    assert ends(one, 1) == 0
    assert ends(two, 2, killed=True) != 0
    assert (two / "killed" / "checkpoint-4" / "progress.json").is_file()
    assert ends(two, 2) == 0
    return {1: one, 2: two}


def told(folder: Path, rank: int = 0) -> dict[str, Any]:
    said: dict[str, Any] = torch.load(folder / f"told-{rank}.pt")
    return said


@pytest.mark.slow
def test_a_killed_update_resumes_and_saves_the_stock_model_of_one_process(ended: Mapping[int, Path]) -> None:
    steps, loss = told(ended[1])["killed"]
    assert told(ended[2])["killed"] == (steps, pytest.approx(loss, abs=1e-5)) and steps == 8
    one, two = (load_checkpoint(ended[count] / "sft").model for count in (1, 2))
    assert type(two) is type(one)
    assert torch.allclose(weights(two), weights(one), rtol=0, atol=1e-5)
    assert not torch.allclose(weights(one), weights(make_model()), rtol=0, atol=1e-4)
    files = [sorted(path.name for path in (ended[count] / "sft").iterdir()) for count in (1, 2)]
    assert files[0] == files[1]
    for rank in (0, 1):
        steps, ending = told(ended[2], rank)["again"]  # all from the checkpoint of its end
        assert steps == 8 and torch.equal(ending, weights(two))


@pytest.mark.slow
def test_the_first_process_samples_by_all_shares_and_the_best_weights_are_kept(ended: Mapping[int, Path]) -> None:
    assert told(ended[2])["best"] == told(ended[1])["best"]
    assert told(ended[2])["best"][:2] == (6, 2)  # two validations after the best, at step 2
    assert told(ended[2])["value"] == pytest.approx(told(ended[1])["value"], abs=1e-5)
    assert told(ended[2], 1)["best"][2] == [] and told(ended[2], 1)["value"] is None
    for file in ("model.safetensors", "value_head/model.safetensors"):
        one, two = (load_file(ended[count] / "best" / file) for count in (1, 2))
        assert one.keys() == two.keys()
        assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-5) for name in one)


@pytest.mark.slow
def test_an_adapter_is_saved_alone(ended: Mapping[int, Path]) -> None:
    for count in (1, 2):
        assert not (ended[count] / "lora" / "model.safetensors").exists()
    one, two = (load_file(ended[count] / "lora" / "adapter_model.safetensors") for count in (1, 2))
    assert one.keys() == two.keys() and {tensor.shape for tensor in two.values()} == {t.shape for t in one.values()}
    adapted = load_checkpoint(ended[2] / "lora").model
    assert any(bool(parameter.any()) for name, parameter in adapted.named_parameters() if "lora_B" in name)


@pytest.mark.slow
def test_muon_makes_shared_matrices_orthogonal(ended: Mapping[int, Path]) -> None:
    one, two = (weights(load_checkpoint(ended[count] / "muon").model) for count in (1, 2))
    moved = (one - weights(make_model())).norm()
    assert (two - one).norm() < 0.03 * moved  # it computes in bfloat16, and sums in another order


@pytest.mark.slow
def test_weights_come_back_as_short_as_they_were(ended: Mapping[int, Path]) -> None:
    for count in (1, 2):
        model = load_checkpoint(ended[count] / "bfloat16").model
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
