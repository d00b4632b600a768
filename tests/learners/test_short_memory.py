"""Updates with a real memory limit: the model raises torch.OutOfMemoryError for batches beyond it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import torch
from tiny import HIDDEN, advantage_rows, make_model, pairs, policy_rows, token_rows, weights
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.agent.value_head import ValueHead
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, SFTConfig
from treeagent.learners.distil import train_distil
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.memory import part_bounds, return_memory
from treeagent.learners.sft import train_sft
from treeagent.learners.watch import TrainResult
from treeagent.types import UserError


@contextmanager
def memory_for(model: LlamaForCausalLM, tokens: float, *, backward: bool = False) -> Iterator[list[int]]:
    """Within the block, a pass over more than ``tokens`` tokens, including padding, runs out of memory: at its
    beginning, or with ``backward`` when the gradient has passed all layers. Yields the tokens of each pass."""
    passes = list[int]()

    def check(count: int) -> None:
        passes.append(count)
        if count > tokens:
            raise torch.OutOfMemoryError(f"Tried to allocate room for {count} tokens.\nThere is more to be said.")

    def begins(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not backward:
            check(arguments[0].numel())

    def ends(module: nn.Module, arguments: object, output: Tensor) -> None:
        if backward and output.requires_grad:
            output.register_hook(lambda gradient: check(gradient[..., 0].numel()))  # type: ignore[no-untyped-call]

    hooks = [model.model.embed_tokens.register_forward_pre_hook(begins)]
    hooks.append(model.model.embed_tokens.register_forward_hook(ends))
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


Trained = tuple[TrainResult, list[Mapping[str, float]], Tensor]


def train(kind: str, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, accumulation: int = 1) -> Trained:
    """Train two steps. Returns the result, the rows of metrics and the weights."""
    rows: list[Mapping[str, float]] = []
    some: dict[str, Any] = {"max_steps": 2, "log_every": 1, "accumulation": accumulation, "learning_rate": 1e-2}
    hooks: Any = {"on_metrics": rows.append}
    torch.manual_seed(1)
    head = ValueHead(HIDDEN)
    name, _, loss = kind.partition(" ")
    if name == "sft":
        result = train_sft(model, tokenizer, token_rows(32), SFTConfig(batch_size=7, **some), head=head, **hooks)
    elif name == "dpo":
        given = pairs(make_model(3), 28)
        result = train_dpo(model, tokenizer, given, DPOConfig(batch_size=7, **some), **hooks)
    elif name == "distil":
        result = train_distil(model, tokenizer, policy_rows(28), DistilConfig(batch_size=7, **some), **hooks)
    else:
        grpo = GRPOConfig(batch_size=7, loss_type=loss, packed=name == "packed", anchor=0.5, beta=0.1, **some)  # type: ignore[arg-type]
        result = train_grpo(model, tokenizer, advantage_rows(make_model(3), 28), grpo, **hooks)
    return result, rows, weights(model, head)


KINDS = ["sft", "dpo", "distil", "packed dapo", "rows dapo", "rows bnpo", "rows grpo", "rows dr_grpo", "rows luspo"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_parts_is_the_step_of_the_whole_batch(kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    plain = make_model()
    with memory_for(plain, float("inf")) as passes:
        result, metrics, expected = train(kind, plain, tokenizer)
    assert result.parts == 1
    short = make_model()
    with memory_for(short, 0.6 * max(passes)):
        result, told, found = train(kind, short, tokenizer)
    assert result.parts > 1
    steps = [row for row in told if "loss" in row]
    assert [row["parts"] for row in told if "parts" in row][-1] == result.parts
    for before, after in zip(metrics, steps, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-4, abs=1e-6)
        assert after["grad_norm"] == pytest.approx(before["grad_norm"], rel=1e-4)
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["sft", "packed dapo"])
def test_a_backward_pass_that_fails_half_way_leaves_no_gradient(kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """The second of two accumulated batches fails, too."""
    plain = make_model()
    with memory_for(plain, float("inf"), backward=True) as passes:
        _, metrics, expected = train(kind, plain, tokenizer, accumulation=2)
    short = make_model()
    with memory_for(short, max(passes) - 1, backward=True):
        result, told, found = train(kind, short, tokenizer, accumulation=2)
    assert result.parts == 2
    norms = [row["grad_norm"] for row in told if "loss" in row]
    assert norms == pytest.approx([row["grad_norm"] for row in metrics], rel=1e-4)
    assert torch.allclose(found, expected, atol=1e-4)


def recomputes(model: nn.Module) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@pytest.mark.parametrize("kind", ["sft", "packed dapo"])
def test_activations_are_recomputed_if_single_rows_do_not_fit(kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    plain = make_model()
    _, metrics, expected = train(kind, plain, tokenizer)
    short = make_model()

    def check(module: nn.Module, arguments: object) -> None:
        if not recomputes(short):
            raise torch.OutOfMemoryError("Tried to allocate room for activations.")

    with short.model.embed_tokens.register_forward_pre_hook(check):
        result, told, found = train(kind, short, tokenizer)
    assert result.recomputes and result.parts == 8
    assert [row["recomputes"] for row in told if "recomputes" in row] == [1.0]
    losses = [row["loss"] for row in told if "loss" in row]
    assert losses == pytest.approx([row["loss"] for row in metrics if "loss" in row], rel=1e-4, abs=1e-6)
    assert torch.allclose(found, expected, atol=1e-4)
    assert not recomputes(short)


def test_a_loss_that_needs_the_whole_batch_recomputes_at_once(tokenizer: PreTrainedTokenizerFast) -> None:
    config = DPOConfig(batch_size=4, max_steps=1, loss_type=("aot",), loss_weights=(1.0,))
    given, trained = pairs(make_model(3), 8), list[Tensor]()
    for short in (False, True):
        model = make_model()

        def check(module: nn.Module, arguments: object, model: LlamaForCausalLM = model, short: bool = short) -> None:
            if short and not recomputes(model):
                raise torch.OutOfMemoryError("Tried to allocate room for activations.")

        with model.model.embed_tokens.register_forward_pre_hook(check):
            result = train_dpo(model, tokenizer, given, config)
        assert (result.parts, result.recomputes) == (1, short)
        trained.append(weights(model))
    whole, found = trained
    assert torch.allclose(found, whole, atol=1e-5)


def test_single_rows_that_do_not_fit_are_one_sentence(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    with memory_for(model, 3), pytest.raises(UserError, match=r"step 1 .*Tried to allocate.*gradient_checkpointing"):
        train("sft", model, tokenizer)


def test_parts_cover_all_rows_once() -> None:
    assert part_bounds(7, 2) == [(0, 3), (3, 7)]
    assert part_bounds(2, 4) == [(0, 1), (1, 2)]


def test_free_memory_is_returned_to_the_system() -> None:
    """Blocks of 100 kB are below the size that glibc takes from the system one by one."""
    blocks = [bytearray(100_000) for _ in range(3_000)]
    last = blocks.pop()
    del blocks
    held = psutil.Process().memory_info().rss
    return_memory()
    assert held - psutil.Process().memory_info().rss > 200e6 and last
