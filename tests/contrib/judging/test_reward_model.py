"""``treeagent reward fit``: the model, its audit, and how it may be used, on a small finished run."""

import asyncio
import shutil
from pathlib import Path

import orjson
import pytest
from command import treeagent
from interrupted import Interrupted

from treeagent.agent.checkpoint import load_tokenizer
from treeagent.config import load_config
from treeagent.contrib.judging.audit import FILE
from treeagent.contrib.judging.reward_stage import fit_reward
from treeagent.contrib.people.marks import append_mark, new_mark, state_hash
from treeagent.pipeline.build import reward_value
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.progress import QuietProgress
from treeagent.search.node import finished_paths
from treeagent.search.record import from_record
from treeagent.store import read_as


@pytest.fixture(scope="module")
def fitted(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 trees with a reward model. Its policy has learnt next to nothing, so marks of a person declare one
    end of each tree a success."""
    folder = tmp_path_factory.mktemp("fitted")
    run, searched = folder / "run", folder / "searched"
    base = finished_run / "checkpoints" / "base"
    few = ["collect.tasks=40", "collect.batch=40", "workers=1", "environment.max_steps=3", "search.method=best_of_n"]
    done = treeagent("collect", base, "--out", searched, *few)
    assert done.returncode == 0, done.stderr
    for tree in read_as(from_record, searched / "trees", "collect"):
        for path in list(finished_paths(tree))[:1]:
            end = path[-1].child
            assert end is not None
            state = state_hash(tree.task.id, end.state.messages)
            mark = new_mark("ann", "solved", task_id=tree.task.id, state=state, shown=(path[-1].action.text,))
            append_mark(searched / "marks.jsonl", mark)
    assert treeagent("review", "apply", searched, "--out", run).returncode == 0
    done = treeagent("reward", "fit", run, "update.reward.max_steps=3", "update.reward.learning_rate=1e-3")
    assert done.returncode == 0, done.stderr
    assert "most weight" in done.stdout
    return run


def allow(model: Path, cap: float) -> None:
    path = model / FILE
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"cap": cap}))


def test_the_audit_is_stored_and_shown(fitted: Path) -> None:
    run = Run.open(fitted)
    audit, facts = run.reward_audit(), run.facts("reward")
    assert facts["audit"]["tasks"] == audit["tasks"] > 0 and facts["pairs"]["ends"] > 0 and audit["mixed_tasks"] > 0
    assert facts["pairs"]["of_people"] > 0 and facts["pairs"]["siblings"] > 0
    assert 0 <= audit["calibration_error"] <= 1 and 0 <= audit["cap"] < 1


def test_a_weight_above_the_cap_is_refused(fitted: Path, finished_run: Path, tmp_path: Path) -> None:
    model, base = fitted / "checkpoints" / "reward", finished_run / "checkpoints" / "base"
    allow(model, 0.4)
    learned = f"rewards.learned={model}"
    for setting in ("search.learned_weight=0.5", "rewards.weights={outcome=1.0, learned=1.0}"):
        done = treeagent("collect", base, "--out", tmp_path / "new", learned, setting)
        assert done.returncode == 2 and "0.50" in done.stderr and "0.40" in done.stderr
    assert not (tmp_path / "new").exists()


def test_no_reward_model_is_told(fitted: Path, finished_run: Path, tmp_path: Path) -> None:
    base = finished_run / "checkpoints" / "base"
    for name, word in ((base, FILE), (tmp_path / "nowhere", "nowhere")):  # a policy is not a reward model
        done = treeagent("collect", base, "--out", tmp_path / "new", f"rewards.learned={name}")
        assert done.returncode == 2 and word in done.stderr
    done = treeagent("collect", base, "--out", tmp_path / "new", "search.learned_weight=0.5")
    assert done.returncode == 2 and "rewards.learned" in done.stderr
    other = tmp_path / "other"
    shutil.copytree(fitted / "checkpoints" / "reward", other)
    tokenizer = load_tokenizer(other)
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(other)
    done = treeagent("collect", base, "--out", tmp_path / "newer", f"rewards.learned={other}", "workers=1")
    assert done.returncode == 2 and "tokenizer" in done.stderr
    empty = tmp_path / "empty"
    with Run.create(empty, load_config(None), resume=False):
        pass
    done = treeagent("reward", "fit", empty)
    assert done.returncode == 2 and "no trees" in done.stderr


def test_an_interrupted_fit_is_not_continued_from_another_checkpoint(
    fitted: Path, finished_run: Path, tmp_path: Path
) -> None:
    """The trainer's checkpoint holds the weights that came from the first one."""
    folder, checkpoints = tmp_path / "run", finished_run / "checkpoints"
    shutil.copytree(fitted, folder)
    config = load_config(folder / "config.toml", ["update.reward.max_steps=3", "training.save_every=1"])
    with Run.create(folder, Run.open(folder).config, resume=True) as run:
        with pytest.raises(KeyboardInterrupt):
            fit_reward(config, run, Interrupted("reward"), checkpoints / "base")
        with pytest.raises(RunError, match="base"):
            fit_reward(config, run, QuietProgress(), checkpoints / "warm")
        fit_reward(config, run, QuietProgress(), checkpoints / "base")
        fit_reward(config, run, QuietProgress(), checkpoints / "warm")  # a finished fit is replaced


def test_a_run_of_rounds_starts_from_the_policy_that_searched_last(
    fitted: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder, checkpoints = tmp_path / "run", finished_run / "checkpoints"
    shutil.copytree(fitted, folder)
    for file in (folder / "trees").iterdir():
        file.rename(file.with_name(file.name.replace("collect", "collect-2", 1)))
    given = {"collect-1": str(checkpoints / "warm"), "collect-2": str(checkpoints / "base")}
    (folder / "given.json").write_bytes(orjson.dumps(given))
    done = treeagent("reward", "fit", folder, "update.reward.max_steps=3", "update.reward.learning_rate=1e-3")
    assert done.returncode == 0, done.stderr
    ours, theirs = ((run / "checkpoints" / "reward" / "model.safetensors").read_bytes() for run in (folder, fitted))
    assert ours == theirs


@pytest.mark.slow
def test_it_is_a_component_a_tier_and_a_value(fitted: Path, finished_run: Path, tmp_path: Path) -> None:
    model, base = fitted / "checkpoints" / "reward", finished_run / "checkpoints" / "base"
    allow(model, 0.9)
    learned, view = f"rewards.learned={model}", tmp_path / "view"
    done = treeagent("rescore", fitted, "--out", view, learned, "rewards.weights={outcome=1.0, learned=0.5}")
    assert done.returncode == 0, done.stderr
    settings = load_config(view / "config.toml")
    value = reward_value(settings)
    assert value is not None
    tree = next(iter(read_as(from_record, view / "trees", "collect")))
    for path in finished_paths(tree):
        last = path[-1]
        assert last.child is not None
        [found] = asyncio.run(value.estimate([last.child.state]))
        assert last.components["learned"] == pytest.approx(found.value, abs=1e-5)
        assert last.reward == pytest.approx((last.outcome or 0.0) + 0.5 * found.value, abs=1e-5)
    done = treeagent(
        "collect", base, "--out", tmp_path / "new", learned, "search.learned_weight=0.5", "rewards.tiers=['learned']",
        "rewards.weights={verdict=1.0}", "collect.tasks=2", "collect.batch=2", "workers=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for tree in read_as(from_record, tmp_path / "new" / "trees", "collect"):
        for path in finished_paths(tree):
            said = path[-1].components
            assert said["verdict"] == pytest.approx(0.5 + 0.9 * (said["learned"] - 0.5))
    done = treeagent(
        "eval", base, "--out", tmp_path / "played", learned, "search.learned_weight=0.9", "evaluate.tasks=2",
        "evaluate.modes=['mcts']", "workers=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
