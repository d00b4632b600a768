"""Rows of views on disk, so that a training can read them batch by batch without holding them all in memory."""

import os
import pickle
import struct
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeVar, overload

Row = TypeVar("Row")


class _Rows(Sequence[Row]):
    """A sequence that reads a row only when it is asked for. A slice copies nothing."""

    def _at(self, index: int) -> Row:
        """The row at an index from 0 to the length - 1."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        indices = range(len(self))[index]
        return Picked(self, array("q", indices)) if isinstance(indices, range) else self._at(indices)


class Spilled(_Rows[Row]):
    """Rows in two files: one with the rows, one with their ends. Memory holds none of them."""

    def __init__(self, folder: Path | None = None, name: str = "") -> None:
        """Create the files, without rows.

        Args:
            folder: a folder on the disk that holds the files; by default the system's temporary folder, which may be in
                memory.
            name: file name of the rows in ``folder``. With a name, the object can be pickled, and other processes can
                read the rows that it has then. By default the files have no names: they disappear with the process, and
                no other process can change their content.
        """
        self._path = None if folder is None or not name else folder / name
        if self._path is None:
            self._hold(tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder))  # noqa: SIM115  # stay open
        else:
            self._hold(self._path.open("w+b"), _ends(self._path).open("w+b"))
        self._count = self._end = 0
        self._ends.write(_pack(self._end))

    def _hold(self, rows: BinaryIO, ends: BinaryIO) -> None:
        self._rows, self._ends = rows, ends
        for file in (rows, ends):
            weakref.finalize(self, file.close)

    def __getstate__(self) -> tuple[Path, int]:
        if self._path is None:
            raise TypeError("rows in files without names cannot be pickled")
        self._flush()
        return self._path, self._count

    def __setstate__(self, state: tuple[Path, int]) -> None:
        self._path, self._count = state
        self._hold(state[0].open("rb"), _ends(state[0]).open("rb"))

    def append(self, row: Row) -> None:
        """Add a row after the others."""
        self._end += self._rows.write(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
        self._ends.write(_pack(self._end))
        self._count += 1

    def _flush(self) -> None:
        self._rows.flush()
        self._ends.flush()

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> Row:
        self._flush()
        first, end = struct.unpack("<2q", os.pread(self._ends.fileno(), 16, 8 * index))
        row: Row = pickle.loads(os.pread(self._rows.fileno(), end - first, first))
        return row


def _ends(path: Path) -> Path:
    return path.with_name(f"{path.name}.ends")


def _pack(end: int) -> bytes:
    return struct.pack("<q", end)


class Joined(_Rows[Row]):
    """Several sequences one after the other. Nothing is copied."""

    def __init__(self, parts: Sequence[Sequence[Row]]) -> None:
        """Join ``parts``, whose lengths must not change any more."""
        self._parts, self._firsts = parts, [0, *accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._firsts[-1]

    def _at(self, index: int) -> Row:
        part = bisect_right(self._firsts, index) - 1
        return self._parts[part][index - self._firsts[part]]


class Picked(_Rows[Row]):
    """Some rows of a sequence, in a given order. Nothing is copied."""

    def __init__(self, rows: Sequence[Row], indices: "array[int]") -> None:
        """Select the rows.

        Args:
            rows: the rows to select from.
            indices: indices of the selected rows, in the new order.
        """
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Row]:
        return (self._rows[index] for index in self._indices)

    def _at(self, index: int) -> Row:
        return self._rows[self._indices[index]]


def where(rows: Sequence[Row], predicate: Callable[[Row], bool]) -> Sequence[Row]:
    """The rows for which ``predicate`` is true, in their order."""
    return Picked(rows, array("q", (index for index, row in enumerate(rows) if predicate(row))))
