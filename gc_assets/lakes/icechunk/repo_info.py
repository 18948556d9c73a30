"""Parse the `repo` object of spec version 2, with refs, listed snapshots and an operations log.

Format: Icechunk `spec-v2.md`, "Repo Info File", and `repo.fbs`. `repo` is the only mutable object
of a repository. It lists all snapshots with their parents, and any other snapshot file is garbage.
Content that the Icechunk library never writes is rejected, because its meaning is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from gc_assets.core.errors import FormatError
from gc_assets.core.moments import from_micros
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.flatbuffers import I32, U8, U16, U32, FlatBuffer, Table, TableReader
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one
from gc_assets.lakes.icechunk.repo_updates import UPDATE_FIELDS, RepoStatus, Update, parse_status, parse_time, parse_update

IDENTIFIER: Final = b"Ichk"
SPEC_VERSION: Final = 2
MAIN: Final = "main"
NO_PARENT: Final = -1
# Fields of each table, in the order of `repo.fbs`.
SPEC, TAGS, BRANCHES, DELETED_TAGS, SNAPSHOTS, STATUS, METADATA, UPDATES, BEFORE_UPDATES, CONFIG, ENABLED, DISABLED, EXTRA = range(13)
REPO_FIELDS: Final = 13
REF_NAME, REF_SNAPSHOT = range(2)
REF_FIELDS: Final = 2
ID, PARENT_OFFSET, FLUSHED_AT, MESSAGE, SNAPSHOT_METADATA, PRUNED_LOGS = range(6)
SNAPSHOT_FIELDS: Final = 6
ITEM_NAME, ITEM_VALUE = range(2)
ITEM_FIELDS: Final = 2

# Ids and names of the library's feature flags. By default, all of them are enabled.
FEATURE_FLAGS: Final[Mapping[int, str]] = {3: "move_node", 4: "create_tag", 5: "delete_tag"}

_RESTORE: Final = "restore the object from its newest copy in overwritten/"

MetadataItems = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """Entry in `repo` for a listed snapshot.

    Attributes:
        snapshot_id: Id in base32 encoding, like all ids in this module.
        parent_id: Id of another listed snapshot, or None for a root.
        flushed_us: Commit time in microseconds since 1970.
        message: Commit message.
        metadata: Names and FlexBuffer values, as stored.
        pruned_logs: Ids of transaction logs of expired ancestors, oldest first. The Icechunk
            library still needs these logs.
    """

    snapshot_id: str
    parent_id: str | None
    flushed_us: int
    message: str
    metadata: MetadataItems = ()
    pruned_logs: tuple[str, ...] = ()

    @property
    def flushed_at(self) -> datetime:
        return from_micros(self.flushed_us)


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """Content of `repo`.

    Attributes:
        header_spec: Spec version in the file header.
        spec_version: Spec version of the repository.
        branches: Snapshot id of each branch, sorted by name.
        tags: Snapshot id of each tag, sorted by name.
        deleted_tags: Names that new tags must not use.
        snapshots: Entries of listed snapshots, sorted by id.
        status: Availability of the repository.
        metadata: Names and FlexBuffer values, as stored.
        updates: Operations, newest first.
        repo_before_updates: Name of the copy in `overwritten/` in which the operations log
            continues.
        config: Configuration as a FlexBuffer, or None for the default.
        enabled_flags: Ids of enabled feature flags, or None if the list is missing.
        disabled_flags: Ids of disabled feature flags, or None if the list is missing.
        extra: Reserved bytes, which later releases may write.
    """

    header_spec: int
    spec_version: int
    branches: Mapping[str, str]
    tags: Mapping[str, str]
    deleted_tags: tuple[str, ...]
    snapshots: Mapping[str, SnapshotInfo]
    status: RepoStatus
    metadata: MetadataItems = ()
    updates: tuple[Update, ...] = ()
    repo_before_updates: str | None = None
    config: bytes | None = None
    enabled_flags: tuple[int, ...] | None = None
    disabled_flags: tuple[int, ...] | None = None
    extra: bytes | None = None

    @property
    def disabled_features(self) -> frozenset[str]:
        """Names of feature flags disabled by a user."""
        return frozenset(FEATURE_FLAGS[flag] for flag in self.disabled_flags or ())

    @property
    def backups(self) -> tuple[str, ...]:
        """Names of the backup copies in `overwritten/` to which the operations log refers."""
        named = [update.backup_path for update in self.updates] + [self.repo_before_updates]
        return tuple(dict.fromkeys(name for name in named if name is not None))


def parse_repo(source: str, raw: bytes) -> RepoInfo:
    """Parse and verify a `repo` object.

    The times of parents and children are not compared. If a repository was upgraded from spec
    version 1, a child can be older than its parent.

    Args:
        source: Name of the object for error messages.
        raw: Content of the object.

    Raises:
        SpecVersionError: If the spec version of the repository is not 2.
        FormatError: If the object is damaged, or contains something that only a later library
            could have written.
    """
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.REPO_INFO, envelope.SPEC_V2))
    root = buffer.root(REPO_FIELDS, IDENTIFIER)
    if (version := root.number(SPEC, U8)) != SPEC_VERSION:
        raise envelope.SpecVersionError(f"{source}: the repository has spec version {version}; expected {SPEC_VERSION}; upgrade gc-assets")
    reader = TableReader(buffer)
    snapshots = _parse_snapshots(source, reader, root)
    ids = list(snapshots)
    branches, tags = (
        _parse_refs(source, reader, root.at(field, name), name, ids) for field, name in ((BRANCHES, "branches"), (TAGS, "tags"))
    )
    if MAIN not in branches:
        raise FormatError(f"{source}: expected a branch {MAIN!r}, found {_list(branches)}; {_RESTORE}")
    deleted = _verify_sorted(source, "deleted_tags", list(reader.strings(root.at(DELETED_TAGS, "deleted_tags"))))
    if both := tags.keys() & set(deleted):
        raise FormatError(f"{source}: the tags {_list(both)} are both live and deleted; {_RESTORE}")
    info = RepoInfo(
        header_spec=envelope.spec_version(raw),
        spec_version=version,
        branches=branches,
        tags=tags,
        deleted_tags=tuple(deleted),
        snapshots=snapshots,
        status=parse_status(reader, root.at(STATUS, "status")),
        metadata=_parse_items(reader, root, METADATA),
        updates=tuple(parse_update(reader, table) for table in reader.tables(root.at(UPDATES, "latest_updates"), UPDATE_FIELDS)),
        repo_before_updates=reader.string(root.at(BEFORE_UPDATES, "")) if root.has(BEFORE_UPDATES) else None,
        config=_parse_bytes(reader, root, CONFIG),
        enabled_flags=_parse_flags(source, reader, root, ENABLED, "enabled_feature_flags"),
        disabled_flags=_parse_flags(source, reader, root, DISABLED, "disabled_feature_flags"),
        extra=_parse_bytes(reader, root, EXTRA),
    )
    _verify_flags(source, info)
    for name in info.backups:
        if not name or "/" in name or name in {".", ".."}:
            raise FormatError(f"{source}: expected the name of an object in overwritten/, found {name!r}; upgrade gc-assets")
    return info


def _parse_snapshots(source: str, reader: TableReader, root: Table) -> dict[str, SnapshotInfo]:
    tables = list(reader.tables(root.at(SNAPSHOTS, "snapshots"), SNAPSHOT_FIELDS))
    ids = _verify_sorted(source, "snapshots", [spell_one(table.buffer.take(table.at(ID, "id"), ID_BYTES)) for table in tables])
    parents = [table.number(PARENT_OFFSET, I32) for table in tables]
    for snapshot_id, parent in zip(ids, parents, strict=True):
        if not NO_PARENT <= parent < len(ids):
            raise FormatError(f"{source}: snapshot {snapshot_id}: expected a parent of -1 to {len(ids) - 1:,}, found {parent}; {_RESTORE}")
    _verify_no_ring(source, ids, parents)
    return {
        snapshot_id: SnapshotInfo(
            snapshot_id=snapshot_id,
            parent_id=None if parent == NO_PARENT else ids[parent],
            flushed_us=parse_time(table, FLUSHED_AT, "flushed_at"),
            message=reader.string(table.at(MESSAGE, "message")),
            metadata=_parse_items(reader, table, SNAPSHOT_METADATA),
            pruned_logs=tuple(map(spell_one, reader.structs(table.at(PRUNED_LOGS, ""), ID_BYTES))) if table.has(PRUNED_LOGS) else (),
        )
        for snapshot_id, parent, table in zip(ids, parents, tables, strict=True)
    }


def _verify_no_ring(source: str, ids: Sequence[str], parents: Sequence[int]) -> None:
    """Raise `FormatError` if a snapshot is its own ancestor. The library would never terminate."""
    is_verified = bytearray(len(parents))
    for start in range(len(parents)):
        line: list[int] = []
        at = start
        while at != NO_PARENT and not is_verified[at]:
            is_verified[at] = 2
            line.append(at)
            at = parents[at]
        if at != NO_PARENT and is_verified[at] == 2:
            raise FormatError(f"{source}: snapshot {ids[at]} is its own ancestor; {_RESTORE}")
        for index in line:
            is_verified[index] = 1


def _parse_refs(source: str, reader: TableReader, field: int, name: str, ids: Sequence[str]) -> dict[str, str]:
    tables = list(reader.tables(field, REF_FIELDS))
    names = _verify_sorted(source, name, [reader.string(table.at(REF_NAME, "name")) for table in tables])
    refs: dict[str, str] = {}
    for ref, table in zip(names, tables, strict=True):
        index = table.number(REF_SNAPSHOT, U32)
        if index >= len(ids):
            raise FormatError(f"{source}: {name} {ref!r}: its snapshot index must be less than {len(ids):,}, got {index:,}; {_RESTORE}")
        refs[ref] = ids[index]
    return refs


def _parse_items(reader: TableReader, table: Table, field: int) -> MetadataItems:
    if not table.has(field):
        return ()
    items = reader.tables(table.at(field, "metadata"), ITEM_FIELDS)
    return tuple((reader.string(item.at(ITEM_NAME, "name")), reader.raw(item.at(ITEM_VALUE, "value"))) for item in items)


def _parse_bytes(reader: TableReader, root: Table, field: int) -> bytes | None:
    return reader.raw(root.at(field, "")) if root.has(field) else None


def _parse_flags(source: str, reader: TableReader, root: Table, field: int, name: str) -> tuple[int, ...] | None:
    if not root.has(field):
        return None
    flags = [U16.unpack(item)[0] for item in reader.structs(root.at(field, name), U16.size)]
    if any(first >= second for first, second in pairwise(flags)):
        raise FormatError(f"{source}: expected sorted {name}, found {flags[:9]}; {_RESTORE}")
    return tuple(flags)


def _verify_flags(source: str, info: RepoInfo) -> None:
    enabled, disabled = set(info.enabled_flags or ()), set(info.disabled_flags or ())
    if unknown := sorted((enabled | disabled) - FEATURE_FLAGS.keys()):
        known = ", ".join(f"{number} ({name})" for number, name in FEATURE_FLAGS.items())
        raise FormatError(
            f"{source}: unknown feature flags {', '.join(map(str, unknown[:9]))}, which may change the meaning of objects; "
            f"known are {known}; upgrade gc-assets"
        )
    if both := sorted(enabled & disabled):
        raise FormatError(f"{source}: the feature flags {both} are both enabled and disabled; {_RESTORE}")


def _verify_sorted(source: str, name: str, keys: list[str]) -> list[str]:
    """Verify that keys are sorted, because the library's binary search would miss some otherwise."""
    # Sorting by code points is the same as sorting by UTF-8 bytes. Ids sort like their bytes.
    for first, second in pairwise(keys):
        if first >= second:
            raise FormatError(f"{source}: expected distinct sorted {name}, found {second!r} after {first!r}; {_RESTORE}")
    return keys


def _list(names: Iterable[str]) -> str:
    found = sorted(names)
    return (", ".join(map(repr, found[:5])) or "none") + (f" and {len(found) - 5:,} others" if len(found) > 5 else "")
