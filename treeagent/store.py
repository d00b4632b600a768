"""Crash-safe records on disk: a shard is either complete or absent. The module handles plain dicts, not trees.

A folder holds shards ``<name>-00000.jsonl.zst``, with one JSON record per line; ``zstd -dc FILE | jq`` reads one.
"""

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
import zstandard

from treeagent.types import UserError

Record = Mapping[str, Any]
Read = TypeVar("Read")
_SHARD = re.compile(r"(?P<name>[^./][^/]*)-(?P<index>\d{5,})\.jsonl\.zst")
"""File name of a shard. The name part may be that of a checkpoint's folder, which the user chose."""
_CHUNK = 1 << 14
"""Compressed bytes read at once; few, because text may unpack to a hundred times its size."""


class StoreError(RuntimeError):
    """A file cannot be written or read. The message is one sentence with its name, the reason and the fix."""


class CorruptShard(ValueError):
    """A shard is incomplete, of another version or not written by treeagent. The message names file, line and fix."""


def write_shard(folder: Path, name: str, index: int, records: Iterable[Record]) -> Path:
    """Write records as shard ``index`` of ``name``, replacing an existing one. NaN and infinities become null."""
    path = folder / f"{name}-{index:05d}.jsonl.zst"
    if not _SHARD.fullmatch(path.name) or path.parent != folder:
        raise ValueError(f"{name!r} is no shard name: begin it with no dot, and leave slashes out")
    with replacing(path) as file:
        compressor = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
        for number, record in enumerate(records, start=1):
            try:
                file.write(compressor.compress(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)))
            except orjson.JSONEncodeError as error:
                raise StoreError(
                    f"cannot write {path}: record {number} is not JSON: {error}: keep to plain values"
                ) from error
        file.write(compressor.flush())
    return path


def write_atomic(path: Path, content: bytes) -> None:
    """After a crash, the file holds either the old content or the new."""
    with replacing(path) as file:
        file.write(content)


def appendable(path: Path) -> BinaryIO:
    """Open a file of a run at its end, to read and to append; it is made if there is none. Links are not followed,
    because a run may have been downloaded, and a link in it could lead to any file."""
    if path.is_symlink():
        raise StoreError(f"{path} is a link, which may lead anywhere: put the file itself in its place")
    return open(os.open(regular(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "ab+")


def regular(path: Path) -> Path:
    """Check that ``path`` is a regular file, or a link to one, or does not exist, and return it. Opening a pipe or a
    device may block for ever."""
    if os.path.exists(path) and not os.path.isfile(path):  # Path's own raise for some names, such as one too long
        raise StoreError(f"{path} is no regular file, such as a named pipe or a folder: move it away")
    return path


def shards(folder: Path, name: str | None = None, index: int | None = None) -> list[Path]:
    """Paths of finished shards, sorted by name and index; optionally only those of one ``name`` or one ``index``.
    Numbers in names count by value, so that round 10 follows round 9."""
    places = {path: shard_place(path) for path in folder.glob("*-*.jsonl.zst") if _SHARD.fullmatch(path.name)}
    chosen = [path for path, place in places.items() if name in (None, place[0]) and index in (None, place[1])]
    return sorted(chosen, key=lambda path: (_by_value(places[path][0]), *places[path]))


def _by_value(name: str) -> list[int | str]:
    """The texts and the numbers in a name, alternately."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", name))]


def shard_place(path: Path) -> tuple[str, int]:
    """The name and the index of a shard."""
    found = _SHARD.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path} is no shard")
    return found["name"], int(found["index"])


def shard_names(folder: Path) -> list[str]:
    """The names that have finished shards, in the order of ``shards``."""
    return list(dict.fromkeys(shard_place(path)[0] for path in shards(folder)))


def read_as(
    parse: Callable[[dict[str, Any]], Read], folder: Path, name: str | None = None, index: int | None = None
) -> Iterator[Read]:
    """Apply ``parse``, such as ``from_record``, to each record of all shards of ``name``, or of every name, in order.
    One line at a time is in memory. If ``parse`` raises ``UserError``, the shard is corrupt."""
    for path in shards(folder, name, index):
        for number, line in enumerate(_lines(path), start=1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                raise _corrupt(path, number, "is not JSON") from None
            if not isinstance(record, dict):
                raise _corrupt(path, number, "is no record")
            try:
                yield parse(record)
            except UserError as error:
                raise CorruptShard(f"{path}, line {number}: {error}") from error


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of writers that were killed. Only the folder's single writer may call this."""
    if folder.is_symlink():
        raise StoreError(f"{folder} is a link, which may lead anywhere: put the folder itself in its place")
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def digest(records: Iterable[Record]) -> str:
    """The sha256, in hex, of every tree's task, seed, actions, visits, rewards and values. It does not depend on the
    order of the trees or on their times."""
    keys = ("text", "token_ids", "visits", "value_sum", "reward")
    rows: list[tuple[str, int, str]] = []
    for record in records:
        edges = [[[edge[key] for key in keys] for edge in node["edges"]] for node in record["nodes"]]
        nodes = [
            [row["parent"], row["edge"], row["value"], below] for row, below in zip(record["nodes"], edges, strict=True)
        ]
        rows.append((record["task"]["id"], record["seed"], hashlib.sha256(orjson.dumps(nodes)).hexdigest()))
    return hashlib.sha256(b"".join(orjson.dumps(row) for row in sorted(rows))).hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path``. On success it is flushed to disk and then replaces ``path``."""
    temporary = path.parent / f".{path.name}.{threading.get_native_id()}.tmp"  # unique across processes, too
    try:
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        fix = "check the path and its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free some space, then repeat the command, with --resume if it has that option"
        raise StoreError(f"cannot write {path}: {error.strerror or error}: {fix}") from error


def replace_folder(partial: Path, folder: Path) -> None:
    """Flush the finished folder ``partial`` to disk, then rename it to ``folder``, replacing an existing one."""
    for path in (*partial.rglob("*"), partial):
        sync(path)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file or folder to disk. Without flushing the folder, a crash of the machine may undo a rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor().decompressobj()
    number, pending = 0, list[bytes]()  # joined once, as a line with images may take many chunks
    try:
        with regular(path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                for place, part in enumerate(frame.decompress(chunk).split(b"\n")):
                    if place:
                        number += 1
                        yield b"".join(pending)
                        pending.clear()
                    pending.append(part)
    except zstandard.ZstdError:
        pending.append(b"damaged")
    if any(pending) or not frame.eof:
        raise _corrupt(path, number + 1, "is cut short or damaged")


def _corrupt(path: Path, line: int, what: str) -> CorruptShard:
    return CorruptShard(f"{path}, line {line} {what}: delete this file, and run what made it again with --resume")
