"""The example environment of a user does what it says, and an agent can be trained in it."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treeagent.cli.envs import find
from treeagent.envs import example
from treeagent.pipeline.progress import QuietProgress

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = [
    "workers=1", "warm_start.episodes=120", "warm_start.training.max_steps=20", "warm_start.training.batch_size=8",
    "warm_start.training.learning_rate=6e-3", "search.limits.simulations=12",
    "collect.tasks=4", "update.methods=[\"grpo\"]", "update.validation_tasks=2", "update.grpo.max_steps=1",
    "update.imitation.min_return=0.0", "evaluate.tasks=2", "evaluate.modes=[\"greedy\"]", "policy.max_new_tokens=16",
]  # fmt: skip


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(EXAMPLES)
    yield EXAMPLES
    sys.modules.pop("own_environment", None)


def test_it_holds_the_environment_that_envs_new_writes(folder: Path) -> None:
    written = inspect.getsource(example).replace("Example", "OwnEnvironment").replace("example-", "own_environment-")
    shown = (folder / "own_environment.py").read_text()
    assert written[written.index("NUMBER =") :] in shown


def test_it_keeps_the_contract_in_every_format(folder: Path) -> None:
    from own_environment import OwnEnvironment

    found = find("own_environment", OwnEnvironment(), OwnEnvironment(), 3)
    assert found.violations == found.skipped == ()
    assert found.equal_branches == found.branches > 20


def test_an_agent_is_trained_in_it(folder: Path, tmp_path: Path) -> None:
    from own_environment import main

    rows = main(tmp_path / "run", TINY, QuietProgress())
    assert [row["mode"] for row in rows] == ["greedy", "greedy"]
    assert all(row["tasks"] == 2 and not row["errors"] for row in rows)
