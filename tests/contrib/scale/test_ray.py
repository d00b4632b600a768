"""Runs on a Ray cluster of real processes, some of which are killed, grow the same trees as the local engine."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from treeagent.config import load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.warm_start import warm_start
from treeagent.store import digest, read_as, shards

pytest.importorskip("ray", reason="wants the ray extra")

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[3] / "configs" / "debug.toml"
TREEAGENT = [sys.executable, "-c", "from treeagent.cli import main; main()"]
SETTINGS = ["warm_start.episodes=200", "warm_start.training.max_steps=20"]
WAVES = 12
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_worker_niceness": "0"}
"""By default Ray starts workers with the lowest priority, and a busy machine then starves them."""
NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}
COLLECT = [f"collect.tasks={2 * WAVES}", "collect.batch=2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = load_config(CONFIG, SETTINGS)
    with Run.create(tmp_path_factory.mktemp("warm") / "run", config, resume=False) as run:
        return warm_start(config, run, QuietProgress())


@pytest.fixture(scope="module")
def local(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection by the local engine."""
    out = tmp_path_factory.mktemp("local") / "run"
    _, said = start(checkpoint, out, "workers=1").communicate()
    assert len(shards(out / "trees", "collect")) == WAVES, said
    return out


@pytest.fixture(scope="module")
def expected(local: Path) -> str:
    return collected(local)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # to import the jobs below
        cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 2})
        yield cluster
        cluster.shutdown()


def start(checkpoint: Path, out: Path, *more: str, scale: Sequence[str] = ()) -> "subprocess.Popen[str]":
    collect: list[str | Path] = ["collect", checkpoint, "--config", CONFIG, "--out", out, "--resume", *COLLECT]
    return treeagent(*scale, *collect, *more)


def treeagent(*arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*TREEAGENT, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
        start_new_session=True,
    )


def on(cluster: Any) -> list[str]:
    return ["scale", "--ray", "--address", cluster.address]


def collected(run: Path) -> str:
    return digest(read_as(dict, run / "trees", "collect"))


def wait_for_shards(out: Path, process: "subprocess.Popen[str]", count: int = 2) -> None:
    deadline = time.monotonic() + 300
    while len(shards(out / "trees", "collect")) < count and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    assert count <= len(shards(out / "trees", "collect")) < WAVES


def at_work() -> list[psutil.Process]:
    """The processes of actors that are running a job."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.cmdline()[:1] == ["ray::_Worker.run"]]


def test_the_same_trees_on_both_engines(checkpoint: Path, expected: str, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", "workers=2", scale=["scale", "--ray"])
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected


def test_a_killed_worker_loses_nothing(checkpoint: Path, expected: str, cluster: Any, tmp_path: Path) -> None:
    process = start(checkpoint, tmp_path / "run", "workers=2", scale=on(cluster))
    wait_for_shards(tmp_path / "run", process)
    victims = at_work()
    assert victims
    victims[0].kill()
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected


def test_a_killed_driver_resumes_to_the_same_trees(
    checkpoint: Path, expected: str, cluster: Any, tmp_path: Path
) -> None:
    process = start(checkpoint, tmp_path / "run", "workers=2", scale=on(cluster))
    wait_for_shards(tmp_path / "run", process)
    process.kill()
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in shards(tmp_path / "run" / "trees", "collect")}
    process = start(checkpoint, tmp_path / "run", "workers=2", scale=on(cluster))
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert collected(tmp_path / "run") == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
