"""Inventory reports in the format of gc-assets, which other programs can write.

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

from typing import Annotated, Final

import pyarrow as pa
from pydantic import AfterValidator

from gc_assets.core.deferred_models import TolerantModel
from gc_assets.stores.inventories.columns import get_column, to_binary
from gc_assets.stores.inventories.report import DataFile, FormatField, FoundReport, Manifest, parse_document
from gc_assets.stores.inventories.s3 import normalize_columns, require_bucket
from gc_assets.stores.protocol import ReportFiles

COLUMNS: Final = frozenset(
    {"bucket", "key", "size_bytes", "last_modified", "etag", "version_id", "is_latest", "is_delete_marker", "storage_class"}
)


def _require_base_name(name: str) -> str:
    if "/" in name:
        raise ValueError("expected a file name without a slash")
    return name


class _File(TolerantModel):
    name: Annotated[str, AfterValidator(_require_base_name)]
    size: int
    rows: int
    md5: str | None = None


class _Document(TolerantModel):
    bucket: str
    prefix: str
    format: FormatField
    files: tuple[_File, ...]
    versions: bool = False


def read_manifest(report_files: ReportFiles, location: str, found: FoundReport, bucket: str) -> Manifest:
    """Read the manifest of a report.

    Raises:
        FileNotFoundError: If the manifest does not exist.
        FormatError: If the manifest is malformed.
    """
    del bucket
    folder = location + found.name
    name = f"{folder}manifest.json"
    document = parse_document(report_files.read(name), name, _Document)
    return Manifest(
        name=name,
        as_of=found.scan,
        bucket=document.bucket,
        prefixes=(document.prefix,),
        file_format=document.format,
        files=tuple(DataFile(folder + file.name, file.size, file.md5 and file.md5.lower(), file.rows) for file in document.files),
        columns=None,
        versions=document.versions,
        rows=sum(file.rows for file in document.files),
    )


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert rows of a report to the schema `ROWS`.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    return normalize_columns(raw, to_binary(get_column(raw, "key")), "size_bytes", "last_modified", "etag")
