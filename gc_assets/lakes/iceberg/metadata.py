"""Parse snapshots, refs, properties and files from an Iceberg metadata.json.

All functions are pure: they turn bytes into values and do not need a catalog or a policy. Source:
Iceberg's format/spec.md, "Table Metadata Fields", "Snapshots", "Snapshot References" and "Table
Statistics", versions 1 to 3, and format/view-spec.md, "View Metadata".

No other module reads this JSON. All strings in the results can be encoded as UTF-8, and all numbers
fit into 64 bits. A document that violates this is rejected with `FormatError`.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, cast

from gc_assets.core.errors import FormatError
from gc_assets.core.moments import EPOCH
from gc_assets.core.untrusted_input import gunzip, gunzip_start, is_text, normalize_uuid, parse_json
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kind import TableIdentity
from gc_assets.lakes.lineage import UNREADABLE_LINEAGE, Lineage, ListedSnapshot
from gc_assets.lakes.protocol import ContentRoot

MAX_FORMAT_VERSION = 3
MAIN = "main"
# Retention settings of a ref. Tables have the same settings as properties, which are the defaults.
MIN_SNAPSHOTS_TO_KEEP = "min-snapshots-to-keep"
MAX_SNAPSHOT_AGE_MS = "max-snapshot-age-ms"
MAX_REF_AGE_MS = "max-ref-age-ms"
REF_SETTINGS = (MIN_SNAPSHOTS_TO_KEEP, MAX_SNAPSHOT_AGE_MS, MAX_REF_AGE_MS)
TABLE_SETTINGS = tuple(f"history.expire.{name}" for name in REF_SETTINGS)
GC_ENABLED = "gc.enabled"

_INT64 = range(-(2**63), 2**63)
_LOCATIONS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
_FILE_LISTS = ("snapshots", "refs", "snapshot-log", "metadata-log", "statistics", "partition-statistics")
# Any object with one of these keys may be metadata, because some readers do not require the other
# keys.
_SIGNS = frozenset(
    ("format-version", "table-uuid", "view-uuid", "location", "snapshots", "versions", "schema", "schemas", "properties", "metadata-log")
)
_GZIP_MAGIC = b"\x1f\x8b"
# In no encoding does JSON start with these bytes.
_NO_TEXT = bytes(4)
# After a crash, whole blocks of a file can be zeros. A block has at least this many bytes.
_HOLE = bytes(512)
# Metadata of a table is always longer, even if it only contains the required fields.
_MIN_LETTERS = 100
_BRACKETS_AND_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]', re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, as listed under `snapshots` in a metadata.json.

    Attributes:
        raw_summary: Summary fields and ids of the snapshot, with the types of the JSON document.
        files: Statistics files of the snapshot, in the order of the metadata.
    """

    snapshot_id: str
    parent_id: str | None
    committed_at: datetime
    manifest_list: str
    raw_summary: Mapping[str, Any]
    files: tuple[ContentRoot, ...]

    @property
    def summary(self) -> Mapping[str, str]:
        """The snapshot's summary as strings, converted on access because few callers need it."""
        return {_as_text(key): _as_text(value) for key, value in self.raw_summary.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """Branch or tag of a table. Its retention settings are decimal integers."""

    name: str
    ref_type: Literal["branch", "tag"]
    snapshot_id: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Evolution:
    """Schema ids and partition spec ids of a table.

    All fields are empty if the metadata does not list these ids, as in format version 1, or lists
    them in an unknown format.
    """

    schemas: frozenset[int] = frozenset()
    current_schema: int | None = None
    specs: frozenset[int] = frozenset()
    default_spec: int | None = None


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Content of a table's metadata.json.

    `unlisted_statistics` are statistics files of snapshots that the metadata no longer lists.
    """

    address: str
    table_uuid: str
    properties: Mapping[str, str]
    locations: tuple[str, ...]
    snapshots: tuple[Snapshot, ...]
    refs: tuple[SnapshotRef, ...]
    previous_metadata: tuple[str, ...]
    unlisted_statistics: tuple[ContentRoot, ...]
    format_version: int = 2
    evolution: Evolution = Evolution()

    @property
    def relative_locations(self) -> Mapping[str, str]:
        """Location properties with a relative path, which readers would resolve differently."""
        return {key: self.properties[key] for key in _LOCATIONS if self.properties.get(key) and _is_relative(self.properties[key])}

    @property
    def gc_enabled(self) -> bool:
        return is_gc_enabled(self.properties)


@dataclass(frozen=True, slots=True)
class ViewMetadata:
    """Content of a view's metadata file.

    `newest` is the time of its newest version in milliseconds since 1970, or None if it cannot be
    read. `previous_metadata` is empty for views written by Iceberg Java.
    """

    address: str
    view_uuid: str
    location: str
    newest: int | None = 0
    previous_metadata: tuple[str, ...] = ()


def _is_relative(location: str) -> bool:
    return not location.startswith("/") and _SCHEME.match(location) is None


def parse_metadata(address: str, raw: bytes) -> TableMetadata:
    """Parse a metadata.json, which may be gzipped.

    Raises:
        FormatError: If the metadata is invalid. The message shows the file and the key.
    """
    document = _JsonObject(_parse_document(address, raw), address, "the document")
    version = document.require("format-version", int)
    if not 1 <= version <= MAX_FORMAT_VERSION:
        raise FormatError(
            f"{address}: format-version {version} is unknown, 1 to {MAX_FORMAT_VERSION} are supported; "
            "the table cannot be collected until gc-assets supports that version"
        )
    if document.get("table-uuid", str) is None:
        raise FormatError(f"{address}: the v1 table has no table-uuid; commit to it with a current engine, which adds the uuid")
    statistics = [
        (item.require("snapshot-id", int), _parse_statistics_file(item, kind))
        for key, kind in (("statistics", Kind.STATISTICS), ("partition-statistics", Kind.PARTITION_STATISTICS))
        for item in document.items(key)
    ]
    files_of: dict[int, list[ContentRoot]] = {}
    for snapshot_id, file in statistics:
        files_of.setdefault(snapshot_id, []).append(file)
    snapshots = tuple(_parse_snapshot(item, files_of) for item in document.items("snapshots"))
    listed = {snapshot.snapshot_id for snapshot in snapshots}
    if len(listed) != len(snapshots):
        raise FormatError(
            f"{address}: {len(snapshots)} snapshots have {len(listed)} distinct ids; the metadata file is damaged; restore the file"
        )
    properties = _parse_properties(document)
    locations = [document.require("location", str), *(properties[key] for key in _LOCATIONS if properties.get(key))]
    return TableMetadata(
        address=address,
        table_uuid=normalize_uuid(document.require("table-uuid", str)),
        properties=properties,
        locations=tuple(dict.fromkeys(location for location in locations if not _is_relative(location))),
        snapshots=snapshots,
        refs=_parse_refs(document, listed),
        previous_metadata=_parse_metadata_log(document),
        unlisted_statistics=tuple(file for snapshot_id, file in statistics if str(snapshot_id) not in listed),
        format_version=version,
        evolution=_parse_evolution(document),
    )


def parse_view(address: str, raw: bytes) -> ViewMetadata:
    """Parse the metadata of a view, which may be gzipped.

    Raises:
        FormatError: If the metadata is invalid. The message shows the file and the key.
    """
    document = _JsonObject(_parse_document(address, raw), address, "the document")
    try:
        newest = _find_newest(document, "versions")
    except FormatError:
        newest = None
    return ViewMetadata(
        address=address,
        view_uuid=normalize_uuid(document.require("view-uuid", str)),
        location=document.require("location", str),
        newest=newest,
        previous_metadata=_parse_metadata_log(document),
    )


def parse_identity(address: str, raw: bytes) -> TableIdentity:
    """Parse only the identity of a table or view, such as its UUID and newest version.

    Raises:
        FormatError: If these values are invalid. The message shows the file and the key.
    """
    document = _JsonObject(_parse_document(address, raw), address, "the document")
    table_uuid, view_uuid = document.get("table-uuid", str), document.get("view-uuid", str)
    uuid = table_uuid or view_uuid
    if uuid is None:
        raise FormatError(f"{address}: the document has neither `table-uuid` nor `view-uuid`; the file is damaged or not Iceberg metadata")
    try:
        newest = _find_newest(document, "snapshots" if table_uuid else "versions")
    except FormatError:
        version = document.values.get("format-version")
        if not isinstance(version, int) or version <= MAX_FORMAT_VERSION:
            raise
        newest = None
    if table_uuid is None:
        return TableIdentity(normalize_uuid(uuid), newest, "view")
    location = _find_location_if_empty(document) if newest == 0 else None
    return TableIdentity(normalize_uuid(uuid), newest, "table", location, _find_lineage(document))


def _find_lineage(document: _JsonObject) -> Lineage:
    """Read the table's lineage (earlier metadata files and snapshots) from its metadata.

    If these entries are damaged, the rest of the metadata stays usable.
    """
    try:
        properties = _parse_properties(document)
        locations = (document.get("location", str), *(properties.get(key) for key in _LOCATIONS))
        head = document.get("current-snapshot-id", int)
        return Lineage(
            tuple(dict.fromkeys(item for item in locations if item and not _is_relative(item))),
            tuple((item.require("metadata-file", str), item.require("timestamp-ms", int)) for item in document.items("metadata-log")),
            document.get("last-updated-ms", int),
            tuple(_list_snapshot(item) for item in document.items("snapshots")),
            None if head is None else str(head),
        )
    except FormatError:
        return UNREADABLE_LINEAGE


def _list_snapshot(item: _JsonObject) -> ListedSnapshot:
    parent = item.get("parent-snapshot-id", int)
    return ListedSnapshot(
        str(item.require("snapshot-id", int)),
        None if parent is None else str(parent),
        item.require("timestamp-ms", int),
        item.get("manifest-list", str),
    )


def _find_location_if_empty(document: _JsonObject) -> str | None:
    version, location, properties = (document.values.get(key) for key in ("format-version", "location", "properties"))
    if version not in range(1, MAX_FORMAT_VERSION + 1) or not isinstance(location, str) or not isinstance(properties or {}, dict):
        return None
    names_files = any(document.values.get(key) for key in _FILE_LISTS) or document.values.get("current-snapshot-id") not in {None, -1}
    return None if names_files or any(key in (properties or {}) for key in _LOCATIONS) else location


def is_fragment(raw: bytes) -> bool:
    """Return True if no reader of Iceberg metadata can use the content of a file.

    A fragment is empty or truncated, lacks blocks that a crash left as zeros, consists of a few
    characters that are not JSON, or is JSON without a single metadata field. Content that another
    reader may understand is not a fragment. Such content includes files with unknown compression or
    encryption, and documents that exceed the limits of this module.
    """
    try:
        content = gunzip_start(raw)[0] if _GZIP_MAGIC.startswith(raw[:2]) else raw
        if content.startswith(_NO_TEXT):
            return True
        content = content.strip(b"\0 \t\r\n")
        before_hole, hole, _ = content.partition(_HOLE)
        if hole:
            return _is_unclosed(_decode_start(before_hole))
        text = _decode_start(content)
        if not text or _is_unclosed(text) or (len(text) < _MIN_LETTERS and text[0] not in "{[\ufeff" and "\0" not in text):
            return True
        document = parse_json(text)
    except (ValueError, zlib.error):
        return False
    return _SIGNS.isdisjoint(cast("dict[str, Any]", document)) if isinstance(document, dict) else not document


def _decode_start(content: bytes) -> str:
    """Decode UTF-8 text that may end within a character."""
    return codecs.getincrementaldecoder("utf-8")().decode(content)


def _is_unclosed(text: str) -> bool:
    """Return True if the text starts with a JSON object or array that is never closed."""
    if not text.startswith(("{", "[")) or "\0" in text:
        return False
    depth = 0
    for match in _BRACKETS_AND_STRINGS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth == 0:
            return False
    return True


def _find_newest(document: _JsonObject, key: str) -> int:
    return max((item.require("timestamp-ms", int) for item in document.items(key)), default=0)


def _parse_evolution(document: _JsonObject) -> Evolution:
    """Parse schema ids and partition spec ids. If they are damaged, the table stays readable."""
    try:
        return Evolution(
            frozenset(item.require("schema-id", int) for item in document.items("schemas")),
            document.get("current-schema-id", int),
            frozenset(item.require("spec-id", int) for item in document.items("partition-specs")),
            document.get("default-spec-id", int),
        )
    except FormatError:
        return Evolution()


def _parse_metadata_log(document: _JsonObject) -> tuple[str, ...]:
    return tuple(item.require("metadata-file", str) for item in document.items("metadata-log"))


def is_gc_enabled(properties: Mapping[str, str]) -> bool:
    """Return True if `gc.enabled` is missing or `true` in any letter case, as Iceberg defines it."""
    return properties.get(GC_ENABLED, "true").lower() == "true"


def _as_text(value: object) -> str:
    """Convert a value to a string that can be encoded as UTF-8, only for display."""
    if isinstance(value, str) and value.isascii():
        return value
    return (_describe(value) if isinstance(value, dict | list) else str(value)).encode("utf-8", "backslashreplace").decode()


def _describe(value: object) -> str:
    """Describe a JSON value of the wrong type. For lists and objects, name only the type."""
    return type(value).__name__ if isinstance(value, dict | list) else f"{value!r:.80}"


@dataclass(frozen=True, slots=True)
class _JsonObject:
    """JSON object with typed access. Error messages show the file, the object and the key."""

    values: Mapping[str, Any]
    address: str
    path: str

    def get(self, key: str, type_: type[_T]) -> _T | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, type_) or isinstance(value, bool):
            raise FormatError(f"{self.address}: `{key}` of {self.path} must be {type_.__name__}, found {_describe(value)}")
        if type_ is int and value not in _INT64:
            raise FormatError(f"{self.address}: `{key}` of {self.path} is outside 64 bits, found {_describe(value)}")
        if type_ is str and not is_text(cast("str", value)):
            raise FormatError(f"{self.address}: `{key}` of {self.path} contains a lone surrogate, found {_describe(value)}")
        return value

    def require(self, key: str, type_: type[_T]) -> _T:
        value = self.get(key, type_)
        if value is None:
            raise FormatError(f"{self.address}: {self.path} has no `{key}`; the file is damaged or not Iceberg metadata")
        return value

    def as_object(self, value: object, path: str) -> _JsonObject:
        if not isinstance(value, dict):
            raise FormatError(f"{self.address}: {path} must be an object, found {_describe(value)}")
        return _JsonObject(cast("dict[str, Any]", value), self.address, path)

    def items(self, key: str) -> list[_JsonObject]:
        return [self.as_object(value, f"{key}[{index}]") for index, value in enumerate(self.get(key, list) or [])]


def _parse_document(address: str, raw: bytes) -> Mapping[str, Any]:
    if not raw:
        raise FormatError(f"{address}: the metadata file is empty; restore the file, or point the catalog to the previous version")
    try:
        document = parse_json(gunzip(raw) if raw[:2] == _GZIP_MAGIC else raw)
    except (ValueError, EOFError, zlib.error) as error:
        raise FormatError(f"{address}: its {len(raw):,} bytes are not a complete JSON document ({error}); restore the file") from error
    if not isinstance(document, dict):
        raise FormatError(f"{address}: expected a JSON object, found {type(document).__name__}; the file is not Iceberg metadata")
    return cast("Mapping[str, Any]", document)


def _parse_snapshot(item: _JsonObject, files_of: Mapping[int, list[ContentRoot]]) -> Snapshot:
    snapshot_id = item.require("snapshot-id", int)
    manifest_list = item.get("manifest-list", str)
    if manifest_list is None:
        raise FormatError(
            f"{item.address}: snapshot {snapshot_id} has no manifest-list; v1 snapshots with embedded `manifests` are not supported, "
            "rewrite the table's manifests with a current engine and expire the old snapshots"
        )
    parent = item.get("parent-snapshot-id", int)
    summary = item.as_object(item.values.get("summary") or {}, f"the summary of snapshot {snapshot_id}").values
    extra = {key: item.get(key, int) for key in ("sequence-number", "schema-id")}
    return Snapshot(
        snapshot_id=str(snapshot_id),
        parent_id=None if parent is None else str(parent),
        committed_at=_parse_timestamp(item),
        manifest_list=manifest_list,
        raw_summary={**summary, **extra},
        files=tuple(files_of.get(snapshot_id, ())),
    )


def _parse_timestamp(item: _JsonObject) -> datetime:
    milliseconds = item.require("timestamp-ms", int)
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise FormatError(f"{item.address}: `timestamp-ms` of {item.path} is {milliseconds}, outside the years 1 to 9999") from None


def _parse_refs(document: _JsonObject, listed: set[str]) -> tuple[SnapshotRef, ...]:
    current = document.get("current-snapshot-id", int)
    entries = document.get("refs", dict) or {}
    if unreadable := [name for name in entries if not is_text(name)]:
        raise FormatError(f"{document.address}: the name of ref {unreadable[0]!r} contains a lone surrogate")
    refs = {name: _parse_ref(document.as_object(value, f"ref {name!r}"), str(name)) for name, value in entries.items()}
    if current is not None and current != -1:  # v1 writers use -1 for no snapshot
        main = refs.setdefault(MAIN, SnapshotRef(MAIN, "branch", str(current), {}))
        if main.snapshot_id != str(current):
            raise FormatError(
                f"{document.address}: branch main points at snapshot {main.snapshot_id} but current-snapshot-id is {current}; "
                "both must be equal; restore the metadata file"
            )
    for ref in refs.values():
        if ref.snapshot_id not in listed:
            raise FormatError(
                f"{document.address}: {ref.ref_type} {ref.name!r} points at snapshot {ref.snapshot_id}, which is not among the "
                f"{len(listed)} listed snapshots; delete the ref or restore the metadata"
            )
    return tuple(refs[name] for name in sorted(refs))


def _parse_ref(item: _JsonObject, name: str) -> SnapshotRef:
    ref_type = item.require("type", str)
    if ref_type not in {"branch", "tag"}:
        raise FormatError(f"{item.address}: ref {name!r} is of type {ref_type!r}, expected `branch` or `tag`")
    settings = {key: str(value) for key in REF_SETTINGS if (value := item.get(key, int)) is not None}
    return SnapshotRef(name, "branch" if ref_type == "branch" else "tag", str(item.require("snapshot-id", int)), settings)


def _parse_statistics_file(item: _JsonObject, kind: str) -> ContentRoot:
    size = item.get("file-size-in-bytes", int)
    return ContentRoot(item.require("statistics-path", str), kind, is_container=False, size_bytes=size, must_exist=False)


def _parse_properties(document: _JsonObject) -> dict[str, str]:
    entries = {key: value for key, value in (document.get("properties", dict) or {}).items() if value is not None}
    named = _JsonObject(entries, document.address, "the properties")
    locations = {key: named.require(key, str) for key in _LOCATIONS if key in entries}
    return {_as_text(key): _as_text(value) for key, value in entries.items()} | locations
