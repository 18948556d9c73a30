"""Inventory reports of Google Cloud Storage, with rows in CSV or Parquet.

All reports of a configuration are in one folder. A report consists of files such as
`<id>_<time>_<shard>.csv` and the manifest `<id>_<time>_manifest.json`, which is written last. The
manifest contains the number of all records, but no checksums. CSV files must have a header. Its
copy of the configuration contains the bucket, which is the only filter that Google supports.

Source: Google Cloud documentation, Storage Insights inventory reports (`reportDetail`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import get_column, get_optional_column, to_binary, to_sizes, to_text, to_timestamps
from gc_assets.stores.inventories.report import (
    ROWS,
    DataFile,
    Format,
    Manifest,
    get_field,
    parse_document,
    parse_format,
    parse_time,
    require_own_bucket,
)
from gc_assets.stores.inventories.s3 import require_bucket
from gc_assets.stores.protocol import ReportFiles

# The columns that are read. All of them are required except `timeDeleted` and `storageClass`.
COLUMNS: Final = frozenset({"bucket", "name", "size", "updated", "generation", "metageneration", "timeDeleted", "storageClass"})
_MANIFEST: Final = re.compile(r"[^/]*_(\d{4}-\d\d-\d\dT\d\d:\d\d)_manifest\.json")


def find_reports(report_files: ReportFiles, location: str) -> list[tuple[datetime, str]]:
    """Find all reports in a folder, with the times of their scans."""
    found = ((_MANIFEST.fullmatch(name), name) for name in report_files.files(location))
    return [(datetime.fromisoformat(f"{match[1]}:00+00:00"), name) for match, name in found if match is not None]


def read_manifest(report_files: ReportFiles, location: str, manifest: str, scan: datetime, bucket: str) -> Manifest:
    """Read the manifest of a report about a bucket.

    Raises:
        FileNotFoundError: If the manifest does not exist.
        FormatError: If the report is not usable.
    """
    del scan
    name = location + manifest
    return parse_manifest(report_files.read(name), name, location, bucket, report_files.files(location))


def parse_manifest(content: bytes, name: str, folder: str, bucket: str, sizes_bytes: dict[str, int]) -> Manifest:
    """Parse a manifest.

    The bucket is checked here if the manifest contains it, and later for each row.

    Args:
        content: The manifest.
        name: The address of the manifest.
        folder: The folder with the files of the report, ending in `/`.
        bucket: The bucket that the report should be about.
        sizes_bytes: The sizes of all files in the folder, by name.

    Raises:
        ReportMismatch: If the report is about another bucket.
        FormatError: If the document is malformed, or if a file of the report is missing.
    """
    document = parse_document(content, name)
    require_own_bucket(_find_bucket(document) or bucket, bucket, name)
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


def _find_bucket(document: Mapping[str, Any]) -> str | None:
    """Find the bucket in the copy of the configuration. Google's APIs have two spellings of it."""
    for options, filters in (("object_metadata_report_options", "storage_filters"), ("objectMetadataReportOptions", "storageFilters")):
        found: Any = document
        for key in ("report_config", options, filters, "bucket"):
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found.rpartition("/")[2]
    return None


def normalize_rows(raw: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Convert rows to the schema `ROWS`. Deleted and replaced objects do not count as latest.

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
