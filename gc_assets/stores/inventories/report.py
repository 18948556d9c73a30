"""The common form of the reports of all vendors."""

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
from gc_assets.stores.protocol import ReportFiles

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# The schema of normalized rows. `key` is the complete key in the bucket, byte for byte. The values
# in the column `is_latest` are missing if the report does not have it. Rows of delete markers and
# old versions are not objects.
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


class ReportMismatch(FormatError):
    """Raised if a report does not list the whole storage. Another report in its location may.

    Attributes:
        is_other_bucket: Whether the report is about another bucket.
    """

    def __init__(self, message: object = "", *, is_other_bucket: bool = False) -> None:
        super().__init__(message)
        self.is_other_bucket = is_other_bucket


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a report. Not every manifest contains `md5` and `rows`."""

    address: str
    size_bytes: int
    md5: str | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A report, as described by its manifest.

    Attributes:
        name: The address of the manifest.
        as_of: When the scan started.
        bucket: The bucket that the report is about.
        prefixes: Only keys that begin with one of these prefixes are in the report.
        file_format: The format of the files.
        files: The files with the rows.
        columns: The names of the columns, or None if the files have a header or schema.
        versions: Whether the report lists all versions of an object.
        rows: The total number of rows, if it is known.
        excluded: Keys that begin with one of these prefixes are not in the report.
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
    excluded: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def without_files(self) -> Manifest:
        """Return a copy without the list of files, so that tasks are smaller when pickled."""
        return replace(self, files=())


# Called with rows of a file and the bucket to which they must belong. Converts them to `ROWS`, or
# raises `FormatError` if they contain unknown values.
RowNormalizer = Callable[[pa.RecordBatch, str], pa.RecordBatch]


def parse_document(content: bytes, name: str) -> Mapping[str, Any]:
    """Parse a manifest, which must be a JSON object.

    Raises:
        FormatError: If it is not.
    """
    try:
        document = parse_json(content)
    except ValueError as error:
        raise FormatError(f"{name} is not valid JSON ({error}); the report is not used") from None
    if not isinstance(document, dict):
        raise FormatError(f"{name} is not a JSON object; the report is not used")
    return document


def require_own_bucket(found: str, expected: str, name: str) -> None:
    """Check that a report is about the expected bucket.

    Raises:
        ReportMismatch: If it is about another one.
    """
    if found != expected:
        raise ReportMismatch(
            f"report {name} lists bucket {found!r}, expected {expected!r}; correct `inventory.location`", is_other_bucket=True
        )


def require_checksum(content: bytes, checksum: bytes, name: str) -> None:
    """Compare a manifest with its checksum file, which contains the MD5 in hexadecimal.

    Raises:
        FormatError: If they differ.
    """
    expected, found = checksum.decode("ascii", "replace").strip().lower(), hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise FormatError(f"{name}: its MD5 is {found}, expected {expected} from the checksum file; the report is damaged and not used")


def get_field(document: Mapping[str, Any], key: str, kind: type[Any], name: str) -> Any:
    """Get a value from a manifest.

    Raises:
        FormatError: If the value is missing or has the wrong type.
    """
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
    """Parse a time in ISO 8601 that has a time zone.

    Raises:
        FormatError: If it is not such a time.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise FormatError(f"{name}: {text!r} is not an ISO 8601 time; the report is not used") from None
    if found.tzinfo is None:
        raise FormatError(f"{name}: the time {text!r} has no time zone; append Z for UTC")
    return to_utc(found)


def find_folders(report_files: ReportFiles, location: str) -> list[tuple[datetime, str]]:
    """Find folders that are named after a time."""
    folders = report_files.folders(location)
    return [(scan, folder) for folder in folders if (scan := parse_scan_time(folder)) is not None]


_SCAN: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)(?:-(\d\d))?Z")


def parse_scan_time(folder: str) -> datetime | None:
    """Parse the name of a folder such as `2026-11-22T01-00Z/`. None for other names."""
    match = _SCAN.fullmatch(folder.rstrip("/"))
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}:{match[3]}:{match[4] or '00'}+00:00") if match else None
    except ValueError:
        return None
