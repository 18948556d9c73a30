"""Operations log in the `repo` object of spec version 2.

Format: Icechunk `repo.fbs`, table `Update` and union `UpdateType`. The log does not affect which
objects are live. Therefore, operations that only later releases of the Icechunk library support can
be read, but not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from gc_assets.core.errors import FormatError
from gc_assets.core.moments import LATEST_MICROS
from gc_assets.lakes.icechunk.flatbuffers import U8, U16, U64, Table, TableReader
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one

# In FlatBuffers, a union is stored as two fields: its type and its value.
KIND, VALUE, UPDATED_AT, BACKUP_PATH = range(4)
UPDATE_FIELDS: Final = 4
AVAILABILITY, SET_AT, REASON = range(3)
STATUS_FIELDS: Final = 3

FieldType = Literal["u8", "u16", "bool", "string", "id", "status"]


class Availability(IntEnum):
    """Availability of a repository. Expiry and garbage collection require that it is online."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


class UpdateKind(IntEnum):
    """Kind of operation in the log (`UpdateType`)."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


_NAME: Final[tuple[str, FieldType]] = ("name", "string")
_BRANCH: Final[tuple[str, FieldType]] = ("branch", "string")
_PREVIOUS: Final[tuple[str, FieldType]] = ("previous_snap_id", "id")
_NEW: Final[tuple[str, FieldType]] = ("new_snap_id", "id")
# The fields of each operation, in the order of the schema.
UPDATE_VALUES: Final[Mapping[int, tuple[tuple[str, FieldType], ...]]] = {
    UpdateKind.REPO_INITIALIZED: (),
    UpdateKind.REPO_MIGRATED: (("from_version", "u8"), ("to_version", "u8")),
    UpdateKind.CONFIG_CHANGED: (),
    UpdateKind.METADATA_CHANGED: (),
    UpdateKind.TAG_CREATED: (_NAME,),
    UpdateKind.TAG_DELETED: (_NAME, _PREVIOUS),
    UpdateKind.BRANCH_CREATED: (_NAME,),
    UpdateKind.BRANCH_DELETED: (_NAME, _PREVIOUS),
    UpdateKind.BRANCH_RESET: (_NAME, _PREVIOUS),
    UpdateKind.NEW_COMMIT: (_BRANCH, _NEW),
    UpdateKind.COMMIT_AMENDED: (_BRANCH, _PREVIOUS, _NEW),
    UpdateKind.NEW_DETACHED_SNAPSHOT: (_NEW,),
    UpdateKind.GC_RAN: (),
    UpdateKind.EXPIRATION_RAN: (),
    UpdateKind.FEATURE_FLAG_CHANGED: (("id", "u16"), ("new_value", "bool"), ("is_set", "bool")),
    UpdateKind.REPO_STATUS_CHANGED: (("status", "status"),),
}


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Availability of a repository, since when it applies, and the user's reason for it."""

    availability: Availability
    set_us: int
    reason: str | None = None


UpdateValue = int | bool | str | RepoStatus


@dataclass(frozen=True, slots=True)
class Update:
    """Operation in the operations log.

    Attributes:
        kind: Number of the operation, usually an `UpdateKind`.
        value: Fields by their names in the schema, with ids in base32. None if the kind is unknown.
        updated_us: Time in microseconds since 1970.
        backup_path: Name of the copy in `overwritten/` that was made before the next operation.
            The newest operation does not have one yet.
    """

    kind: int
    value: Mapping[str, UpdateValue] | None
    updated_us: int
    backup_path: str | None = None


def parse_time(table: Table, field: int, name: str) -> int:
    """Read a time in microseconds since 1970. It must not be later than the year 9999."""
    found = table.number(field, U64)
    if found > LATEST_MICROS:
        raise FormatError(
            f"{table.buffer.source}: expected {name} in microseconds since 1970, found {found}; "
            "restore the object from its newest copy in overwritten/"
        )
    return found


def parse_status(reader: TableReader, field: int) -> RepoStatus:
    """Parse the status of a repository.

    An unknown status may forbid changes, so it raises a `FormatError`.
    """
    table = reader.table(field, STATUS_FIELDS)
    number = table.number(AVAILABILITY, U8)
    if number not in set(Availability):
        known = ", ".join(f"{item.value} ({item.name.lower()})" for item in Availability)
        raise FormatError(f"{table.buffer.source}: expected an availability of {known}, found {number}; upgrade gc-assets")
    reason = reader.string(table.at(REASON, "limited_availability_reason")) if table.has(REASON) else None
    return RepoStatus(Availability(number), parse_time(table, SET_AT, "set_at"), reason)


def parse_update(reader: TableReader, table: Table) -> Update:
    """Parse one operation of the log. Its value is None if its kind is unknown."""
    kind = table.number(KIND, U8)
    fields = UPDATE_VALUES.get(kind)
    value: dict[str, UpdateValue] | None = None
    if fields is not None:
        union = reader.table(table.at(VALUE, "update_type"), len(fields))
        value = {name: _value(reader, union, number, name, type_) for number, (name, type_) in enumerate(fields)}
    backup = reader.string(table.at(BACKUP_PATH, "backup_path")) if table.has(BACKUP_PATH) else None
    return Update(kind, value, parse_time(table, UPDATED_AT, "updated_at"), backup)


def _value(reader: TableReader, union: Table, number: int, name: str, type_: FieldType) -> UpdateValue:
    match type_:
        case "u8" | "bool":
            found = union.number(number, U8)
            return bool(found) if type_ == "bool" else found
        case "u16":
            return union.number(number, U16)
        case "string":
            return reader.string(union.at(number, name))
        case "id":
            return spell_one(union.buffer.take(union.at(number, name), ID_BYTES))
        case "status":
            return parse_status(reader, union.at(number, name))
