"""Azure Blob inventory: `<rule>-manifest.json` with its checksum, and rows in CSV or Parquet.

A run writes its manifest when it begins, with the status `Pending`. It is whole once the status is
`Succeeded` and the checksum is there. A manifest has no checksums of its files, and counts the
objects of all of them. No store of this release sweeps a container, so nothing reads such a report
yet.

Source: Microsoft Learn, blob-inventory.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.columns import binary, column, flags, moments, optional, sizes, text, without
from gc_assets.stores.inventories.report import ROWS, DataFile, Manifest, field, parse_document, parse_format, parse_time, require_checksum
from gc_assets.stores.inventories.s3 import strip_quotes

_WHOLE: Final = "Succeeded"


def manifest(content: bytes, checksum: bytes, name: str, location: str) -> Manifest:
    """Reads a manifest. `location` is the container of the reports and ends in `/`.

    Raises `FormatError` for what is not as documented, for a run that is under way or failed, and
    for a rule about several containers.
    """
    require_checksum(content, checksum, name)
    found = parse_document(content, name)
    status = field(found, "status", str, name)
    if status != _WHOLE:
        raise FormatError(f"{name}: its status is {status}, expected {_WHOLE}; the report is not used")
    rule = field(found, "ruleDefinition", dict, name)
    filters = rule.get("filters") or {}
    prefixes = [str(prefix).partition("/") for prefix in filters.get("prefixMatch") or []]
    containers = {container for container, _, _ in prefixes}
    if len(containers) != 1:
        raise FormatError(f"{name}: it is about {len(containers) or 'all'} containers; name one in the rule's prefixMatch")
    return Manifest(
        name=name,
        as_of=parse_time(field(found, "inventoryStartTime", str, name), name),
        bucket=containers.pop(),
        prefixes=tuple(below for _, _, below in prefixes),
        file_format=parse_format(field(rule, "format", str, name), name),
        files=tuple(
            DataFile(location + field(item, "blob", str, name), field(item, "size", int, name))
            for item in field(found, "files", list, name)
        ),
        columns=None,
        versions=filters.get("includeBlobVersions") is True,
        rows=field(field(found, "summary", dict, name), "objectCount", int, name),
    )


def rows(raw: pa.RecordBatch, container: str) -> pa.RecordBatch:
    """Returns rows of a file as `ROWS`. Snapshots and blobs that were deleted softly are not the
    latest. Raises `FormatError` for a row about another container.
    """
    names = binary(column(raw, "Name"))
    mine = pc.starts_with(names, pattern=f"{container}/")
    if mine.true_count < raw.num_rows:
        other = names.filter(pc.invert(mine))[0].as_py()
        raise FormatError(f"a row is about {other!r}, expected a name below {container!r}")
    current = flags(optional(raw, "IsCurrentVersion"), raw.num_rows)
    latest = pc.fill_null(current, False) if "IsCurrentVersion" in raw.schema.names else pa.repeat(True, raw.num_rows)
    for gone in (flags(optional(raw, "Deleted"), raw.num_rows), pc.is_valid(text(optional(raw, "Snapshot"), raw.num_rows))):
        latest = pc.and_(latest, pc.invert(pc.fill_null(gone, False)))
    return pa.RecordBatch.from_arrays(
        [
            without(names, f"{container}/".encode()),
            sizes(column(raw, "Content-Length")),
            moments(column(raw, "Last-Modified")),
            strip_quotes(text(column(raw, "ETag", "Etag"), raw.num_rows)),
            text(optional(raw, "VersionId"), raw.num_rows),
            latest,
            pa.repeat(False, raw.num_rows),
            text(optional(raw, "AccessTier"), raw.num_rows),
        ],
        schema=ROWS,
    )
