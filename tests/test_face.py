"""What ``import treeagent`` offers: every stage by one call, and nothing heavy before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import CONFIG

import treeagent
from treeagent.pipeline.folder import RunError
from treeagent.pipeline.trees import stored_trees

SMALL = [
    "workers=1", "collect.tasks=4", "search.limits.simulations=8", "update.validation_tasks=2",
    "update.grpo.max_steps=2", "evaluate.tasks=2", 'evaluate.modes=["greedy"]',
]  # fmt: skip


def test_the_import_alone_loads_nothing_heavy() -> None:
    program = "import sys, treeagent; print(sorted({'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_stage_is_one_call_and_goes_on_where_an_earlier_one_ended(finished_run: Path, tmp_path: Path) -> None:
    config, base = treeagent.load_config(CONFIG, SMALL), finished_run / "checkpoints" / "base"
    out = tmp_path / "run"
    with pytest.raises(RunError, match="holds no trees"):
        treeagent.update(config, out, base, "grpo")
    trees = treeagent.collect(config, out, base)
    [shard] = trees.glob("collect-*")
    written = shard.stat().st_mtime_ns
    policy = treeagent.update(config, out, base, "grpo")
    rows = treeagent.evaluate(config, out, policy)
    assert [(row["policy"], row["mode"], row["tasks"]) for row in rows] == [("grpo", "greedy", 2)]
    assert treeagent.collect(config, out, base) == trees and shard.stat().st_mtime_ns == written
    assert treeagent.update(config, out, base, "grpo") == policy and treeagent.evaluate(config, out, policy) == rows


def test_a_quickstart_from_a_checkpoint_compares_trees_with_sampled_episodes(
    finished_run: Path, tmp_path: Path
) -> None:
    config = treeagent.load_config(
        CONFIG,
        [
            *(*SMALL, "update.control=true", 'update.methods=["rft"]', "update.rft.max_steps=2"),
            "warm_start.checkpoint=booking_base",  # the given one comes first, also where the run goes on
        ],
    )
    rows = treeagent.quickstart(config, tmp_path / "run", finished_run / "checkpoints" / "warm")
    assert [row["policy"] for row in rows] == ["base", "rft", "sampled"]
    assert not (tmp_path / "run" / "checkpoints" / "warm").exists()
    sampled = list(stored_trees(tmp_path / "run" / "trees", "samples"))
    assert len(sampled) == 4
    assert all(len(node.edges) <= 1 for tree in sampled for node in tree.nodes() if node is not tree.root)
    assert treeagent.quickstart(config, tmp_path / "run") == rows  # a continued run knows its start
