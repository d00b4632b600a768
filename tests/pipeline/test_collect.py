"""What the jobs of an update make of trees."""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from toy_doors import Doors

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import Mode, RunConfig, load_config
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.evaluate import EvaluationJob, evaluate, evaluate_batch
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import greedy_success, sample_value_rows
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import read_as, shards
from treeagent.types import Action, Message, State, Task

TASK = Task("t", "earn")


def tree(reward: float, value: float, *, terminated: bool) -> Tree:
    """One step with ``reward`` that leads to a state with V ``value``, or to an end."""
    action = Action("go", "go", token_ids=(2, 3))
    after = State(TASK, (Message("user", "earn"), Message("assistant", "go"), Message("user", "on")))
    child = Node(after, value=value, context_ids=(4,), terminated=terminated)
    root = Node(State(TASK, (Message("user", "earn"),)), context_ids=(1,))
    root.edges = [Edge(action, 1.0, 1, reward, reward, child)]
    return Tree(TASK, 0, root, Budget(estimates=1))


def targets(*trees: Tree) -> set[float]:
    head = ValueHead(4)
    return {target for row in sample_value_rows(trees, RunConfig(), head.reward_range) for target in row.value_targets}


def test_an_estimate_behind_a_reward_is_held_within_the_range_of_returns() -> None:
    assert targets(tree(0.25, 0.5, terminated=False)) == {0.75}
    assert targets(tree(0.5, 0.6, terminated=False)) == {1.0}
    assert targets(tree(-0.5, 0.25, terminated=False)) == {0.0}


SHAPE = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=512)
TOKENIZER = train_tokenizer(["Thought: earn Action: go on"] * 5, SHAPE)


def test_a_finished_evaluation_makes_a_deleted_file_again(tmp_path: Path) -> None:
    """A reader that meets a damaged file says to delete it and to resume."""
    save_checkpoint(Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path / "base")
    settings = ["environment.name=treeagent.envs.example:Example", "policy.max_new_tokens=4", "evaluate.tasks=4"]
    config = load_config(None, [*settings, "collect.batch=2", "search.limits={simulations=2}"])
    evaluations: list[tuple[Path, Mode]] = [(tmp_path / "base", "greedy"), (tmp_path / "base", "mcts")]

    def episodes(run: Run) -> list[dict[str, Any]]:
        return [record | {"budget": None} for record in read_as(dict, run.episodes)]  # without its seconds

    with Run.create(tmp_path / "run", config, resume=False) as run:
        rows, first = evaluate(config, run, RichProgress(), evaluations), episodes(run)
        shards(run.trees, "evaluate-base-mcts")[1].unlink()
        shards(run.episodes, "evaluate-base-greedy")[0].unlink()
        again = evaluate(config, run, RichProgress(), evaluations)
        assert episodes(run) == first
        assert len(shards(run.trees, "evaluate-base-mcts")) == len(shards(run.episodes, "evaluate-base-greedy")) == 2
        assert [row["solved"] for row in again] == [row["solved"] for row in rows]


@pytest.mark.parametrize("format", ["react", "tools"])
def test_a_run_scores_the_legal_actions_that_its_environment_lists(format: str, tmp_path: Path) -> None:
    """An untrained model searches and plays without malformed or refused calls."""
    save_checkpoint(Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path / "base")
    settings = ["environment.name=planning", "environment.options={domain='blocks'}", "environment.max_steps=4"]
    chosen = ["policy.actions=score", f"policy.format={format}", "policy.max_new_tokens=4"]
    config = load_config(None, [*settings, *chosen, "search.limits={simulations=8}"])
    collecting = SearchJob(config, tmp_path / "base", "collect", 0, [0, 1], tmp_path)
    assert search_batch(collecting, lambda event: None).budget.proposals > 2
    trees = list(read_trees(tmp_path))
    edges = [edge for tree in trees for node in tree.nodes() for edge in node.edges]
    assert not any(tree.error for tree in trees) and len(edges) > 10
    assert all(edge.action.token_ids for edge in edges)
    assert not any(edge.action.error for edge in edges)
    job = EvaluationJob(config, tmp_path / "base", "base", 0, [0, 1], None, "greedy", episodes=tmp_path / "episodes")
    outcomes, _ = evaluate_batch(job, lambda event: None)
    assert not any(outcome.error for outcome in outcomes)


class OneWay(Doors):
    """Doors that nobody can go back through, with a prize behind every two of them."""

    snapshot_kind: Literal["exact", "replay", "none"] = "none"

    def __init__(self) -> None:
        super().__init__({"ll": 1.0, "lr": 1.0, "rl": 1.0, "rr": 1.0})

    def legal_actions(self) -> list[str]:
        return ["l", "r"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_environment_that_cannot_go_back_plays_one_episode_after_another(parallel: int, tmp_path: Path) -> None:
    save_checkpoint(Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path / "base")
    settings = [f"environment.name={__name__}:OneWay", "policy.actions=score", "policy.max_new_tokens=4"]
    config = load_config(None, [*settings, f"environment.parallel={parallel}", "update.validation_tasks=3"])
    job = EvaluationJob(config, tmp_path / "base", "base", 0, range(3), None, "greedy")
    outcomes, _ = evaluate_batch(job, lambda event: None)
    assert [(outcome.error, outcome.reward, outcome.steps) for outcome in outcomes] == [("", 1.0, 2)] * 3
    assert greedy_success(load_checkpoint(tmp_path / "base"), config, Counter())() == 1.0


def test_several_instances_grow_the_trees_and_play_the_episodes_of_one(tmp_path: Path) -> None:
    save_checkpoint(Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path / "base")
    settings = ["environment.name=planning", "environment.options={domain='blocks'}", "environment.max_steps=3"]
    chosen = ["policy.actions=score", "search={limits={simulations=4},candidates=2}"]
    seen = list[Any]()
    for count in (1, 3):
        config = load_config(None, [*settings, *chosen, f"environment.parallel={count}"])
        folder = tmp_path / str(count)
        folder.mkdir()
        search_batch(SearchJob(config, tmp_path / "base", "collect", 0, range(4), folder), lambda event: None)
        records = [to_record(tree) for tree in read_trees(folder)]
        for record in records:
            record["budget"].pop("seconds")
            record["spent"].pop("seconds")
        job = EvaluationJob(config, tmp_path / "base", "base", 0, range(4), None, "mcts")
        outcomes, _ = evaluate_batch(job, lambda event: None)
        played = [asdict(replace(outcome, budget=replace(outcome.budget, seconds=0.0))) for outcome in outcomes]
        seen.append([records, played])
    assert_alike(seen[0], seen[1])


def assert_alike(mine: Any, other: Any) -> None:
    """Assert equality up to the rounding of floats, which depends on how states are batched."""
    if isinstance(mine, dict):
        assert mine.keys() == other.keys()
        for key, each in mine.items():
            assert_alike(each, other[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(other)
        for each, its in zip(mine, other, strict=True):
            assert_alike(each, its)
    else:
        assert mine == (pytest.approx(other, rel=1e-4, abs=1e-6) if isinstance(mine, float) else other)
