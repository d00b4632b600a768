"""``treeagent rescore``: a view beside the run, which changes nothing, goes on after a kill and can be learned from."""

import hashlib
from pathlib import Path

import pytest
from hand_trees import hand_tree

from treeagent.cli.data import export, rescore
from treeagent.config import ConfigError, load_config
from treeagent.run.folder import Run
from treeagent.search.record import from_record, to_records
from treeagent.store import digest, read_as, read_records, shards, write_shard
from treeagent.types import UserError

BRIEF = "rewards.weights={outcome=1.0, steps=-0.01}"


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """A run with two shards of trees."""
    with Run.create(tmp_path / "run", load_config(None), resume=False) as run:
        for index in range(2):
            write_shard(run.trees, "collect", index, to_records([hand_tree(), hand_tree()]))
    return tmp_path / "run"


def hashes(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


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
    # Nothing is computed twice, and a shard that a kill left out is computed again.
    [first, *_] = shards(view / "trees")
    whole, kept = digest(read_records(view / "trees")), hashes(view / "trees")
    first.unlink()
    rescore(searched, view, [BRIEF])
    assert (digest(read_records(view / "trees")), hashes(view / "trees")) == (whole, kept)
    export(view, tmp_path / "pairs", ["update.pairs.min_margin=0.001"], ["pairs"])
    assert any((tmp_path / "pairs").iterdir())


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("rewards.weights={outcome=1.0, milestone=1.0}", "milestone"),
        ("rewards.weights={when=1.0}", "rewards.tools"),
        ("rewards.budgets={outcome=1.0}", "outcome"),
        ("rewards.weights={outcome=nan}", "rewards.weights.outcome"),
        ("rewards.schedule={steps=[1.0, 0.0]}", "steps"),
        ("rewards.rules={brief='nowhere:brief'}", "nowhere:brief"),
        ("collect.tasks=3", "collect.tasks"),
    ],
)
def test_what_cannot_be_rescored_is_told(searched: Path, tmp_path: Path, setting: str, named: str) -> None:
    with pytest.raises((ConfigError, UserError), match=named):
        rescore(searched, tmp_path / "view", [setting])
