import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tiny import HIDDEN, VOCABULARY, make_unpackable, token_rows, weights
from transformers import LlamaForCausalLM

from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.learners.config import ValueConfig
from treeagent.learners.value import fit_value
from treeagent.views.tokens import TokenRow


def told_rows(count: int) -> list[TokenRow]:
    """Rows in which the last token tells whether the task succeeds."""
    return [replace(row, token_ids=(*row.token_ids[:-1], 3 + number % 2), value_positions=(len(row.token_ids) - 1,),
                    value_targets=(float(number % 2),)) for number, row in enumerate(token_rows(count))]  # fmt: skip


def test_the_head_fits_separable_targets_and_the_policy_is_unchanged(model: LlamaForCausalLM) -> None:
    head, before = ValueHead(HIDDEN), weights(model)
    epochs: list[float] = []
    result = fit_value(model, head, told_rows(80), ValueConfig(), on_metrics=lambda row: epochs.append(row["epoch"]))
    assert torch.equal(weights(model), before)
    assert result.held_out_loss < 0.3 < result.constant_loss
    assert (result.train_positions, result.held_out_positions) == (64, 16)
    assert epochs == [float(epoch) for epoch in range(1, result.epochs + 1)]


def branching_rows() -> list[TokenRow]:
    """Five rows for each of 8 tasks. They share their first 30 tokens, and end with one to five tokens of their own."""
    drawn = random.Random(0)
    rows = list[TokenRow]()
    for number in range(8):
        prompt = tuple(drawn.randrange(3, VOCABULARY) for _ in range(30))
        for length in (3, 1, 5, 2, 4):
            own = tuple(drawn.randrange(3, VOCABULARY) for _ in range(length))
            ends = (12, 29 + length) if length == 3 else (29 + length,)
            values = tuple(float((length + number + end) % 2) for end in ends)
            rows.append(TokenRow(f"task {number}", prompt + own, (False,) * (30 + length), ends, values))
    return rows


@pytest.mark.parametrize("new", [ValueHead, LogprobHead])
def test_common_prefixes_are_read_once_and_give_the_same_head(
    model: LlamaForCausalLM, new: Callable[[int], ValueHead]
) -> None:
    """The other model has the same weights, but cannot be packed."""
    found = list[tuple[ValueHead, float]]()
    read = list[int]()
    for each in (model, make_unpackable()):
        count = 0

        def add(module: object, states: tuple[torch.Tensor]) -> None:
            nonlocal count
            count += states[0].shape[:2].numel()

        with each.model.layers[0].register_forward_pre_hook(add):
            result = fit_value(each, head := new(HIDDEN), branching_rows(), ValueConfig(epochs=1))
        found.append((head, result.held_out_loss))
        read.append(count)
    (packed, loss), (padded, expected) = found
    assert loss == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(weights(packed), weights(padded), atol=1e-4, rtol=0)
    assert read[0] < 0.5 * read[1]


def test_states_are_read_in_the_number_format_of_training(model: LlamaForCausalLM) -> None:
    losses, seen = list[float](), set[torch.dtype]()
    for precision in ("float32", "bfloat16"):
        with model.model.layers[0].mlp.down_proj.register_forward_hook(lambda _, given, out: seen.add(out.dtype)):
            config = ValueConfig(epochs=5, precision=precision)
            losses.append(fit_value(model, ValueHead(HIDDEN), told_rows(80), config).held_out_loss)
        assert seen == {getattr(torch, precision)}
        seen.clear()
    assert losses[1] == pytest.approx(losses[0], abs=0.01)
