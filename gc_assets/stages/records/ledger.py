"""The quarantine ledger: it says which copies of which keys are in quarantine, from the logs of
everything that was ever done.

One rule (`held`), read by Arrow for people and by Spark for stages. A *word* is a row of
`deletion_log`. A word settles something if it is `done`, or if it is a purge of an absent object. A
copy is named by its key and the plan that quarantined it. Its newest settled word counts.

Words are in the order of the leases under which they were said: fencing tokens only grow, clocks do
not. Words of releases that wrote no token come first, in the order of their times and their runs'
ids.

A copy that a rehearsal quarantined is a rehearsal's, whatever is done to it later. Nights by the
real clock know nothing of it, and rehearsals nothing of any other. Releases before 0.4 did not say
whose a word is: such a copy is everybody's.
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

from gc_assets.core.phases import ABORT, ABSENT, DONE, PURGE, QUARANTINE
from gc_assets.engine.sessions import MAX_SMALL_ROWS, is_small
from gc_assets.engine.tables import frame_from_arrow, parallelism, spark_schema
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.state.compaction import Source
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG

# What is known of an object in quarantine. `source_plan_id` is the plan that quarantined it.
COPY: Final = ("size_bytes", "etag", "version_id", "quarantine", "kind")
LOG_ENTRIES: Final = pa.schema(
    [
        DELETION_LOG.schema.field(name)
        for name in ("key", "phase", "outcome", "at", "plan_id", "run_id", "source_plan_id", "token", "rehearsal", *COPY)
    ]
)
QUARANTINED_COPY: Final = pa.schema(
    [
        ("key", STRING),
        ("source_plan_id", STRING),
        ("quarantined_at", TIMESTAMP),
        *(DELETION_LOG.schema.field(name) for name in ("rehearsal", *COPY)),
    ]
)

REMOVED_DDL: Final = "key string, etag string"


def settled_entries(words: pa.Table) -> pa.Table:
    """Returns the words that settle something, with the plan that quarantined the copy (`by`). What
    became of an upload says nothing of the file at its key.
    """
    done = pc.equal(words.column("outcome"), DONE)
    gone = pc.and_(pc.equal(words.column("phase"), PURGE), pc.equal(words.column("outcome"), ABSENT))
    of_files = pc.not_equal(words.column("phase"), ABORT)
    mine = words.filter(pc.and_(of_files, pc.or_(done, gone)))
    quarantined = pc.equal(mine.column("phase"), QUARANTINE)
    return mine.append_column("by", pc.if_else(quarantined, mine.column("plan_id"), mine.column("source_plan_id")))


def newest_entries(words: pa.Table, of: Sequence[str]) -> pa.Table:
    """Returns the last settled word for each combination of the columns `of`, oldest first."""
    mine = settled_entries(words)
    run, token = pc.fill_null(mine.column("run_id"), ""), pc.fill_null(mine.column("token"), 0)
    told = mine.set_column(mine.schema.get_field_index("run_id"), "run_id", run)
    ordered = told.set_column(told.schema.get_field_index("token"), "token", token).sort_by(
        [("token", "ascending"), ("at", "ascending"), ("run_id", "ascending")]
    )
    last = ordered.append_column("row", pa.array(np.arange(ordered.num_rows))).group_by(list(of)).aggregate([("row", "max")])
    return ordered.take(last.sort_by("row_max").column("row_max"))


def copies_in_quarantine(words: pa.Table) -> pa.Table:
    """Returns the copies in quarantine (columns `QUARANTINED_COPY`). `words` must be all words about their
    keys.
    """
    last = newest_entries(words, ("key", "by"))
    waiting = last.filter(pc.equal(last.column("phase"), QUARANTINE))
    columns = {"source_plan_id": "by", "quarantined_at": "at"}
    return pa.table({name: waiting.column(columns.get(name, name)) for name in QUARANTINED_COPY.names}).cast(QUARANTINED_COPY)


def read_log_entries(state: State, logs: Sequence[PastRun]) -> pa.Table:
    """Returns all words of these logs (columns `LOG_ENTRIES`).

    Logs of 0.2.0 do not name their runs in each row. Their receipts do.
    """
    return _all_words(state.files, state.sources(logs))


@dataclass(frozen=True)
class CopySelection:
    """Which copies somebody means: those of a plan, of the keys below a prefix, of one key. What is
    null leaves no copy out. `rehearsal` says whose they are: those of rehearsals, those of the real
    clock, or everybody's where it is null.
    """

    plan_id: str | None = None
    prefix: str | None = None
    key: str | None = None
    rehearsal: bool | None = None

    def among(self, rows: pa.Table, by: str) -> pa.Table:
        """Returns the rows about copies that are meant, but for whose they are. The column `by` has
        the plan that quarantined them. All words about a copy are kept, or none.
        """
        wanted = pa.array([True] * rows.num_rows, pa.bool_())
        if self.plan_id is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column(by), self.plan_id))
        if self.prefix is not None:
            wanted = pc.and_(wanted, pc.starts_with(rows.column("key"), self.prefix))
        if self.key is not None:
            wanted = pc.and_(wanted, pc.equal(rows.column("key"), self.key))
        return rows.filter(pc.fill_null(wanted, False))

    def copies_in_quarantine(self, words: pa.Table) -> pa.Table:
        """Returns the copies in quarantine that are meant (columns `QUARANTINED_COPY`). `words` must be all
        words about their keys.
        """
        copies = self.among(copies_in_quarantine(words), "source_plan_id")
        if self.rehearsal is None:
            return copies
        return copies.filter(pc.fill_null(pc.equal(copies.column("rehearsal"), self.rehearsal), True))


ALL_COPIES: Final = CopySelection()


def read_quarantine(state: State, storage_name: str, *, rehearsal: bool | None = None) -> pa.Table:
    """Returns what is in quarantine in a storage (columns `QUARANTINED_COPY`), in memory.

    `rehearsal` says whose copies, as for `quarantine_ledger`.
    """
    return CopySelection(rehearsal=rehearsal).held(read_log_entries(state, state.history(storage_name, DELETION_LOG.name)))


def quarantine_ledger(spark: SparkSession, state: State, storage_name: str, *, rehearsal: bool | None = None) -> DataFrame:
    """Returns what is in quarantine in a storage, columns `QUARANTINED_COPY`, one row per copy. Lazy: no job
    runs here.

    `rehearsal` says whose copies: those of rehearsals, those of the real clock, or all where it is
    null.
    """
    return read_copies(spark, LogReader.of(state, storage_name), rehearsal=rehearsal)


def read_copies(spark: SparkSession, reading: LogReader, *, rehearsal: bool | None = None) -> DataFrame:
    """Returns the same, where the logs were looked up before."""
    if is_small(spark) and reading.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, CopySelection(rehearsal=rehearsal).held(reading.words()))
    copies = reading.frame(spark).repartition("key").mapInArrow(_held, spark_schema(QUARANTINED_COPY))
    return copies if rehearsal is None else copies.filter(F.coalesce(F.col("rehearsal") == F.lit(rehearsal), F.lit(True)))


def first_of_each_key(copies: DataFrame, *order: Column) -> DataFrame:
    """Returns one row per key: where a name was quarantined more than once, the copy that comes
    first. Copies that `order` does not part are in the order of their plans' ids.
    """
    others = [name for name in copies.columns if name != "key"]
    first = copies.groupBy("key").agg(F.min_by(F.struct(*others), F.struct(*order, "source_plan_id")).alias("first"))
    return first.select("key", *[f"first.{name}" for name in others])


def newest_of_each_key(copies: pa.Table) -> pa.Table:
    """As `first_of_each_key` by `newest_first`, in memory."""
    order: list[tuple[str, str]] = [("key", "ascending"), ("quarantined_at", "descending"), ("source_plan_id", "ascending")]
    ordered = copies.sort_by(order).append_column("row", pa.array(np.arange(copies.num_rows)))
    first = ordered.group_by("key").aggregate([("row", "min")]).column("row_min")
    return ordered.take(first).drop_columns(["row"])


def newest_first() -> Column:
    """Returns the time of quarantine as an order in which the newest copy comes first."""
    return -F.unix_micros("quarantined_at")


def removed_since(spark: SparkSession, reading: LogReader, since: datetime) -> DataFrame:
    """Returns the objects that our own acts took out of their places since a moment (columns key,
    etag), by all logs of a storage. An inventory of that moment still shows them. Lazy: no job runs
    here.
    """
    if is_small(spark) and reading.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, removed_objects(reading.words(), since))
    return reading.frame(spark).repartition("key").mapInArrow(_FindRemoved(since), REMOVED_DDL)


@dataclass(frozen=True)
class _FindRemoved:
    """Yields what `removed_since` says. All words about each key must be in one partition."""

    since: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        words = [batch for batch in batches if batch.num_rows]
        if words:
            yield from removed_objects(pa.Table.from_batches(words).cast(LOG_ENTRIES), self.since).to_batches()


def removed_objects(words: pa.Table, since: datetime) -> pa.Table:
    """Returns the objects that are not in their places by the newest words, if these are of
    `since` or later (columns key, etag).

    The time of a rehearsal's word tells nothing about the moment, so each such word counts.
    """
    last = newest_entries(words, ("key", "by"))
    hidden = pc.and_(pc.equal(last.column("phase"), QUARANTINE), pc.not_equal(pc.fill_null(last.column("quarantine"), ""), "deferred"))
    gone = pc.or_(hidden, pc.equal(last.column("phase"), PURGE))
    late = pc.or_(pc.fill_null(last.column("rehearsal"), False), pc.greater_equal(last.column("at"), pa.scalar(since, TIMESTAMP)))
    return last.filter(pc.and_(gone, late)).select(["key", "etag"])


@dataclass(frozen=True)
class LogReader:
    """Takes numbers of parts and yields their settled words about the copies that are meant (columns
    `LOG_ENTRIES`). Runs in executors, or here.
    """

    files: Files
    parts: tuple[Source, ...]
    rows: int
    copies: CopySelection = ALL_COPIES

    @classmethod
    def of(cls, state: State, storage_name: str, copies: CopySelection = ALL_COPIES) -> LogReader:
        logs = state.history(storage_name, DELETION_LOG.name)
        return cls(state.files, tuple(state.sources(logs)), sum(log.rows for log in logs), copies)

    @property
    def pieces(self) -> int:
        return len(self.parts)

    def words(self) -> pa.Table:
        """Returns all words in memory (columns `LOG_ENTRIES`), also those about other copies."""
        return _all_words(self.files, self.parts)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns all words as a frame. Lazy."""
        numbers = spark.range(0, self.pieces, 1, max(1, min(self.pieces, parallelism(spark))))
        return numbers.mapInArrow(self, spark_schema(LOG_ENTRIES))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                words = settled_entries(_words(self.files, self.parts[number]))
                yield from self.copies.among(words, "by").select(LOG_ENTRIES.names).to_batches()


def _held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the copies in quarantine. All words about each key must be in one partition."""
    words = [batch for batch in batches if batch.num_rows]
    if words:
        yield from copies_in_quarantine(pa.Table.from_batches(words).cast(LOG_ENTRIES)).to_batches()


def _all_words(files: Files, sources: Sequence[Source]) -> pa.Table:
    tables = [_words(files, source) for source in sources]
    return pa.concat_tables(tables) if tables else LOG_ENTRIES.empty_table()


def _words(files: Files, source: Source) -> pa.Table:
    words = read_parts(files, [source.path], DELETION_LOG.schema, LOG_ENTRIES.names)
    run_id = pc.fill_null(words.column("run_id"), source.run_id)
    return words.set_column(words.schema.get_field_index("run_id"), LOG_ENTRIES.field("run_id"), run_id)
