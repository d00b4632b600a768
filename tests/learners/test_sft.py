from dataclasses import replace
from pathlib import Path

import pytest
import torch
from head_gradients import head_gradients
from tiny import HIDDEN, logprobs, token_rows, weights
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.agent.value_head import ValueHead
from treeagent.contrib.early_experience.rows import world_rows
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task
from treeagent.views.tokens import TokenRow

ONE_STEP = SFTConfig(max_steps=1, batch_size=8, log_every=1)


def test_loss_is_the_mean_over_masked_tokens_only(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = token_rows(8)
    kept = [logprobs(model, row.token_ids)[torch.tensor(row.mask[1:])] for row in rows]
    result = train_sft(model, tokenizer, rows, ONE_STEP)
    assert result.metrics["loss"] == pytest.approx(-torch.cat(kept).mean().item(), rel=1e-5)


def test_gradient_of_unmasked_labels_is_zero(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Tokens after the last trained one are only labels, and have no loss: changing them must change nothing, bit for
    bit."""
    rows = [replace(row, mask=(*row.mask[:-3], False, False, False)) for row in token_rows(8)]
    others = [replace(row, token_ids=(*row.token_ids[:-3], 3, 3, 3)) for row in rows]
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_sft(model, tokenizer, rows, ONE_STEP)
    first = weights(model)
    model.load_state_dict(start)
    train_sft(model, tokenizer, others, ONE_STEP)
    assert torch.equal(first, weights(model))


def test_no_loss_reaches_an_observation_between_two_actions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = token_rows(8)
    with head_gradients(model) as gradients:
        train_sft(model, tokenizer, rows, ONE_STEP)
    assert len(gradients) == 8
    for row in rows:
        for gradient, trained in zip(gradients[row.token_ids], (*row.mask[1:], False), strict=True):
            assert bool(gradient.any()) == trained


def test_rows_of_the_world_train_on_its_answers_alone(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """There is loss on the answers 7, 8 and 10 after the actions 5, 6 and 9, and none on the opening 3, 4 and the
    actions."""
    task = Task("world", "go")

    def after(*ids: int, edges: tuple[Edge, ...] = ()) -> Node:
        return Node(State(task, (Message("user", "seen"),)), context_ids=ids, edges=list(edges))

    last = Edge(Action("b", "b", token_ids=(9,)), 1.0, child=after(10))
    first = Edge(Action("a", "a", token_ids=(5, 6)), 1.0, child=after(7, 8, edges=(last,)))
    rows = list(world_rows(Tree(task, 0, after(3, 4, edges=(first,)))))
    with head_gradients(model) as gradients:
        train_sft(model, tokenizer, rows, ONE_STEP)
    reached = [bool(gradient.any()) for gradient in gradients[3, 4, 5, 6, 7, 8, 9, 10]]
    assert reached == [False, False, False, True, True, False, True, False]  # by the loss of the next token


def test_accumulated_batches_make_the_same_step(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = token_rows(8)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = train_sft(model, tokenizer, rows, ONE_STEP)
    model.load_state_dict(start)
    halves = train_sft(model, tokenizer, rows, replace(ONE_STEP, batch_size=4, accumulation=2))
    assert halves.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-5)
    assert halves.metrics["grad_norm"] == pytest.approx(whole.metrics["grad_norm"], rel=1e-4)


def test_value_loss_trains_head_and_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [replace(row, mask=(False,) * len(row.mask)) for row in token_rows(8)]
    head = ValueHead(HIDDEN)
    before = weights(model)
    seen: list[float] = []
    train_sft(
        model,
        tokenizer,
        rows,
        replace(ONE_STEP, max_steps=40, learning_rate=5e-3),
        head=head,
        on_metrics=lambda row: seen.append(row["value_loss"]),
    )
    assert seen[0] == pytest.approx(0.6931, abs=1e-3)  # V starts at 1/2
    assert seen[-1] < 0.1
    assert not torch.equal(weights(model), before)
    assert not hasattr(model, "value_head")


def test_imitation_without_head_ignores_value_positions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    result = train_sft(model, tokenizer, token_rows(8), ONE_STEP)
    assert "value_loss" not in result.metrics


def test_learns_and_saves_a_checkpoint(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    head = ValueHead(HIDDEN)
    result = train_sft(
        model,
        tokenizer,
        token_rows(16),
        SFTConfig(epochs=20, batch_size=8, learning_rate=1e-2),
        head=head,
        checkpoint_dir=tmp_path,
    )
    assert result.steps == 40
    assert result.metrics["loss"] < 1.0
    saved = tmp_path / "checkpoint-40"
    loaded = AutoModelForCausalLM.from_pretrained(saved)
    assert torch.equal(weights(loaded), weights(model))
    assert torch.equal(weights(ValueHead.load(saved)), weights(head))


def test_rows_with_nothing_to_learn_are_left_out(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [*token_rows(3), TokenRow("t", (3, 4, 5), (False, False, False))]
    assert train_sft(model, tokenizer, rows, SFTConfig(batch_size=1)).steps == 3


def test_nothing_to_learn_is_refused(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="none of 0 rows has a token"):
        train_sft(model, tokenizer, [], ONE_STEP)
    with pytest.raises(ValueError, match="none of 1 rows has a token"):
        train_sft(model, tokenizer, [TokenRow("t", (3, 4), (True, False), (1,), (1.0,))], ONE_STEP)


def test_a_value_target_outside_the_range_is_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [replace(row, value_targets=(2.0, 2.0)) for row in token_rows(4)]
    with pytest.raises(ValueError, match="value target 2 lies outside"):
        train_sft(model, tokenizer, rows, ONE_STEP, head=ValueHead(HIDDEN))


@pytest.mark.parametrize(("batch", "accumulation"), [(2, 2), (1, 4)])
def test_accumulated_batches_weigh_the_value_loss_as_one_batch(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch: int, accumulation: int
) -> None:
    """Only one of four rows has value positions."""
    first, *others = token_rows(4)
    rows = [first, *(replace(row, value_positions=(), value_targets=()) for row in others)]
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    norms = []
    for size, count in ((4, 1), (batch, accumulation)):
        model.load_state_dict(start)
        torch.manual_seed(0)
        config = replace(ONE_STEP, batch_size=size, accumulation=count)
        result = train_sft(model, tokenizer, rows, config, head=ValueHead(HIDDEN))
        norms.append([result.metrics[name] for name in ("loss", "grad_norm")])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
