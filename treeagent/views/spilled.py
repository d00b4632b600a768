"""Rows of views on disk, so that a training can read them batch by batch without holding them all in memory."""

import os
import pickle
import struct
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

Row = TypeVar("Row")


class Spilled(Sequence[Row]):
    """Rows in temporary files: one with the rows, one with their ends. Memory holds none of them.

    The files have no names, so they disappear with the process, and no other process can change their content.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create the files, without rows.

        Args:
            folder: a folder on the disk that holds the files; by default the system's temporary folder, which may be in
                memory.
        """
        self._rows, self._ends = (tempfile.TemporaryFile(dir=folder) for _ in range(2))  # noqa: SIM115  # stay open
        for file in (self._rows, self._ends):
            weakref.finalize(self, file.close)
        self._count = self._end = 0
        self._ends.write(_pack(self._end))

    def append(self, row: Row) -> None:
        """Add a row after the others."""
        self._end += self._rows.write(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
        self._ends.write(_pack(self._end))
        self._count += 1

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        self._rows.flush()
        self._ends.flush()
        first, end = struct.unpack("<2q", os.pread(self._ends.fileno(), 16, 8 * index))
        row: Row = pickle.loads(os.pread(self._rows.fileno(), end - first, first))
        return row


def _pack(end: int) -> bytes:
    return struct.pack("<q", end)


class Picked(Sequence[Row]):
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

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Picked(self._rows, self._indices[index])
        return self._rows[self._indices[index]]


def where(rows: Sequence[Row], predicate: Callable[[Row], bool]) -> Sequence[Row]:
    """The rows for which ``predicate`` is true, in their order."""
    return Picked(rows, array("q", (index for index, row in enumerate(rows) if predicate(row))))
