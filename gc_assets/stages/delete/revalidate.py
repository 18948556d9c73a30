"""Check the claim and the age of each object again before a plan row is executed.

The plan id is a digest of a table in the state, so anyone with write access to the state can add a
row and compute a new digest. An apply therefore does not trust the rows. It takes claims from the
verification mark and reads the age from the object identity (etag), which the store compares with
the object before it acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims
from gc_assets.core.phases import ABORT, PURGE, QUARANTINE
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.foreign_rows import ForeignRows
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.dropped_tables import claims_with_dropped
from gc_assets.stages.sweep.orphan_files import grace_cutoff
from gc_assets.state.journal import PublishedTable
from gc_assets.stores.protocol import Store

# Column that explains why a row must not be executed. Null in all other rows.
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Revalidation:
    """Adds the `refused` column, which explains why a plan row must not be executed.

    It is pickled and sent to Spark executors.

    Restores are never refused, because they do not remove anything.
    """

    claims: Claims
    ages: Ages
    store: Store
    foreign: ForeignRows = field(default_factory=ForeignRows)

    @classmethod
    def of(
        cls,
        context: RunContext,
        header: PlanHeader,
        refs: list[PublishedTable],
        live: Sequence[PublishedTable],
        lead: timedelta,
        foreign: ForeignRows | None = None,
    ) -> Revalidation:
        """Prepare the checks from the refs and live files read again by the apply.

        Args:
            header: The header of the plan.
            lead: How far the host's clock is ahead of the storage's (`find_clock_lead`).
        """
        cutoff = min(header.grace_cutoff, grace_cutoff(context, header.storage, refs, lead))
        claims = claims_with_dropped(context, header.storage, [*refs, *live])
        return cls(claims, Ages.of(context, cutoff, refs, lead), context.store(header.storage), foreign or ForeignRows())

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column(REFUSED, self._find_refused(batch))

    def _find_refused(self, batch: pa.RecordBatch) -> pa.Array:
        key, planned = batch.column("key"), batch.column("lake")
        lake, _ = self.claims.resolve(key)
        modified = self.store.modification_times(batch.column("etag"))
        old = self.ages.is_old(pa.RecordBatch.from_arrays([key, modified, lake], names=["key", "last_modified", "lake"]))
        takes = pc.is_in(batch.column("action"), pa.array([QUARANTINE, PURGE, ABORT]))
        foreign = self.foreign.find_reasons(batch, modified, lake)
        fits = pc.and_(pc.and_(pc.fill_null(pc.equal(lake, planned), False), pc.fill_null(old, False)), pc.is_null(foreign))
        if pc.all(pc.or_(fits, pc.invert(takes)), min_count=0).as_py():
            return pa.nulls(batch.num_rows, pa.string())
        may_go = pc.or_(fits, pc.invert(takes)).to_pylist()
        rows = zip(may_go, *(column.to_pylist() for column in (foreign, lake, planned, batch.column("etag"), modified)), strict=True)
        reasons = [
            None if may else foreign_reason or _refusal_reason(owner, planned_lake, etag, at, self.ages)
            for may, foreign_reason, owner, planned_lake, etag, at in rows
        ]
        return pa.array(reasons, pa.string())


def _refusal_reason(lake: str | None, planned: str | None, etag: str | None, modified: object, ages: Ages) -> str:
    if lake is None:
        return "no lake claims this key, so it must not be removed"
    if lake != planned:
        return f"lake {lake} claims this key, but the plan lists it for lake {planned}"
    if modified is None:
        return f"its identity {etag!r} contains no modification time"
    return f"it is too young: its time or name shows {modified} or later, but only objects older than {ages.cutoff} may be removed"
