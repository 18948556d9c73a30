"""Collect foreign metadata from the sweeps of every storage that matters for a plan.

A table can have its metadata in one storage and its data in another. A plan therefore depends on
metadata in all storages claimed by its lakes. If this run has not swept such a storage yet, its
last sweep is used. If the listing of that sweep is older than the grace period, the sweep of the
plan's storage selected only files older than that listing (`other_listings.py`).

Tables of another catalog may be under claims of other lakes. For this reason, foreign metadata in
any storage counts if it refers to a location in the plan's storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import pyarrow.compute as pc

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.missing_files import last_sweep
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.sweep.orphan_files import grace_cutoff
from gc_assets.stages.sweep.other_listings import find_listing_time, list_claiming_lakes
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import FOREIGN_PREFIXES, FOREIGN_PREFIXES_SIDE
from gc_assets.state.summaries import OrphanFilesSummary

LIST: Final = "gc-assets run --listing"


@dataclass(frozen=True, slots=True)
class ForeignEvidence:
    """Foreign metadata that a plan has to consider.

    This is the metadata found in storages of the plan's lakes, and metadata in any other storage
    that refers to the plan's storage. Metadata under the claims of dropped tables is not counted.

    Attributes:
        count: Number of metadata files.
        samples: Some of these files with the reasons. Files in other storages are shown by address.
        unknown: Why the metadata in another storage is unknown. Any entry makes the gate refuse the
            plan.
        notes: Sentences about storages for which an earlier sweep was used.
        prefixes: Prefixes of the plan's storage under which the tables of the metadata may have
            files. The plan leaves out these files.
    """

    count: int
    samples: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: PlanInputs) -> Self:
        context, own = inputs.context, inputs.orphans.summary(OrphanFilesSummary)
        claimed = list_claiming_lakes(context, [*inputs.refs, *inputs.live])
        mine = claimed.get(inputs.storage, set())
        usual = grace_cutoff(context, inputs.storage, inputs.refs)
        count, samples, unknown, notes = own.foreign_metadata_count, list(own.foreign_metadata), list[str](), list[str]()
        prefixes = _read_prefixes(context, inputs.orphans, inputs.storage, is_needed=count > 0)
        for name in sorted({storage.name for storage in context.config.storages} - {inputs.storage}):
            shared, sweep = claimed.get(name, set()) & mine, last_sweep(context, name)
            if sweep is None:
                if shared:
                    unknown.append(f"storage {name} has no sweep")
                continue
            found = sweep.summary(OrphanFilesSummary)
            lakes, storages = found.foreign_metadata_lakes, found.foreign_metadata_storages
            is_relevant = storages is None or inputs.storage in storages or bool(shared and (lakes is None or shared & set(lakes)))
            prefixes |= _read_prefixes(context, sweep, inputs.storage, is_needed=is_relevant and found.foreign_metadata_count > 0)
            if is_relevant:
                count += found.foreign_metadata_count
                samples += [context.resolver().address(name, sample) for sample in found.foreign_metadata]
            if not shared:
                continue
            listed_at = find_listing_time(context, sweep)
            if listed_at is not None and listed_at < usual:
                listed = f"storage {name} was last listed at {listed_at:%Y-%m-%d %H:%M} UTC"
                if not inputs.listing.is_earlier and listed_at < own.grace_cutoff:
                    unknown.append(listed)
                    continue
                notes.append(f"{listed[0].upper()}{listed[1:]}, so only older files are planned. `{LIST}` lists it now.")
            elif sweep.receipt.run_date < context.run_date:
                notes.append(f"The metadata in storage {name} was last read by the run of {sweep.receipt.run_date}.")
        return cls(count, tuple(samples), tuple(unknown), tuple(notes), tuple(sorted(prefixes)))


def _read_prefixes(context: RunContext, sweep: PublishedTable, storage_name: str, *, is_needed: bool) -> set[str]:
    """Return the prefixes of a storage under which the foreign tables found by a sweep may have
    files.

    Args:
        is_needed: True if the sweep found foreign metadata that the plan has to consider.
    """
    paths = sweep.paths(FOREIGN_PREFIXES_SIDE)
    if not paths:  # If an earlier release made the sweep, the files may be under any prefix.
        return {""} if is_needed else set()
    rows = read_parts(context.state.files, paths, FOREIGN_PREFIXES)
    return set(rows.filter(pc.equal(rows.column("storage"), storage_name)).column("prefix").to_pylist())
