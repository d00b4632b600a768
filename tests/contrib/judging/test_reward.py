"""Bradley-Terry reward models: known utilities are recovered, the loss follows the formula, and the audit catches a
model that learnt length."""

import math
import random

import pytest
import torch
from tiny import HIDDEN, make_model, make_tokenizer, tokens, weights

from treeagent.agent.value_head import ValueHead
from treeagent.contrib.judging.audit import ScoredEnd, audit
from treeagent.contrib.judging.comparisons import Comparison
from treeagent.contrib.judging.reward_learner import calibrate, scores, train_reward
from treeagent.learners.config import RewardModelConfig
from treeagent.types import NothingToLearn


def pair(chosen: tuple[int, ...], rejected: tuple[int, ...], margin: float = 0.0) -> Comparison:
    return Comparison("task", chosen, rejected, margin)


def test_known_utilities_are_found_again_and_centred() -> None:
    utilities = [-math.log(3), 0.0, math.log(3)]
    rows = [(3, 10 + number) for number in range(3)]
    pairs = []
    for worse, better, wins, played in [(0, 1, 3, 4), (1, 2, 3, 4), (0, 2, 9, 10)]:  # exactly σ of the differences
        pairs += [pair(rows[better], rows[worse])] * wins + [pair(rows[worse], rows[better])] * (played - wins)
    model, head = make_model(), ValueHead(HIDDEN)
    config = RewardModelConfig(max_steps=100, batch_size=len(pairs), learning_rate=3e-3, centre=1e-4)
    result = train_reward(model, make_tokenizer(), head, pairs, config)
    found = scores(model, head, rows)
    assert found == pytest.approx(utilities, abs=0.03)  # without a constant offset, too
    assert result.metrics["accuracy"] < 1.0  # the pairs contradict each other


def test_the_loss_is_that_of_the_formula() -> None:
    torch.manual_seed(1)
    model, head, shuffler = make_model(), ValueHead(HIDDEN, (-1.0, 1.0)), random.Random(0)
    torch.nn.init.normal_(head.output.weight)
    pairs = [pair(tokens(shuffler, 5), tokens(shuffler, length), 0.2 * length) for length in (3, 5, 9)]
    chosen = scores(model, head, [each.chosen_ids for each in pairs])
    rejected = scores(model, head, [each.rejected_ids for each in pairs], batch_size=1)  # padding changes nothing
    expected = 0.0
    for each, more, less in zip(pairs, chosen, rejected, strict=True):
        gap = more - less - each.margin / 2  # the range is 2 wide
        expected += (math.log1p(math.exp(-gap)) + 0.1 * (more + less) ** 2) / len(pairs)
    before, padding = weights(model, head), model.config.pad_token_id
    config = RewardModelConfig(max_steps=1, batch_size=3, learning_rate=1e-3, centre=0.1, log_every=1)
    result = train_reward(model, make_tokenizer(), head, pairs, config)
    assert result.metrics["loss"] == pytest.approx(expected, rel=1e-4)
    assert not torch.equal(before, weights(model, head))
    assert model.config.num_labels == 2 and model.config.pad_token_id == padding and not hasattr(model, "value_head")


def test_the_head_reads_standardised_features() -> None:
    """A few features of a pretrained model are far larger than the others, which they would hide."""
    model, head = make_model(), ValueHead(HIDDEN)
    rows = torch.tensor([(3, 10 + number) for number in range(8)])
    with torch.no_grad():
        model.model.norm.weight[0] = 1e3
        states = model(rows, output_hidden_states=True).hidden_states[-1][:, -1]
    pairs = [pair(tuple(better), tuple(worse)) for better, worse in rows.view(4, 2, 2).tolist()]
    train_reward(model, make_tokenizer(), head, pairs, RewardModelConfig(max_steps=1, batch_size=4))
    assert torch.allclose(head.mean, states.mean(0), rtol=1e-4, atol=1e-4)
    assert torch.allclose(head.deviation, states.std(0, correction=0).clamp(min=head.deviation.min()), rtol=1e-3)
    assert head.deviation.max() > 100 * head.deviation.median()


def test_nothing_to_compare_is_told() -> None:
    with pytest.raises(NothingToLearn, match="min_margin"):
        train_reward(make_model(), make_tokenizer(), ValueHead(HIDDEN), [], RewardModelConfig())


@pytest.mark.parametrize("middle", [False, True])
def test_calibration_keeps_the_order_and_finds_the_chances(middle: bool) -> None:
    head = ValueHead(HIDDEN, middle=middle)
    for each in filter(None, (head, head.middle)):
        torch.nn.init.normal_(each.output.weight)
    hidden = torch.randn(6, (1 + middle) * HIDDEN, generator=torch.Generator().manual_seed(0))
    before = head(hidden).tolist()
    found = [-3.0] * 100 + [5.0] * 100  # a quarter of the lower half and three quarters of the higher half succeed
    returns = [1.0] * 25 + [0.0] * 75 + [1.0] * 75 + [0.0] * 25
    told = calibrate(head, found, returns)
    chances = [1 / (1 + math.exp(-(told.slope * score + told.shift))) for score in (-3.0, 5.0)]
    assert chances == pytest.approx([0.25, 0.75], abs=0.005)
    assert head(hidden).tolist() == pytest.approx([told.slope * score + told.shift for score in before], abs=1e-5)
    assert calibrate(ValueHead(HIDDEN), [0.1, 0.2], [1.0, 0.0]).slope > 0  # the order stays, even if it is wrong


def test_a_model_that_was_trained_on_length_gets_no_weight() -> None:
    """In the training pairs longer ends are better. In held-out tasks the longest end is padding that is not paid."""

    def counting(first: int, length: int) -> tuple[int, ...]:
        return (first, *range(10, 10 + length))

    model, head = make_model(), ValueHead(HIDDEN)
    longer = [
        pair(counting(number, length + 4), counting(number, length)) for length in (3, 7, 11) for number in (3, 4)
    ]
    config = RewardModelConfig(max_steps=60, batch_size=6, learning_rate=3e-3)
    train_reward(model, make_tokenizer(), head, longer, config)
    rows = [(f"task-{number}", counting(5 + number, turns)) for number in range(5) for turns in (4, 8, 12, 15)]
    found = scores(model, head, [row for _, row in rows])
    told = audit(
        [
            ScoredEnd(task, 1 / (1 + math.exp(-score)), float(len(row) in (9, 13)), len(row) in (9, 13), len(row))
            for (task, row), score in zip(rows, found, strict=True)
        ]
    )
    assert told.length_correlation is not None and told.length_correlation > 0.7
    assert told.longer_worse_accuracy is not None and told.longer_worse_accuracy < 0.3
    assert told.best_of[-1].paid < told.best_of[0].paid and told.cap == 0.0
