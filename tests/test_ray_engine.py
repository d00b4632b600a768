"""Runs on a Ray cluster of real processes, some of which are killed: the trees are those of the local engine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from treeagent.config import load_config
from treeagent.loop import warm_start
from treeagent.progress import QuietProgress
from treeagent.run import Run
from treeagent.store import digest, read_records, shards

pytest.importorskip("ray", reason="wants the ray extra")

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parent.parent / "configs" / "debug.toml"
TREEAGENT = [sys.executable, "-c", "from treeagent.cli import main; main()"]
SETTINGS = ["warm_start.episodes=200", "warm_start.sft.max_steps=20"]
WAVES = 12
COLLECT = [f"collect.tasks={2 * WAVES}", "collect.wave=2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = load_config(CONFIG, SETTINGS)
    with Run.create(tmp_path_factory.mktemp("warm") / "run", config, resume=False) as run:
        return warm_start(config, run, QuietProgress())


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the local engine collects."""
    out = tmp_path_factory.mktemp("local") / "run"
    _, said = start(checkpoint, out, "--engine", "local", "workers=1").communicate()
    assert len(shards(out / "trees", "collect")) == WAVES, said
    return collected(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80 << 20})
    yield cluster
    cluster.shutdown()


def start(checkpoint: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    command = [*TREEAGENT, "collect", str(checkpoint), "--config", str(CONFIG), "--out", str(out), "--resume"]
    return subprocess.Popen(
        [*command, *COLLECT, *more],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        start_new_session=True,
    )


def on(cluster: Any, workers: int = 2) -> list[str]:
    return ["--engine", "ray", f"ray.address={cluster.address}", f"workers={workers}"]


def collected(run: Path) -> str:
    return digest(read_records(run / "trees", "collect"))


def wait_for_shards(out: Path, process: "subprocess.Popen[str]", count: int = 2) -> None:
    deadline = time.monotonic() + 300
    while len(shards(out / "trees", "collect")) < count and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    assert count <= len(shards(out / "trees", "collect")) < WAVES


def at_work() -> list[psutil.Process]:
    """The processes of actors that are in the middle of a job."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.cmdline()[:1] == ["ray::_Worker.run"]]


def test_the_same_trees_on_both_engines(checkpoint: Path, expected: str, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", "--engine", "ray", "workers=2")
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected


def test_a_killed_worker_loses_nothing(checkpoint: Path, expected: str, cluster: Any, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", *on(cluster))
    wait_for_shards(tmp_path / "run", process)
    victims = at_work()
    assert victims
    victims[0].kill()
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected


def test_a_killed_node_loses_nothing(checkpoint: Path, expected: str, cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    process = start(checkpoint, tmp_path / "run", *on(cluster, workers=3))
    wait_for_shards(tmp_path / "run", process, count=4)
    cluster.remove_node(node, allow_graceful=False)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected


def test_a_killed_driver_resumes_to_the_same_trees(
    checkpoint: Path, expected: str, cluster: Any, tmp_path: Path
) -> None:
    process = start(checkpoint, tmp_path / "run", *on(cluster))
    wait_for_shards(tmp_path / "run", process)
    process.kill()
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in shards(tmp_path / "run" / "trees", "collect")}
    process = start(checkpoint, tmp_path / "run", *on(cluster))
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_ctrl_c_ends_the_jobs_and_says_how_to_go_on(checkpoint: Path, cluster: Any, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", *on(cluster))
    wait_for_shards(tmp_path / "run", process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted; continue with --resume" in said
    deadline = time.monotonic() + 60
    while at_work() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not at_work()


def test_what_a_worker_refuses_is_one_sentence(checkpoint: Path, cluster: Any, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", *on(cluster), "policy.generator=vllm")
    _, said = process.communicate()
    assert process.returncode == 2, said
    assert "each would start a vLLM engine of its own" in said
    assert "Traceback" not in said


def test_a_cluster_that_is_not_there_is_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", "--engine", "ray", "ray.address=127.0.0.1:1")
    _, said = process.communicate()
    assert process.returncode == 2, said
    assert "no Ray cluster answers at ray.address 127.0.0.1:1" in said
