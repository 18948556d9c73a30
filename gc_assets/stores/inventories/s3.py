"""AWS S3 Inventory: `manifest.json` with a checksum, and rows in CSV, ORC or Parquet.

A report is in `<location>/YYYY-MM-DDTHH-MMZ/manifest.json`. The folder's name is the time when its
scan started. `manifest.checksum` is next to it and is written last. The files are in
`<location>/data/`. Keys in a CSV are URL-encoded, with a plus for a space. Keys in ORC and Parquet
are not encoded.

Source: Amazon S3 User Guide, storage-inventory and storage-inventory-location.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, get_optional_column, to_binary, to_booleans, to_sizes, to_text, to_timestamps
from gc_assets.stores.inventories.report import ROWS, DataFile, Format, Manifest, get_field, parse_document, parse_format

# Column names of a CSV, and the corresponding names in ORC and Parquet.
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


def parse_manifest(content: bytes, name: str, location: str, scan: datetime) -> Manifest:
    """Parse the manifest of a report, whose checksum the caller has compared.

    Args:
        content: The manifest.
        name: Its address.
        location: The location of the reports. Ends in `/`.
        scan: The time in the name of its folder.

    Raises:
        FormatError: If the document does not have the format documented by AWS.
    """
    document = parse_document(content, name)
    version = get_field(document, "version", str, name)
    if version != _VERSION:
        raise FormatError(f"{name}: its version is {version!r}, but this release supports {_VERSION}; the report is not used")
    file_format = parse_format(get_field(document, "fileFormat", str, name), name)
    schema = get_field(document, "fileSchema", str, name)
    columns: list[str] = _NAMES[file_format].findall(schema)
    names = {_COLUMNS.get(column, column) for column in columns}
    for column, field_name in (("size", "Size"), ("last_modified_date", "LastModifiedDate"), ("e_tag", "ETag")):
        if column not in names:
            raise FormatError(f"{name}: its columns are {schema!r}; add the field {field_name} to the inventory configuration")
    return Manifest(
        name=name,
        as_of=min(scan, _parse_creation_time(get_field(document, "creationTimestamp", str, name), name)),
        bucket=get_field(document, "sourceBucket", str, name).rpartition(":")[2],
        prefixes=("",),
        file_format=file_format,
        files=tuple(_file(item, name, location) for item in get_field(document, "files", list, name)),
        columns=tuple(_COLUMNS.get(column, column) for column in columns) if file_format == "csv" else None,
        versions="is_latest" in names and "version_id" in names,
    )


def _parse_creation_time(text: str, name: str) -> datetime:
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text))
    except (ValueError, OverflowError):
        raise FormatError(f"{name}: creationTimestamp is {text!r}, expected milliseconds since 1970; the report is not used") from None


def _file(item: object, name: str, location: str) -> DataFile:
    """Return a file of the report.

    Its address is derived from the manifest's, so that a report can be copied to another location.
    """
    if not isinstance(item, dict):
        raise FormatError(f"{name}: a file is {item!r}, expected an object; the report is not used")
    folder, _, base = get_field(item, "key", str, name).rpartition("/")
    md5 = get_field(item, "MD5checksum", str, name).lower()
    return DataFile(f"{location}{folder.rpartition('/')[2]}/{base}", get_field(item, "size", int, name), md5)


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert the rows of a file to `ROWS`. Raises `FormatError` for a row of another bucket."""
    require_bucket(raw, "bucket", bucket)
    encoded = get_optional_column(raw, "url_encoded_key")
    keys = to_binary(get_column(raw, "key")) if encoded is None else decode_keys(encoded)
    return normalize_columns(raw, keys, "size", "last_modified_date", "e_tag")


def normalize_columns(raw: pa.RecordBatch, keys: pa.Array, size: str, modified: str, etag: str) -> pa.RecordBatch:
    """Convert rows to `ROWS`, with the decoded `keys` and the columns of the given names."""
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
    """Raise `FormatError` if a row belongs to another bucket. `name` is the column of the bucket."""
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
    """Decode URL-encoded keys of an AWS CSV file."""
    is_encoded = pc.fill_null(pc.match_substring_regex(keys, pattern="[%+]"), False)
    if not is_encoded.true_count:
        return keys
    values = [unquote_to_bytes(key.replace(b"+", b" ")) for key in keys.filter(is_encoded).to_pylist()]
    return pc.replace_with_mask(keys, is_encoded, pa.array(values, pa.binary()))
