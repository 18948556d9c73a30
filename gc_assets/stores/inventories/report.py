"""The common form of all inventory reports: their files and their rows.

This module has no I/O. One module per vendor converts manifests and rows to this form.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.core.moments import to_utc
from gc_assets.core.untrusted_input import parse_json

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# A row of a report. `key` is the complete key in the bucket, byte for byte. The column `is_latest`
# is null if the report does not contain it. Delete markers and old versions do not count as
# objects.
ROWS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("size_bytes", pa.int64()),
        ("last_modified", TIMESTAMP),
        ("etag", pa.string()),
        ("version_id", pa.string()),
        ("is_latest", pa.bool_()),
        ("is_marker", pa.bool_()),
        ("storage_class", pa.string()),
    ]
)

Format = Literal["csv", "orc", "parquet"]
_FORMATS: Final[dict[str, Format]] = {"csv": "csv", "orc": "orc", "parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a report. `md5` and `rows` are None if the manifest does not contain them."""

    address: str
    size_bytes: int
    md5: str | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A report as described by its manifest.

    Attributes:
        name: The address of the manifest.
        as_of: The time when the scan started.
        bucket: The listed bucket.
        prefixes: The report covers the keys that begin with one of these prefixes.
        file_format: The format of all files.
        files: The files.
        columns: The columns in order, or None if each file has its own header or schema.
        versions: True if the report contains versions.
        rows: The number of rows of all files, or None if unknown.
    """

    name: str
    as_of: datetime
    bucket: str
    prefixes: tuple[str, ...]
    file_format: Format
    files: tuple[DataFile, ...]
    columns: tuple[str, ...] | None
    versions: bool
    rows: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def without_files(self) -> Manifest:
        """Return the report without its list of files, so that tasks pickle less."""
        return replace(self, files=())


# Converts the rows of a file, which must all belong to one bucket, to `ROWS`. Raises `FormatError`
# for unknown values.
RowNormalizer = Callable[[pa.RecordBatch, str], pa.RecordBatch]


def parse_document(content: bytes, name: str) -> Mapping[str, Any]:
    """Parse the JSON of a manifest. Raises `FormatError` unless it is an object."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise FormatError(f"{name} is not valid JSON ({error}); the report is not used") from None
    if not isinstance(document, dict):
        raise FormatError(f"{name} is not a JSON object; the report is not used")
    return document


def require_checksum(content: bytes, checksum: bytes, name: str) -> None:
    """Raise `FormatError` unless the checksum is the MD5 of the manifest in hexadecimal."""
    expected, found = checksum.decode("ascii", "replace").strip().lower(), hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise FormatError(f"{name}: its MD5 is {found}, expected {expected} from the checksum file; the report is damaged and not used")


def get_field(document: Mapping[str, Any], key: str, kind: type[Any], name: str) -> Any:
    """Return a value of a manifest. Raises `FormatError` if it is missing or has another type."""
    value = document.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FormatError(f"{name}: {key} is {value!r}, expected {_TYPE_NAMES[kind]}; the report is not used")
    return value


_TYPE_NAMES: Final[dict[type[Any], str]] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def parse_format(text: str, name: str) -> Format:
    found = _FORMATS.get(text.lower())
    if found is None:
        raise FormatError(f"{name}: its format is {text!r}, expected {', '.join(_FORMATS)}; the report is not used")
    return found


def parse_time(text: str, name: str) -> datetime:
    """Parse an ISO 8601 time with a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise FormatError(f"{name}: {text!r} is not an ISO 8601 time; the report is not used") from None
    if found.tzinfo is None:
        raise FormatError(f"{name}: the time {text!r} has no time zone; append Z for UTC")
    return to_utc(found)


_SCAN: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)(?:-(\d\d))?Z")


def parse_scan_time(folder: str) -> datetime | None:
    """Parse the time in a folder's name (`2026-11-22T01-00Z/`). Returns None for other folders."""
    match = _SCAN.fullmatch(folder.rstrip("/"))
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}:{match[3]}:{match[4] or '00'}+00:00") if match else None
    except ValueError:
        return None
