"""The run folder of a stranger: special files are refused by name, and no name in a tree leads outside of the
folder."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.outcomes import load_batch
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import StoreError, read_as, write_shard
from treeagent.types import Action, Message, State, Task, UserError

SHARD = "trees/collect-00000.jsonl.zst"


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A read that blocks forever fails after some seconds."""

    def fail(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one tree in the current folder, because the path of a socket must be short."""
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as made:
        task = Task("t", "walk")
        root = Node(State(task, (Message("user", "walk"),)), context_ids=(1,))
        end = State(task, (*root.state.messages, Message("assistant", "go", (2,)), Message("user", "done")))
        root.edges = [Edge(Action("go", "go", "", (2,), (-0.1,)), 1.0, 1, 1.0, 1.0, Node(end, terminated=True))]
        write_shard(made.trees, "collect", 0, [to_record(Tree(task, 0, root))])
    monkeypatch.chdir(tmp_path)
    return Path("run")


def link_to_pipe(path: Path) -> None:
    os.mkfifo("pipe")
    path.symlink_to(Path("pipe").absolute())


CPU = torch.device("cpu")
KINDS: dict[str, Callable[[Path], None]] = {
    "named pipe": os.mkfifo,
    "link to a named pipe": link_to_pipe,
    "folder": Path.mkdir,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
}


def made_again(run: Path) -> None:
    Run.create(run, RunConfig(), resume=True).close()


READERS: list[tuple[str, Callable[[Path], Any]]] = [
    (SHARD, lambda run: list(read_as(dict, run / "trees"))),
    ("stages.json", lambda run: Run.open(run).stages()),
    ("results.json", lambda run: Run.open(run).result_rows()),
    ("metrics.jsonl", lambda run: Run.open(run).metrics()),
    ("config.toml", Run.open),
    (".lock", made_again),
    ("outcomes.json", lambda run: load_batch(run / "outcomes.json")),
    ("checkpoints/config.json", lambda run: load_checkpoint(run / "checkpoints")),
]


@pytest.mark.parametrize(
    ("kind", "name", "read"),
    [
        (kind, name, read)
        for name, read in READERS
        for kind in KINDS
        if kind != "folder" or not name.startswith("checkpoints/")  # which has folders, and transformers refuses others
    ],
)
def test_what_is_no_file_is_refused_by_name(kind: str, name: str, read: Callable[[Path], Any], run: Path) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    KINDS[kind](run / name)
    with pytest.raises((StoreError, RunError, UserError)) as caught:
        read(run)
    assert Path(name).name in str(caught.value)


def test_a_run_is_not_written_through_links(tmp_path: Path) -> None:
    """A downloaded run may hold links that lead to the user's own files."""
    mine = tmp_path / "mine"
    mine.write_text("mine\n")

    def linked(name: str, to: Path) -> Path:
        with Run.create(run := tmp_path / f"run{name}", RunConfig(), resume=False):
            pass
        if (run / name).is_dir():
            (run / name).rmdir()
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(to)
        return run

    (folder := tmp_path / "folder").mkdir()
    (folder / ".draft.tmp").write_text("mine\n")
    for name, to in (("metrics.jsonl", mine), ("trees", folder), ("figures", folder), (".lock", tmp_path / "made")):
        run = linked(name, to)
        for act in (Run.open, lambda path: Run.create(path, RunConfig(), resume=True)):
            with pytest.raises(RunError, match=f"{re.escape(name)} is a link that leads out of the run"):
                act(run)
    assert mine.read_text() == "mine\n" and (folder / ".draft.tmp").exists() and not (tmp_path / "made").exists()
