from pathlib import Path

import pytest
import torch
from torch.nn import functional

from treeagent.agent.value_head import LogprobHead, ValueHead


def test_loss_is_cross_entropy_of_rescaled_soft_targets() -> None:
    head = ValueHead(4, (-1.0, 3.0))
    head.output.bias.data.fill_(0.3)
    p = torch.sigmoid(torch.tensor(0.3))
    y = torch.tensor([0.0, 0.5, 1.0])
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    assert head.loss(torch.randn(3, 4), torch.tensor([-1.0, 1.0, 3.0])).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("target", [1.5, -0.1, float("nan")])
def test_a_target_outside_the_range_is_refused_by_name(target: float) -> None:
    with pytest.raises(ValueError, match=f"value target {target:g} lies outside"):
        ValueHead(4).loss(torch.zeros(2, 4), torch.tensor([0.5, target]))


def test_save_and_load_give_the_same_head(tmp_path: Path) -> None:
    head = ValueHead(8, (-1.0, 3.0))
    torch.nn.init.normal_(head.output.weight)
    head.save(tmp_path)
    loaded = ValueHead.load(tmp_path)
    states = torch.randn(3, 8)
    assert loaded.reward_range == (-1.0, 3.0)
    assert torch.equal(loaded.value(states), head.value(states))
    assert [path.name for path in tmp_path.iterdir()] == ["value_head"]


def test_a_head_on_log_probabilities_chooses_tokens_that_tell_different_things() -> None:
    """Token 2 varies most. Token 0 varies with it, only less. Token 3 varies differently, and token 1 hardly at all."""
    logprobs = torch.tensor([[-1.0, -5.0, -3.0, -2.0], [-2.0, -5.0, -5.0, -3.0], [-3.0, -5.1, -7.0, -2.0]])
    head = LogprobHead(2)
    head.choose(logprobs)
    assert head.token_ids == (2, 3)


def test_standardising_anew_keeps_the_values_of_a_head_that_has_learnt() -> None:
    torch.manual_seed(0)
    head, states = ValueHead(6, (-1.0, 3.0)), 30 * torch.randn(50, 6) + 7
    torch.nn.init.normal_(head.output.weight)
    for spread in (1.0, 100.0):
        before = head.value(states)
        head.standardise(spread * torch.randn(20, 6) - 3)
        assert head.value(states).tolist() == pytest.approx(before.tolist(), abs=1e-4)


def test_a_head_that_reads_the_middle_layer_gives_the_mean_logit_of_two_heads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head, features = ValueHead(4, (-1.0, 3.0), middle=True), 5 * torch.randn(20, 8) + 2
    assert head.middle is not None and not torch.equal(head.hidden.weight, head.middle.hidden.weight)
    head.standardise(features)
    for each in (head.output, head.middle.output):
        torch.nn.init.normal_(each.weight)
    lower, upper = ValueHead(4), ValueHead(4)
    lower.load_state_dict(head.middle.state_dict())
    upper.load_state_dict({name: value for name, value in head.state_dict().items() if "middle" not in name})
    alone = [upper(features[:, 4:]), lower(features[:, :4])]
    assert head(features).tolist() == pytest.approx(((alone[0] + alone[1]) / 2).tolist(), abs=1e-6)
    targets = torch.rand(20)
    upper_loss, lower_loss = (functional.binary_cross_entropy_with_logits(each, targets) for each in alone)
    assert head.cross_entropy(features, targets).item() == pytest.approx((upper_loss + lower_loss).item() / 2)
    head.save(tmp_path)
    assert torch.equal(ValueHead.load(tmp_path)(features), head(features))
