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
    return several.updates(one, two, several.by("fsdp.yaml", two))


@pytest.mark.slow
def test_an_adapter_is_saved_alone(ended: Mapping[int, Path]) -> None:
    for count in (1, 2):
        assert not (ended[count] / "lora" / "model.safetensors").exists()
    one, two = (load_file(ended[count] / "lora" / "adapter_model.safetensors") for count in (1, 2))
    assert one.keys() == two.keys() and {tensor.shape for tensor in two.values()} == {t.shape for t in one.values()}
    adapted = load_checkpoint(ended[2] / "lora").model
    assert any(bool(parameter.any()) for name, parameter in adapted.named_parameters() if "lora_B" in name)


@pytest.mark.slow
def test_a_killed_update_resumes_and_saves_the_stock_model_of_one_process(ended: Mapping[int, Path]) -> None:
    steps, loss = several.told(ended[1])["killed"]
    assert several.told(ended[2])["killed"] == (steps, pytest.approx(loss, abs=1e-5)) and steps == 8
    one, two = (load_checkpoint(ended[count] / "sft").model for count in (1, 2))
    assert type(two) is type(one)
    assert torch.allclose(weights(two), weights(one), rtol=0, atol=1e-5)
    assert not torch.allclose(weights(one), weights(make_model()), rtol=0, atol=1e-4)
    files = [sorted(path.name for path in (ended[count] / "sft").iterdir()) for count in (1, 2)]
    assert files[0] == files[1]
    for rank in (0, 1):
        steps, ending = several.told(ended[2], rank)["again"]  # all steps from the checkpoint at its end
        assert steps == 8 and torch.equal(ending, weights(two))


@pytest.mark.slow
def test_the_first_process_samples_by_all_shares_and_the_best_weights_are_kept(ended: Mapping[int, Path]) -> None:
    assert several.told(ended[2])["best"] == several.told(ended[1])["best"]
    assert several.told(ended[2])["best"][:2] == (6, 2)  # two validations after the best, at step 2
    assert several.told(ended[2])["value"] == pytest.approx(several.told(ended[1])["value"], abs=1e-5)
    assert several.told(ended[2], 1)["best"][2] == [] and several.told(ended[2], 1)["value"] is None
    for file in ("model.safetensors", "value_head/model.safetensors"):
        one, two = (load_file(ended[count] / "best" / file) for count in (1, 2))
        assert one.keys() == two.keys()
        assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-5) for name in one)
