"""Stages of a curriculum: by hand from successes, and in a small run on two lengths of tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command import CONFIG
from pydantic import ValidationError

from treeagent.cli.preflight import require
from treeagent.config import AdaptConfig, ConfigError, StageConfig, load_config
from treeagent.contrib.curriculum.stages import next_stage, round_stage
from treeagent.envs.example import Example
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import tree_rows
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.rounds import scheduled_config, search_round
from treeagent.store import digest, read_as, shards
from treeagent.types import Split, Task, UserError

THREE = AdaptConfig(
    stages=(StageConfig("one"), StageConfig("two"), StageConfig("three")), advance_at=0.7, fall_back_at=0.3
)
TOOLBOX = [
    "environment.name=toolbox",
    "environment.options={people=4}",
    'adapt.stages=[{name="none", options={most_calls=0}, weights={needless=-0.5}}, {name="some"}]',
    "rewards.tools=true",
    "rewards.weights={outcome=1.0}",
    "update.validation_tasks=2",
    "collect.tasks=3",
    "adapt.advance_at=0.5",
    "adapt.fall_back_at=0.2",
    "workers=1",
]


@pytest.mark.parametrize(
    ("stage", "successes", "chosen"),
    [
        (0, [0.69, 0.0, 0.0], (0, 0.69)),
        (0, [0.7, 0.0, 0.0], (1, 0.0)),  # just enough to go on, and no way back in the same round
        (0, [0.7, 0.9, 0.1], (2, 0.1)),  # mastered stages are passed
        (2, [0.0, 0.0, 0.9], (2, 0.9)),  # there is no stage after the last
        (1, [0.9, 0.3, 0.0], (1, 0.3)),  # just enough to stay
        (1, [0.9, 0.29, 0.0], (0, 0.9)),
        (0, [0.0, 0.9, 0.9], (0, 0.0)),  # nor one before the first
    ],
)
def test_a_round_goes_on_by_success_and_falls_back_by_failure(
    stage: int, successes: list[float], chosen: tuple[int, float]
) -> None:
    assert next_stage(THREE, stage, successes.__getitem__) == chosen


def test_a_round_searches_the_tasks_of_its_stage_and_is_paid_by_its_weights(tmp_path: Path, finished_run: Path) -> None:
    """The policy knows nothing of the toolbox, so that it stays in the first stage, until success of 0 is enough."""
    policy, out = finished_run / "checkpoints" / "warm", tmp_path / "run"
    config = load_config(CONFIG, TOOLBOX)
    easy = replace(config, adapt=replace(config.adapt, advance_at=0.0, fall_back_at=0.0))
    with Run.create(out, config, resume=False) as run:
        search_round(config, run, QuietProgress(), policy, 1, {})
        search_round(config, run, QuietProgress(), policy, 2, {})
        search_round(easy, run, QuietProgress(), policy, 3, {})
        assert [round_stage(run, number) for number in (1, 2, 3)] == [0, 0, 1]
        assert scheduled_config(config, run, 2).rewards.weights == {"outcome": 1.0, "needless": -0.5}
        assert scheduled_config(config, run, 3).rewards.weights == {"outcome": 1.0}
        before = digest(read_as(dict, run.trees))
        shards(run.trees, "collect-2")[0].unlink()
        search_round(config, run, QuietProgress(), policy, 2, {})  # the same again, as in a run that resumes
        assert digest(read_as(dict, run.trees)) == before
    tasks = [[row.task for row in tree_rows(out / "trees", f"collect-{number}")] for number in (1, 2, 3)]
    assert tasks[0] == [f"toolbox0-0-4-train-{place}" for place in range(3)]
    assert set(tasks[1]) <= {f"toolbox0-0-4-train-{place}" for place in range(6)}
    assert tasks[2] == [f"toolbox0-3-4-train-{place}" for place in range(3)]
    assert {"curriculum-1-0", "curriculum-3-1"} <= set(Run.open(out).stages())


def test_weights_of_a_stage_come_in_addition_to_the_environments_own_reward() -> None:
    stages = (
        'adapt.stages=[{name="a", weights={missed=-0.5}}, {name="b"}, {name="c", weights={outcome=0.0, missed=-1.0}}]'
    )
    config = load_config(find_recipe("envs/toolbox"), [stages])
    assert config.rewards.weights == {}  # the environment's own reward
    weights = [config.at_stage(stage).rewards.weights for stage in range(3)]
    assert weights == [{"outcome": 1.0, "missed": -0.5}, {}, {"outcome": 0.0, "missed": -1.0}]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('adapt.stages=[{name="a", options={most_cals=1}}]', ["a", "most_cals"]),
        ('adapt.stages=[{name="a", weights={shine=1.0}}]', ["a", "shine"]),
        ('adapt.stages=[{name="a", weights={hacked=1.0}}]', ["a", "hacked"]),
        ('adapt.stages=[{name="a"}, {name="a"}]', ["stages", "a", "twice"]),
        ("adapt.stages=[{options={most_calls=1}}]", ["stages", "name"]),
        ("adapt.fall_back_at=0.9", ["fall_back_at", "0.9", "0.7"]),
    ],
)
def test_a_wrong_stage_is_refused_before_the_run_begins(setting: str, named: list[str]) -> None:
    with pytest.raises((ConfigError, UserError)) as refused:
        require(load_config(find_recipe("envs/toolbox"), [setting]), ["adapt"])
    assert all(name in str(refused.value) for name in named), refused.value


class Few(Example):
    """The template of an environment with ``most`` tasks in each split."""

    def __init__(self, most: int = 10) -> None:
        self.most = most

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if start + count > self.most:
            raise ValueError(f"there are {self.most}")
        return super().tasks(split, count, start)


def test_a_stage_with_too_few_tasks_is_named() -> None:
    stages = 'adapt.stages=[{name="easy", options={most=7}}, {name="all"}]'
    rounds = ["adapt.rounds=2", "collect.tasks=4", "update.validation_tasks=1", "rewards.weights={outcome=1.0}"]
    config = load_config(CONFIG, [f"environment.name={__name__}:Few", "environment.options={}", stages, *rounds])
    with pytest.raises(UserError, match=r"adapt.stages, 'easy': .* 8 tasks of the train split"):
        require(config, ["adapt"])


def test_a_stage_that_trusts_a_reward_model_more_than_its_audit_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text('{"cap": 0.4}')
    settings = ["rewards.weights={outcome=1.0}", f"rewards.learned={str(tmp_path)!r}"]
    require(load_config(find_recipe("envs/toolbox"), [*settings, 'adapt.stages=[{name="a"}]']), ["adapt"])
    config = load_config(find_recipe("envs/toolbox"), [*settings, 'adapt.stages=[{name="a", weights={learned=1.0}}]'])
    with pytest.raises(UserError, match=r"'a'.*0\.50.*0\.40"):
        require(config, ["adapt"])


def test_stages_and_imagined_trees_do_not_both_choose_tasks() -> None:
    with pytest.raises(ValidationError, match="imagined"):
        AdaptConfig(stages=(StageConfig("one"),), imagined=0.5)
