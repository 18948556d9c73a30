"""Copy the entries of containers that an earlier release decoded, but this release cannot.

A new release decodes all containers again. If a container is damaged, it stays undecoded, and its
table is unreadable. The copied entries then keep the files live that the table needs outside its
claims. Entries are only copied for lakes whose entries do not depend on any setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import report_parts
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.stages.mark.resolution import resolve_or_keep
from gc_assets.stages.mark.segment_writer import SegmentWriter, count_by_container
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    HASHES,
    LOCATIONS,
    LOCATIONS_SIDE,
)

# Values for columns that are missing in parts of older releases.
_DEFAULTS: Final = {"is_container": False, "must_exist": False}


def find_decoded(files: Files, segments: Segments, addresses: pa.Array) -> pa.Array:
    """Select those container addresses whose entries are in the given segments."""
    index = read_parts(files, segments.paths(CONTAINERS_SIDE), CONTAINERS, ["container"]).column("container").combine_chunks()
    return addresses.filter(pc.is_in(addresses, index))


def copy_entries(
    files: Files, segments: Segments, containers: pa.Array, resolver: KeyResolver, storages: Sequence[str], run: TableRun
) -> Iterator[pa.RecordBatch]:
    """Copy the cached entries of containers to parts of a run, and yield the task's report.

    Args:
        segments: Segments of cached entries that an earlier release wrote.
        containers: Addresses of the containers.
        resolver: Resolves addresses to their current keys.
        storages: Names of the configured storages.
    """
    rows = _read_rows(files, segments.paths(), MANIFEST_ENTRIES.schema, containers, resolver, storages)
    kinds = pc.if_else(pc.is_in(rows.column("kind"), pa.array(FILE_KINDS)), rows.column("kind"), pa.scalar(Kind.DATA))
    defaults = {name: pc.fill_null(rows.column(name), value) for name, value in _DEFAULTS.items()}
    rows = replace_columns(rows, {**defaults, "kind": kinds})
    writer = SegmentWriter(files, run)
    hashes = [writer.add_entries(batch) for batch in rows.to_batches()]
    writer.add(LOCATIONS_SIDE, _read_rows(files, segments.paths(LOCATIONS_SIDE), LOCATIONS, containers, resolver, storages))
    writer.add(CONTAINERS_SIDE, _build_index(files, segments, containers, rows, pa.Table.from_batches(hashes, HASHES)))
    yield report_parts(writer.close(), summary={"entries": rows.num_rows, "external": rows.column("storage").null_count})


def _read_rows(
    files: Files, paths: Sequence[str], schema: pa.Schema, containers: pa.Array, resolver: KeyResolver, storages: Sequence[str]
) -> pa.Table:
    found = [schema.empty_table()]
    for path in paths:
        rows = read_parts(files, [path], schema)
        found.append(rows.filter(pc.is_in(rows.column("container"), containers)))
    rows = resolve_or_keep(pa.concat_tables(found), resolver)
    is_configured = pc.is_in(rows.column("storage"), pa.array(list(storages), pa.string()))
    null = pa.scalar(None, pa.string())
    return replace_columns(rows, {name: pc.if_else(is_configured, rows.column(name), null) for name in ("storage", "key")})


def _build_index(files: Files, segments: Segments, containers: pa.Array, rows: pa.Table, hashes: pa.Table) -> pa.Table:
    """Build rows of `CONTAINERS` for the copied containers, with the counts of copied entries."""
    decoded = read_parts(files, segments.paths(CONTAINERS_SIDE), CONTAINERS)
    last = {row["container"]: row for row in decoded.filter(pc.is_in(decoded.column("container"), containers)).to_pylist()}
    counts = {name: count_by_container(table) for name, table in (("entries", rows), ("files", hashes))}
    found = [row | {name: count.get(address, 0) for name, count in counts.items()} for address, row in last.items()]
    return pa.Table.from_pylist(found, schema=CONTAINERS)
