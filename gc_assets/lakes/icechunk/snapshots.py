"""Parser and writer for snapshot files with spec version 1 (`snapshot.fbs`).

It reads the id, the parent, the time and the chunk manifests of a snapshot, and writes a snapshot
with another parent. The nodes are not read, because `manifest_files` lists all manifests of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.flatbuffers import FlatBuffer, Table
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one, unspell_one

_ID, _PARENT_ID, _NODES, _FLUSHED_AT, _MESSAGE, _METADATA, _MANIFEST_FILES = range(7)
_FIELDS = 7
_MANIFEST_FILE = np.dtype([("id", "V12"), ("_", "V4"), ("size_bytes", "<u8"), ("chunk_refs", "<u4"), ("__", "V4")])
# Limit of file systems and of the tables.
_LARGEST_FILE = np.iinfo(np.int64).max
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# `datetime` has no later times, and a file with one is damaged.
_END_OF_TIME_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A chunk manifest of a snapshot, with its expected size and number of references."""

    manifest_id: str
    size_bytes: int
    chunk_refs: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file. `parent_id` is None for the first snapshot of a repository."""

    snapshot_id: str
    parent_id: str | None
    flushed_at: datetime
    message: str
    manifest_files: tuple[ManifestFile, ...]


def parse_snapshot(source: str, raw: bytes) -> Snapshot:
    """Parse a snapshot file. Raises `FormatError` for a damaged or unknown file."""
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.SNAPSHOT, envelope.SPEC_V1))
    root = buffer.root(_FIELDS)
    parent = _parent_position(root)
    flushed_at = buffer.unsigned64(root.at(_FLUSHED_AT, "flushed_at"))
    if flushed_at > _END_OF_TIME_US:
        raise FormatError(f"{source}: expected flushed_at in microseconds since 1970, found {flushed_at}; restore the file from a backup")
    start, length = buffer.vector(root.at(_MESSAGE, "message"), 1)
    try:
        message = buffer.take(start, length).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{source}: expected a message in UTF-8, found {error}; restore the file from a backup") from error
    start, count = buffer.vector(root.at(_MANIFEST_FILES, "manifest_files"), _MANIFEST_FILE.itemsize)
    listed = np.frombuffer(buffer.data, _MANIFEST_FILE, count, start)
    if count and listed["size_bytes"].max() > _LARGEST_FILE:
        found = f"{listed['size_bytes'].max():,} bytes"
        raise FormatError(f"{source}: expected the sizes of files for its chunk manifests, found {found}; restore the file from a backup")
    return Snapshot(
        snapshot_id=spell_one(buffer.take(root.at(_ID, "id"), ID_BYTES)),
        parent_id=None if parent is None else spell_one(buffer.take(parent, ID_BYTES)),
        flushed_at=_EPOCH + timedelta(microseconds=flushed_at),
        message=message,
        manifest_files=tuple(ManifestFile(spell_one(item[0]), item[2], item[3]) for item in listed.tolist()),
    )


def with_parent(source: str, raw: bytes, parent_id: str) -> bytes:
    """Return the file with another parent.

    Only 12 bytes of the payload differ. Header and codec settings are kept. The library writes the
    same bytes when it expires its own snapshots (verified with 1.1.21).

    Raises:
        FormatError: If the snapshot is the first one and has no field for a parent, or the result is
            not the same snapshot with the new parent.
    """
    payload = envelope.unwrap(source, raw, envelope.SNAPSHOT, envelope.SPEC_V1)
    at = _parent_position(FlatBuffer(source, payload).root(_FIELDS))
    if at is None:
        raise FormatError(f"{source}: expected a snapshot with a parent, found the first of a history, which cannot have one")
    edited = payload[:at] + unspell_one(parent_id) + payload[at + ID_BYTES :]
    rewritten = envelope.rewrap(raw, edited)
    before, after = parse_snapshot(source, raw), parse_snapshot(source, rewritten)
    if envelope.unwrap(source, rewritten, envelope.SNAPSHOT, envelope.SPEC_V1) != edited or after != replace(before, parent_id=parent_id):
        raise FormatError(
            f"{source}: expected the same snapshot with the parent {parent_id} after the rewrite, found {after}; nothing was written"
        )
    return rewritten


def _parent_position(root: Table) -> int | None:
    """Return the position of the 12 bytes of the parent's id, None for a first snapshot."""
    return root.at(_PARENT_ID, "parent_id") if root.has(_PARENT_ID) else None
