"""Group the hashes of entries by file, with arrays in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# Rows that are sorted together. Sorting needs about 100 bytes per row.
GROUPED_ROWS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Distinct keys of one storage, as parallel arrays.

    Attributes:
        key_hash: Hashes, each once.
        strongest: Strongest witness and kind of each key.
        size_bytes: Largest recorded size of each key, or -1.
        entries: Number of rows of `MATCHED` with each key.
    """

    key_hash: NDArray[np.int64]
    strongest: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[KeyGroup]) -> KeyGroup:
        """Merge groups that may have keys in common."""
        key_hash, strongest, size_bytes, entries = (
            np.concatenate([getattr(group, name) for group in groups]) for name in ("key_hash", "strongest", "size_bytes", "entries")
        )
        order = np.argsort(key_hash)
        key_hash = key_hash[order]
        starts = np.flatnonzero(np.append(True, key_hash[1:] != key_hash[:-1]))
        return cls(
            key_hash[starts],
            np.minimum.reduceat(strongest[order], starts),
            np.maximum.reduceat(size_bytes[order], starts),
            np.add.reduceat(entries[order], starts),
        )


def group_hashes(batches: Iterator[pa.RecordBatch], expected: int) -> Iterator[tuple[int, KeyGroup]]:
    """Group matched rows (columns `MATCHED`) by storage and key.

    Memory is proportional to the number of distinct keys, because rows are grouped whenever as many
    have been added.

    Args:
        batches: Matched rows.
        expected: Approximate number of rows.

    Yields:
        The position of a storage with some of its keys. All groups are disjoint.
    """
    parts = -(-max(1, expected) // GROUPED_ROWS)
    buckets = dict[tuple[int, int], _Bucket]()
    for batch in batches:
        storage, key_hash = batch.column("storage").to_numpy(), batch.column("key_hash").to_numpy()
        size = pc.fill_null(batch.column("size_bytes"), -1).to_numpy()
        columns = (key_hash, batch.column("strongest").to_numpy(), size, np.ones(batch.num_rows, np.int64))
        part = (key_hash.view(np.uint64) % np.uint64(parts)).astype(np.int64)
        for position in np.unique(storage).tolist():
            for number in range(parts):
                is_mine = (storage == position) & (part == number)
                bucket = buckets.setdefault((position, number), _Bucket())
                bucket.add(KeyGroup(*(columns if is_mine.all() else (column[is_mine] for column in columns))))
    for (position, _), bucket in buckets.items():
        if (group := bucket.close()) is not None:
            yield position, group


@dataclass(slots=True)
class _Bucket:
    """Some of the keys of a storage. At least half of the rows in memory are grouped or new."""

    grouped: list[KeyGroup] = field(default_factory=list[KeyGroup])
    added: list[KeyGroup] = field(default_factory=list[KeyGroup])
    added_rows: int = 0

    def add(self, rows: KeyGroup) -> None:
        if not len(rows.key_hash):
            return
        self.added.append(rows)
        self.added_rows += len(rows.key_hash)
        if self.added_rows > max(GROUPED_ROWS, sum(len(group.key_hash) for group in self.grouped)):
            self.grouped, self.added, self.added_rows = [KeyGroup.of([*self.grouped, *self.added])], [], 0

    def close(self) -> KeyGroup | None:
        """Return the keys, or None for an empty bucket."""
        groups, self.grouped, self.added = [*self.grouped, *self.added], [], []
        return KeyGroup.of(groups) if groups else None


def number_values(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted distinct values, and the index of each value among them.

    Sorting takes ten times as long as counting, which needs memory for the largest value.
    """
    if int(values.max()) > 4 * len(values) + 1_000_000:
        return np.unique(values, return_inverse=True)
    numbers = np.flatnonzero(np.bincount(values))
    index = np.empty(int(numbers[-1]) + 1, np.int64)
    index[numbers] = np.arange(len(numbers))
    return numbers, index[values]
