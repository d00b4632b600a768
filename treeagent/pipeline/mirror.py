"""A copy of a run at any address that fsspec opens, such as ``s3://bucket/run``, so that the loss of a machine loses
little work.

An address holds two things:

* ``files/DIGEST``: the content of a file, named after its BLAKE2b digest. What lies there never changes.
* ``run.json``: the list of the run's files with their digests. It is written last.

So a reader always finds a whole run: the one that ``run.json`` lists. A push that is interrupted leaves the previous
list and its contents in place.
"""

import hashlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

import fsspec
import orjson

from treeagent.pipeline.folder import RunError
from treeagent.store import StoreError, regular, replace_folder, replacing, write_atomic

STATE = ".mirror"
"""File of a run's folder with the digests of the lists that it last pushed or pulled."""
_LIST = "run.json"
_EVERY = 60.0
"""Seconds between two pushes while a run is written."""
_LEFT_OUT = ("progress.json",)
"""Rewritten each second, and of no use to a reader."""
_FIXED = (".zst", ".parquet", ".safetensors")
"""Files that are written under another name and renamed, as is all that lies in a checkpoint's folder. All others may
change while they are copied, those of trackers too."""
_Stamp = tuple[int, int]


class Mirror:
    """A run's copy at an address.

    Raises:
        RunError: no package that is installed opens such an address.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._fs, root = fsspec.url_to_fs(url)
        except Exception as error:  # a missing package, an unknown protocol, or credentials that a file system lacks
            extra = ": pip install 'treeagent[s3]'" if url.startswith("s3:") else ""
            raise RunError(f"the address {url!r} cannot be opened: {error}{extra}") from error
        self._root = root.rstrip("/")
        self._digests: dict[Path, tuple[_Stamp, str]] = {}
        """The digest of each file that was read before, with the size and time of change that the file had then."""

    def files(self) -> dict[str, str]:
        """The digest of each file of the copied run by its path in the run's folder; empty if there is no run.

        Raises:
            RunError: the address cannot be reached, or its list is damaged.
        """
        return _parsed(self.url, self._list())

    def require_own(self, folder: Path) -> None:
        """Check that a run's folder may be pushed to the address, before the folder is made.

        Raises:
            RunError: the address cannot be reached, or holds a run that this folder has neither pushed nor pulled last.
        """
        self._require_own(folder, self._list())

    def push(self, folder: Path) -> int:
        """Copy what is new or has changed in a run's folder. Returns the number of contents copied.

        Files that grow, such as the list of finished stages, are read first. What they refer to was written before
        them, so the copy is a state in which the run could have been killed.

        Raises:
            RunError: the address cannot be written, or another folder has pushed to it since.
        """
        written = self._list()
        self._require_own(folder, written)
        before = _parsed(self.url, written)
        stored, listed, copied = set(before.values()), dict[str, str](), 0
        with self._failures_reported():
            for folder_url in (self._root, f"{self._root}/files"):
                with suppress(FileExistsError):
                    self._fs.mkdir(folder_url, create_parents=False)  # which would create a bucket
            for growing in (True, False):
                for path in _contents(folder, growing):
                    try:
                        digest, content = self._read(path, growing, stored)
                    except FileNotFoundError:  # it was removed meanwhile
                        continue
                    listed[path.relative_to(folder).as_posix()] = digest
                    if digest not in stored:
                        self._store(path, digest, content)
                        stored.add(digest)
                        copied += 1
            if listed == before:
                return 0
            listing = orjson.dumps(listed, option=orjson.OPT_INDENT_2)
            _store_digests(folder, written, listing)  # before the list is replaced: a kill between leaves both known
            self._fs.pipe_file(f"{self._root}/{_LIST}", listing)
            for digest in set(before.values()) - set(listed.values()):
                self._fs.rm_file(self._address(digest))
        return copied

    def pull(self, folder: Path) -> int:
        """Make a run's folder from the copy; the folder appears once it is complete. Returns the number of its files.

        Raises:
            RunError: there is no run at the address, it cannot be read, a content is damaged, or the folder has files.
        """
        written = self._list()
        listed = _parsed(self.url, written)
        if not listed:
            raise RunError(f"{self.url} holds no run: there is no {_LIST}; check the address")
        if not folder.name:
            raise RunError("a pull cannot replace the current folder: give the name of a new one")
        if folder.exists() and any(folder.iterdir()):
            raise RunError(f"{folder} is not empty: choose another folder, or delete it")
        partial = folder.with_name(f".{folder.name}.pull.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with self._failures_reported():
                loaded: dict[str, str] = {}
                while loaded != listed:
                    try:
                        for name, digest in listed.items():
                            if loaded.get(name) != digest:
                                self._load(name, digest, partial / _inside(self.url, name))
                                loaded[name] = digest
                    except FileNotFoundError:  # a push removes the contents that its list no longer holds
                        newer = self._list()
                        if newer is None or newer == written:
                            raise
                        written, listed = newer, _parsed(self.url, newer)
                    for name in loaded.keys() - listed.keys():
                        (partial / name).unlink()
                        with suppress(OSError):  # the folder holds other files
                            os.removedirs((partial / name).parent)
                        del loaded[name]
                _store_digests(partial, None, written)
                replace_folder(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return len(listed)

    def _load(self, name: str, digest: str, path: Path) -> None:
        """Copy the content of a listed file to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._fs.open(self._address(digest), "rb") as source, replacing(path) as file:
            found = hashlib.blake2b(digest_size=16)
            while chunk := source.read(1 << 20):
                found.update(chunk)
                file.write(chunk)
        if found.hexdigest() != digest:
            raise RunError(f"{self.url}: the content of {name} is damaged: push the run again, if it is still there")

    def _list(self) -> bytes | None:
        content: bytes | None = None
        with self._failures_reported(), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            content = self._fs.cat_file(f"{self._root}/{_LIST}")
        return content

    def _require_own(self, folder: Path, written: bytes | None) -> None:
        state = folder / STATE
        known = regular(state).read_text().split() if state.exists() else []
        if written is not None and _digest(written) not in known:
            raise RunError(
                f"{self.url} holds a run that {folder} has not pushed there: give another address or, to go on with "
                f"that run, pull it to an empty folder"
            )

    def _read(self, path: Path, growing: bool, stored: Container[str]) -> tuple[str, bytes | None]:
        """The digest of a file. If the file may change later, also the content that has this digest, unless the
        address already holds it (``stored``)."""
        stamp = _stamp(path)
        known = self._digests.get(path)
        if known is not None and known[0] == stamp and known[1] in stored:
            return known[1], None
        content = None
        if growing:
            content = _database(path) if path.suffix == ".sqlite" else regular(path).read_bytes()
            digest = _digest(content)
        else:
            with regular(path).open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        self._digests[path] = stamp, digest
        return digest, content

    def _store(self, path: Path, digest: str, content: bytes | None) -> None:
        if content is None:
            self._fs.put_file(str(path), self._address(digest))
        else:
            self._fs.pipe_file(self._address(digest), content)

    def _address(self, digest: str) -> str:
        return f"{self._root}/files/{digest}"

    @contextmanager
    def _failures_reported(self) -> Iterator[None]:
        """Raise a RunError for whatever a file system raises: botocore's NoCredentialsError is no OSError."""
        try:
            yield
        except (RunError, StoreError):
            raise
        except Exception as error:
            raise RunError(
                f"{self.url} cannot be read or written: {error}: check the address and its credentials"
            ) from error


@contextmanager
def mirrored(folder: Path, url: str, on_failure: Callable[[str], None], every: float = _EVERY) -> Iterator[None]:
    """Push a run's folder to an address in a thread, every so many seconds, and once more at the end.

    A failed push does not stop the run; the next one copies what it left. If the last one fails, ``on_failure`` gets a
    sentence. Without an address nothing is pushed.

    Raises:
        RunError: the address cannot be written at the beginning, or holds another run.
    """
    if not url:
        yield
        return
    mirror, ended = Mirror(url), threading.Event()
    mirror.push(folder)

    def push() -> str:
        try:
            mirror.push(folder)
        except Exception as error:  # an address may fail in any way, and a run is worth more than its copy
            return f"the copy of {folder} is not up to date: {error}"
        return ""

    def push_regularly() -> None:
        while not ended.wait(every):
            push()

    thread = threading.Thread(target=push_regularly, name="mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if failed := push():
            on_failure(failed)


def _contents(folder: Path, growing: bool) -> Iterator[Path]:
    """The files of a run that grow, or those that do not, those of its own folder first. Hidden files and links are
    left out."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(at) / name
            hidden = name.startswith(".") or name in _LEFT_OUT or name.endswith((".sqlite-wal", ".sqlite-shm"))
            fixed = path.suffix in _FIXED or folder / "checkpoints" in path.parent.parents
            if not hidden and not path.is_symlink() and fixed != growing:
                yield path


def _stamp(path: Path) -> _Stamp:
    """Size and time of change of a file, with those of a database's log."""
    size = time = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        if each is path or each.exists():
            found = each.stat()
            size, time = size + found.st_size, max(time, found.st_mtime_ns)
    return size, time


def _database(path: Path) -> bytes:
    """A whole copy of a database that other processes may be writing."""
    with tempfile.TemporaryDirectory() as name:
        part = Path(name) / path.name
        with closing(sqlite3.connect(path, timeout=60)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        return part.read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _store_digests(folder: Path, *lists: bytes | None) -> None:
    write_atomic(folder / STATE, "\n".join(_digest(each) for each in lists if each is not None).encode())


def _parsed(url: str, written: bytes | None) -> dict[str, str]:
    try:
        listed = {} if written is None else orjson.loads(written)
    except orjson.JSONDecodeError:
        listed = None
    if not isinstance(listed, Mapping) or not all(isinstance(digest, str) for digest in listed.values()):
        raise RunError(f"{url}/{_LIST} is damaged: choose another address")
    return dict(listed)


def _inside(url: str, name: str) -> PurePosixPath:
    """The path of a listed file, which must lie in the run's folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RunError(f"{url}/{_LIST} names a file outside of the run, {name!r}: do not use this copy")
    return path
