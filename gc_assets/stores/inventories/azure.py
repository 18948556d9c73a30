"""Reports of Azure Blob inventory, with rows in CSV or Parquet.

The reports of a rule are in `YYYY/MM/DD/HH-MM-SS/<rule>/` in a container. Azure writes the manifest
`<rule>-manifest.json` when it starts, with the `Pending` status. The report is complete once the
status is `Succeeded` and there is a checksum of the manifest. The manifest contains the number of
all objects, but no checksums of the files.

Several rules can write to one container. The filters in a manifest show whether its report lists
the whole storage. A report that lacks append blobs is not used, because Hadoop can write metadata
as append blobs. No writer of a lake uses page blobs.

Source: Microsoft Learn, blob-inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    CamelCaseModel,
    DataFile,
    FormatField,
    FoundReport,
    Manifest,
    ReportMismatch,
    Time,
    parse_document,
    parse_scan_times,
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


class _CreationTime(CamelCaseModel):
    last_n_days: int | None = None


class _Filters(CamelCaseModel):
    prefix_match: tuple[str, ...] | None = None
    exclude_prefix: tuple[str, ...] | None = None
    blob_types: tuple[str, ...] | None = None
    creation_time: _CreationTime | None = None
    include_blob_versions: bool | None = None


class _Rule(CamelCaseModel):
    filters: _Filters | None = None
    format: FormatField
    object_type: str | None = None
    schema_fields: tuple[str, ...] | None = None


class _File(CamelCaseModel):
    blob: str
    size: int


class _Summary(CamelCaseModel):
    object_count: int


class _Document(CamelCaseModel):
    files: tuple[_File, ...]
    inventory_start_time: Time
    rule_definition: _Rule
    status: str
    summary: _Summary


def find_reports(report_files: ReportFiles, location: str) -> list[FoundReport]:
    """Find all inventory reports under a location, with the times at which their scans started."""
    found = ((_MANIFEST.fullmatch(name), name) for name in report_files.files(location))
    return parse_scan_times({name: "{}-{}-{}T{}:{}:{}".format(*match.groups()) for match, name in found if match is not None})


def read_manifest(report_files: ReportFiles, location: str, found: FoundReport, container: str) -> Manifest:
    """Read the manifest of a report about a container, which is written as `container@account`.

    Raises:
        FileNotFoundError: If the report is not finished.
        ReportMismatch: If the rule does not list all blobs of this container, or lists others.
        FormatError: If the manifest is malformed, or the inventory run has failed or is unfinished.
    """
    name = location + found.name
    checksum = report_files.read(f"{name.removesuffix('.json')}.checksum")
    content = report_files.read(name)
    require_checksum(content, checksum, name)
    document = parse_document(content, name, _Document)
    rule, filters = document.rule_definition, document.rule_definition.filters or _Filters()
    prefixes = [prefix.partition("/") for prefix in filters.prefix_match or ()]
    containers = {container for container, _, _ in prefixes}
    if len(containers) != 1:
        raise ReportMismatch(f"{name}: it covers {len(containers) or 'all'} containers, expected one; set prefixMatch of the rule")
    # In the manifest, the name of the container lacks the account.
    bare = container.partition("@")[0]
    require_own_bucket(containers.pop(), bare, name)
    for problem in _find_omissions(rule, filters):
        raise ReportMismatch(f"{name}: {problem}")
    if document.status != _SUCCEEDED:
        raise FormatError(f"{name}: its status is {document.status}, expected {_SUCCEEDED}; the report is not used")
    return Manifest(
        name=name,
        as_of=document.inventory_start_time,
        bucket=container,
        prefixes=tuple(prefix for _, _, prefix in prefixes),
        file_format=rule.format,
        files=tuple(DataFile(location + file.blob, file.size) for file in document.files),
        columns=None,
        versions=filters.include_blob_versions is True,
        rows=document.summary.object_count,
        excluded=tuple(_excluded_keys(filters, f"{bare}/")),
    )


def _find_omissions(rule: _Rule, filters: _Filters) -> Iterator[str]:
    """Explain which blobs or fields an inventory rule omits, apart from omitted prefixes."""
    if str(rule.object_type).lower() != "blob":
        yield f"it lists objects of type {rule.object_type!r}; set objectType of the rule to blob"
    fields = {found.lower() for found in rule.schema_fields or _FIELDS}
    if missing := [name for name in _FIELDS if name.lower() not in fields]:
        yield f"it has no field {', '.join(missing)}; add it to schemaFields of the rule"
    if filters.creation_time is not None:
        yield f"it lists only blobs of the last {filters.creation_time.last_n_days} days; remove creationTime from the rule"
    types = {found.lower() for found in filters.blob_types or ()}
    if missing := [name for name in _BLOB_TYPES if name.lower() not in types]:
        yield f"it lists no blobs of type {', '.join(missing)}; add it to blobTypes of the rule"


def _excluded_keys(filters: _Filters, root: str) -> Iterator[str]:
    """Find the prefixes of keys that `excludePrefix` excludes from a container.

    Args:
        filters: The filters of a rule. Empty prefixes exclude nothing.
        root: The name of the container, ending in `/`.
    """
    for excluded in filter(None, filters.exclude_prefix or ()):
        if excluded.startswith(root):
            yield excluded.removeprefix(root)
        elif root.startswith(excluded):
            yield ""


def normalize_rows(raw: pa.RecordBatch, container: str) -> pa.RecordBatch:
    """Convert rows of a report to the schema `ROWS`.

    Snapshots and soft-deleted blobs do not count as latest versions.

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
