"""Google Cloud Storage inventory reports: `…_manifest.json`, and rows in CSV or Parquet.

The manifest is written last. It has no checksums and counts the records of all files. No store of
this release reads GCS buckets natively, so these reports are not read yet.

Source: Google Cloud documentation, Storage Insights inventory reports (`reportDetail`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, get_optional_column, to_binary, to_sizes, to_text, to_timestamps
from gc_assets.stores.inventories.report import ROWS, DataFile, Format, Manifest, get_field, parse_document, parse_format, parse_time
from gc_assets.stores.inventories.s3 import require_bucket


def parse_manifest(content: bytes, name: str, folder: str, bucket: str, sizes_bytes: dict[str, int]) -> Manifest:
    """Parse the manifest of a report about `bucket`. Only the rows name the bucket.

    Args:
        content: The manifest.
        name: Its address.
        folder: The folder with the files of the report. Ends in `/`.
        bucket: The bucket that the report should list.
        sizes_bytes: Sizes of the files in the folder by name.

    Raises:
        FormatError: If the document is not as documented, or a file is missing.
    """
    document = parse_document(content, name)
    shards = [str(shard).rpartition("/")[2] for shard in get_field(document, "report_shards_file_names", list, name)]
    count = get_field(document, "shard_count", int, name)
    if len(shards) != count:
        raise FormatError(f"{name}: it lists {len(shards)} files, expected {count}; the report is not used")
    missing = sorted(set(shards) - sizes_bytes.keys())
    if missing:
        raise FormatError(f"{name}: its file {missing[0]} is missing; the report is not used")
    formats: set[Format] = {parse_format(shard.rpartition(".")[2], name) for shard in shards}
    if len(formats) != 1:
        raise FormatError(f"{name}: its files have {len(formats)} formats, expected one; the report is not used")
    return Manifest(
        name=name,
        as_of=parse_time(get_field(document, "snapshot_time", str, name), name),
        bucket=bucket,
        prefixes=("",),
        file_format=formats.pop(),
        files=tuple(DataFile(folder + shard, sizes_bytes[shard]) for shard in shards),
        columns=None,
        versions=True,
        rows=get_field(document, "records_processed", int, name),
    )


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Return the rows of a file as `ROWS`. Deleted and replaced objects are not the latest.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    return pa.RecordBatch.from_arrays(
        [
            to_binary(get_column(raw, "name")),
            to_sizes(get_column(raw, "size")),
            to_timestamps(get_column(raw, "updated")),
            to_text(get_column(raw, "etag"), raw.num_rows),
            to_text(get_optional_column(raw, "generation"), raw.num_rows),
            pc.is_null(get_column(raw, "timeDeleted")),
            pa.repeat(False, raw.num_rows),
            to_text(get_optional_column(raw, "storageClass"), raw.num_rows),
        ],
        schema=ROWS,
    )
