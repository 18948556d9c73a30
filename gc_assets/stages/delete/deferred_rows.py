"""Find the plan rows that are deferred because a table is unreadable.

A table may become unreadable after planning, so an apply checks its verification mark and the last
sweeps again. See docs/adr/0009-unreadable-tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claim, Claims, Owner
from gc_assets.core.foreign import ForeignRules
from gc_assets.core.phases import PURGE
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import map_arrow
from gc_assets.lakes.kinds import uncollected_metadata
from gc_assets.stages.delete.missing_files import find_missing, last_sweep
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.stages.sweep.adopted_files import read_adopted_files
from gc_assets.stages.sweep.claims import claims_of, list_unread_locations, prefixes_of
from gc_assets.stages.sweep.dropped_tables import DroppedFinder, FindUndue, load_dropped_tables
from gc_assets.state.arrow_types import BOOL, STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary

_KEY: Final = pa.schema([("key", STRING)])
DEFERRED: Final = pa.schema([("key", STRING), ("needed", STRING), ("is_live", BOOL)])


def list_unreadable(live: Sequence[PublishedTable]) -> tuple[Unreadable, ...]:
    """List the unreadable tables in `live_files` of all lakes."""
    return tuple(item for table in live for item in table.summary(LiveFilesSummary).unreadable)


def read_missed_tables(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Read the tables and lakes that are unreadable because metadata or files are missing.

    These are the tables whose metadata was missing in the storage's last sweep, and the tables and
    lakes whose files are missing in other storages.

    The sweeps are needed because a mark uses cached containers and does not detect missing
    metadata. For lakes with missing files in the plan's own storage, the gates decide.
    """
    last = last_sweep(context, storage_name)
    own = last.summary(OrphanFilesSummary).unreadable if last is not None else ()
    return (*own, *find_missing(context, storage_name))


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
    """Add the deferred keys of a plan to the needed keys (columns key, needed, is_live).

    Keys under the claims of unreadable tables, and keys of dropped tables that are not due any
    more, or that such a table adopted, are deferred. All purges are deferred too, unless users set
    all unreadable tables aside.

    Args:
        needed: Keys needed by lakes.
        rows: Returns the plan rows. Called only if a table is unreadable, or a lake collects
            metadata.
        live: `live_files` of all lakes.
        refs: `lake_refs` of all lakes.
        has_dropped: True if the plan has files of dropped tables.
    """
    needed = _add_undue_rows(needed, rows, context, storage_name, [*refs, *live], has_dropped=has_dropped)
    needed = _add_kept_metadata(needed, rows, context, storage_name, [*refs, *live])
    missed = read_missed_tables(context, storage_name)
    unreadable = with_set_aside(context, (*list_unreadable(live), *missed))
    if not unreadable:
        return needed
    shields = [
        Claim(row["key"], Owner(table.receipt.owner, row["table_uuid"]), collect=False)
        for table in live
        for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
        if row["storage"] == storage_name and not row["collect"]
    ]
    shields += list_unread_locations(context, storage_name, refs)
    owners = {Owner(item.lake, item.table_uuid) for item in missed}
    shields += [Claim(prefix, Owner("", None), collect=False) for prefix in prefixes_of(context, storage_name, [*refs, *live], owners)]
    # The claim covers the whole storage, so exactly the shielded keys have no owner.
    everywhere = Claim("", Owner("", None), collect=True)
    names = ", ".join(item.name for item in unreadable[:3]) + (f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else "")
    defers_purges = any(item.blocks_purges for item in unreadable)
    find_deferred = _FindDeferred(Claims.of([everywhere, *shields]), f"{names} cannot be read, so it waits", defers_purges)
    waiting = map_arrow(rows().select("key", "action"), find_deferred, DEFERRED)
    return needed.unionByName(waiting.join(needed.select("key"), "key", "left_anti").dropDuplicates(["key"]))


def _add_undue_rows(
    needed: DataFrame,
    rows: Callable[[], DataFrame],
    context: RunContext,
    storage_name: str,
    tables: Sequence[PublishedTable],
    *,
    has_dropped: bool,
) -> DataFrame:
    """Add the keys of dropped tables that are not due any more, and those that they adopted."""
    dropped, adopted = load_dropped_tables(context, storage_name, tables, confirm=True), read_adopted_files(context, storage_name)
    if not (dropped.tables or adopted.rows.num_rows or has_dropped):
        return needed
    finder = DroppedFinder.of(dropped, None, ForeignRules(Claims({}), {}), adopted)
    find = FindUndue(finder, context.store(storage_name))
    reason = F.lit("its dropped table is listed again, or waits").alias("needed")
    undue = map_arrow(rows().select("key", "action", "reason", "etag"), find, _KEY).select("key", reason, F.lit(True).alias("is_live"))
    return needed.unionByName(undue.join(needed.select("key"), "key", "left_anti").dropDuplicates(["key"]))


def _add_kept_metadata(
    needed: DataFrame, rows: Callable[[], DataFrame], context: RunContext, storage_name: str, tables: Sequence[PublishedTable]
) -> DataFrame:
    """Add the keys of unused ranges (lakeFS) that their lake keeps now."""
    if not any(lake.collects_metadata for lake in context.config.lakes):
        return needed
    reason = "its lake keeps unused ranges now; the notes of the next run have the reason"
    find = _FindDeferred(claims_of(context, storage_name, tables), reason, defers_purges=False)
    kept = map_arrow(rows().filter(F.col("key").rlike(uncollected_metadata())).select("key", "action"), find, DEFERRED)
    return needed.unionByName(kept.join(needed.select("key"), "key", "left_anti").dropDuplicates(["key"]))


@dataclass(frozen=True)
class _FindDeferred:
    """Yield the deferred rows of a plan (columns key, action). Runs in executors."""

    claims: Claims
    reason: str
    defers_purges: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shielded = pc.is_null(self.claims.resolve(batch.column("key"))[0])
            purged = pc.and_(pc.equal(batch.column("action"), PURGE), pa.scalar(self.defers_purges))
            waits = batch.column("key").filter(pc.or_(shielded, purged))
            count = len(waits)
            yield pa.RecordBatch.from_arrays([waits, pa.repeat(self.reason, count), pa.repeat(True, count)], schema=DEFERRED)
