"""What all tests share: one thread per process, no network, working interrupts, and one small finished run."""

import fcntl
import gc
import os
import signal
from pathlib import Path

# Garbage collections while modules are imported take a quarter of that time.
gc.disable()
# Set before torch and huggingface_hub are imported, which read these variables once. Each core has its own pytest
# worker, and with more threads, tiny tensors spend more time waiting than computing.
os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
# Under nohup and in background jobs SIGINT is ignored, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # a handler that does nothing is not inherited
    signal.signal(signal.SIGHUP, lambda number, frame: None)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# `ci` draws the same few examples every time; HYPOTHESIS_PROFILE=thorough draws many new ones.
settings.register_profile("ci", max_examples=20, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not what imports have made: each full collection would take a third of a second
    to visit it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished quickstart of configs/debug.toml, made once for all pytest workers. Only write to a copy of it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    run = folder / "finished" / "run"
    run.parent.mkdir(exist_ok=True)
    with (run.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run / "report.html").is_file():
            from command import CONFIG, treeagent

            fewer = [
                "warm_start.episodes=400",
                "warm_start.training.max_steps=50",
                "update.validation_tasks=4",
                "evaluate.tasks=4",
            ]
            done = treeagent("quickstart", "--config", CONFIG, "--out", run, "--resume", "workers=1", *fewer)
            assert done.returncode == 0, done.stderr
    return run
