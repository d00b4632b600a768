"""Rows of views on disk, so that a training can read them batch by batch without holding them all in memory."""

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

Row = TypeVar("Row")


class Spilled(Sequence[Row]):
    """Rows in a temporary file. Memory holds 8 bytes per row.

    The file has no name, so it disappears with the process, and no other process can change its content.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create the file, without rows.

        Args:
            folder: a folder on the disk that holds the file; by default the system's temporary folder, which may be in
                memory.
        """
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it stays open as long as the rows exist
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])

    def append(self, row: Row) -> None:
        """Add a row after the others."""
        self._ends.append(self._ends[-1] + self._file.write(pickle.dumps(row, pickle.HIGHEST_PROTOCOL)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        self._file.flush()
        first = self._ends[index]
        row: Row = pickle.loads(os.pread(self._file.fileno(), self._ends[index + 1] - first, first))
        return row


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
