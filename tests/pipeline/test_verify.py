"""``treeagent verify`` names the first damaged file of a run."""

from pathlib import Path

import orjson
import pytest
from command import treeagent
from hand_trees import hand_tree

from treeagent.config import load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import append, index_path, shard_rows, write_trees
from treeagent.store import read_as, shards, write_shard


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two shards of two trees, with their index."""
    with Run.create(tmp_path / "run", load_config(None), resume=False) as made:
        for index in range(2):
            append(made.trees, "collect", write_trees(made.trees, "collect", index, [hand_tree(), hand_tree()]))
    return made


def test_a_whole_run_is_said_to_be_whole(run: Run) -> None:
    said = treeagent("verify", run.path)
    assert said.returncode == 0 and "2 shards with 4 trees" in said.stdout, said
    index_path(run.trees, "collect").write_bytes(b'{"half a li')  # the index is rebuilt when it is needed
    assert treeagent("verify", run.path).returncode == 0


def test_a_damaged_shard_is_named(run: Run) -> None:
    first, second = shards(run.trees)
    for path in (second, first):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        said = treeagent("verify", run.path)
        assert said.returncode == 2 and path.name in said.stderr


def test_trees_of_a_policy_with_a_dot_in_its_name_are_read(run: Run) -> None:
    name = "evaluate-Qwen3-0.6B-mcts"
    for index in range(2):
        append(run.trees, name, write_trees(run.trees, name, index, [hand_tree()] * (index + 1)))
    assert "4 shards with 7 trees" in treeagent("verify", run.path).stdout
    assert [len(rows.trees) for rows in shard_rows(run.trees, name)] == [1, 2]
    [path, _] = shards(run.trees, name)
    path.write_bytes(path.read_bytes()[:-9])
    said = treeagent("verify", run.path)
    assert said.returncode == 2 and path.name in said.stderr


@pytest.mark.parametrize("kept", [1, 0])
def test_a_shard_that_is_gone_is_named(run: Run, kept: int) -> None:
    gone = shards(run.trees)[kept:]
    for path in gone:
        path.unlink()
    said = treeagent("verify", run.path)
    assert said.returncode == 2 and gone[0].name in said.stderr and "--resume" in said.stderr


@pytest.mark.parametrize(
    ("key", "value"), [("logprobs", [-0.1]), ("logprobs", [0.5, -0.1]), ("token_ids", [10, -1]), ("forced", [2])]
)
def test_token_ids_that_do_not_fit_together_are_named(run: Run, key: str, value: list[float]) -> None:
    records = list(read_as(dict, run.trees))[:2]
    records[1]["nodes"][0]["edges"][0][key] = value
    path = write_shard(run.trees, "collect", 1, records)
    said = treeagent("verify", run.path)
    assert said.returncode == 2 and f"{path}, line 2" in said.stderr


def test_an_index_that_tells_of_other_trees_is_named(run: Run) -> None:
    path = index_path(run.trees, "collect")
    first, second = map(orjson.loads, path.read_bytes().splitlines())
    first["trees"][0]["accuracy"] = 0.125
    path.write_bytes(b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in (first, second)))
    said = treeagent("verify", run.path)
    assert said.returncode == 2 and path.name in said.stderr


def test_missing_episodes_of_an_evaluation_are_counted(run: Run) -> None:
    stage = "evaluate-base-greedy"
    run.episodes.mkdir()
    first, _ = (write_trees(run.episodes, stage, index, [hand_tree()] * 2) for index in range(2))
    with Run.create(run.path, run.config, resume=True) as finished:
        finished.finish(stage, {"policy": "base", "mode": "greedy", "tasks": 4})
    assert treeagent("verify", run.path).returncode == 0
    shards(run.episodes)[first.index].unlink()
    said = treeagent("verify", run.path)
    assert said.returncode == 2 and "2 of the 4 episodes" in said.stderr and stage in said.stderr
