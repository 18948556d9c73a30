"""Build the rows of a plan, which list the files to quarantine, purge and restore.

Nothing in this module changes files in a storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_small
from gc_assets.engine.tables import (
    ROUTE,
    Task,
    WrittenParts,
    collect,
    frame_from_arrow,
    map_arrow,
    read_paths,
    read_table,
    spark_schema,
)
from gc_assets.engine.tasks import table_fits_in_process
from gc_assets.stages.delete.deferred_rows import find_undue_rows
from gc_assets.stages.delete.foreign_rows import foreign_copies
from gc_assets.stages.delete.missing_files import RouteMissing, missing_prefixes, route_missing
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.records.denials import denied_objects
from gc_assets.stages.records.ledger import (
    IN_PLACE,
    QUARANTINED_COPY,
    LogReader,
    first_of_each_key,
    newest_first,
    quarantine_ledger,
    read_copies,
    removed_since,
)
from gc_assets.stages.sweep.dropped_tables import claims_with_dropped
from gc_assets.stages.sweep.foreign_files import FOREIGN, protected_keys
from gc_assets.stages.sweep.link_targets import find_link_targets
from gc_assets.stages.sweep.needed_keys import find_needed
from gc_assets.state.arrow_types import BOOL, STRING
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import (
    DENIED_SIDE,
    EXPIRY_ACTIONS,
    EXPIRY_SIDE,
    HELD_SIDE,
    METADATA,
    TOO_LONG_SIDE,
    UNKNOWN_SIDE,
    WAITING_SIDE,
)
from gc_assets.stores.key_limits import KeyLimits
from gc_assets.stores.listing import find_objects
from gc_assets.stores.protocol import Store

_COPY: Final = [field for field in QUARANTINED_COPY if field.name != "rehearsal"]
OWNED: Final = pa.schema([*_COPY, ("is_live", BOOL), ("spellings", pa.list_(STRING)), ("fits", BOOL), ("lake", STRING)])
PLANNED: Final = DELETION_PLAN.schema.append(pa.field(ROUTE, STRING))
_PRESENT: Final = pa.schema([("key", STRING), ("etag", STRING)])
_OWNED_COPY: Final = pa.schema([("key", STRING), ("etag", STRING), ("source_plan_id", STRING), ("lake", STRING)])


def plan_rows(
    spark: SparkSession, inputs: PlanInputs, run: TableRun, expiry: WrittenParts, log: LogReader, foreign_prefixes: Sequence[str]
) -> tuple[pa.Table | DataFrame, DataFrame | None]:
    """Build the plan's rows.

    Some rows are routed to side tables instead of the plan. These are files that stay in quarantine
    for now, files that a history still references because this plan does not edit it, and files
    that the plan leaves out.

    Args:
        inputs: The tables of the run date.
        expiry: The plan's history edits, as parts of `run`.
        log: The storage's deletion logs.
        foreign_prefixes: Prefixes of foreign tables. The plan leaves out the files under them.

    Returns:
        The rows with the `PLANNED` columns, and a frame of the quarantined files whose purge has to
        wait. A purge waits if an unreadable table blocks it or the run has not listed the storage.
        The frame is None if neither is the case.
    """
    missing = (*missing_prefixes(inputs.context, inputs.storage, inputs.lacking_files, [*inputs.refs, *inputs.live]), *foreign_prefixes)
    kept = (*missing, *missing_prefixes(inputs.context, inputs.storage, inputs.doubtful, [*inputs.refs, *inputs.live]))
    plan = _PlanOrphans.of(inputs, run, expiry)
    if not log.parts:
        return _map_orphans(spark, inputs, replace(plan, missing=RouteMissing.of(kept) if kept else None)), None
    denied = _denied_actions(spark, inputs)
    planned = _map_orphans(spark, inputs, plan)
    frame = frame_from_arrow(spark, planned) if isinstance(planned, pa.Table) else planned
    orphans = route_missing(_leave_out(frame, denied), kept)
    copies = read_copies(spark, log, rehearsal=inputs.context.clock.is_rehearsal).drop("rehearsal")
    # A sweep lists files in deferred quarantine again, and versions that a user made visible. If the
    # etag differs, the object was written later and is not in quarantine.
    deferred = F.col("quarantine") == "deferred"
    in_place = copies.filter(F.col("quarantine").isin(*IN_PLACE)).select("key", "etag")
    orphans = orphans.join(in_place, ["key", "etag"], "left_anti").select(*orphans.columns)
    # An older listing or report contains objects that have been quarantined or purged since then.
    as_of = inputs.listing.as_of
    removed = removed_since(spark, log, as_of) if as_of is not None else None
    if removed is not None:
        orphans = orphans.join(removed, ["key", "etag"], "left_anti").select(*orphans.columns)
    compared = _compare_copies(spark, inputs, copies, removed)
    # An unreadable table may have started to use a quarantined file, so nothing is purged until it
    # can be read. The same holds if the listing is old, because metadata and other lakes' files
    # written since then are unknown.
    unknown = inputs.blocks_purges or inputs.listing.is_earlier or _is_unread_metadata_needed(spark, inputs.context, inputs.live)
    is_due = _is_due(inputs)
    waiting = _find_waiting(spark, inputs, copies)
    if waiting:
        columns = compared.columns
        known = reduce(DataFrame.unionByName, waiting).distinct().withColumn("_waits", F.lit(True))
        compared = compared.join(known, ["key", "source_plan_id"], "left").select(*columns, "_waits")
        is_due &= F.col("_waits").isNull()
    quarantined = _leave_out(_quarantine_rows(compared, purge=is_due & F.lit(not unknown), is_deferred=deferred), denied)
    quarantined = route_missing(quarantined, missing)
    waits = inputs.blocks_purges or inputs.listing.is_earlier
    return orphans.unionByName(quarantined), compared.filter(is_due) if waits else None


def _find_waiting(spark: SparkSession, inputs: PlanInputs, copies: DataFrame) -> list[DataFrame]:
    """Find copies old enough to be purged that have to wait (columns key, source_plan_id).

    These are copies of foreign files, copies that `protect` matches, and copies that
    `find_undue_rows` defers.
    """
    context, storage, tables = inputs.context, inputs.storage, [*inputs.refs, *inputs.live]
    # This selects more copies than will be purged, but avoids a join with the live files.
    old = copies.filter(_is_past_quarantine(inputs))
    owned = map_arrow(old.select("key", "etag", "source_plan_id"), _AddOwner(claims_with_dropped(context, storage, tables)), _OWNED_COPY)
    foreign = foreign_copies(spark, context, storage, tables, inputs.live, owned)
    due = old.select("key", F.lit(PURGE).alias("action"), F.lit("").alias("reason"), "etag", "source_plan_id")
    undue = find_undue_rows(lambda: due, context, storage, tables)
    protected = protected_keys(context, storage)
    kept = None if protected is None else map_arrow(owned, _SelectMatching(protected), _OWNED_COPY)
    return [found.select("key", "source_plan_id") for found in (foreign, undue, kept) if found is not None]


def _leave_out(rows: DataFrame, denied: DataFrame | None) -> DataFrame:
    """Route rows to a side table if the store denied the same action to an earlier apply.

    Actions in another quarantine mode and restores are retried.
    """
    if denied is None:
        return rows
    columns, version = rows.columns, F.coalesce("version_id", F.lit(""))
    found = rows.withColumn("_version", version).join(denied, ["key", "etag", "_version", "action", "quarantine"], "left")
    is_denied = (F.col(ROUTE) == "") & F.coalesce("_denied", F.lit(False))
    return found.withColumn(ROUTE, F.when(is_denied, DENIED_SIDE).otherwise(F.col(ROUTE))).select(*columns)


def _denied_actions(spark: SparkSession, inputs: PlanInputs) -> DataFrame | None:
    """Find actions that the store denied to earlier applies.

    Returns:
        The distinct actions with a true column `_denied` to join on, or None if no action was
        denied.
    """
    found = denied_objects(spark, inputs.context, inputs.storage)
    if found is None:
        return None
    found = found.filter(F.col("phase").isin(QUARANTINE, PURGE))
    if not collect(found.select("key").limit(1)):
        return None
    version = F.coalesce("version_id", F.lit("")).alias("_version")
    actions = found.select("key", "etag", version, F.col("phase").alias("action"), "quarantine")
    return actions.distinct().withColumn("_denied", F.lit(True))


def sum_files(files: DataFrame | None) -> Amount:
    """Count the files in a frame and sum up their sizes."""
    if files is None:
        return Amount()
    (row,) = collect(files.agg(F.count("key").alias("files"), F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("bytes")))
    return Amount(files=row["files"], bytes=row["bytes"])


def _map_orphans(spark: SparkSession, inputs: PlanInputs, task: Task) -> pa.Table | DataFrame:
    """Run a task over the orphans. Returns a table if it fits in the driver, else a frame."""
    orphans = inputs.orphans
    scan = ParquetScan.of(inputs.context.state.files, ORPHAN_FILES.schema, orphans.path, orphans.parts())
    if is_small(spark) or table_fits_in_process(spark, orphans.rows, len(scan.paths)):
        return pa.Table.from_batches(task(scan.read_batches()), PLANNED)
    return scan.map_arrow(spark, task, spark_schema(PLANNED))


@dataclass(frozen=True)
class _PlanOrphans:
    """Turns orphans into the plan's quarantine rows, with the `PLANNED` columns.

    If a history that this plan does not edit still references an orphan, its row goes to the side
    table `_held`. Keys that are too long for the trash go to `_too_long`.

    Attributes:
        edited: The histories edited by this plan.
        key_limits: Limits for keys that can be quarantined, or None if the mode adds no limit.
        missing: Routes the rows of tables that are foreign, doubtful or have lost files. None if
            there are no such tables.
    """

    mode: str
    edited: tuple[str, ...]
    key_limits: KeyLimits | None
    missing: RouteMissing | None = None

    @classmethod
    def of(cls, inputs: PlanInputs, run: TableRun, expiry: WrittenParts) -> Self:
        context, edited = inputs.context, set[str]()
        for path in expiry.paths(run, EXPIRY_SIDE):
            rows = read_parts(context.state.files, [path], EXPIRY_ACTIONS, ["lake", "table_uuid"])
            edited.update(_history(rows.column("lake"), rows.column("table_uuid")).unique().to_pylist())
        mode = context.storage(inputs.storage).quarantine
        return cls(mode, tuple(sorted(edited)), context.store(inputs.storage).key_limits(mode))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = map(self._plan, batches)
        return rows if self.missing is None else self.missing(rows)

    def _plan(self, orphans: pa.RecordBatch) -> pa.RecordBatch:
        orphans = orphans.filter(pc.not_equal(orphans.column("reason"), FOREIGN))
        is_held = pc.is_valid(orphans.column("held_by"))
        history = _history(orphans.column("held_by"), orphans.column("held_by_table"))
        waits = pc.and_not(is_held, pc.is_in(history, pa.array(self.edited, STRING)))
        route = pc.if_else(waits, HELD_SIDE, "")
        if self.key_limits is not None:
            is_too_long = pc.and_not(self.key_limits.select_too_long(orphans.column("key")), waits)
            route = pc.if_else(is_too_long, TOO_LONG_SIDE, route)
        columns = {name: orphans.column(name) for name in PLANNED.names if name in ORPHAN_FILES.schema.names} | {
            "action": pa.repeat(QUARANTINE, orphans.num_rows),
            "after_expiry": is_held,
            "source_plan_id": pa.nulls(orphans.num_rows, STRING),
            "quarantine": pa.repeat(self.mode, orphans.num_rows),
            ROUTE: route,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in PLANNED.names], schema=PLANNED)


def _history(lakes: pa.Array | pa.ChunkedArray, tables: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.coalesce(pc.binary_join_element_wise(lakes, tables, "/"), lakes)


def _is_needed() -> Column:
    """Condition for quarantined copies that are live again, or in history reachable again.

    This includes copies that lakes may need under another spelling of their keys.
    """
    return F.col("is_live").isNotNull()


def _is_due(inputs: PlanInputs) -> Column:
    """Condition for quarantined copies to purge: hidden, not needed, claimed and old enough.

    Unclaimed copies are not purged, because they may belong to a lake that was removed from the
    configuration.
    """
    return ~F.col("is_visible") & ~_is_needed() & _is_past_quarantine(inputs) & F.col("lake").isNotNull()


def _is_past_quarantine(inputs: PlanInputs) -> Column:
    """Condition for copies that were in quarantine long enough when the storage was last scanned.

    Metadata that another system wrote after the scan of an inventory report is unknown. With an
    earlier listing, all due copies wait anyway.
    """
    days, now = inputs.context.storage(inputs.storage).quarantine_days, inputs.frozen_at - inputs.clock_lead
    scanned = now if inputs.listing.is_earlier else min(now, inputs.listing.as_of or now)
    cutoff = scanned - timedelta(days=days)
    is_renewed = inputs.quarantine_renewed_at is not None and inputs.quarantine_renewed_at > cutoff
    return (F.col("quarantined_at") <= F.lit(cutoff)) & F.lit(not is_renewed)


def _compare_copies(spark: SparkSession, inputs: PlanInputs, copies: DataFrame, removed: DataFrame | None) -> DataFrame:
    """Choose one quarantined copy for each key, and compare it with the live files and the listing.

    Returns:
        The copies with the `OWNED` columns and three others. `listed_etag` is the etag of the
        object that now has this key. `listed_spellings` is the number of its `spellings` that exist
        as objects. `is_visible` is true if it is a hidden version that has become visible since.
    """
    context, storage_name, live = inputs.context, inputs.storage, inputs.live
    found = reduce(
        DataFrame.unionByName,
        find_link_targets(spark, context, storage_name, live),
        find_needed(spark, context, storage_name, live, copies),
    )
    needs = found.groupBy("key").agg(
        F.max("is_live").alias("is_live"),
        F.when(F.bool_and(F.col("respelled").isNotNull()), F.collect_set("respelled")).alias("spellings"),
        F.collect_set("needed_bytes").alias("sizes"),
    )
    # If several copies of a needed key exist, prefer one with the recorded size, then the newest.
    # Copies that are not needed are purged oldest first.
    fits = ~_is_needed() | (F.size("sizes") == 0) | F.array_contains("sizes", F.col("size_bytes"))
    order = F.when(_is_needed(), newest_first()).otherwise(-newest_first())
    compared = copies.join(needs, "key", "left").withColumn("fits", fits)
    one = first_of_each_key(compared, ~F.col("fits"), order).drop("sizes")
    owned = map_arrow(one, _AddOwner(claims_with_dropped(context, storage_name, [*inputs.refs, *live])), OWNED)
    # Only restores need the listed etag and the other spellings.
    names = owned.filter(_is_needed()) if inputs.listing.is_earlier else owned
    spellings = F.coalesce("spellings", F.array().cast("array<string>"))
    names = names.select(F.col("key").alias("_copy"), F.explode(F.concat(F.array("key"), spellings)).alias("key"))
    if inputs.listing.is_earlier:
        wanted = names.select("key").distinct()
        listed = map_arrow(wanted, _FindPresent(context.store(storage_name)), _PRESENT).withColumn("version_id", F.lit(None).cast("string"))
    else:
        listed = read_table(spark, context.state, STORAGE_INVENTORY, inputs.inventory, columns=["key", "etag", "version_id"])
    listed = names.join(listed, "key")
    if removed is not None and not inputs.listing.is_earlier:
        listed = listed.join(removed, ["key", "etag"], "left_anti")
    # A listing may contain an object twice, but the plan must not contain the copy twice.
    is_own = F.col("key") == F.col("_copy")
    etag = F.when(is_own, F.col("etag"))
    columns = [F.max(etag).alias("listed_etag"), F.max_by("version_id", etag).alias("_version")]
    present = listed.groupBy("_copy").agg(*columns, F.count_distinct(F.when(~is_own, F.col("key"))).alias("listed_spellings"))
    present = present.withColumnRenamed("_copy", "key")
    is_same = (F.col("listed_etag") == F.col("etag")) & (F.col("_version") == F.col("version_id"))
    # An apply may have hidden the version after this run listed it.
    is_earlier = (F.col("quarantine") == "versioned") & (F.col("quarantined_at") < F.lit(inputs.frozen_at - inputs.clock_lead))
    return owned.join(present, "key", "left").withColumn("is_visible", F.coalesce(is_same & is_earlier, F.lit(False))).drop("_version")


def _quarantine_rows(copies: DataFrame, *, purge: Column, is_deferred: Column) -> DataFrame:
    """Build the rows that restore or purge quarantined copies.

    A restore of a visible version only ends its quarantine record, so that the next run classifies
    the object again. Copies that are neither restored nor purged now go to the side table of
    waiting files.
    """
    nothing = F.lit(None).cast("string")
    is_needed, is_visible = _is_needed(), F.col("is_visible")
    # If the lakes' spellings exist themselves, the copy is not needed. A disk or reader may even take
    # its key for one of them.
    is_other = F.coalesce(F.col("listed_spellings") == F.size("spellings"), F.lit(False))
    taken = F.when(is_deferred, F.col("listed_etag") != F.col("etag")).otherwise(F.col("listed_etag").isNotNull() | is_other)
    restore = (is_needed & ~F.coalesce(taken, F.lit(False))) | is_visible
    return copies.select(
        "key",
        F.when(is_needed | is_visible, RESTORE).otherwise(PURGE).alias("action"),
        "size_bytes",
        "etag",
        "version_id",
        F.when(F.col("spellings").isNotNull(), "may be needed under another spelling")
        .when(~F.col("fits"), "live again, of another size than the lake records")
        .when(F.col("is_live"), "live again")
        .when(is_needed, "in reachable history again")
        .when(is_visible, "visible again")
        .otherwise("still dead")
        .alias("reason"),
        "lake",
        F.lit(None).cast("long").alias("dangling_commits"),
        F.lit(False).alias("after_expiry"),
        nothing.alias("held_by"),
        nothing.alias("held_by_table"),
        "source_plan_id",
        "quarantine",
        "kind",
        F.when(restore | purge, "").otherwise(WAITING_SIDE).alias(ROUTE),
    )


def _is_unread_metadata_needed(spark: SparkSession, context: RunContext, live: list[PublishedTable]) -> bool:
    """Return True if a live metadata object that was never decoded is in quarantine.

    Nothing may be purged in that case, because the files that the object references become known
    only after it has been restored and read.
    """
    paths = [path for table in live for path in table.paths(UNKNOWN_SIDE)]
    if not paths:
        return False
    unknown = read_paths(spark, context.state.files, METADATA, paths)
    quarantined = [
        quarantine_ledger(spark, context.state, storage.name).join(unknown.filter(F.col("storage") == storage.name), "key", "left_semi")
        for storage in context.config.storages
    ]
    return any(collect(found.select("key").limit(1)) for found in quarantined)


@dataclass(frozen=True)
class _FindPresent:
    """Looks up keys, and yields the existing ones with their etags."""

    store: Store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = find_objects(self.store, batch.column("key").to_pylist())
            etags = pa.array([None if item is None else item.etag for item in found], pa.string())
            rows = pa.RecordBatch.from_arrays([batch.column("key"), etags], schema=_PRESENT)
            yield rows.filter(pc.is_valid(etags))


@dataclass(frozen=True)
class _AddOwner:
    """Adds a `lake` column with the lake that claims each key. The column is null for others."""

    claims: Claims

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column("lake", self.claims.resolve(batch.column("key"))[0])


@dataclass(frozen=True)
class _SelectMatching:
    """Selects keys by regular expression."""

    pattern: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.match_substring_regex(batch.column("key"), self.pattern))
