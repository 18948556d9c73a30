"""AWS S3 Inventory: `manifest.json` with its checksum, and rows in CSV, ORC or Parquet.

A report lies in `<location>/YYYY-MM-DDTHH-MMZ/manifest.json`, named by the time when its scan
began. `manifest.checksum` beside it is written last. Its files lie in `<location>/data/`. A key in
a CSV is URL-encoded, with a plus for a space. Keys in ORC and Parquet are raw.

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
from gc_assets.stores.inventories.columns import binary, column, flags, moments, optional, sizes, text
from gc_assets.stores.inventories.report import ROWS, DataFile, Format, Manifest, field, parse_document, parse_format

# The names of a CSV's columns as ORC and Parquet have them.
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


def manifest(content: bytes, name: str, location: str, scan: datetime) -> Manifest:
    """Reads the manifest of the report whose folder is named by the time `scan`. The checksum was
    compared before. `location` ends in `/`.

    Raises `FormatError` for what is not as AWS documents it.
    """
    found = parse_document(content, name)
    version = field(found, "version", str, name)
    if version != _VERSION:
        raise FormatError(f"{name}: its version is {version!r}, and this release knows {_VERSION}; the report is not used")
    file_format = parse_format(field(found, "fileFormat", str, name), name)
    schema = field(found, "fileSchema", str, name)
    columns: list[str] = _NAMES[file_format].findall(schema)
    named = {_COLUMNS.get(column, column) for column in columns}
    for needed, option in (("size", "Size"), ("last_modified_date", "LastModifiedDate"), ("e_tag", "ETag")):
        if needed not in named:
            raise FormatError(f"{name}: its columns are {schema!r}; add the field {option} to the configuration of the inventory")
    return Manifest(
        name=name,
        as_of=min(scan, _created(field(found, "creationTimestamp", str, name), name)),
        bucket=field(found, "sourceBucket", str, name).rpartition(":")[2],
        prefixes=("",),
        file_format=file_format,
        files=tuple(_file(item, name, location) for item in field(found, "files", list, name)),
        columns=tuple(_COLUMNS.get(column, column) for column in columns) if file_format == "csv" else None,
        versions="is_latest" in named and "version_id" in named,
    )


def _created(text: str, name: str) -> datetime:
    """Returns a number of milliseconds since 1970 as a time."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text))
    except (ValueError, OverflowError):
        raise FormatError(f"{name}: creationTimestamp is {text!r}, expected milliseconds since 1970; the report is not used") from None


def _file(item: object, name: str, location: str) -> DataFile:
    """Returns a file of the report. It is looked for beside the manifest's folder, so that a report
    that was copied elsewhere is whole there.
    """
    if not isinstance(item, dict):
        raise FormatError(f"{name}: a file is {item!r}, expected an object; the report is not used")
    folder, _, base = field(item, "key", str, name).rpartition("/")
    md5 = field(item, "MD5checksum", str, name).lower()
    return DataFile(f"{location}{folder.rpartition('/')[2]}/{base}", field(item, "size", int, name), md5)


def rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Returns rows of a file as `ROWS`. Raises `FormatError` for a row about another bucket."""
    require_bucket(raw, "bucket", bucket)
    encoded = optional(raw, "url_encoded_key")
    keys = binary(column(raw, "key")) if encoded is None else decode_keys(encoded)
    return normalize_columns(raw, keys, "size", "last_modified_date", "e_tag")


def normalize_columns(raw: pa.RecordBatch, keys: pa.Array, size: str, modified: str, etag: str) -> pa.RecordBatch:
    """Returns rows as `ROWS`: these keys, and what the columns of these names say of them."""
    return pa.RecordBatch.from_arrays(
        [
            keys,
            sizes(column(raw, size)),
            moments(column(raw, modified)),
            strip_quotes(text(column(raw, etag), raw.num_rows)),
            text(optional(raw, "version_id"), raw.num_rows),
            flags(optional(raw, "is_latest"), raw.num_rows),
            flags(optional(raw, "is_delete_marker"), raw.num_rows),
            text(optional(raw, "storage_class"), raw.num_rows),
        ],
        schema=ROWS,
    )


def require_bucket(raw: pa.RecordBatch, name: str, bucket: str) -> None:
    """Raises `FormatError` where a row says that it is about another bucket."""
    said = optional(raw, name)
    if said is None:
        return
    others = pc.filter(said, pc.fill_null(pc.not_equal(text(said, raw.num_rows), bucket), True))
    if len(others):
        raise FormatError(
            f"a row is about the bucket {text(others, len(others))[0].as_py()!r}, expected {bucket!r}; mend `inventory.location`"
        )


def strip_quotes(etags: pa.Array) -> pa.Array:
    return pc.utf8_trim(etags, characters='"')


def decode_keys(keys: pa.Array) -> pa.Array:
    """Decodes keys as a CSV of AWS has them."""
    odd = pc.fill_null(pc.match_substring_regex(keys, pattern="[%+]"), False)
    if not odd.true_count:
        return keys
    values = [unquote_to_bytes(key.replace(b"+", b" ")) for key in keys.filter(odd).to_pylist()]
    return pc.replace_with_mask(keys, odd, pa.array(values, pa.binary()))
