"""Find tables and lakes with missing live files or doubtful metadata in other storages.

If one storage lacks files that a lake needs, the lake's live set may be wrong. Until the files are
back, plans leave out everything under its claims in all storages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.phases import RESTORE
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE, map_arrow
from gc_assets.stages.records.newest_sweeps import find_newest_sweep, list_comparable_plans, list_newest_sweeps
from gc_assets.stages.sweep.claims import prefixes_of
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.side_tables import MISSING_FILES_SIDE
from gc_assets.state.summaries import OrphanFilesSummary

LIVE_LISTED = "live_listed"


def find_missing(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
    """Return tables and lakes whose files were missing in the last sweeps of other storages.

    A lake with only data files missing is not returned if the sweep's newest plan was approved with
    an override of `live_listed`.
    """
    others = (other.name for other in context.config.storages if other.name != storage_name)
    return tuple(item for other in others for item in _missing_in(context, other))


def find_doubtful(context: RunContext, storage_name: str) -> tuple[Unreadable, ...]:
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
    if summary.unlisted_lakes:
        plans = list_comparable_plans(context, storage_name)
        newest = next((plan for plan in plans if plan.header.run_date == sweep.receipt.run_date), None)
        if newest is None or not newest.verdict.is_approved or LIVE_LISTED not in newest.verdict.overrides:
            yield from summary.unlisted_lakes


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
    """Task of `route_missing`, which moves rows to the side table.

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
