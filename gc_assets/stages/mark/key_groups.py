"""Group the hashes of entries by file in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

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


def group_hashes(batches: Iterator[pa.RecordBatch], expected: int) -> Iterator[pa.Table]:
    """Group matched rows by storage and key.

    Memory use is proportional to the number of distinct keys, because rows are merged as soon as
    new rows outnumber the merged ones.

    Args:
        batches: Rows with the columns `MATCHED`.
        expected: Approximate number of rows.

    Yields:
        Disjoint groups of files, with the columns `GROUPED`.
    """
    parts = -(-max(1, expected) // GROUPED_ROWS)
    buckets = [_Bucket() for _ in range(parts)]
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(GROUPED.names[:-1])
        if parts == 1:
            buckets[0].add(rows)
            continue
        part = batch.column("key_hash").to_numpy().view(np.uint64) % np.uint64(parts)
        for number, bucket in enumerate(buckets):
            bucket.add(rows.filter(pa.array(part == number)))
    yield from (bucket.close() for bucket in buckets)


@dataclass(slots=True)
class _Bucket:
    """A subset of the files. New rows are merged as soon as they outnumber the merged ones."""

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
            new = _group(pa.concat_tables(self.added), ([], "count_all"))
            self.grouped = _group(pa.concat_tables([self.grouped, new]), ("entries", "sum")) if self.grouped.num_rows else new
        self.added, self.added_rows = [], 0


def _group(rows: pa.Table, entries: tuple[str | list[str], str]) -> pa.Table:
    # With threads, each batch would first be grouped separately, which is slower if keys seldom
    # repeat.
    grouped = rows.group_by(GROUPED.names[:2], use_threads=False).aggregate([("strongest", "min"), ("size_bytes", "max"), entries])
    names = {"strongest_min": "strongest", "size_bytes_max": "size_bytes", "count_all": "entries", "entries_sum": "entries"}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(GROUPED.names)
