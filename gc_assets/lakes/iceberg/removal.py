"""A removal as pyiceberg's updates and requirements: one commit that takes effect whole or not at
all. Knows no catalog.

What can be required depends on who applies the updates. A REST server applies the protocol's own
updates and knows its own requirements only. Each known ref can be asserted; that there is no other
ref cannot.

Every other catalog of pyiceberg reloads the table inside `commit_table`, applies the updates in
this process, and swaps the pointer only if it did not move. There the requirement is our own. The
update is our own too, because pyiceberg's `remove-snapshots` is quadratic, unsets the parents of
retained snapshots, drops the refs made meanwhile, and leaves partition statistics and the older
part of the snapshot log behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import SnapshotLogEntry
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
    _apply_table_update,  # pyright: ignore[reportPrivateUsage]  # the registry of updates; there is no public way to add one
    _TableMetadataUpdateContext,  # pyright: ignore[reportPrivateUsage]  # an argument of what is registered there
)
from pyiceberg.typedef import IcebergBaseModel

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.metadata import GC_ENABLED, REF_SETTINGS, TABLE_SETTINGS
from gc_assets.lakes.iceberg.revalidate import Removal

# Name to (type, snapshot id, min-snapshots-to-keep, max-snapshot-age-ms, max-ref-age-ms).
Refs = dict[str, tuple[str, int, int | None, int | None, int | None]]


class AssertSameRefs(ValidatableTableRequirement):
    """The table has exactly these refs with these settings, and the same retention properties. No
    ref was made, moved, changed or deleted.
    """

    type: Literal["assert-same-refs"] = "assert-same-refs"  # pyright: ignore[reportIncompatibleVariableOverride]  # as pyiceberg does
    refs: Refs
    properties: dict[str, str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as pyiceberg does
        """Raises `CommitFailedException` naming the first difference."""
        if base_metadata is None:
            raise CommitFailedException("Requirement failed: the table is gone")
        found = {name: _plain(ref) for name, ref in base_metadata.refs.items()}
        for name in sorted(found.keys() | self.refs.keys()):
            if found.get(name) != self.refs.get(name):
                raise CommitFailedException(f"Requirement failed: ref {name} was {self.refs.get(name)} and is {found.get(name)} now")
        if (properties := _rules(base_metadata.properties)) != self.properties:
            raise CommitFailedException(f"Requirement failed: the retention properties were {self.properties} and are {properties} now")


class ForgetUpdate(IcebergBaseModel):
    """Snapshots and refs to take out of the metadata, with everything in it that belongs to them."""

    action: Literal["forget"] = "forget"
    snapshot_ids: frozenset[int]
    ref_names: frozenset[str]


@_apply_table_update.register(ForgetUpdate)
def _forget(update: ForgetUpdate, base_metadata: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    """Takes the snapshots and refs out, in linear time. Retained snapshots stay as they are: as
    after Iceberg's own expiry, a parent that is no longer listed ends the ancestry.
    """
    refs = {name: ref for name, ref in base_metadata.refs.items() if name not in update.ref_names}
    for name, ref in refs.items():
        if ref.snapshot_id in update.snapshot_ids:
            raise CommitFailedException(f"{ref.snapshot_ref_type} {name} points at snapshot {ref.snapshot_id}, which was to be removed")
    context.add_update(update)  # pyright: ignore[reportArgumentType]  # only counted there
    snapshots = [snapshot for snapshot in base_metadata.snapshots if snapshot.snapshot_id not in update.snapshot_ids]
    kept = {
        "refs": refs,
        "snapshots": snapshots,
        "snapshot_log": _unbroken(base_metadata.snapshot_log, {snapshot.snapshot_id for snapshot in snapshots}),
        "statistics": [item for item in base_metadata.statistics if item.snapshot_id not in update.snapshot_ids],
        "partition_statistics": [item for item in base_metadata.partition_statistics if item.snapshot_id not in update.snapshot_ids],
    }
    return base_metadata.model_copy(update=kept)


def applied_here(removal: Removal) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Returns the updates and requirements for catalogs that apply updates in this process."""
    refs: Refs = {}
    for ref in removal.before.refs:
        keep, age, ref_age = (int(ref.settings[name]) if name in ref.settings else None for name in REF_SETTINGS)
        refs[ref.name] = (ref.ref_type, int(ref.snapshot_id), keep, age, ref_age)
    requirements = (_same_table(removal), AssertSameRefs(refs=refs, properties=_rules(removal.before.properties)))
    update = ForgetUpdate(snapshot_ids=frozenset(map(int, removal.snapshot_ids)), ref_names=removal.ref_names)
    return (update,), requirements  # pyright: ignore[reportReturnType]  # the unions name pyiceberg's own types


def applied_by_server(removal: Removal) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Returns the updates and requirements for REST catalogs: the protocol's own updates, and an
    assertion for every known ref.
    """
    leaving = [snapshot for snapshot in removal.before.snapshots if snapshot.snapshot_id in removal.snapshot_ids]
    owners = {kind: [int(item.snapshot_id) for item in leaving if any(file.kind == kind for file in item.files)] for kind in _STATISTICS}
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in sorted(removal.ref_names)]
    updates += [RemoveStatisticsUpdate.model_validate({"snapshot-id": owner}) for owner in owners[Kind.STATISTICS]]
    updates += [RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": owner}) for owner in owners[Kind.PARTITION_STATISTICS]]
    if leaving:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [int(item.snapshot_id) for item in leaving]}))
    asserted = [AssertRefSnapshotId.model_validate({"ref": ref.name, "snapshot-id": int(ref.snapshot_id)}) for ref in removal.before.refs]
    return tuple(updates), (_same_table(removal), *asserted)


_STATISTICS = (Kind.STATISTICS, Kind.PARTITION_STATISTICS)


def _same_table(removal: Removal) -> AssertTableUUID:
    return AssertTableUUID(uuid=uuid.UUID(removal.before.table_uuid))


def _plain(ref: SnapshotRef) -> tuple[str, int, int | None, int | None, int | None]:
    return ref.snapshot_ref_type.value, ref.snapshot_id, ref.min_snapshots_to_keep, ref.max_snapshot_age_ms, ref.max_ref_age_ms


def _rules(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: properties[key] for key in (*TABLE_SETTINGS, GC_ENABLED) if key in properties}


def _unbroken(log: list[SnapshotLogEntry], listed: set[int]) -> list[SnapshotLogEntry]:
    """Returns what follows the last entry whose snapshot is not listed. A log with a gap would lie
    (format/spec.md, `snapshot-log`).
    """
    broken = max((index for index, entry in enumerate(log) if entry.snapshot_id not in listed), default=-1)
    return log[broken + 1 :]
