"""Updates in two processes that shard the weights (FSDP2) end like those of one process."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import several
import torch
from safetensors.torch import load_file
from tiny import make_model, weights

from treeagent.agent.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """The folders of the updates by one and by two processes."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    return several.updates(one, two, several.by("fsdp.yaml", two), "muon")


@pytest.mark.slow
def test_a_killed_update_resumes_and_saves_the_stock_model_of_one_process(ended: Mapping[int, Path]) -> None:
    several.same_after_a_kill(ended)


@pytest.mark.slow
def test_the_first_process_samples_by_all_shares_and_the_best_weights_are_kept(ended: Mapping[int, Path]) -> None:
    several.same_best(ended)


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
    assert (two - one).norm() < 1e-3 * moved  # the order of summation differs


@pytest.mark.slow
def test_weights_come_back_as_short_as_they_were(ended: Mapping[int, Path]) -> None:
    for count in (1, 2):
        model = load_checkpoint(ended[count] / "bfloat16").model
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
