import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from treeagent.config import RunConfig, load_config
from treeagent.pipeline.folder import Run, RunError

CONFIG = RunConfig()


def refused(path: Path, config: RunConfig = CONFIG, *, resume: bool) -> str:
    with pytest.raises(RunError) as caught:
        Run.create(path, config, resume=resume)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_keeps_its_config_stages_and_metrics(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    with Run.create(path, CONFIG, resume=False) as run:
        assert not run.is_done("collect")
        run.log("collect", {"step": 0, "success": 0.5})
        run.log("collect", {"step": 1, "success": 0.75})
        run.log("dpo", {"step": 40.0, "loss": 0.1})
        run.finish("collect", {"trees": 8})
        run.finish("value", {"loss": 0.25})
        assert run.trees.is_dir() and run.checkpoints.is_dir()
    read = Run.open(path)
    assert read.config == CONFIG
    assert read.is_done("collect") and list(read.stages()) == ["collect", "value"]
    assert read.facts("collect") == {"trees": 8}
    assert read.metrics() == [
        {"stage": "collect", "step": 0, "success": 0.5},
        {"stage": "collect", "step": 1, "success": 0.75},
        {"stage": "dpo", "step": 40, "loss": 0.1},
    ]


def test_another_config_cannot_resume_but_other_workers_can(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, resume=False) as run:
        run.finish("warm_start", {})
    changed = load_config(None, ["seed=3", "search.limits.simulations=99"])
    assert refused(tmp_path, changed, resume=True) == (
        f"{tmp_path} was begun with another config (search.limits.simulations, seed changed): "
        "restore these settings to resume, or choose another --out"
    )
    other = ["workers=7", "policy.url=http://moved:8000/v1", "remote.concurrency=9"]
    with Run.create(tmp_path, load_config(None, other), resume=True) as run:
        assert (run.config.workers, run.config.remote.concurrency) == (7, 9)


def test_what_was_begun_with_one_checkpoint_is_not_gone_on_with_another(tmp_path: Path) -> None:
    other = tmp_path / "other" / "dpo"
    with Run.create(tmp_path / "run", CONFIG, resume=False) as run:
        for folder in (run.checkpoints / "dpo", other):
            folder.mkdir(parents=True)
        run.record_checkpoint("evaluate-dpo-greedy", run.checkpoints / "dpo")
        run.record_checkpoint("collect", Path("org/model"))
        run.record_checkpoint("rft", other)
        with pytest.raises(RunError, match=f"was begun with ./checkpoints/dpo, not with {other}: choose another --out"):
            run.record_checkpoint("evaluate-dpo-greedy", other)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    with Run.create(moved, CONFIG, resume=True) as run:
        run.record_checkpoint("evaluate-dpo-greedy", moved / "checkpoints" / "dpo")
        assert run.recorded_checkpoint("evaluate-dpo-greedy") == moved / "checkpoints" / "dpo"
        assert (run.recorded_checkpoint("collect"), run.recorded_checkpoint("rft"), run.recorded_checkpoint("dpo")) == (
            Path("org/model"),
            other,
            None,
        )


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from treeagent.config import RunConfig\n"
            "from treeagent.pipeline.folder import Run\n"
            "run = Run.create(Path(sys.argv[1]), RunConfig(), resume=False); print('held', flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
    said = refused(tmp_path, resume=True)
    assert said == f"another process is writing {tmp_path}: wait for it, or choose another --out"
    assert Run.open(tmp_path).config == CONFIG
    holder.kill()
    holder.wait()
    Run.create(tmp_path, CONFIG, resume=True).close()


def test_resuming_drops_a_torn_metric_and_joins_what_was_logged_of_a_step(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, resume=False) as run:
        run.log("dpo", {"step": 10, "loss": 0.5})
        run.log("dpo", {"step": 10, "validation": 0.25})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"stage":"dpo","st')
    assert Run.open(tmp_path).metrics() == [{"stage": "dpo", "step": 10, "loss": 0.5, "validation": 0.25}]
    with Run.create(tmp_path, CONFIG, resume=True) as run:
        run.log("dpo", {"step": 10, "loss": 0.375})
        assert run.metrics() == [{"stage": "dpo", "step": 10, "loss": 0.375, "validation": 0.25}]
    for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines():
        orjson.loads(line)
