"""Find plan rows that have to wait, mostly because a table is unreadable.

A table can become unreadable after the plan was made. An apply therefore consults its verification
mark and the last sweeps again. See docs/adr/0009-unreadable-tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.core.errors import StateError
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import collect, map_arrow, read_table
from gc_assets.lakes.kinds import uncollected_metadata
from gc_assets.stages.delete.missing_files import find_missing, find_unlisted
from gc_assets.stages.records.newest_sweeps import find_newest_sweep
from gc_assets.stages.records.plans import list_plans
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.stages.sweep.adopted_files import read_adopted_files
from gc_assets.stages.sweep.claims import claims_of, list_unread_shields, prefixes_of
from gc_assets.stages.sweep.dropped_tables import DROPPED, UNDUE, DroppedFinder, FindUndue, build_claims, load_dropped_tables
from gc_assets.stages.sweep.foreign_files import foreign_rules
from gc_assets.state.arrow_types import STRING
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary

DEFERRED: Final = pa.schema([("key", STRING), ("needed", STRING)])


def list_unreadable(live: Sequence[PublishedTable]) -> tuple[Unreadable, ...]:
    """Return the unreadable tables that the given `live_files` record."""
    return tuple(item for table in live for item in table.summary(LiveFilesSummary).unreadable)


def read_missed_tables(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Return tables and lakes that are unreadable because the sweeps found files missing.

    The result includes tables whose metadata was missing in the last sweep of this storage, and
    tables and lakes whose files are missing in other storages. A mark alone is not enough, because
    it reads metadata files from a cache and does not notice that they were deleted.
    """
    last = find_newest_sweep(context, storage_name)
    own = last.summary(OrphanFilesSummary).unreadable if last is not None else ()
    return (*own, *find_missing(context, storage_name))


def _find_unlisted(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Return tables and lakes whose data files were missing in the last sweep of this storage."""
    last = find_newest_sweep(context, storage_name)
    return find_unlisted(context, last) if last is not None else ()


def add_deferred_rows(
    needed: DataFrame,
    rows: Callable[[], DataFrame],
    context: RunContext,
    storage_name: str,
    live: Sequence[PublishedTable],
    refs: Sequence[PublishedTable],
    *,
    has_dropped: bool = False,
) -> DataFrame:
    """Add the deferred keys of a plan to the keys that lakes need.

    Deferred keys are

    - keys claimed by tables that are unreadable or lack files,
    - keys of dropped tables that have to wait again, and keys that these tables adopted,
    - unused lakeFS range files that their lake keeps.

    If any table is unreadable, all purges are deferred too, unless a user has set aside every
    unreadable table (`gc-assets set-aside`).

    Args:
        needed: Keys needed by lakes, with the columns key, needed and is_live.
        rows: Loads the plan rows. It is called only if some of them may have to wait.
        live: `live_files` of all lakes.
        refs: `lake_refs` of all lakes.
        has_dropped: True if the plan contains files of dropped tables.

    Returns:
        `needed` with the deferred keys appended, with `is_live` = None.
    """
    needed = _add_undue_rows(needed, rows, context, storage_name, [*refs, *live], has_dropped=has_dropped)
    needed = _add_kept_metadata(needed, rows, context, storage_name, [*refs, *live])
    missed, unlisted = read_missed_tables(context, storage_name), _find_unlisted(context, storage_name)
    unreadable = with_set_aside(context, (*list_unreadable(live), *missed))
    if not (unreadable or unlisted):
        return needed
    shields = list_unread_shields(context, storage_name, refs, live)
    owners = {Owner(item.lake, item.table_uuid) for item in (*missed, *unlisted)}
    shields += [
        PrefixClaim(prefix, Owner("", None), collect=False) for prefix in prefixes_of(context, storage_name, [*refs, *live], owners)
    ]
    # This claim covers the whole storage, so only keys under protected prefixes (shields) have no
    # owner.
    everywhere = PrefixClaim("", Owner("", None), collect=True)
    items = (*unreadable, *unlisted)
    names = ", ".join(item.name for item in items[:3]) + (f" and {len(items) - 3:,} more" if len(items) > 3 else "")
    defers_purges = any(item.blocks_purges for item in unreadable)
    find_deferred = _FindDeferred(Claims.of([everywhere, *shields]), f"{names} cannot be read in full, so the file waits", defers_purges)
    waiting = map_arrow(rows().select("key", "action"), find_deferred, DEFERRED)
    return _append_deferred(needed, waiting)


def _append_deferred(needed: DataFrame, deferred: DataFrame) -> DataFrame:
    others = deferred.join(needed.select("key"), "key", "left_anti").dropDuplicates(["key"])
    return needed.unionByName(others, allowMissingColumns=True)


def _add_undue_rows(
    needed: DataFrame,
    rows: Callable[[], DataFrame],
    context: RunContext,
    storage_name: str,
    tables: Sequence[PublishedTable],
    *,
    has_dropped: bool,
) -> DataFrame:
    """Add the keys of dropped tables that are no longer due, and of files that they adopted."""
    found = find_undue_rows(rows, context, storage_name, tables, confirm=True, has_dropped=has_dropped)
    if found is None:
        return needed
    reason = F.lit("its dropped table is listed again or is not due yet").alias("needed")
    return _append_deferred(needed, found.select("key", reason))


def find_undue_rows(
    rows: Callable[[], DataFrame],
    context: RunContext,
    storage_name: str,
    tables: Sequence[PublishedTable],
    *,
    confirm: bool = False,
    has_dropped: bool = False,
) -> DataFrame | None:
    """Find the plan rows of dropped tables whose files have to wait.

    Args:
        rows: Loads the plan rows, with the columns key, action, reason, etag and source_plan_id.
        tables: `lake_refs` and `live_files` of all lakes.
        confirm: If True, ask the catalogs again for each table that is due.
        has_dropped: True if the plan contains files of dropped tables.

    Returns:
        The rows with the columns key and source_plan_id, or None if no plan row can belong to such
        a table.
    """
    dropped, adopted = load_dropped_tables(context, storage_name, tables, confirm=confirm), read_adopted_files(context, storage_name)
    if not (dropped.tables or adopted.rows or has_dropped):
        return None
    claims = claims_of(context, storage_name, tables, build_claims(dropped))
    rules = foreign_rules(context, storage_name, claims, tables, [item.table for item in dropped.tables])
    finder = DroppedFinder.of(dropped, None, rules, adopted)
    columns = ("key", "action", "reason", "etag", "source_plan_id")
    found = map_arrow(rows().select(*columns), FindUndue(finder, context.store(storage_name)), UNDUE)
    is_certain = F.col("is_certain")
    doubtful = found.filter(~is_certain)
    sources = {row["source_plan_id"] for row in collect(doubtful.select("source_plan_id").distinct())}
    for plan in list_plans(context.config, storage_name, empty=True) if sources else ():
        if plan.header.plan_id in sources:
            doubtful = _leave_out_others(doubtful, context.state, plan.header.plan_id, plan.run)
    return found.filter(is_certain).unionByName(doubtful).select("key", "source_plan_id")


def _leave_out_others(copies: DataFrame, state: State, plan_id: str, run: PastRun) -> DataFrame:
    """Remove copies that a plan quarantined, but not because their table was dropped."""
    try:
        planned = read_table(copies.sparkSession, state, DELETION_PLAN, state.open(run), columns=["key", "action", "reason"])
    except StateError:  # without the plan, the reason is unknown
        return copies
    others = planned.filter((F.col("action") == QUARANTINE) & (F.col("reason") != DROPPED)).select(
        "key", F.lit(plan_id).alias("source_plan_id")
    )
    return copies.join(others, ["key", "source_plan_id"], "left_anti").select(*copies.columns)


def add_foreign_rows(needed: DataFrame, rows: Callable[[], DataFrame], foreign: Sequence[str], doubtful: Sequence[str]) -> DataFrame:
    """Add the keys under prefixes in which a later run found metadata of foreign tables.

    Args:
        needed: Keys needed by lakes, with the columns key, needed and is_live.
        rows: Loads the plan rows.
        foreign: Prefixes of foreign tables. Their files are neither quarantined nor purged.
        doubtful: Prefixes around files that are only named like metadata. Purges are not affected.
    """
    for prefixes, actions, whose in (
        (foreign, (QUARANTINE, PURGE), "a table of no configured lake; the gate foreign_metadata of the newest plan lists its metadata"),
        (doubtful, (QUARANTINE,), "a table whose metadata cannot be read; the newest plan shows the file"),
    ):
        if prefixes:
            find = _FindDeferred(Claims.of_shields(prefixes), f"it may belong to {whose}", defers_purges=False)
            kept = map_arrow(rows().filter(F.col("action").isin(*actions)).select("key", "action"), find, DEFERRED)
            needed = _append_deferred(needed, kept)
    return needed


def _add_kept_metadata(
    needed: DataFrame, rows: Callable[[], DataFrame], context: RunContext, storage_name: str, tables: Sequence[PublishedTable]
) -> DataFrame:
    """Add the keys of unused lakeFS ranges that their lake no longer collects."""
    if not any(lake.collects_metadata for lake in context.config.lakes):
        return needed
    reason = "its lake keeps unused ranges now; the notes of the next run show the reason"
    find = _FindDeferred(claims_of(context, storage_name, tables), reason, defers_purges=False)
    kept = map_arrow(rows().filter(F.col("key").rlike(uncollected_metadata())).select("key", "action"), find, DEFERRED)
    return _append_deferred(needed, kept)


@dataclass(frozen=True)
class _FindDeferred:
    """Takes plan rows (key, action), and yields the deferred ones with the reason."""

    claims: Claims
    reason: str
    defers_purges: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shielded = pc.is_null(self.claims.resolve(batch.column("key"))[0])
            purged = pc.and_(pc.equal(batch.column("action"), PURGE), pa.scalar(self.defers_purges))
            waits = batch.column("key").filter(pc.or_(shielded, purged))
            yield pa.RecordBatch.from_arrays([waits, pa.repeat(self.reason, len(waits))], schema=DEFERRED)
