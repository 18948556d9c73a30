"""Match cached entries with the states of their containers, and build rows of `live_files`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.arrow_rows import aggregate_rows
from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import is_in_sorted
from gc_assets.engine.state_scan import may_contain
from gc_assets.engine.tables import ROUTE
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.container_scan import (
    EXTERNAL,
    KIND_COUNT,
    ContainerScan,
    Expanding,
    numbered_states,
    to_kind_numbers,
    to_positions,
)
from gc_assets.stages.mark.container_states import NumberedStates, file_key, route_of
from gc_assets.stages.mark.file_entries import is_file_entry, possible_lengths
from gc_assets.state.files import Files
from gc_assets.state.parts import missing_columns, open_part
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import EXTERNAL_SIDE

_ENTRIES: Final = pa.schema(
    [
        MANIFEST_ENTRIES.schema.field(name)
        for name in ("container", "address", "key", "storage", "kind", "is_container", "size_bytes", "entry_status", "must_exist")
    ]
)

# One row per entry and directly referenced file, or per file after grouping. `storage` and
# `strongest` have the same meaning as in `MATCHED`.
KEYED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("key", pa.string()),
        ("strongest", pa.int64()),
        ("size_bytes", pa.int64()),
        ("must_exist", pa.bool_()),
        ("container_size_bytes", pa.int64()),
    ]
)

_AGGREGATES: Final = {"strongest": "min", "size_bytes": "max", "must_exist": "max", "container_size_bytes": "max"}

ROUTED_ROWS: Final = LIVE_FILES.schema.append(pa.field(ROUTE, pa.string()))


@dataclass(frozen=True)
class EntryScan(ContainerScan):
    """Scan parts of `manifest_entries` for the file entries of known containers.

    Attributes:
        keys: If not None, only files with these keys are selected. For files outside all storages,
            these are addresses.
        containers: Sorted addresses of containers. If not None, row groups without entries of these
            containers are skipped.
        external: If True, only files outside all storages are selected.
        bucket: If not None, the number of a bucket and the total number of buckets. Only files
            whose keys hash to this bucket are selected.
        hashes: Sorted key hashes. If not None, only files with one of these hashes are selected.
    """

    SCHEMA: ClassVar[pa.Schema] = KEYED

    keys: pa.Array | None = None
    containers: tuple[str, ...] | None = None
    external: bool = False
    bucket: tuple[int, int] | None = None
    hashes: NDArray[np.int64] | None = None

    def match_part(self, content: bytes, expanding: Expanding) -> Iterator[pa.RecordBatch]:
        for entries in self._read_entries(content):
            selected, position = expanding.match(entries)
            if selected.num_rows:
                must_exist = selected.column("must_exist").to_numpy() & expanding.must_exist[position]
                columns = {"witness": pa.array(expanding.witness[position]), "must_exist": pa.array(must_exist)}
                yield from self._to_keyed(with_columns(selected, columns))

    def match_direct(self, states: NumberedStates) -> Iterator[pa.RecordBatch]:
        rows = states.direct
        if self.keys is not None:
            rows = rows.filter(pc.is_in(file_key(rows), self.keys))
        yield from self._to_keyed(rows.filter(pc.is_null(rows.column("storage"))) if self.external else rows)

    def _read_entries(self, content: bytes) -> Iterator[pa.Table]:
        """Yield the selected file entries of a part, decoding only row groups with a match."""
        source = open_part(content, ["container", "storage", "kind"])
        missing = missing_columns(source.schema_arrow, _ENTRIES)
        names = [name for name in _ENTRIES.names if name not in missing and name != "address"]
        for group in range(source.num_row_groups):
            if not self._may_match(source.metadata.row_group(group)):
                continue
            if self.keys is not None and not pc.any(self._key_mask(source.read_row_group(group, ["key", "address"]))).as_py():
                continue
            rows = source.read_row_group(group, names)
            if rows.column("key").null_count:  # addresses are long, and only needed for files outside all storages
                rows = rows.append_column("address", source.read_row_group(group, ["address"]).column("address"))
            rows = rows.filter(is_file_entry(rows))
            if self.external:
                rows = rows.filter(pc.is_null(rows.column("storage")))
            yield rows if self.keys is None else rows.filter(self._key_mask(rows))

    def _may_match(self, group: pq.RowGroupMetaData) -> bool:
        if not may_contain(group, "is_container", False):
            return False
        if self.containers is None:
            return True
        chunks = map(group.column, range(group.num_columns))
        statistics = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == "container"), None)
        if statistics is None or not statistics.has_min_max:
            return True
        at = bisect_left(self.containers, statistics.min)
        return at < len(self.containers) and self.containers[at] <= statistics.max

    def _key_mask(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.is_in(file_key(rows), self.keys)

    def _to_keyed(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        has_lengths = "container_size_bytes" in rows.column_names
        lengths = rows.column("container_size_bytes") if has_lengths else pa.nulls(rows.num_rows, pa.int64())
        strongest = rows.column("witness").to_numpy() * KIND_COUNT + to_kind_numbers(rows.column("kind"))
        columns = {
            "storage": pa.array(to_positions(rows.column("storage"), self.storages, EXTERNAL), pa.int16()),
            "key": file_key(rows),
            "strongest": pa.array(strongest),
            "size_bytes": possible_lengths(pc.coalesce(rows.column("size_bytes"), lengths)),
            "must_exist": rows.column("must_exist"),
            "container_size_bytes": lengths,
        }
        keyed = pa.table({name: columns[name] for name in KEYED.names}, schema=KEYED)
        if self.bucket is not None:
            number, count = self.bucket
            keyed = keyed.filter(pa.array(xxhash64(keyed.column("key")).view(np.uint64) % np.uint64(count) == number))
        if self.hashes is not None:
            keyed = keyed.filter(pa.array(is_in_sorted(xxhash64(keyed.column("key")), self.hashes)))
        yield from keyed.to_batches()


@dataclass(frozen=True)
class ToRows:
    """Convert matched files (schema `KEYED`) to rows of `live_files`.

    The column `_route` contains the side table to which a row is written.
    """

    files: Files
    states: tuple[str, ...]
    storages: tuple[str, ...]
    lake: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        witnesses = numbered_states(self.files, self.states).witnesses.sort_by("witness")
        routes = pa.array([route_of(rank) for rank in range(max(witnesses.column("rank").to_pylist(), default=0) + 1)])
        names = pa.array([*self.storages, None], pa.string())
        for batch in batches:
            witness, kind = np.divmod(batch.column("strongest").to_numpy(), KIND_COUNT)
            storage = names.take(pa.array(batch.column("storage").to_numpy() % len(names)))
            needed_by = witnesses.take(pa.array(witness))
            columns = {name: batch.column(name) for name in ("key", "size_bytes", "must_exist", "container_size_bytes")}
            columns |= {name: needed_by.column(name).combine_chunks() for name in ("commit_id", "container", "table_uuid")}
            columns |= {
                "storage": storage,
                "key_hash": pa.array(xxhash64(batch.column("key"))),
                "kind": pa.array(FILE_KINDS).take(pa.array(kind)),
                "lake": pa.repeat(self.lake, batch.num_rows),
                ROUTE: pc.if_else(pc.is_null(storage), EXTERNAL_SIDE, routes.take(needed_by.column("rank").combine_chunks())),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in ROUTED_ROWS.names], schema=ROUTED_ROWS)


def group_rows(matched: pa.Table) -> pa.Table:
    """Group matched rows by file, and sort the files so that equal live sets have equal rows."""
    grouped = aggregate_rows(matched, ["storage", "key"], _AGGREGATES).sort_by([("storage", "ascending"), ("key", "ascending")])
    return grouped.select(KEYED.names).cast(KEYED).combine_chunks()


def group_frame(matched: DataFrame) -> DataFrame:
    return (
        matched.groupBy("storage", "key")
        .agg(*(getattr(F, how)(name).alias(name) for name, how in _AGGREGATES.items()))
        .select(*KEYED.names)
    )


def with_columns(rows: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Replace columns of a table, or append new ones."""
    existing = {name: rows.column(name) for name in rows.column_names}
    return pa.table(existing | columns)
