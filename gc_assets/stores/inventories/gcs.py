"""Google Cloud Storage inventory reports: `…_manifest.json`, and rows in CSV or Parquet.

The manifest is written last. It has no checksums and counts the records of all files. No store of
this release sweeps a bucket of GCS by its own protocol, so nothing reads such a report yet.

Source: Google Cloud documentation, Storage Insights inventory reports (`reportDetail`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import binary, column, moments, optional, sizes, text
from gc_assets.stores.inventories.report import ROWS, DataFile, Format, Manifest, field, parse_document, parse_format, parse_time
from gc_assets.stores.inventories.s3 import require_bucket


def manifest(content: bytes, name: str, folder: str, bucket: str, sizes_bytes: dict[str, int]) -> Manifest:
    """Reads the manifest of a report about `bucket`, which it does not name: each row does. Its
    files lie in `folder`, which ends in `/`; `sizes_bytes` are their sizes by their names, as the
    folder's listing shows them.

    Raises `FormatError` for what is not as documented, and where a file is missing.
    """
    found = parse_document(content, name)
    shards = [str(shard).rpartition("/")[2] for shard in field(found, "report_shards_file_names", list, name)]
    count = field(found, "shard_count", int, name)
    if len(shards) != count:
        raise FormatError(f"{name}: it names {len(shards)} files, expected {count}; the report is not used")
    missing = sorted(set(shards) - sizes_bytes.keys())
    if missing:
        raise FormatError(f"{name}: its file {missing[0]} is missing; the report is not used")
    formats: set[Format] = {parse_format(shard.rpartition(".")[2], name) for shard in shards}
    if len(formats) != 1:
        raise FormatError(f"{name}: its files are of {len(formats)} formats, expected one; the report is not used")
    return Manifest(
        name=name,
        as_of=parse_time(field(found, "snapshot_time", str, name), name),
        bucket=bucket,
        prefixes=("",),
        file_format=formats.pop(),
        files=tuple(DataFile(folder + shard, sizes_bytes[shard]) for shard in shards),
        columns=None,
        versions=True,
        rows=field(found, "records_processed", int, name),
    )


def rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Returns rows of a file as `ROWS`. What was deleted or replaced is not the latest. Raises
    `FormatError` for a row about another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    return pa.RecordBatch.from_arrays(
        [
            binary(column(raw, "name")),
            sizes(column(raw, "size")),
            moments(column(raw, "updated")),
            text(column(raw, "etag"), raw.num_rows),
            text(optional(raw, "generation"), raw.num_rows),
            pc.is_null(column(raw, "timeDeleted")),
            pa.repeat(False, raw.num_rows),
            text(optional(raw, "storageClass"), raw.num_rows),
        ],
        schema=ROWS,
    )
