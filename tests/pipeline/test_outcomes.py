"""An interrupted evaluation resumes after its finished batches, and ends like one that was never interrupted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import RunConfig, load_config
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import Advance
from treeagent.store import digest, read_as, shard_names

SETTINGS = [
    "environment.options={products=200,difficulty=1}",
    "environment.max_steps=2",
    "policy.max_new_tokens=4",
    "search={limits={simulations=2},candidates=2}",
    "collect.batch=2",
    "evaluate.tasks=7",
    'evaluate.modes=["greedy","mcts"]',
    "workers=1",
]
WAVES = 4
"""Batches per row. The last batch has one task."""


@dataclass
class Watcher:
    """Counts the batches that are played, and interrupts the run after ``stop_after`` of them."""

    stop_after: int = 1 << 30
    played: list[str] = field(default_factory=list[str])
    done: int = 0
    total: int = 0

    def warn(self, sentence: str) -> None:
        """Nothing: an evaluation tells its first episode."""

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        self.total = total

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            self.done += count
            if fields and count:  # else a beat of the running job
                self.played.append(fields[""])
                if len(self.played) == self.stop_after:
                    raise KeyboardInterrupt

        yield advance


def checkpoint(folder: Path, context: int) -> Path:
    shape = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=context)
    tokenizer = train_tokenizer(["search[red shirt]", "click[1]"], shape)
    save_checkpoint(Checkpoint(random_model(tokenizer, shape, 0), tokenizer, ValueHead(shape.width)), folder)
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoints") / "toy", 512)


@pytest.fixture(scope="module")
def whole(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    measured(folder, toy, Watcher(), load_config(None, SETTINGS))
    return folder


def measured(folder: Path, checkpoint: Path, watcher: Watcher, config: RunConfig) -> None:
    with Run.create(folder, config, resume=True) as run:
        evaluate(config, run, watcher, [(checkpoint, mode) for mode in config.evaluate.modes])


def interrupted(folder: Path, checkpoint: Path, after: int) -> None:
    watcher = Watcher(after)
    with pytest.raises(KeyboardInterrupt):
        measured(folder, checkpoint, watcher, load_config(None, SETTINGS))
    assert len(watcher.played) == after


def ended(folder: Path) -> tuple[list[dict[str, Any]], str, list[str]]:
    """The rows, a hash over all trees, and a hash over the episodes of each row."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in Run.open(folder).result_rows()]
    played = [digest(read_as(dict, folder / "episodes", name)) for name in shard_names(folder / "episodes")]
    return rows, digest(read_as(dict, folder / "trees")), played


@pytest.mark.parametrize("after", [(2, 1, 3), (4,), (8,)])
def test_an_interrupted_evaluation_plays_no_batch_twice(
    toy: Path, whole: Path, tmp_path: Path, after: tuple[int, ...]
) -> None:
    """Greedy play has four batches, then a search has four. Some interruptions come with the last batch of a row, or of
    all."""
    for count in after:
        interrupted(tmp_path / "run", toy, count)
    watcher = Watcher()
    measured(tmp_path / "run", toy, watcher, load_config(None, SETTINGS))
    assert len(watcher.played) == 2 * WAVES - sum(after)
    assert watcher.done == watcher.total
    assert ended(tmp_path / "run") == ended(whole)
    assert not (tmp_path / "run" / "outcomes").exists()


@pytest.mark.parametrize(("environment", "betrays"), [("shop", False), ("treeagent.envs.example:Example", True)])
def test_a_search_whose_success_an_end_betrays_says_so(
    toy: Path, tmp_path: Path, environment: str, betrays: bool
) -> None:
    options = [] if environment == "shop" else ["environment.options={}"]
    config = load_config(None, [*SETTINGS, f"environment.name={environment}", *options, "evaluate.tasks=1"])
    measured(tmp_path / "run", toy, Watcher(), config)
    rows = {row["mode"]: row for row in Run.open(tmp_path / "run").result_rows()}
    assert rows["mcts"].get("pass_at_n", False) is betrays
    assert "pass_at_n" not in rows["greedy"]
    assert (rows["mcts"]["found"], "found" in rows["greedy"]) == (0.0, False)
