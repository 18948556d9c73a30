"""The `repo` object as dictionaries, by its schema (`repo.fbs`). Writes what the product's parser must refuse too."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import flatbuffers

from gc_assets.demo.icechunk_builder import payload_of, with_payload

Values = dict[str, Any]
ID_BYTES = 12
# Fields of each table: name and type, a letter of `struct` for a number. A list has tables, strings, ids or numbers.
SCHEMA: dict[str | int, list[tuple[str, Any]]] = {
    "Ref": [("name", "string"), ("snapshot_index", "I")],
    "Item": [("name", "string"), ("value", "bytes")],
    "SnapshotInfo": [
        ("id", "id"),
        ("parent_offset", "i"),
        ("flushed_at", "Q"),
        ("message", "string"),
        ("metadata", ["Item"]),
        ("pruned", ["id"]),
        ("later", "I"),
    ],
    "Status": [("availability", "B"), ("set_at", "Q"), ("reason", "string")],
    "Update": [("kind", "B"), ("value", "union"), ("updated_at", "Q"), ("backup_path", "string")],
    "Repo": [
        ("spec_version", "B"),
        ("tags", ["Ref"]),
        ("branches", ["Ref"]),
        ("deleted_tags", ["string"]),
        ("snapshots", ["SnapshotInfo"]),
        ("status", "Status"),
        ("metadata", ["Item"]),
        ("updates", ["Update"]),
        ("before", "string"),
        ("config", "bytes"),
        ("enabled", ["H"]),
        ("disabled", ["H"]),
        ("extra", "bytes"),
        ("later", "I"),
    ],
    2: [("from_version", "B"), ("to_version", "B")],
    5: [("name", "string")],
    6: [("name", "string"), ("previous_snap_id", "id")],
    7: [("name", "string")],
    8: [("name", "string"), ("previous_snap_id", "id")],
    9: [("name", "string"), ("previous_snap_id", "id")],
    10: [("branch", "string"), ("new_snap_id", "id")],
    11: [("branch", "string"), ("previous_snap_id", "id"), ("new_snap_id", "id")],
    12: [("new_snap_id", "id")],
    15: [("id", "H"), ("new_value", "B"), ("is_set", "B")],
    16: [("status", "Status")],
}


def read_repo(raw: bytes) -> Values:
    """Return the tables of a `repo` object."""
    payload = bytes(payload_of(raw))
    return _read(payload, struct.unpack_from("<I", payload)[0], "Repo")


def write_repo(raw: bytes, tables: Values, identifier: bytes = b"Ichk") -> bytes:
    """Return `raw` with other tables. A field that is None is absent."""
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(_write(builder, tables, "Repo"), identifier)
    return with_payload(raw, builder.Output())


def with_change(raw: bytes, change: Callable[[Values], object]) -> bytes:
    """Return a `repo` object after a change of its tables."""
    tables = read_repo(raw)
    change(tables)
    return write_repo(raw, tables)


def _fields(table: str | int) -> list[tuple[str, Any]]:
    return SCHEMA.get(table, [])


def _is_inline(type_: Any) -> bool:
    return type_ == "id" or (isinstance(type_, str) and len(type_) == 1)


def _read(payload: bytes, position: int, table: str | int) -> Values:
    vtable = position - struct.unpack_from("<i", payload, position)[0]
    count = (struct.unpack_from("<H", payload, vtable)[0] - 4) // 2
    found: Values = {}
    for slot, (name, type_) in enumerate(_fields(table)):
        offset = struct.unpack_from("<H", payload, vtable + 4 + 2 * slot)[0] if slot < count else 0
        found[name] = _read_value(payload, position + offset, type_, found) if offset else None
    return found


def _read_value(payload: bytes, at: int, type_: Any, before: Values) -> Any:
    if type_ == "id":
        return payload[at : at + ID_BYTES]
    if _is_inline(type_):
        return struct.unpack_from(f"<{type_}", payload, at)[0]
    target = at + struct.unpack_from("<I", payload, at)[0]
    if type_ == "union":
        return _read(payload, target, before["kind"])
    if type_ in ("string", "bytes"):
        text = payload[target + 4 : target + 4 + struct.unpack_from("<I", payload, target)[0]]
        return text.decode() if type_ == "string" else text
    if isinstance(type_, str):
        return _read(payload, target, type_)
    size = {"id": ID_BYTES, "H": 2}.get(type_[0], 4)
    starts = range(target + 4, target + 4 + size * struct.unpack_from("<I", payload, target)[0], size)
    if type_[0] in {"id", "H", "string"}:
        return [_read_value(payload, start, type_[0], {}) for start in starts]
    return [_read(payload, start + struct.unpack_from("<I", payload, start)[0], type_[0]) for start in starts]


def _write(builder: Any, values: Values, table: str | int) -> int:
    present = [(slot, name, type_) for slot, (name, type_) in enumerate(_fields(table)) if values.get(name) is not None]
    offsets = {slot: _write_value(builder, values[name], type_, values) for slot, name, type_ in present if not _is_inline(type_)}
    builder.StartObject(len(_fields(table)))
    numbers = {"B": builder.PrependUint8Slot, "H": builder.PrependUint16Slot, "I": builder.PrependUint32Slot}
    numbers |= {"i": builder.PrependInt32Slot, "Q": builder.PrependUint64Slot}
    for slot, name, type_ in present:
        if type_ == "id":
            builder.Prep(4, ID_BYTES)
            _write_id(builder, values[name])
            builder.PrependStructSlot(slot, builder.Offset(), 0)
        elif _is_inline(type_):
            numbers[type_](slot, values[name], 0)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, offsets[slot], 0)
    return builder.EndObject()


def _write_value(builder: Any, value: Any, type_: Any, values: Values) -> int:
    if type_ == "string":
        return builder.CreateString(value)
    if type_ == "bytes":
        return builder.CreateByteVector(value)
    if isinstance(type_, str):
        return _write(builder, value, values["kind"] if type_ == "union" else type_)
    item, size = type_[0], {"id": ID_BYTES, "H": 2}.get(type_[0], 4)
    offsets = value if item in {"id", "H"} else [_write_value(builder, entry, item, {}) for entry in value]
    builder.StartVector(size, len(offsets), 4)
    for entry in reversed(offsets):
        if item == "id":
            _write_id(builder, entry)
        elif item == "H":
            builder.PrependUint16(entry)
        else:
            builder.PrependUOffsetTRelative(entry)
    return builder.EndVector()


def _write_id(builder: Any, value: Any) -> None:
    for byte in reversed(value):
        builder.PrependByte(byte)
