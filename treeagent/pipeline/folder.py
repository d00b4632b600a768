"""The folder of one run: settings, finished stages, metrics, trees and checkpoints, and a lock for its writer."""

import fcntl
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson
from pydantic import TypeAdapter

from treeagent.config import RunConfig, config_difference, dump_config, load_config
from treeagent.store import StoreError, appendable, regular, remove_leftovers, shard_names, shards, write_atomic

Content = TypeVar("Content")
COLLECTED = "collect"
"""Name of the shards of training trees. Round N of search-and-adapt writes ``collect-N``."""
SEARCHED = re.compile(rf"{COLLECTED}(-\d+)?")
"""Names of training trees that were searched in the environment. Those with a suffix grew in a world model."""
LINKED = "start-"
"""Beginning of the names of links in ``checkpoints`` that treeagent itself makes, to checkpoints of other runs."""

_NOT_AFFECTING_RESULTS = (
    *("workers", "threads", "trackers", "policy.cache_bytes", "remote."),
    *("environment.parallel", "policy.url", "world.url"),
)
"""Beginnings of the keys of settings with other values of which a run may be resumed."""
_FOLDERS = ("trees", "checkpoints", "outcomes", "episodes")
_ROWS = TypeAdapter(list[dict[str, Any]])
_STAGES, _NAMES = TypeAdapter(dict[str, dict[str, Any]]), TypeAdapter(dict[str, str])


class RunError(RuntimeError):
    """A folder cannot be used as a run."""


def changed_settings(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys of settings that differ and on which results depend."""
    return [key for key in config_difference(old, new) if not key.startswith(_NOT_AFFECTING_RESULTS)]


class Run:
    """A run on disk. ``create`` opens it for writing and locks it until ``close``; ``open`` opens it for reading."""

    def __init__(self, path: Path, config: RunConfig, lock: int | None = None) -> None:
        """``lock``: the open descriptor of the locked file."""
        self.path, self.config, self._lock = path, config, lock
        self._writing = threading.Lock()
        self.trees, self.checkpoints, self.outcomes, self.episodes = (path / name for name in _FOLDERS)
        """``outcomes`` holds finished batches of an unfinished evaluation, ``episodes`` trees with a single path."""
        self.first_workers = config.workers
        """Workers when the run began, which set the size of batches."""
        self.results = path / "results.json"
        self.replaced: list[str] = []
        """Settings of an earlier begin that ``create`` replaced, because nothing was made with them yet."""
        self.on_log: Callable[[str, int, Mapping[str, float]], None] = lambda stage, step, figures: None
        """Called with every logged row."""

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, resume: bool) -> Self:
        """Begin a run in an empty or new folder, or continue a run with the same settings."""
        # A run that was killed before it wrote its config leaves only hidden files.
        content = {entry.name for entry in path.iterdir()} if path.exists() else set[str]()
        content -= {name for name in content if name == ".lock" or (name.startswith(".") and name.endswith(".tmp"))}
        if "config.toml" not in content and content - {"trees", "checkpoints"}:
            raise RunError(f"{path} holds files but no run (no config.toml): choose another --out")
        if content and not resume:
            raise RunError(f"{path} is not empty: pass --resume to continue it, or choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        require_own_files(path)
        with appendable(path / ".lock") as file:
            run = cls(path, config, os.dup(file.fileno()))
        try:
            run._prepare()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run for reading; another process may be writing it."""
        require_own_files(path)
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} holds no run: there is no config.toml in it; give the --out folder of a run")
        return cls(path, load_config(path / "config.toml"))

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def collections(self) -> list[str]:
        """Names of the shards of searched training trees, of all rounds."""
        return [name for name in shard_names(self.trees) if name == COLLECTED or name.startswith(f"{COLLECTED}-")]

    def result_rows(self) -> list[dict[str, Any]]:
        """The rows of ``results``; empty before an evaluation has finished."""
        return _read(self.results, _ROWS, [])

    def stages(self) -> dict[str, dict[str, Any]]:
        """Facts of every finished stage, in the order they finished."""
        return _read(self.path / "stages.json", _STAGES, {})

    def is_done(self, stage: str) -> bool:
        return stage in self.stages()

    def finish(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Record that ``stage`` is done, with facts as JSON values."""
        with self._writing:
            self._write("stages.json", self.stages() | {stage: dict(facts)})

    def forget(self, stage: str) -> None:
        """Let a stage run again."""
        with self._writing:
            if self.is_done(stage):
                self._write("stages.json", {name: facts for name, facts in self.stages().items() if name != stage})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        written = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        write_atomic(self.path / name, written)

    def facts(self, stage: str) -> dict[str, Any]:
        return self.stages()[stage]

    def record_checkpoint(self, purpose: str, checkpoint: Path) -> None:
        """Record the checkpoint from which a part of the run starts."""
        self._record(purpose, checkpoint_name(checkpoint, self.path))

    def record_trees(self, purpose: str, source: "Run") -> None:
        """Record the trees of the run ``source``, from which a part of this run learns."""
        files = [file for name in source.collections() for file in shards(source.trees, name)]
        size, count = sum(file.stat().st_size for file in files), f"{len(files)} file{'s' * (len(files) != 1)}"
        where = checkpoint_name(source.trees, self.path)
        self._record(f"{purpose} from trees", f"{count} and {size:,} bytes of trees in {where}")

    def _record(self, purpose: str, name: str) -> None:
        with self._writing:
            recorded = _read(self.path / "given.json", _NAMES, {})
            if purpose not in recorded or not self._holds_work():
                self._write("given.json", recorded | {purpose: name})
            elif recorded[purpose] != name:
                raise RunError(
                    f"the {purpose} of {self.path} was begun with {recorded[purpose]}, not with {name}: choose another "
                    "--out"
                )

    def recorded_checkpoint(self, purpose: str) -> Path | None:
        name = _read(self.path / "given.json", _NAMES, {}).get(purpose)
        if name is None:
            return None
        return self.path / name if name.startswith("./") else Path(name)

    def alarms(self) -> list[str]:
        return [sentence for facts in self.stages().values() for sentence in facts.get("alarms", ())]

    def log(self, stage: str, metrics: Mapping[str, float]) -> None:
        """Append a line to metrics.jsonl. ``metrics`` hold the ``step``."""
        step = int(metrics["step"])
        figures = {key: value for key, value in metrics.items() if key != "step"}
        row = {"stage": stage, "step": step} | figures
        with self._writing:
            self.on_log(stage, step, figures)
            try:
                with appendable(self.path / "metrics.jsonl") as file:
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
            except OSError as error:
                raise StoreError(f"cannot write {self.path}/metrics.jsonl: {error.strerror}: free space") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl, ``{"stage": str, "step": int, ...}``, one for each step of a stage: of what a resumed
        stage logged again, the last counts."""
        path, rows = self.path / "metrics.jsonl", dict[tuple[str, int], dict[str, Any]]()
        for line in regular(path).read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):  # otherwise another process is still writing the line
                try:
                    row = orjson.loads(line)
                    rows.setdefault((row["stage"], row["step"]), {}).update(row)
                except (ValueError, KeyError, TypeError):
                    raise _damaged(path) from None
        return list(rows.values())

    def _prepare(self) -> None:
        """Lock the folder, compare the settings, and remove what a kill left behind."""
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when the process ends
        except BlockingIOError:
            raise RunError(f"another process is writing {self.path}: wait for it, or choose another --out") from None
        self.trees.mkdir(exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        for name in (".", *_FOLDERS):
            remove_leftovers(self.path / name)
        path, metrics = self.path / "config.toml", self.path / "metrics.jsonl"
        begun = load_config(path) if path.exists() else self.config
        changed = changed_settings(begun, self.config)
        if not self._holds_work():
            self.replaced = changed
            if changed:  # what the former settings start from
                (self.path / "given.json").unlink(missing_ok=True)
            write_atomic(path, dump_config(self.config).encode())
        elif changed:
            raise RunError(
                f"{self.path} was begun with another config ({', '.join(changed)} changed): restore these settings to "
                "resume, or choose another --out"
            )
        else:
            self.first_workers = begun.workers
            written = metrics.read_bytes() if metrics.exists() else b""
            if written and not written.endswith(b"\n"):  # the last line was cut off by a kill
                write_atomic(metrics, written[: written.rfind(b"\n") + 1])

    def _holds_work(self) -> bool:
        """Whether anything was made with the run's settings. Until then the settings may change."""
        made = any((self.path / name).exists() for name in ("stages.json", "metrics.jsonl", "results.json"))
        return made or any(any((self.path / name).glob("*")) for name in _FOLDERS)


def checkpoint_name(checkpoint: Path, run: Path) -> str:
    """The name under which the run in folder ``run`` records a checkpoint: a path inside the folder is relative to it,
    so that the folder can be moved; another is absolute, or a hub name."""
    resolved, own = checkpoint.resolve(), run.resolve()
    if resolved.is_relative_to(own):
        return f"./{resolved.relative_to(own)}"
    return str(resolved if resolved.is_dir() else checkpoint)


def require_own_files(path: Path) -> None:
    """Check that a run, which may be downloaded, holds plain files and folders: links lead out of it, and opening a
    pipe may block for ever."""
    for folder in (path, *(path / name for name in _FOLDERS)):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_symlink():
                own = entry.name.startswith(LINKED) and folder.name == "checkpoints"
                if not own and not entry.resolve().is_relative_to(path.resolve()):
                    raise RunError(f"{entry} is a link that leads out of the run: put what it names in its place")
            elif not (entry.is_file() or entry.is_dir()):
                raise RunError(f"{entry} is neither a file nor a folder, such as a named pipe: move it away")


def _read(path: Path, form: TypeAdapter[Content], empty: Content) -> Content:
    if not path.exists():
        return empty
    try:
        return form.validate_json(regular(path).read_bytes())
    except ValueError:  # a kill cannot cause this, because the file is written atomically
        raise _damaged(path) from None


def _damaged(path: Path) -> RunError:
    return RunError(f"{path} is damaged: delete it and give the command again, or choose another --out")
