"""Collect foreign metadata (of tables in no configured lake) that matters for a plan.

A table can have its metadata in one storage and its data in another. A plan therefore depends on
this foreign metadata in all storages claimed by its lakes. If this run has not swept such a storage
yet, its last sweep is used. If the listing of that sweep is older than the grace period, the sweep
of the plan's storage selected only files older than that listing (`other_listings.py`).

Tables of another catalog may be under claims of other lakes. For this reason, foreign metadata in
any storage counts if it refers to a location in the plan's storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.missing_files import find_junk_tables, missing_prefixes
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.records.newest_sweeps import list_newest_sweeps
from gc_assets.stages.sweep.orphan_files import grace_cutoff
from gc_assets.stages.sweep.other_listings import find_listing_time, list_claiming_lakes
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import FOREIGN_PREFIXES, FOREIGN_PREFIXES_SIDE
from gc_assets.state.summaries import OrphanFilesSummary

LIST: Final = "gc-assets run --listing"
_OF_OTHERS: Final = "it may belong to a table of no configured lake; the newest plan shows the metadata"


@dataclass(frozen=True, slots=True)
class ForeignFindings:
    """Metadata of tables in no configured lake (foreign metadata) that a plan has to consider.

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
        doubtful: Prefixes around unreadable files that are only named like metadata. No file under
            them is quarantined, and no upload is aborted.
    """

    count: int
    samples: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: PlanInputs) -> Self:
        """Collect the foreign metadata for a plan, and the reasons why some of it is unknown."""
        context, own = inputs.context, inputs.orphans.summary(OrphanFilesSummary)
        claimed = list_claiming_lakes(context, [*inputs.refs, *inputs.live])
        usual = grace_cutoff(context, inputs.storage, inputs.refs, inputs.clock_lead)
        sweeps = {sweep.receipt.owner: sweep for sweep in list_newest_sweeps(context)} | {inputs.storage: inputs.orphans}
        unknown, notes = list[str](), list[str]()
        for name in sorted(claimed.keys() - {inputs.storage}):
            if claimed[name].isdisjoint(claimed.get(inputs.storage, ())):
                continue
            sweep = sweeps.get(name)
            if sweep is None:
                unknown.append(f"storage {name} has no sweep")
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
        found = cls._of_sweeps(context, inputs.storage, claimed, sweeps, [*inputs.refs, *inputs.live])
        return replace(found, unknown=tuple(unknown), notes=tuple(notes))

    @classmethod
    def of_newest(cls, context: RunContext, storage_name: str, tables: Sequence[PublishedTable]) -> Self:
        """Collect the findings of the newest sweeps of all storages, for an apply of an older plan.

        Args:
            context: The context of the verification mark.
            tables: `lake_refs` and `live_files` of all lakes.
        """
        sweeps = {sweep.receipt.owner: sweep for sweep in list_newest_sweeps(context)}
        return cls._of_sweeps(context, storage_name, list_claiming_lakes(context, tables), sweeps, tables)

    @classmethod
    def _of_sweeps(
        cls,
        context: RunContext,
        storage_name: str,
        claimed: Mapping[str, set[str]],
        sweeps: Mapping[str, PublishedTable],
        tables: Sequence[PublishedTable],
    ) -> Self:
        count, samples, prefixes = 0, list[str](), set[str]()
        for name, sweep in sorted(sweeps.items(), key=lambda item: (item[0] != storage_name, item[0])):
            found, is_own = sweep.summary(OrphanFilesSummary), name == storage_name
            shared = claimed.get(name, set()) & claimed.get(storage_name, set())
            is_relevant = is_own or _is_relevant(found, storage_name, shared)
            prefixes |= read_prefixes(context, sweep, storage_name, is_needed=is_relevant and found.foreign_metadata_count > 0)
            if is_relevant:
                count += found.foreign_metadata_count
                samples += [item if is_own else context.resolver().address(name, item) for item in found.foreign_metadata]
        doubtful = set(missing_prefixes(context, storage_name, find_junk_tables(context, storage_name), tables))
        if storage_name in sweeps:
            doubtful |= read_prefixes(context, sweeps[storage_name], storage_name, around_junk=True)
        return cls(count, tuple(samples), prefixes=tuple(sorted(prefixes)), doubtful=tuple(sorted(doubtful)))

    def find_reasons(self, keys: pa.ChunkedArray) -> pa.Array:
        """Explain why uploads to the given keys must not be aborted. Other keys have no reason."""
        shielded = pc.is_null(Claims.of_shields((*self.prefixes, *self.doubtful)).resolve(keys.combine_chunks())[0])
        return pc.if_else(shielded, pa.scalar(_OF_OTHERS), pa.scalar(None, pa.string()))


def _is_relevant(found: OrphanFilesSummary, storage_name: str, shared: set[str]) -> bool:
    """Check whether foreign metadata in another storage matters for the plans of a storage.

    Args:
        found: Summary of the other storage's sweep.
        shared: Lakes that claim files in both storages.
    """
    lakes, storages = found.foreign_metadata_lakes, found.foreign_metadata_storages
    return storages is None or storage_name in storages or bool(shared and (lakes is None or not shared.isdisjoint(lakes)))


def read_prefixes(
    context: RunContext, sweep: PublishedTable, storage_name: str, *, is_needed: bool = False, around_junk: bool = False
) -> set[str]:
    """Return the prefixes of a storage under which foreign tables of a sweep may have files.

    Args:
        is_needed: True if the sweep found foreign metadata that the plan has to consider.
        around_junk: If True, return the prefixes around files that are only named like metadata.
    """
    paths = sweep.paths(FOREIGN_PREFIXES_SIDE)
    if not paths:  # If an earlier release made the sweep, the files may be under any prefix.
        return {""} if is_needed else set()
    rows = read_parts(context.state.files, paths, FOREIGN_PREFIXES)
    is_junk = pc.fill_null(rows.column("is_junk"), False)
    rows = rows.filter(pc.and_(pc.equal(rows.column("storage"), storage_name), pc.equal(is_junk, around_junk)))
    return set(rows.column("prefix").to_pylist())
