"""Data classes for inventory reports of all vendors, and functions to parse manifests."""

from __future__ import annotations

import hashlib
import re
import reprlib
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Final, Literal, TypeVar

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from gc_assets.core.deferred_models import TolerantModel
from gc_assets.core.errors import FormatError
from gc_assets.core.moments import to_utc
from gc_assets.stores.protocol import ReportFiles

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# The schema of normalized rows. `key` is the complete key in the bucket, byte for byte. The values
# in the `is_latest` column are missing if the report does not have it. Rows of delete markers and
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

_SCAN: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)(?:-(\d\d))?Z/")


class ReportMismatch(FormatError):
    """Raised if a report does not list the whole storage.

    Another report in the same location may list it.
    """


class OtherBucket(ReportMismatch):
    """Raised if a report lists another bucket."""


def _parse_time(value: object) -> datetime:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("expected a time in ISO 8601") from None
    if found.tzinfo is None:
        raise ValueError("it has no time zone; append Z for UTC")
    return to_utc(found)


# Types of values in manifests. The case of a format does not matter.
Format = Literal["csv", "orc", "parquet"]
FormatField = Annotated[Format, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)]
Time = Annotated[datetime, BeforeValidator(_parse_time)]


class CamelCaseModel(TolerantModel):
    """Base class for parts of manifests whose keys are written in camel case, like `creationTime`."""

    model_config = ConfigDict(alias_generator=to_camel)


@dataclass(frozen=True, slots=True, order=True)
class FoundReport:
    """A report in a location. It may be unfinished or unusable.

    Attributes:
        scan: When the scan for the report started, according to the report's name.
        name: The name of its folder or manifest, relative to the location.
        sizes_bytes: The sizes of all files in the location, if they were listed to find the report.
    """

    scan: datetime
    name: str
    sizes_bytes: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of a report. Not every manifest contains `md5` and `rows`."""

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
        bucket: The bucket that the report lists.
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


_Document = TypeVar("_Document", bound=BaseModel)


def parse_document(content: bytes, name: str, model: type[_Document]) -> _Document:
    """Parse a manifest. It may begin with a byte order mark.

    Raises:
        FormatError: If the content is not a JSON object with the fields of the model.
    """
    try:
        return model.model_validate_json(content.removeprefix(BOM_UTF8), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    path, reason = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if found["type"] == "missing":
        reason = f"{path} is missing"
    elif found["type"] != "json_invalid":
        reason = f"{path or 'the document'} is {reprlib.repr(found['input'])}, {reason}"
    raise FormatError(f"{name}: {reason}; the report is not used")


def require_own_bucket(found: str, expected: str, name: str) -> None:
    """Check that a report lists the expected bucket.

    Raises:
        ReportMismatch: If the report lists another bucket.
    """
    if found != expected:
        raise OtherBucket(f"report {name} lists bucket {found!r}, expected {expected!r}; correct `inventory.location`")


def require_checksum(content: bytes, checksum: bytes, name: str) -> None:
    """Compare a manifest with its checksum file, which contains the MD5 in hexadecimal.

    Raises:
        FormatError: If the checksums differ.
    """
    expected, found = checksum.decode("ascii", "replace").strip().lower(), hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise FormatError(f"{name}: its MD5 is {found}, expected {expected} from the checksum file; the report is damaged and not used")


def find_folders(report_files: ReportFiles, location: str) -> list[FoundReport]:
    """Find folders that are named after a time, such as `2026-11-22T01-00Z/`."""
    found = ((_SCAN.fullmatch(folder), folder) for folder in report_files.folders(location))
    return parse_scan_times({folder: f"{match[1]}T{match[2]}:{match[3]}:{match[4] or '00'}" for match, folder in found if match})


def parse_scan_times(times: Mapping[str, str], sizes_bytes: Mapping[str, int] | None = None) -> list[FoundReport]:
    """Return the reports whose names contain a valid time.

    Args:
        times: The time in each name as a string, in UTC and without a time zone.
        sizes_bytes: The sizes of all files in the location, if they were listed.
    """
    found = list[FoundReport]()
    for name, time in times.items():
        with suppress(ValueError):
            found.append(FoundReport(datetime.fromisoformat(f"{time}+00:00"), name, sizes_bytes or {}))
    return found
