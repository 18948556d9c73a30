"""What every kind of report says, whoever made it: its files, and its rows in one form.

Pure values. Manifests and rows of each vendor become these in a module of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import parse_json

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# A row of a report. `key` is the whole name in the bucket, byte for byte. `is_latest` is null where
# the report does not say. Delete markers and versions that are not the latest show no object.
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
    """A file of a report. `md5` and `rows` are null where the manifest does not say."""

    address: str
    size_bytes: int
    md5: str | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A report as its manifest describes it.

    `as_of` is when its scan began. It covers the keys of `bucket` that begin with one of
    `prefixes`. `columns` are the columns in order, null where each file names its own. `versions`
    says whether it shows versions, `rows` how many rows all files have together.
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
        """Returns the same report without its list of files, as each task carries it."""
        return replace(self, files=())


# Maps raw rows of one bucket's report to `ROWS`. Raises `FormatError` for what it does not know.
RowNormalizer = Callable[[pa.RecordBatch, str], pa.RecordBatch]


def parse_document(content: bytes, name: str) -> Mapping[str, Any]:
    """Reads a manifest. Raises `FormatError` where it is no JSON object."""
    try:
        found = parse_json(content)
    except ValueError as error:
        raise FormatError(f"{name} is no JSON ({error}); the report is not used") from None
    if not isinstance(found, dict):
        raise FormatError(f"{name} is no JSON object; the report is not used")
    return found


def require_checksum(content: bytes, checksum: bytes, name: str) -> None:
    """Raises `FormatError` unless the checksum is the manifest's MD5 in hexadecimal."""
    expected, found = checksum.decode("ascii", "replace").strip().lower(), hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise FormatError(f"{name}: its MD5 is {found}, the checksum file says {expected}; the report is damaged and not used")


def field(found: Mapping[str, Any], key: str, kind: type[Any], name: str) -> Any:
    """Returns a value of a manifest. Raises `FormatError` where it is not there or of another kind."""
    value = found.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FormatError(f"{name}: {key} is {value!r}, expected {_WORDS[kind]}; the report is not used")
    return value


_WORDS: Final[dict[type[Any], str]] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def parse_format(text: str, name: str) -> Format:
    found = _FORMATS.get(text.lower())
    if found is None:
        raise FormatError(f"{name}: its format is {text!r}, expected {', '.join(_FORMATS)}; the report is not used")
    return found


def parse_time(text: str, name: str) -> datetime:
    """Reads an ISO 8601 time with a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise FormatError(f"{name}: {text!r} is no time in ISO 8601; the report is not used") from None
    if found.tzinfo is None:
        raise FormatError(f"{name}: the time {text!r} has no zone; write Z for UTC")
    return found.astimezone(UTC)


_SCAN: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)(?:-(\d\d))?Z")


def parse_scan_time(folder: str) -> datetime | None:
    """Returns the time in a folder's name (`2026-11-22T01-00Z/`), null for a folder of other
    things.
    """
    match = _SCAN.fullmatch(folder.rstrip("/"))
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}:{match[3]}:{match[4] or '00'}+00:00") if match else None
    except ValueError:
        return None
