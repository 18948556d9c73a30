"""Collect the foreign metadata that the sweeps of other storages found.

A table may have its metadata in one storage and its data in another. So a plan also depends on the
metadata in every other storage that its lakes claim. That storage may not be swept yet in this run,
and then its last sweep counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.missing_files import last_sweep
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import OrphanFilesSummary, StorageInventorySummary


@dataclass(frozen=True, slots=True)
class ForeignEvidence:
    """Foreign metadata in all storages of the lakes of a plan.

    Attributes:
        count: Number of metadata files.
        samples: Some of them with reasons, those of other storages with addresses.
        unknown: Why the metadata of another storage is unknown. Each reason refuses the plan.
        notes: Sentences on sweeps of earlier runs.
    """

    count: int
    samples: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: PlanInputs) -> Self:
        context, own = inputs.context, inputs.orphans.summary(OrphanFilesSummary)
        claimed = list_claiming_lakes(context, [*inputs.refs, *inputs.live])
        mine = claimed.get(inputs.storage, set())
        count, samples, unknown, notes = own.foreign_metadata_count, list(own.foreign_metadata), list[str](), list[str]()
        for name in sorted(claimed.keys() - {inputs.storage}):
            shared = claimed[name] & mine
            if not shared:
                continue
            sweep = last_sweep(context, name)
            if sweep is None:
                unknown.append(f"storage {name} has no sweep")
                continue
            listed_at = _find_listing_time(context, sweep)
            if not inputs.listing.is_earlier and listed_at is not None and listed_at < own.grace_cutoff:
                unknown.append(f"storage {name} was last listed at {listed_at:%Y-%m-%d %H:%M} UTC, before the grace period")
                continue
            if sweep.receipt.run_date < context.run_date:
                notes.append(f"The metadata in storage {name} is that of the run of {sweep.receipt.run_date}.")
            found = sweep.summary(OrphanFilesSummary)
            if found.foreign_metadata_lakes is None or shared & set(found.foreign_metadata_lakes):
                count += found.foreign_metadata_count
                samples += [context.resolver().address(name, sample) for sample in found.foreign_metadata]
        return cls(count, tuple(samples), tuple(unknown), tuple(notes))


def list_claiming_lakes(context: RunContext, tables: Sequence[PublishedTable]) -> dict[str, set[str]]:
    """Return the lakes that claim files of each storage."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in tables:
        rows = read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS, ["storage", "collect"])
        for name in rows.filter(rows.column("collect")).column("storage").unique().drop_null().to_pylist():
            found[name].add(table.receipt.owner)
    return dict(found)


def _find_listing_time(context: RunContext, sweep: PublishedTable) -> datetime | None:
    inventory = context.state.current(sweep.receipt.owner, STORAGE_INVENTORY.name, sweep.receipt.run_date)
    if inventory is None:
        return None
    summary = inventory.summary(StorageInventorySummary)
    return summary.as_of or summary.report_as_of or summary.listed_at
