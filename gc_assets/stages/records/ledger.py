"""Compute the quarantine ledger from the deletion logs.

The ledger lists all copies in quarantine. A copy is identified by its key and the plan that
quarantined it. A *log entry* is a row of `deletion_log`. It is *settled* if its outcome is `done`,
or if it is a purge or restore with the outcome `absent`, because the copy then does not exist. A
copy is in quarantine if its newest settled entry is the quarantine itself. `copies_in_quarantine`
implements this rule for both Arrow and Spark.

In deferred quarantine, a purge or restore with the outcome `changed` ends the record too if the
object at the key is another one or is live (`ends_record`). The object stays, so the entry counts
as a restore, and later runs classify the object again. An action that only waits ends no record.

In the modes deferred and versioned, several records can describe one object, which is identified by
key, etag and version. Plans of earlier releases made such records. If one of these records ends,
all of them end, whether rehearsals or real runs made them.

Entries are ordered by the fencing tokens of their leases, because tokens always increase, which is
not certain for clocks. Entries written by releases without tokens come first, ordered by time and
run id.

If a rehearsal has quarantined a copy, only rehearsals see it, and they do not see any other copies.
Entries written before release 0.4 do not record this, so their copies are visible to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.hashing import xxhash64
from gc_assets.core.phases import ABORT, ABSENT, DONE, PURGE, QUARANTINE, RESTORE
from gc_assets.engine.sessions import MAX_SMALL_ROWS, is_small
from gc_assets.engine.tables import frame_from_arrow, parallelism, spark_schema
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.state.compaction import SegmentFile
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG

# Columns that describe a quarantined object, besides its key.
COPY_COLUMNS: Final = ("size_bytes", "etag", "version_id", "quarantine", "kind")
_ENTRY_COLUMNS: Final = ("key", "phase", "outcome", "at", "plan_id", "run_id", "source_plan_id", "token", "rehearsal", "ends_record")
LOG_ENTRIES: Final = pa.schema([DELETION_LOG.schema.field(name) for name in (*_ENTRY_COLUMNS, *COPY_COLUMNS)])
QUARANTINED_COPY: Final = pa.schema(
    [
        ("key", STRING),
        ("source_plan_id", STRING),
        ("quarantined_at", TIMESTAMP),
        *(DELETION_LOG.schema.field(name) for name in ("rehearsal", *COPY_COLUMNS)),
    ]
)

# Modes in which the bytes of an object stay at its key, even if they are hidden.
IN_PLACE: Final = ("deferred", "versioned")

# The version of an object that was written without versioning, if the bucket has versioning now.
# Before that, the version of the same object is missing.
UNVERSIONED: Final = "null"

# Maximum number of log entries to hold in memory, which take up about 500 MB.
SHARE_ROWS: Final = 1_000_000
REMOVED_DDL: Final = "key string, etag string"


def settled_entries(entries: pa.Table) -> pa.Table:
    """Select settled entries and add a `by` column with the plan that quarantined the copy.

    Entries of the `abort` phase are left out, because an upload is not the file with that key.
    """
    done = pc.equal(entries.column("outcome"), DONE)
    is_end = pc.is_in(entries.column("phase"), pa.array([PURGE, RESTORE]))
    gone = pc.and_(is_end, pc.equal(entries.column("outcome"), ABSENT))
    of_files = pc.not_equal(entries.column("phase"), ABORT)
    kept = pc.fill_null(entries.column("ends_record"), False)
    phases = {"phase": pc.if_else(kept, RESTORE, entries.column("phase"))}
    mine = replace_columns(entries, phases).filter(pc.and_(of_files, pc.or_(pc.or_(done, gone), kept)))
    quarantined = pc.equal(mine.column("phase"), QUARANTINE)
    return mine.append_column("by", pc.if_else(quarantined, mine.column("plan_id"), mine.column("source_plan_id")))


def newest_entries(entries: pa.Table, group_by: Sequence[str]) -> pa.Table:
    """Return the newest settled entry in each group, sorted from oldest to newest."""
    return newest_rows(_order_entries(entries), group_by).drop_columns("row")


def newest_of_copies(entries: pa.Table) -> pa.Table:
    """Return the newest settled entry of each copy, sorted from oldest to newest.

    If another record of the same object has ended since then, the entry that ended it is used.

    Returns:
        The entries with the `by` column, see `settled_entries`.
    """
    ordered = _order_entries(entries)
    last = newest_rows(ordered, ("key", "by"))
    ends = ordered.filter(_ends_in_place(ordered))
    if not ends.num_rows:
        return last.drop_columns("row")
    newest = ends.append_column("object", _name_objects(ends)).group_by("object").aggregate([("row", "max")])
    ended = newest.column("row_max").take(pc.index_in(_name_objects(last), value_set=newest.column("object")))
    is_ended = pc.fill_null(pc.and_(_is_in_place(last), pc.greater(ended, last.column("row"))), False)
    found = ordered.take(pc.if_else(is_ended, ended, last.column("row")))
    return replace_columns(found, {"by": last.column("by")}).sort_by("row").drop_columns("row")


def newest_rows(ordered: pa.Table, group_by: Sequence[str]) -> pa.Table:
    """Return the last row of each group. The rows keep their order."""
    numbered = ordered.append_column("number", pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(group_by)).aggregate([("number", "max")])
    return ordered.take(last.sort_by("number_max").column("number_max"))


def _order_entries(entries: pa.Table) -> pa.Table:
    """Return the settled entries from oldest to newest, with their numbers in a `row` column."""
    mine = settled_entries(entries)
    filled = replace_columns(mine, {"run_id": pc.fill_null(mine.column("run_id"), ""), "token": pc.fill_null(mine.column("token"), 0)})
    ordered = filled.sort_by([("token", "ascending"), ("at", "ascending"), ("run_id", "ascending")])
    return ordered.append_column("row", pa.array(np.arange(ordered.num_rows)))


def _is_in_place(entries: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(entries.column("quarantine"), value_set=pa.array(IN_PLACE))


def _ends_in_place(settled: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the entries that end all quarantine records of an object left in place."""
    return pc.and_(_is_in_place(settled), pc.not_equal(settled.column("phase"), QUARANTINE))


def _name_objects(entries: pa.Table) -> pa.ChunkedArray:
    version = pc.replace_substring_regex(entries.column("version_id"), f"^{UNVERSIONED}$", "")
    return pc.binary_join_element_wise(
        entries.column("key"), entries.column("etag"), version, "\n", null_handling="replace", null_replacement=""
    )


def copies_in_quarantine(entries: pa.Table) -> pa.Table:
    """Compute which copies are in quarantine.

    Args:
        entries: Log entries. For each key in them, all of its entries are required.

    Returns:
        The copies, with the `QUARANTINED_COPY` columns.
    """
    last = newest_of_copies(entries)
    waiting = last.filter(pc.equal(last.column("phase"), QUARANTINE))
    columns = {"source_plan_id": "by", "quarantined_at": "at"}
    return pa.table({name: waiting.column(columns.get(name, name)) for name in QUARANTINED_COPY.names}).cast(QUARANTINED_COPY)


def read_log_entries(state: State, logs: Sequence[PastRun]) -> pa.Table:
    """Read all entries of the given logs (`LOG_ENTRIES` columns).

    Rows written by release 0.2.0 do not contain a run id, so it is taken from the receipt.
    """
    return _read_all_entries(state.files, state.segment_files(logs))


@dataclass(frozen=True)
class CopySelection:
    """Selects copies by plan, prefix and key. A criterion that is None matches everything.

    Attributes:
        rehearsal: True for copies of rehearsals, False for copies of real runs, None for both.
    """

    plan_id: str | None = None
    prefix: str | None = None
    key: str | None = None
    rehearsal: bool | None = None

    def filter_rows(self, rows: pa.Table, by: str) -> pa.Table:
        """Select rows by plan, prefix and key, but not by `rehearsal`.

        Args:
            rows: Log entries or copies.
            by: The column with the plan that quarantined the copy.
        """
        return rows.filter(self._is_selected(rows, by))

    def filter_entries(self, settled: pa.Table) -> pa.Table:
        """Select the settled entries that determine whether the selected copies are in quarantine.

        These are all entries of the selected copies, and the entries that end records of the same
        objects by other plans.
        """
        of_objects = pc.and_(replace(self, plan_id=None)._is_selected(settled, "by"), _ends_in_place(settled))
        return settled.filter(pc.or_(self._is_selected(settled, "by"), of_objects))

    def _is_selected(self, rows: pa.Table, by: str) -> pa.Array | pa.ChunkedArray:
        wanted = pa.array([True] * rows.num_rows, pa.bool_())
        if self.plan_id is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column(by), self.plan_id))
        if self.prefix is not None:
            wanted = pc.and_(wanted, pc.starts_with(rows.column("key"), self.prefix))
        if self.key is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column("key"), self.key))
        return pc.fill_null(wanted, False)

    def find_copies(self, entries: pa.Table) -> pa.Table:
        """Compute which of the selected copies are in quarantine (`QUARANTINED_COPY` columns).

        As for `copies_in_quarantine`, all entries of each key are required.
        """
        copies = self.filter_rows(copies_in_quarantine(entries), "source_plan_id")
        if self.rehearsal is None:
            return copies
        return copies.filter(pc.fill_null(pc.equal(copies.column("rehearsal"), self.rehearsal), True))


ALL_COPIES: Final = CopySelection()


def read_quarantine(state: State, storage_name: str, *, rehearsal: bool | None = None) -> pa.Table:
    """Read a storage's quarantined copies into memory (`QUARANTINED_COPY` columns).

    Args:
        rehearsal: Which copies to select, see `CopySelection`.
    """
    return CopySelection(rehearsal=rehearsal).find_copies(read_log_entries(state, state.history(storage_name, DELETION_LOG.name)))


def quarantine_ledger(spark: SparkSession, state: State, storage_name: str, *, rehearsal: bool | None = None) -> DataFrame:
    """Return a lazy frame of a storage's quarantined copies, with the `QUARANTINED_COPY` columns.

    Args:
        rehearsal: Which copies to select, see `CopySelection`.
    """
    return read_copies(spark, LogReader.of(state, storage_name), rehearsal=rehearsal)


def read_copies(spark: SparkSession, reader: LogReader, *, rehearsal: bool | None = None) -> DataFrame:
    """Compute the quarantine ledger like `quarantine_ledger`, but from an existing log reader."""
    if is_small(spark) and reader.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, CopySelection(rehearsal=rehearsal).find_copies(reader.read_all()))
    copies = reader.frame(spark).repartition("key").mapInArrow(_find_copies, spark_schema(QUARANTINED_COPY))
    return copies if rehearsal is None else copies.filter(F.coalesce(F.col("rehearsal") == F.lit(rehearsal), F.lit(True)))


def first_of_each_key(copies: DataFrame, *order: Column) -> DataFrame:
    """Keep one copy of each key, which is the first one when sorted by `order` and then by plan id."""
    others = [name for name in copies.columns if name != "key"]
    first = copies.groupBy("key").agg(F.min_by(F.struct(*others), F.struct(*order, "source_plan_id")).alias("first"))
    return first.select("key", *[f"first.{name}" for name in others])


def newest_of_each_key(copies: pa.Table) -> pa.Table:
    """Keep the most recently quarantined copy of each key, without a Spark job."""
    order: list[tuple[str, str]] = [("key", "ascending"), ("quarantined_at", "descending"), ("source_plan_id", "ascending")]
    ordered = copies.sort_by(order).append_column("row", pa.array(np.arange(copies.num_rows)))
    first = ordered.group_by("key").aggregate([("row", "min")]).column("row_min")
    return ordered.take(first).drop_columns(["row"])


def newest_first() -> Column:
    """Return a column to sort by, so that the most recently quarantined copy comes first."""
    return -F.unix_micros("quarantined_at")


def removed_since(spark: SparkSession, reader: LogReader, since: datetime) -> DataFrame:
    """Find objects moved away or purged by applies since a time.

    An inventory made at that time still contains them.

    Returns:
        A lazy frame with the columns key and etag.
    """
    if is_small(spark) and reader.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, removed_objects(reader.read_all(), since))
    return reader.frame(spark).repartition("key").mapInArrow(_FindRemoved(since), REMOVED_DDL)


@dataclass(frozen=True)
class _FindRemoved:
    """Worker task for `removed_since`. Each partition must contain all entries of its keys."""

    since: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = [batch for batch in batches if batch.num_rows]
        if entries:
            yield from removed_objects(pa.Table.from_batches(entries).cast(LOG_ENTRIES), self.since).to_batches()


def removed_objects(entries: pa.Table, since: datetime) -> pa.Table:
    """Find objects that have been moved away or purged since a time, given their log entries.

    Entries of rehearsals are always included, because their times are simulated.

    Returns:
        The objects with the columns key and etag.
    """
    last = select_removed(newest_of_copies(entries))
    late = pc.or_(pc.fill_null(last.column("rehearsal"), False), pc.greater_equal(last.column("at"), pa.scalar(since, TIMESTAMP)))
    return last.filter(late).select(["key", "etag"])


def select_removed(last: pa.Table) -> pa.Table:
    """Select the settled entries after which there is no object at the key.

    The copy of the object may be in quarantine, purged or lost. In deferred quarantine, objects
    stay in place.
    """
    hidden = pc.and_(pc.equal(last.column("phase"), QUARANTINE), pc.not_equal(pc.fill_null(last.column("quarantine"), ""), "deferred"))
    return last.filter(pc.or_(hidden, pc.or_(pc.equal(last.column("phase"), PURGE), pc.equal(last.column("outcome"), ABSENT))))


@dataclass(frozen=True)
class LogReader:
    """Reads the settled log entries of selected copies, with the `LOG_ENTRIES` columns.

    As a task, it takes part numbers of deletion logs, and runs on Spark executors or in the driver.
    """

    files: Files
    parts: tuple[SegmentFile, ...]
    rows: int
    copies: CopySelection = ALL_COPIES

    @classmethod
    def of(cls, state: State, storage_name: str, copies: CopySelection = ALL_COPIES) -> LogReader:
        logs = state.history(storage_name, DELETION_LOG.name)
        return cls(state.files, tuple(state.segment_files(logs)), sum(log.rows for log in logs), copies)

    @property
    def part_count(self) -> int:
        return len(self.parts)

    def read_all(self) -> pa.Table:
        """Read all entries into memory, including unselected and unsettled ones."""
        return _read_all_entries(self.files, self.parts)

    def read_keys(self, keys: pa.Array) -> pa.Table:
        """Read all entries of the given keys into memory."""
        numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(self.part_count), pa.int64())})
        return pa.Table.from_batches([batch.filter(pc.is_in(batch.column("key"), keys)) for batch in self(iter([numbers]))], LOG_ENTRIES)

    def shares(self) -> Iterator[pa.Table]:
        """Yield the entries in tables of about `SHARE_ROWS` rows, which limits the memory required.

        All entries of a key are in the same table. For each table, all parts are read again.
        """
        count = max(1, -(-self.rows // SHARE_ROWS))
        for share in range(count):
            found = [LOG_ENTRIES.empty_table()]
            for batch in self(iter([pa.RecordBatch.from_pydict({"id": pa.array(range(self.part_count), pa.int64())})])):
                is_mine = xxhash64(batch.column("key")) % count == share
                found.append(pa.Table.from_batches([batch.filter(pa.array(is_mine))] if count > 1 else [batch]))
            yield pa.concat_tables(found)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the entries of all parts as a lazy frame."""
        numbers = spark.range(0, self.part_count, 1, max(1, min(self.part_count, parallelism(spark))))
        return numbers.mapInArrow(self, spark_schema(LOG_ENTRIES))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                entries = settled_entries(_read_entries(self.files, self.parts[number]))
                yield from self.copies.filter_entries(entries).select(LOG_ENTRIES.names).to_batches()


def _find_copies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the copies in quarantine, if all log entries of a key are in the same partition."""
    entries = [batch for batch in batches if batch.num_rows]
    if entries:
        yield from copies_in_quarantine(pa.Table.from_batches(entries).cast(LOG_ENTRIES)).to_batches()


def _read_all_entries(files: Files, sources: Sequence[SegmentFile]) -> pa.Table:
    tables = [_read_entries(files, source) for source in sources]
    return pa.concat_tables(tables) if tables else LOG_ENTRIES.empty_table()


def _read_entries(files: Files, source: SegmentFile) -> pa.Table:
    entries = read_parts(files, [source.path], DELETION_LOG.schema, LOG_ENTRIES.names)
    return replace_columns(entries, {"run_id": pc.fill_null(entries.column("run_id"), source.run_id)})
