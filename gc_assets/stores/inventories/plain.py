"""Reports in the format of gc-assets, which can be written by other programs.

A report is a folder `<location>/YYYY-MM-DDTHH-MMZ/`, named after the time when its scan started. It
contains Parquet or CSV files and a manifest, which must be written last.

An example of `manifest.json` is `{"bucket": "lake", "prefix": "warehouse/", "format": "parquet",
"files": [{"name": "part-0.parquet", "size": 4711, "rows": 1000, "md5": "…"}]}`. `md5` is optional.
Add `"versions": true` if the files list all versions.

CSV files have a header, use UTF-8 and double quotes, and may be compressed with gzip. The columns
can be in any order:

- `key`: the complete key, not encoded.
- `size_bytes`
- `last_modified`: a timestamp, or ISO 8601 with a time zone.
- `etag`: the etag of the server.
- `version_id`, `is_latest` and `is_delete_marker`: only for buckets with versions.
- `bucket` and `storage_class`: optional.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, to_binary
from gc_assets.stores.inventories.report import DataFile, Manifest, get_field, parse_document, parse_format
from gc_assets.stores.inventories.s3 import normalize_columns, require_bucket
from gc_assets.stores.protocol import ReportFiles

COLUMNS: Final = frozenset(
    {"bucket", "key", "size_bytes", "last_modified", "etag", "version_id", "is_latest", "is_delete_marker", "storage_class"}
)


def read_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime, bucket: str) -> Manifest:
    del bucket
    name = f"{location}{folder}manifest.json"
    return parse_manifest(report_files.read(name), name, f"{location}{folder}", scan)


def parse_manifest(content: bytes, name: str, folder: str, scan: datetime) -> Manifest:
    """Parse the manifest of a report.

    Args:
        content: The manifest.
        name: The address of the manifest.
        folder: The folder of the report, ending in `/`.
        scan: The time in the name of the folder.

    Raises:
        FormatError: If the document is malformed.
    """
    document = parse_document(content, name)
    files = [_file(item, name, folder) for item in get_field(document, "files", list, name)]
    return Manifest(
        name=name,
        as_of=scan,
        bucket=get_field(document, "bucket", str, name),
        prefixes=(get_field(document, "prefix", str, name),),
        file_format=parse_format(get_field(document, "format", str, name), name),
        files=tuple(files),
        columns=None,
        versions=document.get("versions") is True,
        rows=sum(file.rows or 0 for file in files),
    )


def _file(item: object, name: str, folder: str) -> DataFile:
    if not isinstance(item, dict):
        raise FormatError(f"{name}: a file is {item!r}, expected an object; the report is not used")
    base, md5 = get_field(item, "name", str, name), item.get("md5")
    if "/" in base or (md5 is not None and not isinstance(md5, str)):
        raise FormatError(f"{name}: a file is {item!r}, expected a file name without a slash, and its MD5 as text")
    return DataFile(folder + base, get_field(item, "size", int, name), md5 and md5.lower(), get_field(item, "rows", int, name))


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert rows to the schema `ROWS`.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    return normalize_columns(raw, to_binary(get_column(raw, "key")), "size_bytes", "last_modified", "etag")
