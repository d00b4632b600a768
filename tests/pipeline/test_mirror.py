"""A run and its copy at an address."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest
from command import CONFIG, treeagent
from fsspec.implementations.local import LocalFileSystem

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.mirror import STATE, Mirror, mirrored
from treeagent.store import digest, read_as, write_shard


def made(folder: Path) -> Path:
    """A run with a file of each kind."""
    with Run.create(folder, RunConfig(), resume=False) as run:
        write_shard(run.trees, "collect", 0, [{"n": 1}])
        (run.checkpoints / "base").mkdir()
        (run.checkpoints / "base" / "config.json").write_text("{}")
        (run.checkpoints / "base" / "model.safetensors").write_bytes(bytes(1000))
        with closing(sqlite3.connect(run.checkpoints / "world.sqlite")) as memory:
            memory.execute("PRAGMA journal_mode = WAL")
            memory.execute("CREATE TABLE rows (n)")
        (folder / "progress.json").write_text("{}")
        run.log("collect", {"step": 1, "loss": 0.5})
        run.finish("collect", {"trees": 1})
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """What of a run's folder is copied; a database's bytes depend on who wrote them last."""
    return {
        path.relative_to(folder).as_posix(): b"" if path.suffix == ".sqlite" else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", STATE, "progress.json") and "sqlite-" not in path.name
    }


def stored(address: Path) -> int:
    return len(list((address / "files").iterdir()))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/copy"


def test_a_pulled_run_is_the_pushed_one(tmp_path: Path, url: str) -> None:
    folder = made(tmp_path / "run")
    assert Mirror(url).push(folder) == len(contents(folder)) == Mirror(url).pull(tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)
    run = Run.open(tmp_path / "other")
    assert (run.facts("collect"), run.metrics()) == ({"trees": 1}, [{"stage": "collect", "step": 1, "loss": 0.5}])
    with closing(sqlite3.connect(run.checkpoints / "world.sqlite")) as memory:
        assert memory.execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_only_what_changed_is_sent_and_what_is_replaced_goes(tmp_path: Path, url: str) -> None:
    folder, mirror = made(tmp_path / "run"), Mirror(url)
    mirror.push(folder)
    before = stored(tmp_path / "copy")
    assert (mirror.push(folder), Mirror(url).push(folder)) == (0, 0)
    with Run.create(folder, RunConfig(), resume=True) as run:
        run.log("collect", {"step": 2, "loss": 0.4})
        write_shard(run.trees, "collect", 1, [{"n": 2}])
    assert (mirror.push(folder), stored(tmp_path / "copy")) == (2, before + 1)
    shutil.rmtree(folder / "checkpoints" / "base")
    assert (mirror.push(folder), stored(tmp_path / "copy")) == (0, before - 1)
    mirror.pull(tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)


class Slow(LocalFileSystem):  # type: ignore[misc]
    """While it copies a file of a tracker, the tracker writes on."""

    protocol = "slow"

    def put_file(self, lpath: str, rpath: str, *arguments: Any, **kwargs: Any) -> None:
        if "events" in lpath:
            with Path(lpath).open("ab") as file:
                file.write(b"more")
        super().put_file(lpath, rpath, *arguments, **kwargs)


def test_a_file_that_a_tracker_writes_while_it_is_copied_leaves_the_copy_whole(tmp_path: Path) -> None:
    fsspec.register_implementation("slow", Slow, clobber=True)
    folder, url = made(tmp_path / "run"), f"slow://{tmp_path}/copy"
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.out.tfevents.1.host.2.0").write_bytes(b"first")
    Mirror(url).push(folder)
    Mirror(url).pull(tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)


class Breaking(LocalFileSystem):  # type: ignore[misc]
    """Writes no list of a run once ``broken`` is set."""

    protocol = "breaking"
    broken = False

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        if Breaking.broken and path.endswith("run.json"):
            raise ConnectionError("gone")
        super().pipe_file(path, value, **kwargs)


@pytest.fixture
def breaking(tmp_path: Path) -> Iterator[str]:
    fsspec.register_implementation("breaking", Breaking, clobber=True)
    yield f"breaking://{tmp_path}/copy"
    Breaking.broken = False


def test_a_broken_push_leaves_the_copy_as_it_was_and_the_next_one_goes_on(tmp_path: Path, breaking: str) -> None:
    folder, mirror = made(tmp_path / "run"), Mirror(breaking)
    mirror.push(folder)
    before = contents(folder)
    with Run.create(folder, RunConfig(), resume=True) as run:
        run.finish("evaluate", {})
    Breaking.broken = True
    with pytest.raises(RunError, match="gone"):
        mirror.push(folder)
    Mirror(breaking).pull(tmp_path / "early")
    assert contents(tmp_path / "early") == before
    Breaking.broken = False
    assert Mirror(breaking).push(folder) == 1
    Mirror(breaking).pull(tmp_path / "late")
    assert contents(tmp_path / "late") == contents(folder) != before


class Pushed(LocalFileSystem):  # type: ignore[misc]
    """Calls ``meanwhile`` before a content is read, once ``left`` others were read."""

    protocol = "pushed"
    left = 0
    meanwhile: Callable[[], object] = dict

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **kwargs: Any) -> Any:
        if mode == "rb" and "/files/" in path:
            Pushed.left -= 1
            if Pushed.left == -1:
                Pushed.meanwhile()
        return super()._open(path, mode, *arguments, **kwargs)


@pytest.mark.parametrize("late", [False, True])
def test_a_pull_during_a_push_gives_the_newer_run(tmp_path: Path, late: bool) -> None:
    fsspec.register_implementation("pushed", Pushed, clobber=True)
    folder, url = made(tmp_path / "run"), f"pushed://{tmp_path}/copy"
    files = Mirror(url).push(folder)

    def write_on() -> None:
        with Run.create(folder, RunConfig(), resume=True) as run:
            run.log("collect", {"step": 2, "loss": 0.4})
            write_shard(run.trees, "collect", 0, [{"n": 2}])
        shutil.rmtree(folder / "checkpoints" / "base")
        Mirror(url).push(folder)

    Pushed.left, Pushed.meanwhile = (files - 1 if late else 0), write_on
    Mirror(url).pull(tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)
    assert not (tmp_path / "other" / "checkpoints" / "base").exists()
    assert Mirror(url).push(tmp_path / "other") == 0


def test_a_database_is_read_again_after_a_broken_push(tmp_path: Path, breaking: str) -> None:
    folder, mirror = made(tmp_path / "run"), Mirror(breaking)
    with closing(sqlite3.connect(folder / "checkpoints" / "world.sqlite")) as memory:
        memory.execute("INSERT INTO rows VALUES (7)")
        memory.commit()  # into the log beside the file
        Breaking.broken = True
        with pytest.raises(RunError, match="gone"):
            mirror.push(folder)
        Breaking.broken = False
        mirror.push(folder)
    Mirror(breaking).pull(tmp_path / "other")
    with closing(sqlite3.connect(tmp_path / "other" / "checkpoints" / "world.sqlite")) as memory:
        assert memory.execute("SELECT n FROM rows").fetchall() == [(7,)]


def test_a_copy_belongs_to_the_folder_that_wrote_or_read_it_last(tmp_path: Path, url: str) -> None:
    mine = made(tmp_path / "mine")
    Mirror(url).push(mine)
    with pytest.raises(RunError, match="has not pushed there"):
        Mirror(url).push(made(tmp_path / "foreign"))
    Mirror(url).pull(tmp_path / "elsewhere")
    with Run.create(tmp_path / "elsewhere", RunConfig(), resume=True) as run:
        run.finish("evaluate", {})
    Mirror(url).push(run.path)
    with pytest.raises(RunError, match="has not pushed there"):
        Mirror(url).push(mine)


def test_a_damaged_or_hostile_copy_is_refused_and_leaves_nothing(tmp_path: Path, url: str) -> None:
    Mirror(url).push(made(tmp_path / "run"))
    content = max((tmp_path / "copy" / "files").iterdir(), key=lambda path: path.stat().st_size)
    content.write_bytes(b"other")
    with pytest.raises(RunError, match="is damaged"):
        Mirror(url).pull(tmp_path / "other")
    (tmp_path / "copy" / "run.json").write_text('{"../outside": "0"}')
    with pytest.raises(RunError, match="outside"):
        Mirror(url).pull(tmp_path / "other")
    (tmp_path / "copy" / "run.json").write_text("[]")
    with pytest.raises(RunError, match="is damaged"):
        Mirror(url).pull(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "run"]


def test_where_nothing_can_be_pulled(tmp_path: Path, url: str) -> None:
    with pytest.raises(RunError, match="holds no run"):
        Mirror(url).pull(tmp_path / "other")
    Mirror(url).push(made(tmp_path / "run"))
    with pytest.raises(RunError, match="is not empty"):
        Mirror(url).pull(tmp_path / "run")
    with pytest.raises(RunError, match="current folder"):
        Mirror(url).pull(Path())
    with pytest.raises(RunError, match="cannot be opened"):
        Mirror("nowhere://bucket")


class Locked(LocalFileSystem):  # type: ignore[misc]
    """Refuses as botocore does without credentials: by an error that is no OSError."""

    protocol = "locked"

    def cat_file(self, path: str, *arguments: Any, **kwargs: Any) -> bytes:
        raise LookupError("Unable to locate credentials")


def test_an_address_without_credentials_is_one_sentence(tmp_path: Path) -> None:
    fsspec.register_implementation("locked", Locked, clobber=True)
    folder, url = made(tmp_path / "run"), f"locked://{tmp_path}/copy"
    for done in (treeagent("push", folder, url), treeagent("pull", url, tmp_path / "other")):
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "Unable to locate credentials" in done.stderr


def test_a_run_is_pushed_while_it_is_written_and_at_its_end(tmp_path: Path, breaking: str) -> None:
    told: list[str] = []
    with (
        Run.create(tmp_path / "run", RunConfig(), resume=False) as run,
        mirrored(run.path, breaking, told.append, every=0.01),
    ):
        run.finish("warm_start", {})
        started = time.monotonic()
        while "stages.json" not in Mirror(breaking).files():
            assert time.monotonic() - started < 60
            time.sleep(0.01)
        Breaking.broken = True
        run.finish("collect", {})
    assert len(told) == 1 and "gone" in told[0]
    Breaking.broken = False
    with mirrored(run.path, breaking, told.append):
        pass
    assert len(told) == 1
    Mirror(breaking).pull(tmp_path / "other")
    assert list(Run.open(tmp_path / "other").stages()) == ["warm_start", "collect"]


def test_a_command_that_resumes_fetches_a_run_that_is_not_there(tmp_path: Path, url: str) -> None:
    folder = made(tmp_path / "run")
    assert treeagent("push", folder, url).returncode == 0
    settings: list[str | Path] = ["--config", CONFIG, "--resume", f"mirror={url}"]
    fetched = treeagent("quickstart", "--out", tmp_path / "there", *settings)
    assert fetched.returncode == 2 and "was begun with another config" in fetched.stderr
    assert contents(tmp_path / "there") == contents(folder)
    refused = treeagent("quickstart", "--out", tmp_path / "new", *settings[:2], f"mirror={url}")
    assert refused.returncode == 2 and "has not pushed there" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_its_copy_on_another_machine(finished_run: Path, tmp_path: Path, url: str) -> None:
    here, there = shutil.copytree(finished_run, tmp_path / "here"), tmp_path / "there"
    assert treeagent("push", here, url).returncode == 0
    shutil.rmtree(here)
    done = treeagent("quickstart", "--out", there, "--resume", "--trust", "workers=1", f"mirror={url}")
    assert done.returncode == 0, done.stderr
    assert digest(read_as(dict, there / "trees")) == digest(read_as(dict, finished_run / "trees"))
    assert Mirror(url).files().keys() >= {"config.toml", "stages.json", "report.html"}


@pytest.mark.s3
def test_a_bucket_of_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        folder, url = made(tmp_path / "run"), "s3://bucket/runs/shop"
        Mirror(url).push(folder)
        with Run.create(folder, RunConfig(), resume=True) as run, mirrored(folder, url, pytest.fail):
            run.finish("evaluate", {})
        Mirror(url).pull(tmp_path / "other")
        assert contents(tmp_path / "other") == contents(folder)
        with pytest.raises(RunError, match="has not pushed there"):
            Mirror(url).push(made(tmp_path / "foreign"))
        with pytest.raises(RunError, match="cannot be read or written"):
            Mirror("s3://nowhere/run").push(folder)
    finally:
        server.stop()
