"""Learners in several processes, as ``accelerate launch`` starts them: the steps are those of one process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_model, weights

FSDP = Path(__file__).parents[2] / "configs" / "models" / "fsdp.yaml"

# All learners in one program, so that two starts of processes serve them all.
PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from tiny import HIDDEN, advantage_rows, make_model, make_tokenizer, pairs, token_rows, weights

from treeagent.learners.config import DPOConfig, GRPOConfig, LoraConfig, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.watch import TrainingDiverged
from treeagent.value_head import ValueHead

torch.set_num_threads(1)
processes, folder = int(sys.argv[1]), Path(sys.argv[2])
rank = PartialState(cpu=True).process_index
tokenizer, results, untrained, asked = make_tokenizer(), {}, {}, []


def learn(name, train, model, rows, config, head=None, **hooks):
    more = {"head": head} if head is not None else {}
    untrained[name] = weights(model, *([head] if head else []))
    result = train(model, tokenizer, rows, config, checkpoint_dir=folder / name, **more, **hooks)
    results[name] = (result.steps, result.metrics["loss"], weights(model, *([head] if head else [])))


# One process takes a step on two batches where two take it on a batch each.
sft = SFTConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, save_every=1)
dpo = DPOConfig(batch_size=4, accumulation=2 // processes, epochs=2, log_every=1, learning_rate=1e-3)
grpo = GRPOConfig(batch_size=8 // processes, iterations=2, epochs=2, log_every=1, learning_rate=1e-3)
rows, stored = token_rows(16), pairs(make_model(), 16, shift=1.0)
sparse = [row if n < 6 else replace(row, value_positions=(), value_targets=()) for n, row in enumerate(rows)]
learn("sft", train_sft, make_model(), sparse, sft, ValueHead(HIDDEN))
learn("dpo", train_dpo, make_model(), stored, dpo)
learn("ragged", train_dpo, make_model(), stored[:13], replace(dpo, epochs=1))
adapted = with_adapter(make_model(), LoraConfig(rank=2), 0)
learn("lora", train_dpo, adapted, stored, replace(dpo, gradient_checkpointing=True))
for count in (8, 7):  # seven leave one process a row short
    learn(f"grpo-{count}", train_grpo, make_model(), advantage_rows(make_model(), count, stale=0.3), grpo)


def score():
    asked.append(1)
    return -float(len(asked))  # the first is the best


learn("validated", train_sft, make_model(), rows, replace(sft, validate_every=2), validate=score)
bad = [replace(row, weight=float("nan") if n == 5 else 1.0) for n, row in enumerate(rows)]
diverged = ""
try:
    train_sft(make_model(), tokenizer, bad, replace(sft, accumulation=2))
except TrainingDiverged as reason:
    diverged = str(reason)
told = {"results": results, "untrained": untrained, "asked": len(asked), "diverged": diverged}
torch.save(told, folder / f"{rank}.pt")
"""

# "multi_gpu" means processes that torch starts, on a CPU too; they talk by gloo there.
LAUNCH = [
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--main_process_port=0",
]  # fmt: skip
SHARE = ["-m", "accelerate.commands.launch", f"--config_file={FSDP}", *LAUNCH[3:]]
LEARNERS = ("sft", "dpo", "lora", "grpo-8", "grpo-7", "validated")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the program's processes ended with: that of the single one, those of two that hold the whole weights each,
    and those of two that share them."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "program.py").write_text(PROGRAM)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    ends: dict[str, dict[str, Any]] = {}
    for name, processes, how in (("1", 1, []), ("2", 2, LAUNCH), ("2 that share", 2, SHARE)):
        out = folder / name
        out.mkdir()
        command = [sys.executable, *how, str(folder / "program.py"), str(processes), str(out)]
        subprocess.run(command, env=environment, check=True, timeout=280)
        ends |= {f"{rank} of {name}": torch.load(out / f"{rank}.pt") for rank in range(processes)}
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_two_processes_make_the_steps_of_one_on_as_many_rows(trained: dict[str, dict[str, Any]], name: str) -> None:
    steps, loss, one = trained["0 of 1"]["results"][name]
    for end in ("0 of 2", "1 of 2", "0 of 2 that share", "1 of 2 that share"):
        steps_of_two, loss_of_two, two = trained[end]["results"][name]
        assert steps_of_two == steps == 4
        assert torch.allclose(two, one, rtol=0, atol=1e-5)
        assert loss_of_two == pytest.approx(loss, abs=1e-5)
    assert name == "validated" or not torch.equal(one, trained["0 of 1"]["untrained"][name])


@pytest.mark.slow
def test_the_first_process_alone_validates_and_all_keep_what_it_found_best(trained: dict[str, dict[str, Any]]) -> None:
    assert [end["asked"] for end in trained.values()] == [3, 3, 0, 3, 0]  # at steps 0, 2 and 4
    for end in trained.values():
        assert torch.equal(end["results"]["validated"][2], weights(make_model()))


@pytest.mark.slow
def test_a_loss_that_one_process_alone_finds_broken_stops_all(trained: dict[str, dict[str, Any]]) -> None:
    for kind in ("2", "2 that share"):
        told = {trained[f"{rank} of {kind}"]["diverged"] for rank in (0, 1)}
        assert len(told) == 1 and "the loss is nan" in told.pop()


@pytest.mark.slow
def test_pairs_that_do_not_fill_the_last_batches_are_trained_on_by_two_processes(
    trained: dict[str, dict[str, Any]],
) -> None:
    for kind in ("2", "2 that share"):
        first, second = (trained[f"{rank} of {kind}"]["results"]["ragged"] for rank in (0, 1))
        assert first[0] == second[0] == 2 and torch.equal(first[2], second[2])
