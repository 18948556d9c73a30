"""Reports of AWS S3 Inventory, with rows in CSV, ORC or Parquet.

Each report has a folder `<location>/YYYY-MM-DDTHH-MMZ/`, named after the time when its scan
started. It contains `manifest.json` and `manifest.checksum`, which is written last. The files with
the rows are in `<location>/data/`.

In a CSV, keys are URL-encoded, with a plus sign for a space. In the other formats, they are not
encoded.

Source: Amazon S3 User Guide, storage-inventory and storage-inventory-location.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, get_optional_column, to_binary, to_booleans, to_sizes, to_text, to_timestamps
from gc_assets.stores.inventories.report import (
    ROWS,
    CamelCaseModel,
    DataFile,
    Format,
    FormatField,
    FoundReport,
    Manifest,
    parse_document,
    require_checksum,
)
from gc_assets.stores.protocol import ReportFiles

# Maps names of columns in a CSV to their names in ORC and Parquet.
_COLUMNS: Final = {
    "Bucket": "bucket",
    "Key": "url_encoded_key",
    "VersionId": "version_id",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "ETag": "e_tag",
    "StorageClass": "storage_class",
}
COLUMNS: Final = frozenset({"key", *_COLUMNS.values()})
_VERSION: Final = "2016-11-30"
_NAMES: Final[dict[Format, re.Pattern[str]]] = {
    "csv": re.compile(r"([^,\s]+)\s*(?:,|$)"),
    "orc": re.compile(r"(?:struct<|,)\s*(\w+)\s*:"),
    "parquet": re.compile(r"(?:required|optional)\s+\w+\s+(\w+)"),
}


def _parse_milliseconds(value: object) -> datetime:
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(str(value)))
    except (ValueError, OverflowError):
        raise ValueError("expected milliseconds since 1970") from None


class _File(CamelCaseModel):
    key: str
    size: int
    md5: str = Field(alias="MD5checksum")


class _Document(CamelCaseModel):
    version: str
    file_format: FormatField
    file_schema: str
    creation_timestamp: Annotated[datetime, BeforeValidator(_parse_milliseconds)]
    source_bucket: str
    files: tuple[_File, ...]


def read_manifest(report_files: ReportFiles, location: str, found: FoundReport, bucket: str) -> Manifest:
    """Read the manifest of a report.

    Raises:
        FileNotFoundError: If the report is not finished.
        FormatError: If the report is not usable, for example because it lists another bucket.
    """
    del bucket
    name = f"{location}{found.name}manifest.json"
    checksum = report_files.read(f"{location}{found.name}manifest.checksum")
    content = report_files.read(name)
    require_checksum(content, checksum, name)
    document = parse_document(content, name, _Document)
    if document.version != _VERSION:
        raise FormatError(f"{name}: its version is {document.version!r}, but this release supports {_VERSION}; the report is not used")
    schema = document.file_schema
    columns: list[str] = _NAMES[document.file_format].findall(schema)
    names = {_COLUMNS.get(column, column) for column in columns}
    for column, field_name in (("size", "Size"), ("last_modified_date", "LastModifiedDate"), ("e_tag", "ETag")):
        if column not in names:
            raise FormatError(f"{name}: its columns are {schema!r}; add the field {field_name} to the inventory configuration")
    return Manifest(
        name=name,
        as_of=min(found.scan, document.creation_timestamp),
        bucket=document.source_bucket.rpartition(":")[2],
        prefixes=("",),
        file_format=document.file_format,
        files=tuple(DataFile(_address(file.key, location), file.size, file.md5.lower()) for file in document.files),
        columns=tuple(_COLUMNS.get(column, column) for column in columns) if document.file_format == "csv" else None,
        versions="is_latest" in names and "version_id" in names,
    )


def _address(key: str, location: str) -> str:
    """Return the address of a file in the report's location, because reports may have been copied."""
    return location + "/".join(key.split("/")[-2:])


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert rows to the schema `ROWS`.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    encoded = get_optional_column(raw, "url_encoded_key")
    keys = to_binary(get_column(raw, "key")) if encoded is None else decode_keys(encoded)
    return normalize_columns(raw, keys, "size", "last_modified_date", "e_tag")


def normalize_columns(raw: pa.RecordBatch, keys: pa.Array, size: str, modified: str, etag: str) -> pa.RecordBatch:
    """Convert rows of a report to the schema `ROWS`, given decoded keys and some column names."""
    return pa.RecordBatch.from_arrays(
        [
            keys,
            to_sizes(get_column(raw, size)),
            to_timestamps(get_column(raw, modified)),
            strip_quotes(to_text(get_column(raw, etag), raw.num_rows)),
            to_text(get_optional_column(raw, "version_id"), raw.num_rows),
            to_booleans(get_optional_column(raw, "is_latest"), raw.num_rows),
            to_booleans(get_optional_column(raw, "is_delete_marker"), raw.num_rows),
            to_text(get_optional_column(raw, "storage_class"), raw.num_rows),
        ],
        schema=ROWS,
    )


def require_bucket(raw: pa.RecordBatch, name: str, bucket: str) -> None:
    """Check that all rows of a report belong to the bucket. Column `name` contains their bucket.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    buckets = get_optional_column(raw, name)
    if buckets is None:
        return
    others = pc.filter(buckets, pc.fill_null(pc.not_equal(to_text(buckets, raw.num_rows), bucket), True))
    if len(others):
        raise FormatError(
            f"a row belongs to bucket {to_text(others, len(others))[0].as_py()!r}, expected {bucket!r}; correct `inventory.location`"
        )


def strip_quotes(etags: pa.Array) -> pa.Array:
    return pc.utf8_trim(etags, characters='"')


def decode_keys(keys: pa.Array) -> pa.Array:
    """Decode the URL-encoded keys of a CSV file."""
    is_encoded = pc.fill_null(pc.match_substring_regex(keys, pattern="[%+]"), False)
    if not is_encoded.true_count:
        return keys
    values = [unquote_to_bytes(key.replace(b"+", b" ")) for key in keys.filter(is_encoded).to_pylist()]
    return pc.replace_with_mask(keys, is_encoded, pa.array(values, pa.binary()))
