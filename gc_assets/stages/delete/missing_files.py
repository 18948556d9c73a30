"""Find tables and lakes with missing live files, or with doubtful metadata in other storages.

If one storage lacks files that a lake needs, the lake's live set may be wrong. Until the files are
back, plans leave out everything under its claims in all storages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.hashing import xxhash64
from gc_assets.core.phases import RESTORE
from gc_assets.core.plan import Unreadable, lacks_too_many
from gc_assets.core.sorted_hashes import is_in_sorted
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE, map_arrow
from gc_assets.stages.records.newest_sweeps import find_newest_sweep, list_comparable_plans, list_newest_sweeps, open_sweep
from gc_assets.stages.sweep.claims import prefixes_of
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.side_tables import MISSING_FILES_SIDE, MISSING_LIVE, MISSING_LIVE_SIDE
from gc_assets.state.summaries import OrphanFilesSummary


def find_missing(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Return tables and lakes whose files were missing in the last sweeps of other storages.

    Missing data files are ignored if a user accepted that they are missing (see `_is_accepted`).
    """
    others = (other.name for other in context.config.storages if other.name != storage_name)
    return tuple(item for other in others for item in _missing_in(context, other))


def find_tolerated(context: RunContext, sweep: PublishedTable) -> tuple[Unreadable, ...]:
    """Return tables and lakes with missing data files in a storage, although `live_listed` passes.

    If the gate fails, it refuses the whole plan of the storage.

    Args:
        sweep: The storage's `orphan_files`.
    """
    summary = sweep.summary(OrphanFilesSummary)
    return () if lacks_too_many(summary.live_unlisted_count, summary.live_keys) else find_unlisted(context, sweep)


def find_unlisted(context: RunContext, sweep: PublishedTable) -> tuple[Unreadable, ...]:
    """Return tables and lakes whose data files a sweep did not find, unless a user accepted it."""
    return () if _is_accepted(context, sweep) else sweep.summary(OrphanFilesSummary).unlisted_lakes


def find_junk_tables(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Return tables with unreadable metadata under their claims in other storages.

    The metadata may belong to an unknown table whose data is under the same claims. As in the
    table's own storage, this only defers the quarantine of more files, not purges.
    """
    others = (sweep for sweep in list_newest_sweeps(context) if sweep.receipt.owner != storage_name)
    return tuple(item for sweep in others for item in sweep.summary(OrphanFilesSummary).junk_tables)


def _missing_in(context: RunContext, storage_name: str) -> Iterator[Unreadable]:
    sweep = find_newest_sweep(context, storage_name)
    if sweep is None:
        return
    summary = sweep.summary(OrphanFilesSummary)
    yield from (*summary.unreadable, *summary.missing_lakes)
    yield from find_unlisted(context, sweep)


def _is_accepted(context: RunContext, sweep: PublishedTable) -> bool:
    """Check whether a user accepted the loss of the live files that a sweep did not find.

    This is the case if the sweep of the last plan that was approved with an override of
    `live_listed` did not find these files either. Earlier approvals do not count: a file that only
    they accept was not missing any more in that sweep. If others are missing, a user has to decide
    again.
    """
    if not sweep.parts(MISSING_LIVE_SIDE):
        return False
    plans = list_comparable_plans(context, sweep.receipt.owner)
    plan = next((plan for plan in plans if plan.accepts_missing_files), None)
    accepted = open_sweep(context, sweep.receipt.owner, context.state.open(plan.run)) if plan is not None else None
    if accepted is None:
        return False
    known = np.sort(np.concatenate([np.empty(0, np.int64), *_hash_missing(context.state, accepted)]))
    return all(is_in_sorted(hashes, known).all() for hashes in _hash_missing(context.state, sweep))


def digest_missing(state: State, sweep: PublishedTable) -> str:
    """Return a digest of the live files that a sweep did not find, or "" if it found all of them."""
    total = sum(int(hashes.view(np.uint64).sum()) for hashes in _hash_missing(state, sweep)) % 2**64
    return f"{total:016x}" if sweep.parts(MISSING_LIVE_SIDE) else ""


def _hash_missing(state: State, sweep: PublishedTable) -> Iterator[NDArray[np.int64]]:
    """Yield a hash for each missing live file and lake that needs it."""
    scan = ParquetScan.of(state.files, MISSING_LIVE, sweep.path, sweep.parts(MISSING_LIVE_SIDE))
    for batch in scan.read_batches():
        yield batch.column("key_hash").to_numpy() ^ xxhash64(batch.column("lake"))


def route_missing(rows: DataFrame, prefixes: tuple[str, ...]) -> DataFrame:
    """Move planned rows under claims of tables with missing files to a side table.

    Restores stay in the plan.
    """
    if not prefixes:
        return rows
    schema = pa.schema([*(DELETION_PLAN.schema.field(name) for name in rows.columns if name != ROUTE), (ROUTE, STRING)])
    ordered = rows.select(*(name for name in rows.columns if name != ROUTE), F.col(ROUTE))
    return map_arrow(ordered, RouteMissing.of(prefixes), schema).select(*rows.columns)


def missing_prefixes(
    context: RunContext, storage_name: str, missing: tuple[Unreadable, ...], tables: Sequence[PublishedTable]
) -> tuple[str, ...]:
    """Return the prefixes that the given tables and lakes claim in a storage."""
    owners = {Owner(item.lake, item.table_uuid) for item in missing}
    return prefixes_of(context, storage_name, tables, owners) if owners else ()


@dataclass(frozen=True)
class RouteMissing:
    """Moves rows to the side table for `route_missing`.

    Attributes:
        shields: Claims that give no owner to a key under one of the prefixes.
    """

    shields: Claims

    @classmethod
    def of(cls, prefixes: Sequence[str]) -> Self:
        """Build a task that moves the rows under these prefixes."""
        return cls(Claims.of_shields(prefixes))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shielded = pc.is_null(self.shields.resolve(batch.column("key"))[0])
            is_planned = pc.and_(pc.equal(batch.column(ROUTE), ""), pc.not_equal(batch.column("action"), RESTORE))
            route = pc.if_else(pc.and_(shielded, is_planned), MISSING_FILES_SIDE, batch.column(ROUTE))
            yield batch.set_column(batch.schema.get_field_index(ROUTE), ROUTE, route)
