"""Reports of Azure Blob inventory, with rows in CSV or Parquet.

The reports of a rule are in `YYYY/MM/DD/HH-MM-SS/<rule>/` in a container. Azure writes the manifest
`<rule>-manifest.json` when it starts, with the status `Pending`. The report is complete once the
status is `Succeeded` and there is a checksum of the manifest. The manifest contains the number of
all objects, but no checksums of the files.

Source: Microsoft Learn, blob-inventory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import (
    get_column,
    get_optional_column,
    strip_prefix,
    to_binary,
    to_booleans,
    to_sizes,
    to_text,
    to_timestamps,
)
from gc_assets.stores.inventories.report import (
    ROWS,
    DataFile,
    Manifest,
    get_field,
    parse_document,
    parse_format,
    parse_time,
    require_checksum,
)
from gc_assets.stores.inventories.s3 import strip_quotes
from gc_assets.stores.protocol import ReportFiles

COLUMNS: Final = frozenset(
    {"Name", "Content-Length", "Last-Modified", "ETag", "Etag", "VersionId", "IsCurrentVersion", "Deleted", "Snapshot", "AccessTier"}
)
_SUCCEEDED: Final = "Succeeded"
_MANIFEST: Final = re.compile(r"(\d{4})/(\d\d)/(\d\d)/(\d\d)-(\d\d)-(\d\d)/([^/]+)/\7-manifest\.json")


def find_reports(report_files: ReportFiles, location: str) -> list[tuple[datetime, str]]:
    """Find all reports under a location, with the times of their scans."""
    found = ((_MANIFEST.fullmatch(name), name) for name in report_files.files(location))
    return [(datetime(*map(int, match.groups()[:6]), tzinfo=UTC), name) for match, name in found if match is not None]


def read_manifest(report_files: ReportFiles, location: str, manifest: str, scan: datetime, container: str) -> Manifest:
    """Read the manifest of a report about a container.

    Raises:
        FileNotFoundError: If the report is not finished.
        FormatError: If the report is not usable.
    """
    del scan
    name = location + manifest
    checksum = report_files.read(f"{name.removesuffix('.json')}.checksum")
    found = parse_manifest(report_files.read(name), checksum, name, location)
    # In the manifest, the name of the container lacks the account.
    return replace(found, bucket=container) if found.bucket == container.partition("@")[0] else found


def parse_manifest(content: bytes, checksum: bytes, name: str, location: str) -> Manifest:
    """Parse a manifest.

    Args:
        content: The manifest.
        checksum: The content of its checksum file.
        name: The address of the manifest.
        location: The container with the reports, ending in `/`.

    Raises:
        FormatError: If the document is malformed, the inventory run has failed or is unfinished, or
            the rule covers several containers.
    """
    require_checksum(content, checksum, name)
    document = parse_document(content, name)
    status = get_field(document, "status", str, name)
    if status != _SUCCEEDED:
        raise FormatError(f"{name}: its status is {status}, expected {_SUCCEEDED}; the report is not used")
    rule = get_field(document, "ruleDefinition", dict, name)
    filters = rule.get("filters") or {}
    prefixes = [str(prefix).partition("/") for prefix in filters.get("prefixMatch") or []]
    containers = {container for container, _, _ in prefixes}
    if len(containers) != 1:
        raise FormatError(f"{name}: it covers {len(containers) or 'all'} containers, expected one; set prefixMatch of the rule")
    return Manifest(
        name=name,
        as_of=parse_time(get_field(document, "inventoryStartTime", str, name), name),
        bucket=containers.pop(),
        prefixes=tuple(prefix for _, _, prefix in prefixes),
        file_format=parse_format(get_field(rule, "format", str, name), name),
        files=tuple(
            DataFile(location + get_field(item, "blob", str, name), get_field(item, "size", int, name))
            for item in get_field(document, "files", list, name)
        ),
        columns=None,
        versions=filters.get("includeBlobVersions") is True,
        rows=get_field(get_field(document, "summary", dict, name), "objectCount", int, name),
    )


def normalize_rows(raw: pa.RecordBatch, container: str) -> pa.RecordBatch:
    """Convert rows to the schema `ROWS`. Snapshots and soft-deleted blobs do not count as latest.

    Raises:
        FormatError: If a row belongs to another container.
    """
    container = container.partition("@")[0]
    names = to_binary(get_column(raw, "Name"))
    is_own = pc.starts_with(names, pattern=f"{container}/")
    if is_own.true_count < raw.num_rows:
        foreign_name = names.filter(pc.invert(is_own))[0].as_py()
        raise FormatError(f"a row has the name {foreign_name!r}, expected one in container {container!r}")
    current = to_booleans(get_optional_column(raw, "IsCurrentVersion"), raw.num_rows)
    latest = pc.fill_null(current, False) if "IsCurrentVersion" in raw.schema.names else pa.repeat(True, raw.num_rows)
    for is_hidden in (
        to_booleans(get_optional_column(raw, "Deleted"), raw.num_rows),
        pc.is_valid(to_text(get_optional_column(raw, "Snapshot"), raw.num_rows)),
    ):
        latest = pc.and_(latest, pc.invert(pc.fill_null(is_hidden, False)))
    return pa.RecordBatch.from_arrays(
        [
            strip_prefix(names, f"{container}/".encode()),
            to_sizes(get_column(raw, "Content-Length")),
            to_timestamps(get_column(raw, "Last-Modified")),
            strip_quotes(to_text(get_column(raw, "ETag", "Etag"), raw.num_rows)),
            to_text(get_optional_column(raw, "VersionId"), raw.num_rows),
            latest,
            pa.repeat(False, raw.num_rows),
            to_text(get_optional_column(raw, "AccessTier"), raw.num_rows),
        ],
        schema=ROWS,
    )
