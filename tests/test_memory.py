"""A worker that goes from batch to batch keeps no objects of finished batches."""

import gc
from pathlib import Path

import pytest

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import load_config
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.folder import COLLECTED
from treeagent.search.node import Node
from treeagent.types import Message

SETTINGS = [
    "environment.options={products=200,difficulty=1}",
    "environment.max_steps=3",
    "policy.max_new_tokens=4",
    "search={limits={simulations=4},candidates=2}",
    "evaluate.tasks=2",
]


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.slow
def test_a_finished_batch_is_let_go(tmp_path: Path) -> None:
    shape = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=512)
    tokenizer = train_tokenizer(["search[red shirt]", "click[1]"], shape)
    save_checkpoint(Checkpoint(random_model(tokenizer, shape, 0), tokenizer, ValueHead(16)), tmp_path / "toy")
    config = load_config(None, SETTINGS)
    others = alive(Node)  # left over from other tests
    held: list[tuple[int, int]] = []
    for batch in range(3):  # the first batch loads the policy
        job = SearchJob(config, tmp_path / "toy", COLLECTED, batch, [2 * batch, 2 * batch + 1], tmp_path)
        assert search_batch(job, lambda event: None).budget.environment_steps > 4
        evaluate_batch(
            EvaluationJob(config, tmp_path / "toy", "toy", batch, [2 * batch], None, "mcts"), lambda event: None
        )
        held.append((alive(Node) - others, alive(Message)))
    assert held[0] == held[1] == held[2] and held[0][0] == 0
