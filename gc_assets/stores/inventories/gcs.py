"""Inventory reports of Google Cloud Storage, with rows in CSV or Parquet.

All reports of a configuration are in one folder. A report consists of files such as
`<id>_<time>_<shard>.csv` and the manifest `<id>_<time>_manifest.json`, which is written last. The
manifest contains the number of all records, but no checksums. CSV files must have a header. The
copy of the configuration in the manifest contains the bucket, which is the only filter that Google
supports.

Source: Google Cloud documentation, Storage Insights inventory reports (`reportDetail`).
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AliasChoices, AliasPath, Field

from gc_assets.core.deferred_models import TolerantModel
from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, get_optional_column, to_binary, to_sizes, to_text, to_timestamps
from gc_assets.stores.inventories.report import (
    ROWS,
    DataFile,
    FoundReport,
    Manifest,
    Time,
    parse_document,
    parse_scan_times,
    require_own_bucket,
)
from gc_assets.stores.inventories.s3 import require_bucket
from gc_assets.stores.protocol import ReportFiles

# The columns that are read. All of them are required except `timeDeleted` and `storageClass`.
COLUMNS: Final = frozenset({"bucket", "name", "size", "updated", "generation", "metageneration", "timeDeleted", "storageClass"})
_MANIFEST: Final = re.compile(r"[^/]*_(\d{4}-\d\d-\d\dT\d\d:\d\d)_manifest\.json")
# Google's APIs have two spellings of the bucket in the copy of the configuration.
_BUCKET: Final = AliasChoices(
    AliasPath("report_config", "object_metadata_report_options", "storage_filters", "bucket"),
    AliasPath("report_config", "objectMetadataReportOptions", "storageFilters", "bucket"),
)


class _Document(TolerantModel):
    bucket: str | None = Field(default=None, validation_alias=_BUCKET)
    report_shards_file_names: tuple[str, ...]
    shard_count: int
    snapshot_time: Time
    records_processed: int


def find_reports(report_files: ReportFiles, location: str) -> list[FoundReport]:
    """Find all inventory reports in a folder, with the times at which their scans started."""
    sizes_bytes = report_files.files(location)
    found = ((_MANIFEST.fullmatch(name), name) for name in sizes_bytes)
    return parse_scan_times({name: match[1] for match, name in found if match is not None}, sizes_bytes)


def read_manifest(report_files: ReportFiles, location: str, found: FoundReport, bucket: str) -> Manifest:
    """Read the manifest of a report about a bucket.

    This function checks the bucket if the manifest contains it. `normalize_rows` checks it for each
    row.

    Raises:
        FileNotFoundError: If the manifest does not exist.
        ReportMismatch: If the report is about another bucket.
        FormatError: If the manifest is malformed, or if a file of the report is missing.
    """
    name = location + found.name
    document = parse_document(report_files.read(name), name, _Document)
    require_own_bucket((document.bucket or bucket).rpartition("/")[2], bucket, name)
    shards = [shard.rpartition("/")[2] for shard in document.report_shards_file_names]
    if len(shards) != document.shard_count:
        raise FormatError(f"{name}: it lists {len(shards)} files, expected {document.shard_count}; the report is not used")
    missing = sorted(set(shards) - found.sizes_bytes.keys())
    if missing:
        raise FormatError(f"{name}: its file {missing[0]} is missing; the report is not used")
    formats = {shard.rpartition(".")[2] for shard in shards}
    if formats != {"csv"} and formats != {"parquet"}:
        raise FormatError(f"{name}: its files have the formats {sorted(formats)}, expected csv or parquet; the report is not used")
    return Manifest(
        name=name,
        as_of=document.snapshot_time,
        bucket=bucket,
        prefixes=("",),
        file_format="csv" if formats == {"csv"} else "parquet",
        files=tuple(DataFile(location + shard, found.sizes_bytes[shard]) for shard in shards),
        columns=None,
        versions=True,
        rows=document.records_processed,
    )


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert rows of a report to the schema `ROWS`.

    Deleted and replaced objects do not count as latest versions.

    Raises:
        FormatError: If a row belongs to another bucket.
    """
    require_bucket(raw, "bucket", bucket)
    generations = to_text(get_column(raw, "generation"), raw.num_rows)
    return pa.RecordBatch.from_arrays(
        [
            to_binary(get_column(raw, "name")),
            to_sizes(get_column(raw, "size")),
            to_timestamps(get_column(raw, "updated")),
            # Like listings, this identifies objects by generation and metageneration, not by etag.
            pc.binary_join_element_wise(generations, to_text(get_column(raw, "metageneration"), raw.num_rows), "."),
            generations,
            pc.is_null(get_column(raw, "timeDeleted")),
            pa.repeat(False, raw.num_rows),
            to_text(get_optional_column(raw, "storageClass"), raw.num_rows),
        ],
        schema=ROWS,
    )
