"""Group the key hashes of file entries by file, in the current process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.sorted_hashes import group_sorted

# Number of rows that are grouped together, with about 100 bytes each.
GROUPED_ROWS: Final = 2_000_000

# One row per file: its strongest witness and kind, its largest recorded size, and the number of
# entries that refer to it.
GROUPED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("key_hash", pa.int64()),
        ("strongest", pa.int64()),
        ("size_bytes", pa.int64()),
        ("entries", pa.int64()),
    ]
)
_NO_SIZE: Final = -1


def group_hashes(batches: Iterator[pa.RecordBatch], expected: int) -> Iterator[pa.Table]:
    """Group matched rows (schema `MATCHED`) by storage and key hash.

    Memory use is proportional to the number of distinct hashes, because new rows are merged as soon
    as they outnumber the merged rows.

    Args:
        batches: Rows with the `MATCHED` columns.
        expected: Approximate number of rows.

    Yields:
        Disjoint groups of files, with the `GROUPED` columns.
    """
    parts = -(-max(1, expected) // GROUPED_ROWS)
    buckets = [_Bucket() for _ in range(parts)]
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(GROUPED.names[:-1])
        rows = rows.append_column(GROUPED.field("entries"), pa.array(np.ones(rows.num_rows, np.int64)))
        if parts == 1:
            buckets[0].add(rows)
            continue
        part = batch.column("key_hash").to_numpy().view(np.uint64) % np.uint64(parts)
        for number, bucket in enumerate(buckets):
            bucket.add(rows.filter(pa.array(part == number)))
    yield from (bucket.close() for bucket in buckets)


@dataclass(slots=True)
class _Bucket:
    """The rows of a subset of all files. New rows are merged when they outnumber merged rows."""

    grouped: pa.Table = field(default_factory=GROUPED.empty_table)
    added: list[pa.Table] = field(default_factory=list[pa.Table])
    added_rows: int = 0

    def add(self, rows: pa.Table) -> None:
        self.added.append(rows)
        self.added_rows += rows.num_rows
        if self.added_rows > max(GROUPED_ROWS, self.grouped.num_rows):
            self._merge()

    def close(self) -> pa.Table:
        self._merge()
        return self.grouped

    def _merge(self) -> None:
        if self.added_rows:
            self.grouped = _group(pa.concat_tables([self.grouped, *self.added]))
        self.added, self.added_rows = [], 0


def _group(rows: pa.Table) -> pa.Table:
    """Merge the rows of each file. Sorting their hashes is three times as fast as Arrow's grouping."""
    found = [GROUPED.empty_table()]
    for storage in rows.column("storage").unique():
        mine = rows.filter(pc.equal(rows.column("storage"), storage))
        key_hash, strongest, entries = (mine.column(name).to_numpy() for name in ("key_hash", "strongest", "entries"))
        sizes = pc.fill_null(mine.column("size_bytes"), _NO_SIZE).to_numpy()
        order, first = group_sorted(key_hash)
        size_bytes = np.maximum.reduceat(sizes[order], first)
        columns = {
            "storage": pa.repeat(storage, len(first)),
            "key_hash": key_hash[order[first]],
            "strongest": np.minimum.reduceat(strongest[order], first),
            "size_bytes": pa.array(size_bytes, mask=size_bytes == _NO_SIZE),
            "entries": np.add.reduceat(entries[order], first),
        }
        found.append(pa.table(columns, GROUPED))
    return pa.concat_tables(found)
