"""Updates in several processes, and what becomes of errors."""

from pathlib import Path

import pytest
import yaml
from command import CONFIG, treeagent

from treeagent.config import load_config
from treeagent.contrib.scale.launch import train_together
from treeagent.contrib.scale.settings import Scale
from treeagent.pipeline.folder import Run
from treeagent.pipeline.update import TrainJob
from treeagent.types import NothingToLearn


def accelerate(folder: Path) -> Path:
    """A copy of configs/models/fsdp.yaml for a CPU."""
    asked = yaml.safe_load((CONFIG.parent / "models" / "fsdp.yaml").read_text())
    file = folder / "accelerate.yaml"
    file.write_text(yaml.safe_dump(asked | {"use_cpu": True}))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_two_processes_train_an_adapter_that_merges_to_a_stock_model(
    finished_run: Path, tmp_path: Path, shared: bool
) -> None:
    out = tmp_path / "run"
    base = finished_run / "checkpoints" / "base"
    scale = ["--processes", "2"]
    if shared:
        scale += ["--accelerate-config", str(accelerate(tmp_path))]
    update: list[str | Path] = [
        "update",
        "grpo",
        base,
        "--config",
        CONFIG,
        "--out",
        out,
        "--trees",
        finished_run,
        "policy.lora.rank=4",
    ]
    done = treeagent("scale", *scale, *update)
    assert done.returncode == 0, done.stderr
    facts = Run.open(out).facts("grpo")
    assert facts["update"]["steps"] > 0 and facts["value"]["epochs"] > 0
    rows = [row for row in Run.open(out).metrics() if row["stage"] == "grpo"]
    assert {"loss", "validation"} <= {name for row in rows for name in row}
    assert not list((out / "checkpoints").glob(".*"))
    done = treeagent("export", out / "checkpoints" / "grpo", "--out", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "merged" / "model.safetensors").is_file()


@pytest.mark.slow
def test_what_several_processes_refuse_is_one_sentence(finished_run: Path, tmp_path: Path) -> None:
    nothing = TrainJob(
        load_config(CONFIG), finished_run / "checkpoints" / "base", "grpo", tmp_path / "trees", (), tmp_path / "grpo"
    )
    with pytest.raises(NothingToLearn, match="0 advantage rows"):
        list(train_together(Scale(processes=2), [nothing], nothing.config, lambda event: None))
