"""What all trainers share: the best weights, divergence, interruption and resumption, seeds, and the model lent to a
trainer."""

import io
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import HIDDEN, advantage_rows, make_model, pairs, policy_rows, token_rows, weights
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.agent.value_head import ValueHead
from treeagent.learners.common import Batches, Hooks, TrainResult
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_distil, train_sft
from treeagent.store import StoreError
from treeagent.types import UserError

SFT = SFTConfig(max_steps=7, batch_size=4, save_every=2, validate_every=2, log_every=1)


class Interrupted(Exception):
    pass


def interrupt_at(step: int) -> Callable[[int, int], None]:
    def on_progress(done: int, total: int) -> None:
        if done == step:
            raise Interrupted

    return on_progress


def run_sft(model: LlamaForCausalLM, head: ValueHead, tokenizer: PreTrainedTokenizerFast, hooks: Hooks) -> TrainResult:
    return train_sft(model, tokenizer, token_rows(10), SFT, head=head, **hooks)


def run_muon(model: LlamaForCausalLM, head: ValueHead, tokenizer: PreTrainedTokenizerFast, hooks: Hooks) -> TrainResult:
    config = replace(SFT, optimiser="muon", schedule="linear", warmup_steps=2)
    return train_sft(model, tokenizer, token_rows(10), config, head=head, **hooks)


def run_distil(
    model: LlamaForCausalLM, head: ValueHead, tokenizer: PreTrainedTokenizerFast, hooks: Hooks
) -> TrainResult:
    config = DistilConfig(max_steps=7, batch_size=4, save_every=2, learning_rate=1e-2)
    return train_distil(model, tokenizer, policy_rows(10), config, **hooks)


def run_dpo(model: LlamaForCausalLM, head: ValueHead, tokenizer: PreTrainedTokenizerFast, hooks: Hooks) -> TrainResult:
    config = DPOConfig(max_steps=7, batch_size=4, save_every=2, learning_rate=1e-2, schedule="cosine")
    return train_dpo(model, tokenizer, pairs(make_model(), 10), config, **hooks)


def run_grpo(model: LlamaForCausalLM, head: ValueHead, tokenizer: PreTrainedTokenizerFast, hooks: Hooks) -> TrainResult:
    config = GRPOConfig(max_steps=7, batch_size=4, save_every=2, learning_rate=1e-2, warmup_steps=3)
    return train_grpo(model, tokenizer, advantage_rows(make_model(), 10), config, **hooks)


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Context in which the file system refuses to write a file beyond ``size`` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def make_head() -> ValueHead:
    torch.manual_seed(1)
    return ValueHead(HIDDEN)


@pytest.mark.parametrize("run", [run_sft, run_muon, run_distil, run_dpo, run_grpo])
def test_resumed_equals_uninterrupted(
    run: Callable[..., TrainResult], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    whole, whole_head = make_model(), make_head()
    expected = run(whole, whole_head, tokenizer, {"checkpoint_dir": tmp_path / "whole"})
    with pytest.raises(Interrupted):
        run(make_model(), make_head(), tokenizer, {"checkpoint_dir": tmp_path / "cut", "on_progress": interrupt_at(5)})
    resumed, resumed_head, steps = make_model(), make_head(), list[int]()
    hooks: Hooks = {"checkpoint_dir": tmp_path / "cut", "on_progress": lambda done, total: steps.append(done)}
    result = run(resumed, resumed_head, tokenizer, hooks)
    assert steps[0] == 4  # the last checkpoint before it
    assert torch.equal(weights(resumed), weights(whole))
    assert torch.equal(weights(resumed_head), weights(whole_head))
    assert result.steps == expected.steps == 7
    assert {**result.metrics, "step_time": 0.0} == {**expected.metrics, "step_time": 0.0}


def test_a_checkpoint_cut_short_is_not_resumed(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    hooks: Hooks = {"checkpoint_dir": tmp_path, "on_progress": interrupt_at(5)}
    with pytest.raises(Interrupted):
        run_sft(make_model(), make_head(), tokenizer, hooks)
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"half")
    steps: list[int] = []
    run_sft(make_model(), make_head(), tokenizer, {**hooks, "on_progress": lambda done, total: steps.append(done)})
    assert steps[0] == 2


@pytest.mark.parametrize("free", [50_000, 150_000])  # the weights have 99,000 bytes, AdamW's moments twice as many
def test_a_full_disk_is_a_sentence_and_the_training_resumes(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, free: int
) -> None:
    steps: list[int] = []
    hooks: Hooks = {"checkpoint_dir": tmp_path, "on_progress": lambda done, total: steps.append(done)}
    with no_file_above(free), pytest.raises(StoreError, match="--resume"):
        run_sft(make_model(), make_head(), tokenizer, hooks)
    assert steps == [0, 1, 2]
    run_sft(make_model(), make_head(), tokenizer, hooks)
    assert steps == [0, 1, 2, *range(8)]


def test_best_weights_are_kept_and_ties_keep_the_earlier(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    head, seen = make_head(), list[torch.Tensor]()
    scores = iter([0.1, 0.5, 0.5, 0.3, 0.2])

    def validate() -> float:
        assert not model.training
        seen.append(weights(model, head))
        torch.rand(3)  # must not disturb the training
        return next(scores)

    rows: list[dict[str, float]] = []
    hooks: Hooks = {"validate": validate, "on_metrics": lambda row: rows.append(dict(row))}
    result = run_sft(model, head, tokenizer, hooks)
    assert len(seen) == 5  # steps 0, 2, 4, 6 and the last, 7
    assert (result.best_step, result.best_validation) == (2, 0.5)
    # While lent, the head is one of the model's submodules and counts twice.
    assert torch.equal(weights(model, head), seen[1][: weights(model, head).numel()])
    assert [row["validation"] for row in rows if "validation" in row] == [0.1, 0.5, 0.5, 0.3, 0.2]
    assert {"step", "loss", "grad_norm", "learning_rate", "value_loss"} <= set(result.metrics)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_divergence_stops_before_the_step(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, value: float
) -> None:
    """The third batch is bad. The model keeps the weights of the second step."""
    rows, config = advantage_rows(model, 12), GRPOConfig(max_steps=5, batch_size=4)
    good = make_model()
    train_grpo(good, tokenizer, rows, replace(config, max_steps=2))
    order = Batches([len(row.completion_ids) for row in rows], 4, config.seed, groups=[row.task_id for row in rows])
    for number in list(order)[2]:
        rows[number] = replace(rows[number], advantages=(value,) * len(rows[number].mask))
    with pytest.raises(UserError, match="at step 3"):
        train_grpo(model, tokenizer, rows, config)
    assert torch.equal(weights(model), weights(good))


@pytest.mark.parametrize("run", [run_sft, run_dpo])
def test_the_model_comes_back_as_it_was_lent_and_nothing_is_printed(
    run: Callable[..., TrainResult], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model().eval()
    model.config.use_cache = True
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        run(model, make_head(), tokenizer, {"checkpoint_dir": tmp_path})
    assert "forward" not in vars(model)
    assert model.config.use_cache is True
    assert not model.training
    assert output.getvalue() == ""
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-6", "checkpoint-7"}
