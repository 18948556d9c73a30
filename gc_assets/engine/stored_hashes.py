"""Look up hashes of keys in tables of the state, while only few of them are in memory.

A process reads each set of hashes once, and sorts it. Large sets are written to a temporary file
that is mapped into memory, so that the operating system can release its pages.
"""

from __future__ import annotations

import errno
import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.errors import GcError
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.parquet_scan import ParquetScan

# Sets of up to this size are kept in memory, with 8 bytes per hash.
MAX_KEPT_HASHES: Final = 16_000_000


class RowSelection(Protocol):
    """Selects rows of a table. Implementations can be pickled and hashed."""

    def find_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a mask of the selected rows."""
        ...


@dataclass(frozen=True)
class StoredHashes:
    """A set of hashes of keys that is stored in the state. Only its paths are pickled.

    Attributes:
        scan: The parts, with the column key_hash and those that the selection needs.
        rows: Number of rows in these parts.
        selection: Selects the rows that belong to the set, or None if all do.
    """

    scan: ParquetScan
    rows: int
    selection: RowSelection | None = None

    def contains(self, hashes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the hashes that are in the set."""
        return is_in_sorted(hashes, _read_sorted(self))

    def read(self) -> Iterator[NDArray[np.int64]]:
        """Yield all hashes. Their order is undefined, and they may repeat."""
        for batch in self.scan.read_batches():
            yield batch.column("key_hash").to_numpy()[self._is_selected(batch)]

    def _is_selected(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        if self.selection is None:
            return np.ones(rows.num_rows, bool)
        return pc.fill_null(self.selection.find_rows(rows), False).to_numpy(zero_copy_only=False)

    def read_sorted(self) -> NDArray[np.int64]:
        """Read all hashes into memory, sorted and without duplicates."""
        return sort_distinct(np.concatenate([np.empty(0, np.int64), *self.read()]))


@lru_cache(maxsize=2)
def _read_sorted(stored: StoredHashes) -> NDArray[np.int64]:
    if stored.rows <= MAX_KEPT_HASHES:
        return stored.read_sorted()
    try:
        found = _map_file(stored)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise GcError(
            f"Cannot write {stored.rows:,} hashes of keys to a temporary file in {tempfile.gettempdir()} ({8 * stored.rows:,} bytes): "
            f"{error}. Free space there, or set TMPDIR to another directory."
        ) from error
    found.sort()
    return found


def _map_file(stored: StoredHashes) -> NDArray[np.int64]:
    """Write the hashes to a temporary file and map it into memory."""
    with tempfile.TemporaryFile(prefix="gc-assets-hashes-") as file:
        for hashes in stored.read():
            file.write(hashes.tobytes())
        if not file.tell():
            return np.empty(0, np.int64)
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
