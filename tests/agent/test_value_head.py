from pathlib import Path

import pytest
import torch

from treeagent.agent.value_head import ValueHead


def test_starts_in_the_middle_of_the_range() -> None:
    head = ValueHead(8, (-1.0, 3.0))
    states = torch.randn(2, 5, 8)
    assert torch.equal(head(states), torch.zeros(2, 5))
    assert torch.equal(head.value(states), torch.ones(2, 5))


def test_values_stay_in_the_range() -> None:
    head = ValueHead(4, (-0.5, 10.0))
    head.output.bias.data.fill_(50.0)
    assert head.value(torch.zeros(4)).item() == pytest.approx(10.0)
    head.output.bias.data.fill_(-50.0)
    assert head.value(torch.zeros(4)).item() == pytest.approx(-0.5)


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


def test_first_weights_depend_on_the_seed_alone() -> None:
    torch.seed()  # whatever ran before
    one = ValueHead(8, seed=3).state_dict()
    torch.seed()
    two, other = ValueHead(8, seed=3).state_dict(), ValueHead(8, seed=4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["hidden.weight"], other["hidden.weight"])
