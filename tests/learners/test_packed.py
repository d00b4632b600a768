"""Rows of a tree in one forward and backward pass: only the time may differ."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import (
    HIDDEN,
    VOCABULARY,
    logprobs,
    make_model,
    make_unpackable,
    pairs,
    tokens,
    weights,
)
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from treeagent.agent.value_head import ValueHead
from treeagent.learners.common import TrainResult, padded
from treeagent.learners.config import DPOConfig, GRPOConfig, PolicyLoss, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.packed import Packed, pack, pack_mask, pack_prefixes, states_at, why_unpackable
from treeagent.learners.sft import train_sft
from treeagent.views.advantages import AdvantageRow
from treeagent.views.tokens import TokenRow

LOSSES: tuple[PolicyLoss, ...] = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo")


def gpt2(positions: int = 64) -> PreTrainedModel:
    """A GPT-2 with learned absolute positions, without dropout, and without operations that fall back to float32."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=positions,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=None,
            eos_token_id=1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def forest() -> list[tuple[int, ...]]:
    """Rows that diverge in the middle of a step, a row that is the beginning of another, a row that occurs twice, and a
    second tree."""
    shuffler = random.Random(0)
    prompt, step, other = tokens(shuffler, 9), tokens(shuffler, 4), tokens(shuffler, 5)
    return [
        (*prompt, *step, *tokens(shuffler, 3)),
        (*other, *tokens(shuffler, 3)),
        (*prompt, *step, *tokens(shuffler, 6)),
        (*prompt, *step),
        (*prompt, *step[:2], *tokens(shuffler, 4)),
        (*prompt, *step),
        (*other, *tokens(shuffler, 2)),
        other[:1],
    ]


def separate_scores(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """log π of every token of every row except the first, with one forward pass per row."""
    scores = []
    for row in rows:
        ids = torch.tensor([list(row)])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        scores.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0])
    return torch.cat(scores)


def packed_scores(model: PreTrainedModel, rows: Sequence[Sequence[int]], packed: Packed) -> Tensor:
    lengths = torch.tensor([len(row) - 1 for row in rows])
    labels = torch.tensor([token for row in rows for token in row[1:]])
    states = packed.flat_indices[torch.arange(packed.flat_indices.shape[1]) < lengths[:, None]]
    with states_at(model, states):
        logits = model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attention_mask=pack_mask(model, packed.ends),
            use_cache=False,
        ).logits[0]
    scores: Tensor = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
    return scores


def gradient(model: PreTrainedModel, scores: Tensor) -> Tensor:
    """The gradient of a random weighting of the scores, with all parameters in one vector."""
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(scores.dtype)
    gradients = torch.autograd.grad((scores * weights).sum(), list(model.parameters()))
    return torch.cat([each.flatten() for each in gradients])


@pytest.mark.parametrize("most_tokens", [1, 30])
@pytest.mark.parametrize(
    ("make", "dtype", "tolerance"),
    [
        (gpt2, torch.float64, 1e-10),
        (make_model, torch.float32, 1e-6),
    ],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gradients_are_those_of_separate_rows(
    make: Callable[[], PreTrainedModel], dtype: torch.dtype, tolerance: float, attention: str, most_tokens: int
) -> None:
    torch.manual_seed(0)
    model, rows = make(), forest()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.set_attn_implementation(attention)
    assert not why_unpackable(model)
    packed = pack(rows, 32, most_tokens)
    separate, together = separate_scores(model, rows), packed_scores(model, rows, packed)
    assert torch.allclose(together, separate, rtol=0, atol=max(tolerance, 1e-10) * 10)
    expected, found = gradient(model, separate), gradient(model, together)
    assert (found - expected).norm() <= tolerance * expected.norm()


def seen(packed: Packed) -> Tensor:
    """Whether each token of each pack attends to another, (packs, width, width)."""
    indices = torch.arange(packed.ends.shape[1])
    return (indices <= indices[:, None]) & (indices[:, None] < packed.ends[:, None])


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_a_token_sees_its_own_row_up_to_itself_and_nothing_else(rows: list[list[int]], most_tokens: int) -> None:
    packed = pack(rows, 32, most_tokens)
    count, width = packed.input_ids.shape
    assert width <= max(most_tokens, max(map(len, rows)))
    ids, positions, all_seen = packed.input_ids.flatten(), packed.position_ids.flatten(), seen(packed)
    for row, places in zip(rows, packed.flat_indices.tolist(), strict=True):
        path = places[: len(row)]
        assert ids[path].tolist() == row
        assert positions[path].tolist() == list(range(len(row)))
        for depth, place in enumerate(path):
            number, column = divmod(place, width)
            found = all_seen[number, column].nonzero().flatten() + number * width
            assert sorted(path[: depth + 1]) == found.tolist()
    assert count * width <= len(rows) * max(max(map(len, rows)), most_tokens)


def test_rows_that_share_nothing_run_without_a_mask() -> None:
    model, shuffler, masks = make_model(), random.Random(0), list[Tensor | None]()
    rows = [tokens(shuffler, 9), tokens(shuffler, 8)]
    model.model.layers[0].register_forward_pre_hook(
        lambda layer, args, named: masks.append(named["attention_mask"]), with_kwargs=True
    )
    with pack_prefixes(model):
        together = model(**padded(rows), use_cache=False).logits
    assert masks == [None]
    for row, logits in zip(rows, together, strict=True):
        expected = model(input_ids=torch.tensor([row]), use_cache=False).logits[0]
        torch.testing.assert_close(logits[: len(row)], expected)


def tree_rows(model: nn.Module) -> list[AdvantageRow]:
    """Three trees of four rows each: a shared step that only the first row trains, an observation, and an own step per
    row."""
    shuffler, rows = random.Random(3), []
    for number in range(3):
        prompt, shared, seen = tokens(shuffler, 5 + number), tokens(shuffler, 3), tokens(shuffler, 2)
        for branch in range(4):
            own = tokens(shuffler, 2 + branch)
            completion = (*shared, *seen, *own)
            mask = (branch == 0,) * 3 + (False,) * 2 + (True,) * len(own)
            behaviour = logprobs(model, (*prompt, *completion))[len(prompt) - 1 :].tolist()
            rows.append(
                AdvantageRow(
                    f"task-{number}",
                    prompt,
                    completion,
                    mask,
                    tuple(shuffler.gauss(0, 1) if kept else 0.0 for kept in mask),
                    tuple(
                        b + 0.3 * shuffler.gauss(0, 1) if kept else 0.0 for b, kept in zip(behaviour, mask, strict=True)
                    ),
                )
            )
    return rows


def _keep_gradient(seen: dict[str, Tensor], name: str, parameter: Tensor) -> None:
    """Keep the sum of the gradients of the micro-batches so far."""
    assert parameter.grad is not None
    seen[name] = parameter.grad.clone()


def trained(
    tokenizer: PreTrainedTokenizerFast,
    config: GRPOConfig,
    rows: Sequence[AdvantageRow] | None = None,
    temperature: float = 1.0,
    packed: bool = True,
) -> tuple[float, Tensor]:
    """The loss of one step and its gradient."""
    model = make_model() if packed else make_unpackable()
    seen: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        keep = partial(_keep_gradient, seen, name)
        parameter.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]  # torch leaves it
    config = replace(config, max_steps=1, log_every=1)
    result = train_grpo(model, tokenizer, rows or tree_rows(model), config, temperature=temperature)
    return result.metrics["loss"], torch.cat([each.flatten() for each in seen.values()])


@pytest.mark.parametrize("loss_type", LOSSES)
def test_every_loss_is_the_same_packed_and_not(tokenizer: PreTrainedTokenizerFast, loss_type: PolicyLoss) -> None:
    config = GRPOConfig(batch_size=12, loss_type=loss_type, beta=0.1, anchor=0.1)
    loss, expected = trained(tokenizer, config, temperature=0.7, packed=False)
    packed_loss, found = trained(tokenizer, config, temperature=0.7)
    assert packed_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert (found - expected).norm() <= 2e-6 * expected.norm()


def state_rows(count: int) -> list[TokenRow]:
    """Rows of a shared beginning, with a value target at their last token and at that of the beginning."""
    shuffler = random.Random(5)
    prompt, rows = tokens(shuffler, 12), []
    for number in range(count):
        own = tokens(shuffler, 2 + number % 3)
        mask, ends = (*[False] * 12, *[True] * len(own)), (11, 11 + len(own))
        rows.append(TokenRow("task", (*prompt, *own), mask, ends, (float(number % 2), 1.0)))
    return rows


def trained_by(learner: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> tuple[TrainResult, Tensor]:
    """The result of a step on rows with common prefixes, and the trained weights."""
    head = ValueHead(HIDDEN, seed=1)
    if learner == "sft":
        result = train_sft(model, tokenizer, state_rows(8), SFTConfig(batch_size=8, max_steps=1), head=head)
    else:
        config = DPOConfig(batch_size=8, max_steps=1)
        result = train_dpo(model, tokenizer, pairs(make_model(), 8), config)
    return result, torch.cat([weights(model), weights(head)])


@pytest.mark.parametrize("learner", ["sft", "dpo"])
def test_a_model_that_can_be_packed_learns_the_same_as_one_that_cannot(
    tokenizer: PreTrainedTokenizerFast, learner: str
) -> None:
    model, forwarded = make_model(), list[tuple[int, int]]()
    model.model.layers[0].register_forward_pre_hook(lambda layer, states: forwarded.append(states[0].shape[:2]))
    packed, found = trained_by(learner, model, tokenizer)
    by_rows, expected = trained_by(learner, make_unpackable(), tokenizer)
    assert packed.metrics == pytest.approx(by_rows.metrics, rel=1e-4, abs=1e-5)
    start = torch.cat([weights(make_model()), weights(ValueHead(HIDDEN, seed=1))])
    assert (found - expected).norm() <= 1e-5 * (expected - start).norm()
    [(count, width)] = forwarded
    assert count * width < 0.8 * (8 * 16 if learner == "sft" else 16 * 17)
