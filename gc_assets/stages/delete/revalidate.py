"""Judges rows of a plan once more, right before they are executed: is the place still a lake's, and is
the object older than the grace period?

A plan is a table in the state, and its id a digest of it. Whoever may write the state can add a row
and make the digest again. So nothing that a row says of its object is believed: the claims are those
of the fresh mark, and the age is the one that the object's identity tells. The store compares that
identity with the object before it touches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims
from gc_assets.core.phases import ABORT, PURGE, QUARANTINE
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.stages.sweep.orphan_files import grace_cutoff
from gc_assets.state.journal import PublishedTable
from gc_assets.stores.protocol import Store

# Why a row must not be executed; null for one that may.
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Revalidation:
    """Adds the column `refused` to rows of a plan. A restore is never refused: it takes nothing.

    Pickles. Runs in executors.
    """

    claims: Claims
    ages: Ages
    store: Store

    @classmethod
    def of(cls, again: RunContext, header: PlanHeader, refs: list[PublishedTable], live: Sequence[PublishedTable]) -> Revalidation:
        """Returns the judge of a plan's rows after a fresh mark, with its refs and live files."""
        cutoff = min(header.grace_cutoff, grace_cutoff(again, header.storage, refs))
        claims = claims_of(again, header.storage, [*refs, *live])
        return cls(claims, Ages.of(again, cutoff, refs), again.store(header.storage))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column(REFUSED, self._refused(batch))

    def _refused(self, batch: pa.RecordBatch) -> pa.Array:
        key, planned = batch.column("key"), batch.column("lake")
        lake, _ = self.claims.resolve(key)
        modified = self.store.modification_times(batch.column("etag"))
        old = self.ages.is_old(pa.RecordBatch.from_arrays([key, modified, lake], names=["key", "last_modified", "lake"]))
        takes = pc.is_in(batch.column("action"), pa.array([QUARANTINE, PURGE, ABORT]))
        fits = pc.and_(pc.fill_null(pc.equal(lake, planned), False), pc.fill_null(old, False))
        if pc.all(pc.or_(fits, pc.invert(takes)), min_count=0).as_py():
            return pa.nulls(batch.num_rows, pa.string())
        may_go = pc.or_(fits, pc.invert(takes)).to_pylist()
        rows = zip(may_go, *(column.to_pylist() for column in (lake, planned, batch.column("etag"), modified)), strict=True)
        why = [None if may else _why(owner, said, etag, at, self.ages) for may, owner, said, etag, at in rows]
        return pa.array(why, pa.string())


def _why(lake: str | None, planned: str | None, etag: str | None, modified: object, ages: Ages) -> str:
    if lake is None:
        return "no lake claims this place, so nothing here may be taken"
    if lake != planned:
        return f"lake {lake} claims this place, and the plan says {planned}"
    if modified is None:
        return f"its identity {etag!r} does not tell when it was modified"
    return f"it is too young: last modified or named at {modified} or later, and only what is older than {ages.cutoff} may be taken"
