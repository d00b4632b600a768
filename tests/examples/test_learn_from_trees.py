import random
import runpy
from pathlib import Path

import pytest
import torch
from hand_trees import hand_tree, random_tree
from safetensors.torch import load_file

from treeagent.config import RunConfig
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.search.node import Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard

# TRL uses names that transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning")
EXAMPLE = Path(__file__).parents[2] / "examples" / "learn_from_trees.py"


def store(trees: list[Tree], folder: Path, name: str = COLLECTED) -> None:
    with Run.create(folder, RunConfig(), resume=True) as run:
        write_shard(run.trees, name, 0, map(to_record, trees))


def test_two_steps_of_dpo_on_stored_trees_change_a_model_and_save_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = [hand_tree(), *(random_tree(random.Random(seed)) for seed in range(5))]
    store(trees, tmp_path / "run")
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    begun, _ = example["tiny_model"](64)
    begun.save_pretrained(tmp_path / "begun")
    example["tiny_model"](64)[1].save_pretrained(tmp_path / "begun")
    example["main"](str(tmp_path / "run"), str(tmp_path / "out"), str(tmp_path / "begun"), max_steps=2)
    assert capsys.readouterr().out.startswith("6 trees give ")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("begun", "out"))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert all(weight.isfinite().all() for weight in after.values())
