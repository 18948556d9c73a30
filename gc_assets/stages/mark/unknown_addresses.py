"""Find addresses outside all storages that may be other names of objects in storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.external_addresses import HIDDEN, ExternalAddresses
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.paths import FILE, Location, is_in_bucket, scheme_of
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import MAX_SAMPLES, PARTS_DDL, WrittenParts, merge_written, report_parts
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kind import Spellings
from gc_assets.stages.records.accepted_runs import former_aliases
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import UNKNOWN_ADDRESSES, UNKNOWN_ADDRESSES_SIDE, UNRESOLVED, UNRESOLVED_SIDE
from gc_assets.stores.store import describe_directory, local_file_exists, local_file_is_hidden

_UNRESOLVED: Final = "a name without a known prefix"
_COLUMNS: Final = ("key", "kind", "size_bytes", "commit_id", "container", "table_uuid")


def external_addresses(context: RunContext) -> ExternalAddresses:
    """Build the classifier of addresses outside all storages, which finds unknown ones."""
    config = context.config
    locations = [storage.location for storage in config.storages]
    storages = [(location, config.endpoint_of(location)) for location in locations]
    has_buckets = any(is_in_bucket(location) for location in locations)
    disks = tuple(Location.parse(location).root for location in locations if scheme_of(location) == FILE)
    aliases = [alias for storage in config.storages for alias in storage.aliases]
    describe = partial(describe_directory, has_buckets=has_buckets, disks=disks)
    return ExternalAddresses.of(storages, describe, local_file_exists, aliases, local_file_is_hidden, _former_resolver(context))


def _former_resolver(context: RunContext) -> KeyResolver | None:
    """Return a resolver for removed storage aliases, or None if no alias was removed.

    An alias that moved to another storage does not count as removed.
    """
    config = context.config
    current = {alias for storage in config.storages for alias in storage.aliases}
    former = {storage.name: tuple({*former_aliases(context, storage.name)} - current) for storage in config.storages}
    if not any(former.values()):
        return None
    storages = tuple(storage.model_copy(update={"aliases": former[storage.name]}) for storage in config.storages)
    aliases = config.model_copy(update={"storages": storages}).address_aliases()
    return KeyResolver([(storage.name, storage.location) for storage in storages], aliases)


def write_unknown_addresses(
    spark: SparkSession, context: RunContext, run: TableRun, external: Sequence[PartFile], entries: PublishedTable
) -> WrittenParts:
    """Write the unknown addresses of a lake's live files to the side table `UNKNOWN_ADDRESSES`.

    Args:
        spark: Used only if there are too many addresses for the driver process.
        run: The run of `live_files`.
        external: Parts with the live files outside all storages (columns of `live_files`, with the
            address as key).
        entries: `manifest_entries` of this run. For unreadable containers, it contains the
            addresses whose prefix is unknown.

    Returns:
        The parts of the side table. `summary` contains the number of unknown addresses, and samples
        with the reasons.
    """
    files, unresolved = context.state.files, entries.parts(UNRESOLVED_SIDE)
    reports = list[Any]()
    if unresolved:
        copy = _CopyUnresolved(files, run, tuple(entries.paths(UNRESOLVED_SIDE)))
        reports += run_single_task(spark, copy, sum(part.rows for part in unresolved), len(unresolved))
    if external:
        spellings = context.kind(entries.receipt.owner).files.spellings
        reports += _select_unknown(spark, context, run, external, spellings)
    return merge_written(reports)


def _select_unknown(
    spark: SparkSession, context: RunContext, run: TableRun, external: Sequence[PartFile], spellings: Spellings | None
) -> Sequence[Any]:
    files = context.state.files
    schema = pa.schema([LIVE_FILES.schema.field(name) for name in _COLUMNS])
    scan, rows = ParquetScan.of(files, schema, run.path, external), sum(part.rows for part in external)
    task = _SelectUnknown(external_addresses(context), files, run, spellings)
    found = scan.run_task(spark, task, PARTS_DDL, rows)
    incomplete = _find_incomplete(files, merge_written(found).paths(run, UNKNOWN_ADDRESSES_SIDE))
    if not incomplete:
        return found
    return [*found, *scan.run_task(spark, replace(task, incomplete=incomplete), PARTS_DDL, rows)]


def _find_incomplete(files: Files, paths: Sequence[str]) -> frozenset[str]:
    """Return the UUIDs of tables with missing or hidden local files.

    For a lake without tables, the UUID is "".
    """
    found: set[str] = set()
    for path in paths:
        rows = read_parts(files, [path], UNKNOWN_ADDRESSES, ["table_uuid", "reason"])
        reasons = rows.column("reason")
        missing = rows.filter(pc.or_(ExternalAddresses.are_missing(reasons), pc.equal(reasons, HIDDEN)))
        found |= {uuid or "" for uuid in pc.unique(missing.column("table_uuid")).to_pylist()}
    return frozenset(found)


@dataclass(frozen=True)
class _SelectUnknown:
    """Select and write the live files outside all storages whose addresses are unknown.

    Attributes:
        spellings: Returns all possible names (encodings) of a file, given one of them. None if the
            lake's files have only one name.
        incomplete: UUIDs of tables with missing files. If not empty, only existing files of these
            tables are written. If a mount is missing too, these may be old copies under its mount
            point.
    """

    addresses: ExternalAddresses
    files: Files
    run: TableRun
    spellings: Spellings | None
    incomplete: frozenset[str] = frozenset()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, UNKNOWN_ADDRESSES, UNKNOWN_ADDRESSES_SIDE)
        count, samples = 0, list[str]()
        for batch in batches:
            reasons = self._find_reasons(batch)
            rows = batch.append_column("reason", reasons).filter(pc.is_valid(reasons))
            rows = _without_chunk_sizes(rows)
            rows = rows.rename_columns(["address" if name == "key" else name for name in rows.schema.names])
            writer.write(rows.select(UNKNOWN_ADDRESSES.names).cast(UNKNOWN_ADDRESSES))
            count += rows.num_rows
            samples = _first_samples(samples, rows)
        yield report_parts(writer.close(), summary={"addresses": count, "samples": samples})

    def _find_reasons(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.incomplete:
            return self._find_own_reasons(batch)
        is_mine = pc.is_in(pc.fill_null(batch.column("table_uuid"), ""), pa.array(sorted(self.incomplete)))
        return pc.if_else(is_mine, self.addresses.find_old_copies(batch.column("key")), pa.scalar(None, pa.string()))

    def _find_own_reasons(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the reason for each file, or None if it exists under another possible name."""
        reasons = self.addresses.find_reasons(batch.column("key"))
        is_possible = pc.and_(pc.equal(batch.column("kind"), Kind.POSSIBLE_OBJECT), ExternalAddresses.are_missing(reasons))
        if self.spellings is None or not is_possible.true_count:
            return reasons
        others = map(self.spellings, batch.column("key").filter(is_possible).to_pylist())
        exist = pa.array([any(map(self.addresses.file_exists, names)) for names in others], pa.bool_())
        kept = pc.if_else(exist, pa.scalar(None, pa.string()), reasons.filter(is_possible))
        return pc.replace_with_mask(reasons, is_possible, kept)


def _first_samples(samples: Sequence[str], rows: pa.RecordBatch) -> list[str]:
    """Return the first samples in order, so that they do not depend on how the rows are divided."""
    first = rows.select(["address", "reason"]).sort_by("address").slice(0, MAX_SAMPLES)
    return sorted([*samples, *(f"{row['address']} ({row['reason']})" for row in first.to_pylist())])[:MAX_SAMPLES]


def _without_chunk_sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Remove the sizes of chunks, because a file may be longer than the ranges that are read."""
    is_chunk = pc.equal(rows.column("kind"), Kind.CHUNK)
    sizes = pc.if_else(is_chunk, pa.scalar(None, pa.int64()), rows.column("size_bytes"))
    return rows.set_column(rows.schema.get_field_index("size_bytes"), "size_bytes", sizes)


@dataclass(frozen=True)
class _CopyUnresolved:
    """Write addresses with unknown prefixes as rows of `UNKNOWN_ADDRESSES`, in a single task."""

    files: Files
    run: TableRun
    paths: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, UNKNOWN_ADDRESSES, UNKNOWN_ADDRESSES_SIDE)
        count, samples = 0, list[str]()
        for _ in batches:
            for path in self.paths:
                for rows in read_parts(self.files, [path], UNRESOLVED).to_batches():
                    known = {name: rows.column(name) for name in UNRESOLVED.names} | {"reason": pa.repeat(_UNRESOLVED, rows.num_rows)}
                    columns = [known.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in UNKNOWN_ADDRESSES]
                    writer.write(pa.RecordBatch.from_arrays(columns, schema=UNKNOWN_ADDRESSES))
                    count += rows.num_rows
                    samples = _first_samples(samples, rows.append_column("reason", known["reason"]))
            yield report_parts(writer.close(), summary={"addresses": count, "samples": samples})
