"""Compute the quarantine ledger, which contains all copies in quarantine, from the deletion logs.

`copies_in_quarantine` implements the rule, for Arrow as well as for Spark. A *log entry* is a row
of `deletion_log`. A *settled* entry has the outcome `done`, or is a purge with the outcome
`absent`. A copy is identified by its key and the plan that quarantined it. Its newest settled entry
decides whether it is in quarantine.

Entries are ordered by the fencing tokens of their leases, because tokens always increase but clocks
may not. Entries of releases without tokens come first, ordered by their times and run ids.

A copy quarantined by a rehearsal always belongs to rehearsals. Real runs ignore it, and rehearsals
ignore all other copies. Entries of releases before 0.4 do not record this, so their copies belong
to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.hashing import xxhash64
from gc_assets.core.phases import ABORT, ABSENT, DONE, PURGE, QUARANTINE
from gc_assets.engine.sessions import MAX_SMALL_ROWS, is_small
from gc_assets.engine.tables import frame_from_arrow, parallelism, spark_schema
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.state.compaction import SegmentFile
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG

# Columns of a quarantined object, in addition to its key.
COPY_COLUMNS: Final = ("size_bytes", "etag", "version_id", "quarantine", "kind")
LOG_ENTRIES: Final = pa.schema(
    [
        DELETION_LOG.schema.field(name)
        for name in ("key", "phase", "outcome", "at", "plan_id", "run_id", "source_plan_id", "token", "rehearsal", *COPY_COLUMNS)
    ]
)
QUARANTINED_COPY: Final = pa.schema(
    [
        ("key", STRING),
        ("source_plan_id", STRING),
        ("quarantined_at", TIMESTAMP),
        *(DELETION_LOG.schema.field(name) for name in ("rehearsal", *COPY_COLUMNS)),
    ]
)

# Number of log entries in memory at the same time, about 500 MB.
SHARE_ROWS: Final = 1_000_000
REMOVED_DDL: Final = "key string, etag string"


def settled_entries(entries: pa.Table) -> pa.Table:
    """Return the settled entries, with the plan that quarantined each copy (column `by`).

    Entries of phase `abort` are excluded, because an upload is not the file at its key.
    """
    done = pc.equal(entries.column("outcome"), DONE)
    gone = pc.and_(pc.equal(entries.column("phase"), PURGE), pc.equal(entries.column("outcome"), ABSENT))
    of_files = pc.not_equal(entries.column("phase"), ABORT)
    mine = entries.filter(pc.and_(of_files, pc.or_(done, gone)))
    quarantined = pc.equal(mine.column("phase"), QUARANTINE)
    return mine.append_column("by", pc.if_else(quarantined, mine.column("plan_id"), mine.column("source_plan_id")))


def newest_entries(entries: pa.Table, group_by: Sequence[str]) -> pa.Table:
    """Return the newest settled entry for each combination of the `group_by` columns, oldest first."""
    mine = settled_entries(entries)
    filled = replace_columns(mine, {"run_id": pc.fill_null(mine.column("run_id"), ""), "token": pc.fill_null(mine.column("token"), 0)})
    ordered = filled.sort_by([("token", "ascending"), ("at", "ascending"), ("run_id", "ascending")])
    last = ordered.append_column("row", pa.array(np.arange(ordered.num_rows))).group_by(list(group_by)).aggregate([("row", "max")])
    return ordered.take(last.sort_by("row_max").column("row_max"))


def copies_in_quarantine(entries: pa.Table) -> pa.Table:
    """Return the copies in quarantine (columns `QUARANTINED_COPY`).

    `entries` must contain all entries of their keys.
    """
    last = newest_entries(entries, ("key", "by"))
    waiting = last.filter(pc.equal(last.column("phase"), QUARANTINE))
    columns = {"source_plan_id": "by", "quarantined_at": "at"}
    return pa.table({name: waiting.column(columns.get(name, name)) for name in QUARANTINED_COPY.names}).cast(QUARANTINED_COPY)


def read_log_entries(state: State, logs: Sequence[PastRun]) -> pa.Table:
    """Read all entries of these logs (columns `LOG_ENTRIES`).

    Logs of release 0.2.0 have no run id in their rows, so it is taken from their receipts.
    """
    return _read_all_entries(state.files, state.segment_files(logs))


@dataclass(frozen=True)
class CopySelection:
    """Selects copies by plan, key prefix and key. None selects all.

    `rehearsal`: True selects copies of rehearsals, False those of real runs, None both.
    """

    plan_id: str | None = None
    prefix: str | None = None
    key: str | None = None
    rehearsal: bool | None = None

    def filter_rows(self, rows: pa.Table, by: str) -> pa.Table:
        """Return the rows of the selected copies, ignoring `rehearsal`.

        Either all entries of a copy are returned or none.

        Args:
            rows: Log entries or copies.
            by: The column with the plan that quarantined the copy.
        """
        wanted = pa.array([True] * rows.num_rows, pa.bool_())
        if self.plan_id is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column(by), self.plan_id))
        if self.prefix is not None:
            wanted = pc.and_(wanted, pc.starts_with(rows.column("key"), self.prefix))
        if self.key is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column("key"), self.key))
        return rows.filter(pc.fill_null(wanted, False))

    def find_copies(self, entries: pa.Table) -> pa.Table:
        """Return the selected copies in quarantine (columns `QUARANTINED_COPY`).

        `entries` must contain all entries of their keys.
        """
        copies = self.filter_rows(copies_in_quarantine(entries), "source_plan_id")
        if self.rehearsal is None:
            return copies
        return copies.filter(pc.fill_null(pc.equal(copies.column("rehearsal"), self.rehearsal), True))


ALL_COPIES: Final = CopySelection()


def read_quarantine(state: State, storage_name: str, *, rehearsal: bool | None = None) -> pa.Table:
    """Read the quarantined copies of a storage into memory (columns `QUARANTINED_COPY`).

    Args:
        rehearsal: True selects copies of rehearsals, False those of real runs, None both.
    """
    return CopySelection(rehearsal=rehearsal).find_copies(read_log_entries(state, state.history(storage_name, DELETION_LOG.name)))


def quarantine_ledger(spark: SparkSession, state: State, storage_name: str, *, rehearsal: bool | None = None) -> DataFrame:
    """Return the quarantined copies of a storage (columns `QUARANTINED_COPY`), one row per copy.

    The frame is lazy. `rehearsal` selects copies as in `CopySelection`.
    """
    return read_copies(spark, LogReader.of(state, storage_name), rehearsal=rehearsal)


def read_copies(spark: SparkSession, reader: LogReader, *, rehearsal: bool | None = None) -> DataFrame:
    """Return the copies in quarantine according to a reader's logs, as a lazy frame like
    `quarantine_ledger`.
    """
    if is_small(spark) and reader.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, CopySelection(rehearsal=rehearsal).find_copies(reader.read_all()))
    copies = reader.frame(spark).repartition("key").mapInArrow(_find_copies, spark_schema(QUARANTINED_COPY))
    return copies if rehearsal is None else copies.filter(F.coalesce(F.col("rehearsal") == F.lit(rehearsal), F.lit(True)))


def first_of_each_key(copies: DataFrame, *order: Column) -> DataFrame:
    """Return the first copy of each key when sorted by `order`.

    Copies with the same order are sorted by the ids of their plans.
    """
    others = [name for name in copies.columns if name != "key"]
    first = copies.groupBy("key").agg(F.min_by(F.struct(*others), F.struct(*order, "source_plan_id")).alias("first"))
    return first.select("key", *[f"first.{name}" for name in others])


def newest_of_each_key(copies: pa.Table) -> pa.Table:
    """Return the newest copy of each key, like `first_of_each_key` with `newest_first`, in memory."""
    order: list[tuple[str, str]] = [("key", "ascending"), ("quarantined_at", "descending"), ("source_plan_id", "ascending")]
    ordered = copies.sort_by(order).append_column("row", pa.array(np.arange(copies.num_rows)))
    first = ordered.group_by("key").aggregate([("row", "min")]).column("row_min")
    return ordered.take(first).drop_columns(["row"])


def newest_first() -> Column:
    """Return a sort column that puts the most recently quarantined copy first."""
    return -F.unix_micros("quarantined_at")


def removed_since(spark: SparkSession, reader: LogReader, since: datetime) -> DataFrame:
    """Return the objects removed from their location by the collector since a time (columns key,
    etag).

    An inventory of that time still contains them. The frame is lazy.
    """
    if is_small(spark) and reader.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, removed_objects(reader.read_all(), since))
    return reader.frame(spark).repartition("key").mapInArrow(_FindRemoved(since), REMOVED_DDL)


@dataclass(frozen=True)
class _FindRemoved:
    """Yield the rows of `removed_objects`. All entries for a key must be in the same partition."""

    since: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = [batch for batch in batches if batch.num_rows]
        if entries:
            yield from removed_objects(pa.Table.from_batches(entries).cast(LOG_ENTRIES), self.since).to_batches()


def removed_objects(entries: pa.Table, since: datetime) -> pa.Table:
    """Return the objects removed from their location whose newest entry is not earlier than
    `since`.

    The result has the columns key and etag. Entries of rehearsals are always included, because
    their times are not real.
    """
    last = newest_entries(entries, ("key", "by"))
    hidden = pc.and_(pc.equal(last.column("phase"), QUARANTINE), pc.not_equal(pc.fill_null(last.column("quarantine"), ""), "deferred"))
    gone = pc.or_(hidden, pc.equal(last.column("phase"), PURGE))
    late = pc.or_(pc.fill_null(last.column("rehearsal"), False), pc.greater_equal(last.column("at"), pa.scalar(since, TIMESTAMP)))
    return last.filter(pc.and_(gone, late)).select(["key", "etag"])


@dataclass(frozen=True)
class LogReader:
    """Task that takes part numbers of deletion logs and yields the selected copies' settled
    entries.

    The entries have the columns `LOG_ENTRIES`. Runs in executors or in this process.
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
        """Return all entries in memory (columns `LOG_ENTRIES`), even for copies that are not
        selected.
        """
        return _read_all_entries(self.files, self.parts)

    def shares(self) -> Iterator[pa.Table]:
        """Yield the selected copies' settled entries (columns `LOG_ENTRIES`), in batches of about
        `SHARE_ROWS` rows.

        All selected entries for a key are in the same batch. All parts are read once per batch.
        """
        count = max(1, -(-self.rows // SHARE_ROWS))
        for share in range(count):
            found = [LOG_ENTRIES.empty_table()]
            for batch in self(iter([pa.RecordBatch.from_pydict({"id": pa.array(range(self.part_count), pa.int64())})])):
                is_mine = xxhash64(batch.column("key")) % count == share
                found.append(pa.Table.from_batches([batch.filter(pa.array(is_mine))] if count > 1 else [batch]))
            yield pa.concat_tables(found)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return all settled entries of the selected copies as a lazy frame."""
        numbers = spark.range(0, self.part_count, 1, max(1, min(self.part_count, parallelism(spark))))
        return numbers.mapInArrow(self, spark_schema(LOG_ENTRIES))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                entries = settled_entries(_read_entries(self.files, self.parts[number]))
                yield from self.copies.filter_rows(entries, "by").select(LOG_ENTRIES.names).to_batches()


def _find_copies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the copies in quarantine. All entries for a key must be in the same partition."""
    entries = [batch for batch in batches if batch.num_rows]
    if entries:
        yield from copies_in_quarantine(pa.Table.from_batches(entries).cast(LOG_ENTRIES)).to_batches()


def _read_all_entries(files: Files, sources: Sequence[SegmentFile]) -> pa.Table:
    tables = [_read_entries(files, source) for source in sources]
    return pa.concat_tables(tables) if tables else LOG_ENTRIES.empty_table()


def _read_entries(files: Files, source: SegmentFile) -> pa.Table:
    entries = read_parts(files, [source.path], DELETION_LOG.schema, LOG_ENTRIES.names)
    return replace_columns(entries, {"run_id": pc.fill_null(entries.column("run_id"), source.run_id)})
