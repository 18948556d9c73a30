"""Parse snapshot files (`snapshot.fbs`), and write those with spec version 1.

Format: Icechunk `spec-v1.md` and `spec-v2.md`, "Snapshot Files". We read the id, parent, time and
chunk manifests of a snapshot, and can write a snapshot with another parent. The nodes (groups and
arrays) are not read, because `manifest_files` and `manifest_files_v2` list all of their manifests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from gc_assets.core.errors import FormatError
from gc_assets.core.moments import LATEST_MICROS, from_micros
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.flatbuffers import ABSENT, FlatBuffer, Table, VTable
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one, unspell_one
from gc_assets.lakes.icechunk.table_columns import (
    Positions,
    count_bytes,
    gather_ids,
    gather_u32,
    gather_u64,
    group_by_layout,
    table_positions,
)

# The last two fields exist since spec version 2.
_ID, _PARENT_ID, _NODES, _FLUSHED_AT, _MESSAGE, _METADATA, _MANIFEST_FILES, _MANIFEST_FILES_V2, _EXTRA = range(9)
_FIELDS = 9
_MANIFEST_ID, _SIZE_BYTES, _CHUNK_REFS, _MANIFEST_EXTRA = range(4)
_MANIFEST_FIELDS = 4
_MANIFEST_FILE = np.dtype([("id", "V12"), ("_", "V4"), ("size_bytes", "<u8"), ("chunk_refs", "<u4"), ("__", "V4")])
# Neither file systems nor our own tables support larger sizes.
_LARGEST_FILE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Chunk manifest of a snapshot, with the recorded size and number of references."""

    manifest_id: str
    size_bytes: int
    chunk_refs: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Content of a snapshot file.

    Attributes:
        parent_id: None for the first snapshot of a repository. Also None for spec version 2, which
            records parents in `repo` only.
        has_extra: True if a reserved field contains data, which only later library releases write.
    """

    snapshot_id: str
    parent_id: str | None
    flushed_at: datetime
    message: str
    manifest_files: tuple[ManifestFile, ...]
    has_extra: bool = False


def parse_snapshot(source: str, raw: bytes, spec_versions: frozenset[int] = envelope.SPEC_V1) -> Snapshot:
    """Parse a snapshot file.

    Args:
        source: Name of the file for error messages.
        raw: Content of the file.
        spec_versions: Spec versions to accept. Callers that follow parents must not accept version
            2, because all ancestors would look like dangling snapshots.

    Raises:
        SpecVersionError: If the file has another spec version.
        FormatError: If the file is damaged or has an unknown format.
    """
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.SNAPSHOT, spec_versions))
    root = buffer.root(_FIELDS)
    if envelope.spec_version(raw) in envelope.SPEC_V2:
        root.at(_MANIFEST_FILES_V2, "manifest_files_v2")
    parent = _parent_position(root)
    flushed_at = buffer.unsigned64(root.at(_FLUSHED_AT, "flushed_at"))
    if flushed_at > LATEST_MICROS:
        raise FormatError(f"{source}: expected flushed_at in microseconds since 1970, found {flushed_at}; restore the file from a backup")
    start, length = buffer.vector(root.at(_MESSAGE, "message"), 1)
    try:
        message = buffer.take(start, length).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{source}: the commit message is not valid UTF-8 ({error}); restore the file from a backup") from error
    listed, has_extra = _manifest_files(root)
    return Snapshot(
        snapshot_id=spell_one(buffer.take(root.at(_ID, "id"), ID_BYTES)),
        parent_id=None if parent is None else spell_one(buffer.take(parent, ID_BYTES)),
        flushed_at=from_micros(flushed_at),
        message=message,
        manifest_files=tuple(dict.fromkeys(listed)),
        has_extra=has_extra or (root.has(_EXTRA) and buffer.vector(root.at(_EXTRA, "extra"), 1)[1] > 0),
    )


def _manifest_files(root: Table) -> tuple[list[ManifestFile], bool]:
    """Read the manifests in both lists of a snapshot. The flag is True if one has reserved bytes."""
    buffer = root.buffer
    start, count = buffer.vector(root.at(_MANIFEST_FILES, "manifest_files"), _MANIFEST_FILE.itemsize)
    rows = np.frombuffer(buffer.data, _MANIFEST_FILE, count, start)
    listed = [ManifestFile(spell_one(item[0]), item[2], item[3]) for item in rows.tolist()]
    has_extra = False
    if root.has(_MANIFEST_FILES_V2):
        tables = table_positions(buffer, root.at(_MANIFEST_FILES_V2, ""))
        for layout, members in group_by_layout(buffer, tables, _MANIFEST_FIELDS):
            listed += _manifest_tables(buffer, layout, members)
            if layout.fields[_MANIFEST_EXTRA] != ABSENT:
                has_extra |= bool(count_bytes(buffer, members + layout.fields[_MANIFEST_EXTRA]).any())
    if listed and (largest := max(item.size_bytes for item in listed)) > _LARGEST_FILE:
        raise FormatError(f"{buffer.source}: a chunk manifest has an impossible size of {largest:,} bytes; restore the file from a backup")
    return listed, has_extra


def _manifest_tables(buffer: FlatBuffer, layout: VTable, tables: Positions) -> list[ManifestFile]:
    """Read manifest entries from tables that share a layout. Writers omit numbers that are 0."""
    if layout.fields[_MANIFEST_ID] == ABSENT:
        raise FormatError(f"{buffer.source}: a chunk manifest has no id; restore the file from a backup")
    ids = gather_ids(buffer, tables + layout.fields[_MANIFEST_ID])
    nothing = [0] * len(tables)
    size = layout.fields[_SIZE_BYTES]
    refs = layout.fields[_CHUNK_REFS]
    sizes = nothing if size == ABSENT else gather_u64(buffer, tables + size).tolist()
    counts = nothing if refs == ABSENT else gather_u32(buffer, tables + refs).tolist()
    return [ManifestFile(spell_one(item.tobytes()), *numbers) for item, *numbers in zip(ids, sizes, counts, strict=True)]


def with_parent(source: str, raw: bytes, parent_id: str) -> bytes:
    """Return the content of a snapshot file with another parent.

    Only 12 bytes of the payload change, and the header and compression stay the same. When the
    library expires its own snapshots, it writes the same bytes (verified with 1.1.21).

    Raises:
        FormatError: If it is the first snapshot of a history, which has no parent field, or if the
            result is not the same snapshot with the new parent.
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
    """Return the byte position of the parent's id. The first snapshot of a history has none."""
    return root.at(_PARENT_ID, "parent_id") if root.has(_PARENT_ID) else None
