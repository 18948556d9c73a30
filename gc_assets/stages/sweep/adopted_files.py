"""Keep track of adopted files: files that dropped tables used, but may share with others.

A table can reference files in the location of another one, for example after `add_files`. If it
shares a directory with a listed table, that table may have referenced these files too. The files
may get new times, for example if the storage is copied. When the table is dropped, these files have
to wait until it is due for deletion. The first run that does not find the table looks them up in
the live set of the last accepted run. Later runs copy the rows for as long as they remember the
table and do not read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from gc_assets.core.dropped_tables import ALL_TABLES, DroppedPrefixes, DroppedTable, TableSelection
from gc_assets.core.errors import StateError
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.stored_hashes import StoredHashes
from gc_assets.engine.tables import PARTS, ROUTE, merge_written, report_parts
from gc_assets.stages.mark.container_scan import KIND_COUNT
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.records.newest_sweeps import find_sweep
from gc_assets.stages.sweep.foreign_metadata import directory_of
from gc_assets.stages.sweep.table_memory import find_accepted_sweep
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartFile, PartWriter
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import ADOPTED_FILES, ADOPTED_SIDE

# A task merges equal rows as soon as it has this many new ones, with 12 bytes each.
MERGED_ROWS: Final = 2_000_000
_FOUND: Final = pa.schema([("table", pa.int32()), ("key_hash", pa.int64())])


@dataclass(frozen=True)
class AdoptedFiles:
    """Files that dropped tables needed outside their claims, or in a listed table's location.

    Other tables may stop using these files, and the files' times may change. Such a file waits
    until all of these dropped tables are due. A table that may exist after all, for example because
    it cannot be read, is not due.

    A table can have any number of files, so their rows stay in the state.

    Attributes:
        scan: Parts with the rows (`ADOPTED_FILES` columns), which may repeat. None if there are no
            rows.
        rows: Number of rows in these parts.
        selection: The tables whose rows count.
    """

    scan: ParquetScan | None = None
    rows: int = 0
    selection: TableSelection = ALL_TABLES

    @classmethod
    def of_parts(cls, files: Files, directory: str, parts: Collection[PartFile]) -> AdoptedFiles:
        if not parts:
            return NO_ADOPTED_FILES
        return cls(ParquetScan.of(files, ADOPTED_FILES, directory, tuple(parts)), sum(part.rows for part in parts))

    def add(self, other: AdoptedFiles) -> AdoptedFiles:
        """Return the adopted files of both objects, with the table selection of this one."""
        if self.scan is None or other.scan is None:
            return replace(other if self.scan is None else self, selection=self.selection)
        scan = replace(self.scan, paths=self.scan.paths + other.scan.paths, sizes=self.scan.sizes + other.scan.sizes)
        return replace(self, scan=scan, rows=self.rows + other.rows)

    def find_waiting(self, tables: Iterable[DroppedTable]) -> StoredHashes | None:
        """Return the key hashes of the adopted files that wait, or None if no file was adopted.

        Args:
            tables: The dropped tables. Files of any other table wait.
        """
        due = ((item.table.lake, item.table.table_uuid) for item in tables if item.is_due)
        return None if self.scan is None else StoredHashes(self.scan, self.rows, self.selection.without(due))

    def find_owner(self, key: str, tables: Iterable[DroppedTable]) -> DroppedTable | None:
        """Return the first dropped table that waits and has adopted the file, or None.

        Args:
            key: The key of the file.
            tables: The dropped tables, in the order of preference.
        """
        owners, key_hash = set[tuple[str, str]](), xxhash64(pa.array([key]))[0]
        for batch in self._read():
            rows = batch.filter(pc.equal(batch.column("key_hash"), key_hash))
            owners |= set(zip(rows.column("lake").to_pylist(), rows.column("table_uuid").to_pylist(), strict=True))
        return next((item for item in tables if not item.is_due and (item.table.lake, item.table.table_uuid) in owners), None)

    def write(self, files: Files, run: TableRun, tables: Iterable[tuple[str, str]]) -> tuple[PartFile, ...]:
        """Write the adopted files of some tables (lake and UUID) to the side table of a run."""
        writer, wanted = PartWriter(files, run.path, ADOPTED_FILES, ADOPTED_SIDE), TableSelection(frozenset(tables))
        for batch in self._read():
            writer.write(batch.filter(wanted.find_rows(batch)))
        return tuple(writer.close())

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Yield the adopted files of the selected tables, one batch at a time."""
        for batch in () if self.scan is None else self.scan.read_batches():
            yield batch.filter(self.selection.find_rows(batch))


NO_ADOPTED_FILES: Final = AdoptedFiles()


def find_adopted_files(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    found: DroppedPrefixes,
    missed: Collection[int],
    unread: Collection[tuple[str, str]],
    run: TableRun,
) -> tuple[AdoptedFiles, tuple[str, ...]]:
    """Find the files that unread tables adopted, and why some adopted files are unknown.

    Args:
        found: The dropped tables.
        missed: Indices of the tables that are missing for the first time in this run.
        unread: Lakes and UUIDs of all remembered tables that this run did not read.
        run: The run to which tasks write the files that they find.
    """
    swept = find_accepted_sweep(context, storage_name) if unread else None
    if swept is None:
        return NO_ADOPTED_FILES, ()
    adopted, notes = replace(_read(context, swept), selection=TableSelection(frozenset(unread))), list[str]()
    by_lake: dict[str, dict[str, int]] = {}
    for index in missed:
        table = found.tables[index].table
        by_lake.setdefault(table.lake, {})[table.table_uuid] = index
    for lake, tables in by_lake.items():
        reason: object = "the live files of the last accepted run are not available any more"
        if (live := _open_live_set(context, swept, lake)) is not None:
            try:
                adopted = adopted.add(_find_named(spark, context, storage_name, found, live, tables, run))
                continue
            except StateError as error:
                reason = error
        notes.append(
            f"lake {context.config.label_of(lake)}: the files that its dropped tables need outside their own locations, or share "
            f"with other tables, are unknown, so these files do not wait with the tables: {reason}"
        )
    return adopted, tuple(notes)


def read_adopted_files(context: RunContext, storage_name: str) -> AdoptedFiles:
    """Return the adopted files recorded by the sweep of a plan's run, or by the newest sweep."""
    swept = find_sweep(context, storage_name)
    return NO_ADOPTED_FILES if swept is None else _read(context, swept)


def _read(context: RunContext, swept: PublishedTable) -> AdoptedFiles:
    return AdoptedFiles.of_parts(context.state.files, swept.path, swept.parts(ADOPTED_SIDE))


def _find_named(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    found: DroppedPrefixes,
    live: LiveSet,
    tables: dict[str, int],
    run: TableRun,
) -> AdoptedFiles:
    """Find files that a lake's tables referenced outside their own claims.

    Raises:
        StateError: If the live set cannot be read.
    """
    witnesses = live.find_witnesses(tables).sort_by("witness")
    numbers = pa.array(list(tables.values()), pa.int64()).take(
        pc.index_in(witnesses.column("table_uuid"), pa.array(list(tables), pa.string()))
    )
    position, files = [storage.name for storage in context.config.storages].index(storage_name), context.state.files
    find = FindAdopted(found, position, witnesses.column("witness").to_numpy(), numbers.to_numpy())
    task = WriteAdopted(find, files, run, live.lake)
    parts = task.write([find.select(*_find_metadata(context, storage_name, found, live, tables.values()))])
    if witnesses.num_rows:
        parts += merge_written(live.run_on(spark, witnesses, task, PARTS).to_pylist()).side.get(ADOPTED_SIDE, ())
    return AdoptedFiles.of_parts(files, run.path, parts)


def _find_metadata(
    context: RunContext, storage_name: str, found: DroppedPrefixes, live: LiveSet, numbers: Iterable[int]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """Find the pinned files next to the metadata of dropped tables, which no commit references.

    Returns:
        The keys, and the index of the table of each.
    """
    resolver, directories = context.resolver(), list[tuple[str, int]]()
    for number in numbers:
        location = found.tables[number].table.metadata_location
        resolved = None if location is None else resolver.locate_one(location)
        if resolved is not None and resolved[0] == storage_name:
            directories.append((directory_of(resolved[1]), number))
    rows = live.direct_rows()
    is_pinned = pc.and_(pc.is_null(rows.column("commit_id")), pc.is_null(rows.column("table_uuid")))
    is_live = pc.and_(pc.equal(rows.column(ROUTE), ""), pc.equal(rows.column("storage"), storage_name))
    keys = rows.filter(pc.and_(is_pinned, is_live)).column("key")
    pinned = pa.table({"key": keys, "directory": pc.replace_substring_regex(keys, "/?[^/]*$", "")})
    names, of = zip(*directories, strict=True) if directories else ((), ())
    of_tables = pa.table({"directory": pa.array(names, pa.string()), "table": pa.array(of, pa.int64())})
    found_rows = pinned.join(of_tables, "directory", join_type="inner")
    return found_rows.column("key").combine_chunks(), found_rows.column("table").to_numpy()


def _open_live_set(context: RunContext, swept: PublishedTable, lake: str) -> LiveSet | None:
    """Return the live set of a lake that a sweep used, or None if it is unavailable."""
    references = (value for name, value in swept.receipt.inputs.items() if name.startswith(f"{lake}/{LIVE_FILES.name}/"))
    run_id = next(references, "").partition(":")[0]
    run = next((run for run in context.state.history(lake, LIVE_FILES.name) if run.run_id == run_id), None)
    live = None if run is None else LiveSet(context, context.state.open(run))
    return live if live is not None and live.is_view else None


@dataclass(frozen=True)
class FindAdopted:
    """Find files of dropped tables outside their claims, or where a listed table has a claim too.

    The input has the `KEYED` columns, and the output `_FOUND`. It is pickled and sent to Spark
    executors.

    Attributes:
        found: The dropped tables.
        position: Position of the storage in the configuration.
        witnesses: Sorted numbers of the witnesses (commit and container) that belong to the tables,
            at least one.
        tables: Index of the table of each witness.
    """

    found: DroppedPrefixes
    position: int
    witnesses: NDArray[np.int64]
    tables: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            witness = batch.column("strongest").to_numpy() // KIND_COUNT
            at = np.minimum(np.searchsorted(self.witnesses, witness), len(self.witnesses) - 1)
            is_own = (self.witnesses[at] == witness) & (batch.column("storage").to_numpy() == self.position)
            keys, tables = batch.column("key").filter(pa.array(is_own)), self.tables[at[is_own]]
            yield self.select(keys, tables)

    def select(self, keys: pa.Array, tables: NDArray[np.int64]) -> pa.RecordBatch:
        """Select the wanted files, given by their keys and the indices of their tables."""
        is_wanted = self.found.is_outside(keys, tables) | self.found.find_shared(keys)
        hashes = xxhash64(keys.filter(pa.array(is_wanted)))
        return pa.RecordBatch.from_arrays([pa.array(tables[is_wanted], pa.int32()), pa.array(hashes)], schema=_FOUND)


@dataclass(frozen=True)
class WriteAdopted:
    """Write the files that `find` finds to the side table of a run, on Spark executors.

    Many manifests reference the same file, so a task merges equal rows.
    """

    find: FindAdopted
    files: Files
    run: TableRun
    lake: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report_parts(self.write(self.find(batches)))

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[PartFile]:
        """Write rows of `_FOUND` as rows of `ADOPTED_FILES`, and return the parts."""
        rows, count = _FOUND.empty_table(), 0
        for batch in batches:
            rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
            if rows.num_rows > count + max(count, MERGED_ROWS):
                rows = _merge_equal(rows)
                count = rows.num_rows
        writer = PartWriter(self.files, self.run.path, ADOPTED_FILES, ADOPTED_SIDE)
        uuids = pa.array([item.table.table_uuid for item in self.find.found.tables], pa.string())
        for batch in _merge_equal(rows).to_batches():
            lakes = pa.repeat(pa.scalar(self.lake), batch.num_rows)
            columns = [lakes, uuids.take(batch.column("table")), batch.column("key_hash")]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=ADOPTED_FILES))
        return writer.close()


def _merge_equal(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names).aggregate([]).select(rows.column_names)
