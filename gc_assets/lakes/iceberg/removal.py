"""Translate the removal of history into pyiceberg's updates and requirements for one commit.

A REST server only supports the updates and requirements of the REST protocol. They allow a commit
to require that each known ref is unchanged, but not that no other ref exists.

For all other catalogs, pyiceberg reloads the table inside `commit_table`, applies the updates in
this process, and replaces the catalog's metadata pointer only if it has not moved. We define our
own requirement and update for these catalogs, because pyiceberg's `remove-snapshots`:

- takes quadratic time,
- removes the parent ids of retained snapshots,
- drops refs that were created in the meantime,
- leaves partition statistics and the older part of the snapshot log in the metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata as LoadedMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import SnapshotLogEntry
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionSpecsUpdate,
    RemovePartitionStatisticsUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
    _apply_table_update,  # pyright: ignore[reportPrivateUsage]  # the registry of updates; there is no public way to add one
    _TableMetadataUpdateContext,  # pyright: ignore[reportPrivateUsage]  # argument type of registered updates
)
from pyiceberg.typedef import IcebergBaseModel

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.metadata import GC_ENABLED, REF_SETTINGS, TABLE_SETTINGS, TableMetadata
from gc_assets.lakes.iceberg.metadata import SnapshotRef as SnapshotRefMetadata
from gc_assets.lakes.iceberg.revalidate import Removal


@dataclass(frozen=True, slots=True)
class Pruning:
    """Schemas and partition specs to remove from a table.

    `base` is the table metadata in which they are unused.
    """

    base: TableMetadata
    schemas: frozenset[int]
    specs: frozenset[int]


@dataclass(frozen=True, slots=True)
class BranchCreation:
    """Branches to create in a table whose current metadata is `base`."""

    base: TableMetadata
    branches: tuple[SnapshotRefMetadata, ...]


# For each name: (type, snapshot id, min-snapshots-to-keep, max-snapshot-age-ms, max-ref-age-ms).
Refs = dict[str, tuple[str, int, int | None, int | None, int | None]]


class AssertSameRefs(ValidatableTableRequirement):
    """Require that the table has exactly these refs, with the same retention settings.

    The requirement fails if a ref was created, moved, changed or deleted, or if one of the table's
    retention properties has changed.
    """

    type: Literal["assert-same-refs"] = "assert-same-refs"  # pyright: ignore[reportIncompatibleVariableOverride]  # as pyiceberg does
    refs: Refs
    properties: dict[str, str]

    def validate(self, base_metadata: LoadedMetadata | None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as pyiceberg does
        """Raise `CommitFailedException` with the first difference, if any."""
        if base_metadata is None:
            raise CommitFailedException("Requirement failed: the table does not exist")
        found = {name: _ref_values(ref) for name, ref in base_metadata.refs.items()}
        for name in sorted(found.keys() | self.refs.keys()):
            if found.get(name) != self.refs.get(name):
                raise CommitFailedException(f"Requirement failed: ref {name} was {self.refs.get(name)} and is {found.get(name)} now")
        if (properties := _retention_properties(base_metadata.properties)) != self.properties:
            raise CommitFailedException(f"Requirement failed: the retention properties were {self.properties} and are {properties} now")


class AssertSameSnapshots(ValidatableTableRequirement):
    """Require that the table has exactly these snapshots.

    A new snapshot might use a schema or partition spec that is to be removed.
    """

    type: Literal["assert-same-snapshots"] = "assert-same-snapshots"  # pyright: ignore[reportIncompatibleVariableOverride]  # as pyiceberg does
    snapshot_ids: frozenset[int]

    def validate(self, base_metadata: LoadedMetadata | None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as pyiceberg does
        """Raise `CommitFailedException` if a snapshot was added or removed."""
        found = frozenset(snapshot.snapshot_id for snapshot in (base_metadata.snapshots if base_metadata is not None else ()))
        if found != self.snapshot_ids:
            raise CommitFailedException(f"Requirement failed: {len(found ^ self.snapshot_ids):,} snapshots were added or removed")


class RemoveHistoryUpdate(IcebergBaseModel):
    """Remove snapshots and refs from the metadata, together with their statistics and log entries."""

    action: Literal["forget"] = "forget"
    snapshot_ids: frozenset[int]
    ref_names: frozenset[str]


@_apply_table_update.register(RemoveHistoryUpdate)
def _remove_history(update: RemoveHistoryUpdate, base_metadata: LoadedMetadata, context: _TableMetadataUpdateContext) -> LoadedMetadata:
    """Remove snapshots and refs from the metadata in linear time.

    Retained snapshots are not modified. If the parent of a retained snapshot is removed, its
    ancestry ends there, as it does after Iceberg's own expiry.
    """
    refs = {name: ref for name, ref in base_metadata.refs.items() if name not in update.ref_names}
    for name, ref in refs.items():
        if ref.snapshot_id in update.snapshot_ids:
            raise CommitFailedException(f"{ref.snapshot_ref_type} {name} points at snapshot {ref.snapshot_id}, which is to be removed")
    context.add_update(update)  # pyright: ignore[reportArgumentType]  # pyiceberg only counts updates
    snapshots = [snapshot for snapshot in base_metadata.snapshots if snapshot.snapshot_id not in update.snapshot_ids]
    changes = {
        "refs": refs,
        "snapshots": snapshots,
        "snapshot_log": _trim_snapshot_log(base_metadata.snapshot_log, {snapshot.snapshot_id for snapshot in snapshots}),
        "statistics": [item for item in base_metadata.statistics if item.snapshot_id not in update.snapshot_ids],
        "partition_statistics": [item for item in base_metadata.partition_statistics if item.snapshot_id not in update.snapshot_ids],
    }
    return base_metadata.model_copy(update=changes)


def build_local_commit(removal: Removal) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Build the commit of a removal for catalogs whose updates pyiceberg applies in this process."""
    refs: Refs = {}
    for ref in removal.base.refs:
        keep, age, ref_age = (int(ref.settings[name]) if name in ref.settings else None for name in REF_SETTINGS)
        refs[ref.name] = (ref.ref_type, int(ref.snapshot_id), keep, age, ref_age)
    requirements = (_assert_uuid(removal), AssertSameRefs(refs=refs, properties=_retention_properties(removal.base.properties)))
    update = RemoveHistoryUpdate(snapshot_ids=frozenset(map(int, removal.snapshot_ids)), ref_names=removal.ref_names)
    return (update,), requirements  # pyright: ignore[reportReturnType]  # the unions only list pyiceberg's types


def build_rest_commit(removal: Removal) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Build the commit of a removal for REST catalogs. It requires that known refs are unchanged."""
    removed = [snapshot for snapshot in removal.base.snapshots if snapshot.snapshot_id in removal.snapshot_ids]
    owners = {kind: [int(item.snapshot_id) for item in removed if any(file.kind == kind for file in item.files)] for kind in _STATISTICS}
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in sorted(removal.ref_names)]
    updates += [RemoveStatisticsUpdate.model_validate({"snapshot-id": owner}) for owner in owners[Kind.STATISTICS]]
    updates += [RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": owner}) for owner in owners[Kind.PARTITION_STATISTICS]]
    if removed:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [int(item.snapshot_id) for item in removed]}))
    asserted = [AssertRefSnapshotId.model_validate({"ref": ref.name, "snapshot-id": int(ref.snapshot_id)}) for ref in removal.base.refs]
    return tuple(updates), (_assert_uuid(removal), *asserted)


def build_pruning_commit(pruning: Pruning, *, is_rest: bool) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Build the commit that removes schemas and partition specs.

    Over REST, the commit cannot require that no snapshot was added that no ref reaches.
    """
    base = pruning.base
    updates: list[TableUpdate] = []
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=uuid.UUID(base.table_uuid))]
    requirements += [AssertRefSnapshotId.model_validate({"ref": ref.name, "snapshot-id": int(ref.snapshot_id)}) for ref in base.refs]
    if not is_rest:
        requirements.append(AssertSameSnapshots(snapshot_ids=frozenset(int(item.snapshot_id) for item in base.snapshots)))  # pyright: ignore[reportArgumentType]  # the union only lists pyiceberg's types
    if base.evolution.current_schema is not None:
        requirements.append(AssertCurrentSchemaId.model_validate({"current-schema-id": base.evolution.current_schema}))
    if base.evolution.default_spec is not None:
        requirements.append(AssertDefaultSpecId.model_validate({"default-spec-id": base.evolution.default_spec}))
    if pruning.specs:
        updates.append(RemovePartitionSpecsUpdate.model_validate({"spec-ids": sorted(pruning.specs)}))
    if pruning.schemas:
        updates.append(RemoveSchemasUpdate.model_validate({"schema-ids": sorted(pruning.schemas)}))
    return tuple(updates), tuple(requirements)


def build_creation_commit(creation: BranchCreation) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Build the commit that creates branches.

    It requires that the names of the branches are unused.
    """
    updates: list[TableUpdate] = []
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=uuid.UUID(creation.base.table_uuid))]
    for branch in creation.branches:
        settings = {key: int(value) for key, value in branch.settings.items()}
        named = {"ref-name": branch.name, "type": "branch", "snapshot-id": int(branch.snapshot_id), **settings}
        updates.append(SetSnapshotRefUpdate.model_validate(named))
        requirements.append(AssertRefSnapshotId.model_validate({"ref": branch.name, "snapshot-id": None}))
    return tuple(updates), tuple(requirements)


_STATISTICS = (Kind.STATISTICS, Kind.PARTITION_STATISTICS)


def _assert_uuid(removal: Removal) -> AssertTableUUID:
    return AssertTableUUID(uuid=uuid.UUID(removal.base.table_uuid))


def _ref_values(ref: SnapshotRef) -> tuple[str, int, int | None, int | None, int | None]:
    return ref.snapshot_ref_type.value, ref.snapshot_id, ref.min_snapshots_to_keep, ref.max_snapshot_age_ms, ref.max_ref_age_ms


def _retention_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: properties[key] for key in (*TABLE_SETTINGS, GC_ENABLED) if key in properties}


def _trim_snapshot_log(log: list[SnapshotLogEntry], listed: set[int]) -> list[SnapshotLogEntry]:
    """Drop all entries of the snapshot log up to the last one of a removed snapshot.

    Source: format/spec.md, `snapshot-log`. It requires that, if a snapshot expires, all entries
    before it are removed as well.
    """
    broken = max((index for index, entry in enumerate(log) if entry.snapshot_id not in listed), default=-1)
    return log[broken + 1 :]
