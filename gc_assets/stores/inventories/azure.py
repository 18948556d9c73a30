"""Reports of Azure Blob inventory, with rows in CSV or Parquet.

The reports of a rule are in `YYYY/MM/DD/HH-MM-SS/<rule>/` in a container. Azure writes the manifest
`<rule>-manifest.json` when it starts, with the status `Pending`. The report is complete once the
status is `Succeeded` and there is a checksum of the manifest. The manifest contains the number of
all objects, but no checksums of the files.

Several rules can write to one container. The filters in a manifest show whether its report lists
the whole storage. A report that lacks append blobs is not used, because Hadoop can write metadata
as append blobs. No writer of a lake uses page blobs.

Source: Microsoft Learn, blob-inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

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
    ReportMismatch,
    get_field,
    parse_document,
    parse_format,
    parse_time,
    require_checksum,
    require_own_bucket,
)
from gc_assets.stores.inventories.s3 import strip_quotes
from gc_assets.stores.protocol import ReportFiles

COLUMNS: Final = frozenset(
    {"Name", "Content-Length", "Last-Modified", "ETag", "Etag", "VersionId", "IsCurrentVersion", "Deleted", "Snapshot", "AccessTier"}
)
_SUCCEEDED: Final = "Succeeded"
_FIELDS: Final = ("Name", "Content-Length", "Last-Modified", "ETag")
_BLOB_TYPES: Final = ("appendBlob", "blockBlob")
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
    return parse_manifest(report_files.read(name), checksum, name, location, container)


def parse_manifest(content: bytes, checksum: bytes, name: str, location: str, container: str) -> Manifest:
    """Parse a manifest.

    Args:
        content: The manifest.
        checksum: The content of its checksum file.
        name: The address of the manifest.
        location: The container with the reports, ending in `/`.
        container: The container that the report should be about, as `container@account`.

    Raises:
        ReportMismatch: If the rule does not list all blobs of this container, or lists others.
        FormatError: If the document is malformed, or the inventory run has failed or is unfinished.
    """
    require_checksum(content, checksum, name)
    document = parse_document(content, name)
    rule = get_field(document, "ruleDefinition", dict, name)
    filters = rule.get("filters") or {}
    prefixes = [str(prefix).partition("/") for prefix in filters.get("prefixMatch") or []]
    containers = {container for container, _, _ in prefixes}
    if len(containers) != 1:
        raise ReportMismatch(f"{name}: it covers {len(containers) or 'all'} containers, expected one; set prefixMatch of the rule")
    # In the manifest, the name of the container lacks the account.
    bare = container.partition("@")[0]
    require_own_bucket(containers.pop(), bare, name)
    for problem in _find_omissions(rule, filters):
        raise ReportMismatch(f"{name}: {problem}")
    status = get_field(document, "status", str, name)
    if status != _SUCCEEDED:
        raise FormatError(f"{name}: its status is {status}, expected {_SUCCEEDED}; the report is not used")
    return Manifest(
        name=name,
        as_of=parse_time(get_field(document, "inventoryStartTime", str, name), name),
        bucket=container,
        prefixes=tuple(prefix for _, _, prefix in prefixes),
        file_format=parse_format(get_field(rule, "format", str, name), name),
        files=tuple(
            DataFile(location + get_field(item, "blob", str, name), get_field(item, "size", int, name))
            for item in get_field(document, "files", list, name)
        ),
        columns=None,
        versions=filters.get("includeBlobVersions") is True,
        rows=get_field(get_field(document, "summary", dict, name), "objectCount", int, name),
        excluded=tuple(_excluded_keys(filters, f"{bare}/")),
    )


def _find_omissions(rule: Mapping[str, Any], filters: Mapping[str, Any]) -> Iterator[str]:
    """Explain which blobs or fields a rule omits, apart from those of some prefixes."""
    kind = rule.get("objectType")
    if str(kind).lower() != "blob":
        yield f"it lists objects of type {kind!r}; set objectType of the rule to blob"
    fields = {str(found).lower() for found in rule.get("schemaFields") or _FIELDS}
    if missing := [name for name in _FIELDS if name.lower() not in fields]:
        yield f"it has no field {', '.join(missing)}; add it to schemaFields of the rule"
    if created := filters.get("creationTime"):
        days = created.get("lastNDays") if isinstance(created, dict) else created
        yield f"it lists only blobs of the last {days} days; remove creationTime from the rule"
    types = {str(found).lower() for found in filters.get("blobTypes") or []}
    if missing := [name for name in _BLOB_TYPES if name.lower() not in types]:
        yield f"it lists no blobs of type {', '.join(missing)}; add it to blobTypes of the rule"


def _excluded_keys(filters: Mapping[str, Any], root: str) -> Iterator[str]:
    """Find the prefixes of keys that `excludePrefix` excludes from a container.

    Args:
        filters: The filters of a rule. Empty prefixes exclude nothing.
        root: The name of the container, ending in `/`.
    """
    for excluded in filter(None, map(str, filters.get("excludePrefix") or [])):
        if excluded.startswith(root):
            yield excluded.removeprefix(root)
        elif root.startswith(excluded):
            yield ""


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
