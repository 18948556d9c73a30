"""Resolve recorded addresses again after storages or symbolic links have changed.

An address resolves to a storage and a key, which depend on the configured storages and on symbolic
links (`KeyResolver`). Tables that later runs reuse therefore record storages and links. See
docs/adr/0010-what-caches-depend-on.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import SparkSession

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.errors import FormatError, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import WrittenParts, merge_written, report_parts
from gc_assets.engine.tasks import run_tasks
from gc_assets.stages.mark.segment_writer import SegmentWriter
from gc_assets.state.arrow_types import CONTENT_ROOT
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_errors, read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    LINKS,
    LINKS_SIDE,
    LOCATIONS,
    LOCATIONS_SIDE,
)

# Edges and hashes are derived from the resolved entries.
_SEGMENT_TABLES = {None: MANIFEST_ENTRIES.schema, LOCATIONS_SIDE: LOCATIONS, CONTAINERS_SIDE: CONTAINERS}


def build_links(resolver: KeyResolver) -> pa.Table:
    """Return the directories looked up by a resolver, with their targets (`LINKS` columns)."""
    found = sorted(resolver.link_targets.items())
    return pa.table({"directory": [name for name, _ in found], "target": [target for _, target in found]}, schema=LINKS)


def are_links_unchanged(resolver: KeyResolver, links: pa.Table) -> bool:
    """Check whether recorded directories (`LINKS` columns) still resolve to the same targets."""
    return resolver.has_same_links(set(zip(links.column("directory").to_pylist(), links.column("target").to_pylist(), strict=True)))


def resolve_rows(rows: pa.Table, resolver: KeyResolver) -> pa.Table:
    """Resolve the address of each row again, and replace its storage and key."""
    storage, key = resolver.resolve(rows.column("address"))
    return replace_columns(rows, {"storage": storage, "key": key})


def resolve_or_keep(rows: pa.Table, resolver: KeyResolver) -> pa.Table:
    """Resolve rows like `resolve_rows`, but keep the storage and key of unresolvable addresses.

    For example, an unreadable table's links may be broken. Its last known files are then still
    stored under their old keys.
    """
    try:
        return resolve_rows(rows, resolver)
    except (FormatError, StoreError):
        addresses = rows.column("address")
        resolvable = pa.array(find_resolvable(addresses.drop_null().unique().to_pylist(), resolver), addresses.type)
        current = zip(("storage", "key"), resolver.locate(addresses), strict=True)
        is_resolvable = pc.is_in(addresses, resolvable)
        return replace_columns(rows, {name: pc.if_else(is_resolvable, values, rows.column(name)) for name, values in current})


def find_resolvable(addresses: Iterable[str], resolver: KeyResolver) -> list[str]:
    """Select the addresses that can be resolved to a location."""
    return [address for address in addresses if resolver.find_problem(address) is None]


def resolve_content_roots(batches: Iterator[pa.RecordBatch], resolver: KeyResolver) -> Iterator[pa.RecordBatch]:
    """Resolve the content roots in rows of `commit_graph` again.

    A root with an unresolvable address keeps the storage and key from the run that read its commit.
    """
    for batch in batches:
        index = batch.schema.get_field_index("content_roots")
        lists = batch.column(index)
        roots = pc.list_flatten(lists)
        columns = pa.table({field.name: pc.struct_field(roots, field.name) for field in CONTENT_ROOT})
        values = [column.combine_chunks() for column in resolve_or_keep(columns, resolver).columns]
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        offsets = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
        resolved = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(values, fields=list(CONTENT_ROOT)))
        yield batch.set_column(index, batch.schema.field(index), resolved.cast(batch.schema.field(index).type))


def resolve_segments(spark: SparkSession, segments: Segments, resolver: KeyResolver, files: Files, run: TableRun) -> WrittenParts:
    """Copy segments of cached entries to parts of a run, with newly resolved keys.

    Unreadable containers are not copied, because the caller decodes them again.
    """
    parts = tuple((side, path) for side in _SEGMENT_TABLES for path in segments.paths(side))
    with read_errors(files.root):
        sizes = files.sizes([path for _, path in parts])
    return merge_written(run_tasks(spark, _ResolveParts(files, run, resolver, parts), len(parts), sum(sizes)))


@dataclass(frozen=True)
class _ResolveParts:
    """Copy parts of segments, which are selected by number, with newly resolved keys."""

    files: Files
    run: TableRun
    resolver: KeyResolver
    parts: tuple[tuple[str | None, str], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = SegmentWriter(self.files, self.run)
        digest = external = 0
        for batch in batches:
            for number in batch.column("id").to_pylist():
                side, path = self.parts[number]
                rows = read_parts(self.files, [path], _SEGMENT_TABLES[side])
                if side == CONTAINERS_SIDE:
                    digest += sum(map(_container_digest, rows.select(["container", "digest"]).to_pylist()))
                else:
                    rows = resolve_rows(rows, self.resolver)
                if side is not None:
                    writer.add(side, rows)
                    continue
                external += rows.column("storage").null_count
                for entries in rows.to_batches():
                    writer.add_entries(entries)
        writer.add(LINKS_SIDE, build_links(self.resolver))
        yield report_parts(writer.close(), digest % 2**64, summary={"external": external})


def _container_digest(row: dict[str, str | None]) -> int:
    return xxhash.xxh64_intdigest(f"{row['container']}\n{row['digest']}".encode())
