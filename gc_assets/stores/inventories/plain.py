"""A report of one's own: Parquet or CSV files with a small manifest, which is written last.

It lies in `<location>/YYYY-MM-DDTHH-MMZ/`, named by the time when its scan began:

- `manifest.json`: `{"bucket": "lake", "prefix": "warehouse/", "format": "parquet", "files":
  [{"name": "part-0.parquet", "size": 4711, "rows": 1000, "md5": "…"}]}`. `md5` may be left out.
  `"versions": true` says that the files show all versions.
- The files. A CSV has a header, UTF-8 and double quotes, and may be gzipped. Columns in any order:
  `key` (whole, as it is), `size_bytes`, `last_modified` (timestamp, or ISO 8601 with a zone) and
  `etag` (the server's own). Where the bucket has versions also `version_id`, `is_latest` and
  `is_delete_marker`. `bucket` and `storage_class` may be there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import binary, column
from gc_assets.stores.inventories.report import DataFile, Manifest, field, parse_document, parse_format
from gc_assets.stores.inventories.s3 import normalize_columns, require_bucket

COLUMNS: Final = frozenset(
    {"bucket", "key", "size_bytes", "last_modified", "etag", "version_id", "is_latest", "is_delete_marker", "storage_class"}
)


def manifest(content: bytes, name: str, folder: str, scan: datetime) -> Manifest:
    """Reads the manifest of the report in `folder`, which ends in `/`. Raises `FormatError` for
    what is not as documented.
    """
    found = parse_document(content, name)
    files = [_file(item, name, folder) for item in field(found, "files", list, name)]
    return Manifest(
        name=name,
        as_of=scan,
        bucket=field(found, "bucket", str, name),
        prefixes=(field(found, "prefix", str, name),),
        file_format=parse_format(field(found, "format", str, name), name),
        files=tuple(files),
        columns=None,
        versions=found.get("versions") is True,
        rows=sum(file.rows or 0 for file in files),
    )


def _file(item: object, name: str, folder: str) -> DataFile:
    if not isinstance(item, dict):
        raise FormatError(f"{name}: a file is {item!r}, expected an object; the report is not used")
    base, md5 = field(item, "name", str, name), item.get("md5")
    if "/" in base or (md5 is not None and not isinstance(md5, str)):
        raise FormatError(f"{name}: a file is {item!r}, expected the name of a file beside the manifest, and its MD5 as text")
    return DataFile(folder + base, field(item, "size", int, name), md5 and md5.lower(), field(item, "rows", int, name))


def rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Returns rows of a file as `ROWS`. Raises `FormatError` for a row about another bucket."""
    require_bucket(raw, "bucket", bucket)
    return normalize_columns(raw, binary(column(raw, "key")), "size_bytes", "last_modified", "etag")
