"""Write the `repo` object of spec version 2.

Format: Icechunk `repo.fbs`. When the Icechunk library rewrites `repo`, it drops the reserved bytes
`extra`. This module keeps them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import flatbuffers

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk import envelope, repo_info, repo_updates
from gc_assets.lakes.icechunk.ids import ID_BYTES, unspell_one
from gc_assets.lakes.icechunk.repo_info import MetadataItems, RepoInfo, SnapshotInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import UPDATE_VALUES, FieldType, RepoStatus, Update

T = TypeVar("T")
_OFFSET_BYTES: Final = 4
_ID_WORDS: Final = struct.Struct("<3I")


def write_repo(source: str, raw: bytes, info: RepoInfo) -> bytes:
    """Serialize content as a `repo` object.

    The result is parsed again and must be equal to `info`.

    Args:
        source: Name of the object for error messages.
        raw: The object that will be replaced. Its header and compression are reused.
        info: New content. The library requires that the newest operation is later than all others,
            and that it does not refer to a copy yet.

    Raises:
        FormatError: If the content is invalid, or contains an operation that only a later library
            knows.
    """
    _verify_updates(source, info.updates)
    try:
        payload = _Writer().write(info)
    except KeyError as error:
        raise FormatError(f"{source}: a ref or parent refers to snapshot {error}, which is not listed; nothing was written") from error
    rewritten = envelope.rewrap(raw, payload)
    if (found := parse_repo(source, rewritten)) != info:
        changed = [name for name in info.__dataclass_fields__ if getattr(found, name) != getattr(info, name)]
        raise FormatError(f"{source}: the new object differs in {', '.join(changed)} when it is parsed again; nothing was written")
    return rewritten


def _verify_updates(source: str, updates: Sequence[Update]) -> None:
    for update in updates:
        if update.value is None or update.kind not in UPDATE_VALUES:
            raise FormatError(
                f"{source}: its log has an operation of unknown kind {update.kind}, which a rewrite would lose; upgrade gc-assets"
            )
    if updates and updates[0].backup_path is not None:
        raise FormatError(f"{source}: the newest operation of its log has a copy, {updates[0].backup_path!r}; nothing was written")
    if len(updates) > 1 and updates[0].updated_us <= updates[1].updated_us:
        raise FormatError(
            f"{source}: the newest operation of its log, at {updates[0].updated_us}, is not later than the one before, "
            f"at {updates[1].updated_us}; nothing was written"
        )


def _optional(write: Callable[[T], int], value: T | None) -> int | None:
    return None if value is None else write(value)


class _Writer:
    """Builds FlatBuffers tables from the end of the buffer, so children are written before parents.

    Lists are sorted.
    """

    def __init__(self) -> None:
        self._builder: Any = flatbuffers.Builder(1 << 16)
        self._names: dict[str, int] = {}

    def write(self, info: RepoInfo) -> bytes:
        index = {snapshot_id: number for number, snapshot_id in enumerate(sorted(info.snapshots))}
        fields = {
            repo_info.TAGS: self._refs(info.tags, index),
            repo_info.BRANCHES: self._refs(info.branches, index),
            repo_info.DELETED_TAGS: self._offsets([self._string(name) for name in sorted(info.deleted_tags)]),
            repo_info.SNAPSHOTS: self._offsets([self._snapshot(info.snapshots[snapshot_id], index) for snapshot_id in index]),
            repo_info.STATUS: self._status(info.status),
            repo_info.METADATA: self._items(info.metadata),
            repo_info.UPDATES: self._offsets([self._update(update) for update in info.updates]),
            repo_info.BEFORE_UPDATES: _optional(self._string, info.repo_before_updates),
            repo_info.CONFIG: _optional(self._bytes, info.config),
            repo_info.ENABLED: _optional(self._flags, info.enabled_flags),
            repo_info.DISABLED: _optional(self._flags, info.disabled_flags),
            repo_info.EXTRA: _optional(self._bytes, info.extra),
        }
        builder = self._builder
        builder.StartObject(repo_info.REPO_FIELDS)
        builder.PrependUint8Slot(repo_info.SPEC, info.spec_version, 0)
        root = self._end(fields)
        builder.Finish(root, repo_info.IDENTIFIER)
        return bytes(builder.Output())

    def _refs(self, refs: Mapping[str, str], index: Mapping[str, int]) -> int:
        tables: list[int] = []
        for name in sorted(refs):
            fields = {repo_info.REF_NAME: self._string(name)}
            self._builder.StartObject(repo_info.REF_FIELDS)
            self._builder.PrependUint32Slot(repo_info.REF_SNAPSHOT, index[refs[name]], 0)
            tables.append(self._end(fields))
        return self._offsets(tables)

    def _snapshot(self, snapshot: SnapshotInfo, index: Mapping[str, int]) -> int:
        builder = self._builder
        fields = {
            repo_info.MESSAGE: self._string(snapshot.message),
            repo_info.SNAPSHOT_METADATA: self._items(snapshot.metadata),
            repo_info.PRUNED_LOGS: _optional(self._ids, snapshot.pruned_logs or None),
        }
        builder.StartObject(repo_info.SNAPSHOT_FIELDS)
        builder.PrependUint64Slot(repo_info.FLUSHED_AT, snapshot.flushed_us, 0)
        parent = repo_info.NO_PARENT if snapshot.parent_id is None else index[snapshot.parent_id]
        builder.PrependInt32Slot(repo_info.PARENT_OFFSET, parent, 0)
        self._id_slot(repo_info.ID, snapshot.snapshot_id)
        return self._end(fields)

    def _status(self, status: RepoStatus) -> int:
        fields = {repo_updates.REASON: _optional(self._string, status.reason)}
        self._builder.StartObject(repo_updates.STATUS_FIELDS)
        self._builder.PrependUint64Slot(repo_updates.SET_AT, status.set_us, 0)
        self._builder.PrependUint8Slot(repo_updates.AVAILABILITY, status.availability, 0)
        return self._end(fields)

    def _update(self, update: Update) -> int:
        fields = {
            repo_updates.VALUE: self._value(update.value or {}, UPDATE_VALUES[update.kind]),
            repo_updates.BACKUP_PATH: _optional(self._string, update.backup_path),
        }
        self._builder.StartObject(repo_updates.UPDATE_FIELDS)
        self._builder.PrependUint64Slot(repo_updates.UPDATED_AT, update.updated_us, 0)
        self._builder.PrependUint8Slot(repo_updates.KIND, update.kind, 0)
        return self._end(fields)

    def _value(self, value: Mapping[str, Any], types: Sequence[tuple[str, FieldType]]) -> int:
        builder = self._builder
        writers: dict[FieldType, Callable[[Any], int]] = {"string": self._string, "status": self._status}
        fields = {slot: writers[type_](value[name]) for slot, (name, type_) in enumerate(types) if type_ in writers}
        builder.StartObject(len(types))
        for slot, (name, type_) in enumerate(types):
            if type_ == "id":
                self._id_slot(slot, value[name])
            elif type_ == "u16":
                builder.PrependUint16Slot(slot, value[name], 0)
            elif type_ not in writers:
                builder.PrependUint8Slot(slot, int(value[name]), 0)
        return self._end(fields)

    def _items(self, items: MetadataItems) -> int:
        tables: list[int] = []
        for name, value in items:
            if name not in self._names:
                self._names[name] = self._string(name)
            fields = {repo_info.ITEM_NAME: self._names[name], repo_info.ITEM_VALUE: self._bytes(value)}
            self._builder.StartObject(repo_info.ITEM_FIELDS)
            tables.append(self._end(fields))
        return self._offsets(tables)

    def _ids(self, ids: Sequence[str]) -> int:
        self._builder.StartVector(ID_BYTES, len(ids), _OFFSET_BYTES)
        for spelled in reversed(ids):
            self._id(spelled)
        return self._builder.EndVector()

    def _flags(self, flags: Sequence[int]) -> int:
        self._builder.StartVector(2, len(flags), 2)
        for flag in reversed(flags):
            self._builder.PrependUint16(flag)
        return self._builder.EndVector()

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(_OFFSET_BYTES, len(offsets), _OFFSET_BYTES)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return self._builder.EndVector()

    def _string(self, text: str) -> int:
        return self._builder.CreateString(text)

    def _bytes(self, content: bytes) -> int:
        return self._builder.CreateByteVector(content)

    def _id_slot(self, slot: int, spelled: str) -> None:
        self._builder.Prep(_OFFSET_BYTES, ID_BYTES)
        self._id(spelled)
        self._builder.PrependStructSlot(slot, self._builder.Offset(), 0)

    def _id(self, spelled: str) -> None:
        for word in reversed(_ID_WORDS.unpack(unspell_one(spelled))):
            self._builder.PrependUint32(word)

    def _end(self, fields: Mapping[int, int | None]) -> int:
        """Finish a table whose children have been written at the offsets in `fields`."""
        for slot, offset in fields.items():
            if offset is not None:
                self._builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return self._builder.EndObject()
