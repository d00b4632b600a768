"""``treeagent rescore`` makes a view beside the run, leaves the run unchanged, resumes after a kill, and can be learned
from."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_trees import hand_tree
from pydantic import ValidationError

from treeagent.cli.data import export, rescore
from treeagent.config import load_config
from treeagent.contrib.judging import Step
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.contrib.judging.rescore import require_stored
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import write_trees
from treeagent.pipeline.world import experiences
from treeagent.search.record import from_record
from treeagent.store import digest, read_as, shards
from treeagent.types import UserError

BRIEF = "rewards.weights={outcome=1.0, steps=-0.01}"


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """A run with two shards of trees."""
    with Run.create(tmp_path / "run", load_config(None), resume=False) as run:
        for index in range(2):
            write_trees(run.trees, "collect", index, [hand_tree(), hand_tree()])
    return tmp_path / "run"


def hashes(folder: Path, names: str = "*") -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob(names) if path.is_file()}


def test_a_view_has_new_rewards_and_the_run_stays(searched: Path, tmp_path: Path) -> None:
    before, view = hashes(searched), tmp_path / "view"
    rescore(searched, view, [BRIEF])
    assert hashes(searched) == before
    pairs = zip(*(read_as(from_record, run / "trees", "collect") for run in (searched, view)), strict=True)
    for old, new in pairs:
        for here, there in zip(old.nodes(), new.nodes(), strict=True):
            for one, other in zip(here.edges, there.edges, strict=True):
                if one.child is not None:
                    assert other.reward == pytest.approx((one.reward or 0.0) - 0.01)
                    assert one.visits == other.visits
    assert Run.open(view).facts("rescore")["steps"] > 0
    # Nothing is computed twice, but a shard that a kill left out is computed.
    [first, *_] = shards(view / "trees")
    whole, kept = digest(read_as(dict, view / "trees")), hashes(view / "trees", "*.zst")
    first.unlink()
    rescore(searched, view, [BRIEF])
    assert (digest(read_as(dict, view / "trees")), hashes(view / "trees", "*.zst")) == (whole, kept)


def test_in_a_view_too_variations_are_held_out_with_their_tasks(searched: Path, tmp_path: Path) -> None:
    harder = hand_tree()
    harder.task = replace(harder.task, id="harder")
    with Run.create(searched, Run.open(searched).config, resume=True) as run:
        write_trees(run.trees, "collect-1-varied", 0, [harder])
        run.finish("collect-1-varied", {"variations": 3, "kept": 1, "bases": ["task"]})
    rescore(searched, tmp_path / "view", [BRIEF])
    assert {one.task_id for one in experiences(Run.open(tmp_path / "view"), ["collect-1-varied"])} == {"task"}


@pytest.mark.slow
def test_a_view_is_exported_as_a_run_is(searched: Path, tmp_path: Path) -> None:
    rescore(searched, tmp_path / "view", [BRIEF])
    export(tmp_path / "view", tmp_path / "pairs", ["update.pairs.min_margin=0.001"], ["pairs"])
    assert any((tmp_path / "pairs").iterdir())


def test_an_error_that_no_stored_call_made_may_have_a_weight() -> None:
    tree, weights = hand_tree(), RewardsConfig(weights={"missed": -1.0}, tools=True)
    with pytest.raises(UserError, match="missed"):
        require_stored(weights, iter([tree]))
    tree.root.edges[0].components = {"which": 1.0, "how": 1.0}
    require_stored(weights, iter([tree]))


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("rewards.weights={outcome=1.0, milestone=1.0}", "milestone"),
        ("rewards.weights={when=1.0}", "rewards.tools"),
        ("rewards.rules={brief='nowhere:brief'}", "nowhere:brief"),
        ("collect.tasks=3", "collect.tasks"),
        ("search.process_weight=0.5", "search.process_weight"),
    ],
)
def test_what_cannot_be_rescored_is_told(searched: Path, tmp_path: Path, setting: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        rescore(searched, tmp_path / "view", [setting])


def broken(step: Step) -> float:
    return float(str(step.task.data["length"]))


def test_a_rule_that_fails_is_named_with_the_task(searched: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'brief'.*hand-1.*KeyError: 'length'"):
        rescore(searched, tmp_path / "view", [f"rewards.rules={{brief='{__name__}:broken'}}"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": {"outcome": math.nan}}, "outcome is nan"),
        ({"budgets": {"tokens": math.inf}}, "tokens"),
        ({"budgets": {"outcome": 1.0}}, "must not know"),
        ({"schedule": {"steps": (1.0, 0.0)}}, "no weight"),
        ({"weights": {"steps": -1.0}, "budgets": {"steps": 4.0}}, "weight and a budget"),
        ({"rules": {"tokens": "mine:tokens"}}, "component already"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardsConfig(**settings)
