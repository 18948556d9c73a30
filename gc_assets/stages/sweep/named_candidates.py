"""Restrict the candidates that come from an earlier listing.

A candidate must have been referenced at some time, either by a decoded container or by a commit in
the graph. All other files, such as leftovers of crashed jobs, wait for the next listing. In
addition, the object must be unchanged since the listing, which takes one request per candidate.

The restriction compares hashes. If a candidate passes because of a collision, it is still safe to
plan it, because a run with its own listing would plan it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from gc_assets.core.hashing import xxhash64
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine import tasks
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_small
from gc_assets.engine.tables import (
    PARTS_DDL,
    Totals,
    WrittenParts,
    collect,
    collect_arrow,
    merge_written,
    report_parts,
    run_in_process,
    spark_schema,
)
from gc_assets.engine.tasks import BudgetedTask, max_parallel_tasks
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.stages.sweep.probe import CANDIDATE
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.state.side_tables import CANDIDATES, CANDIDATES_SIDE, CONTAINERS, CONTAINERS_SIDE, EDGES, EDGES_SIDE, HASHES, HASHES_SIDE
from gc_assets.stores.listing import find_objects
from gc_assets.stores.protocol import Store

# Classes of listed objects that are not candidates: files that were never referenced, and objects
# that were removed or replaced after the listing.
UNNAMED: Final = "unnamed"
CHANGED: Final = "changed_since"
_HASH: Final = pa.schema([("key_hash", pa.int64())])


def restrict_candidates(spark: SparkSession, context: RunContext, storage_name: str, probed: WrittenParts, run: TableRun) -> WrittenParts:
    """Drop candidates that were never referenced, or that changed after the listing.

    Args:
        probed: The parts with the candidates, and the totals of each class of listed objects.
        run: The run of `orphan_files`, to which the remaining candidates are written.

    Returns:
        `probed` with the remaining candidates. Its totals count dropped candidates in the classes
        `UNNAMED` and `CHANGED`.
    """
    parts = probed.side.get(CANDIDATES_SIDE, ())
    if not parts:
        return probed
    files, rows = context.state.files, probed.side_rows(CANDIDATES_SIDE)
    scan = ParquetScan.of(files, CANDIDATES, run.path, parts)
    log_activity(f"comparing {rows:,} candidates with all files that metadata ever referenced")
    named = _find_named(spark, context, storage_name, scan)
    keep = _KeepNamed(context.store(storage_name), files, run, named)
    if tasks.fits_in_process(rows, len(parts)):
        kept = merge_written(run_in_process(keep, scan.read_batches()))
    else:
        shared = BudgetedTask(keep, max_parallel_tasks(spark, len(parts)))
        kept = merge_written(collect(scan.map_arrow(spark, shared, PARTS_DDL)))
    return replace(
        probed,
        totals={**probed.totals, **kept.totals},
        side={**probed.side, CANDIDATES_SIDE: kept.side.get(CANDIDATES_SIDE, ())},
    )


def _find_named(spark: SparkSession, context: RunContext, storage_name: str, candidates: ParquetScan) -> NDArray[np.int64]:
    """Return the sorted key hashes of candidates that a container or commit ever referenced."""
    search = _FindHashes(candidates.files, candidates.paths)
    found = [
        _run(spark, source, replace(search, hashes_of=source.hashes_of), sum(candidates.sizes))
        for source in _sources(context, storage_name)
    ]
    return sort_distinct(np.concatenate([np.empty(0, np.int64), *found]))


@dataclass(frozen=True, slots=True)
class _Source:
    """Published rows that refer to files, and a function that hashes the keys in a batch."""

    scan: ParquetScan
    rows: int
    hashes_of: _HashesOf


def _sources(context: RunContext, storage_name: str) -> Iterator[_Source]:
    files, resolver = context.state.files, context.resolver()
    for lake in context.config.lakes:
        runs = find_segments(context, lake.name)
        segments = context.state.segments(runs)
        for side, columns, hashes_of in (
            (HASHES_SIDE, [HASHES.field("storage"), HASHES.field("key_hash")], _StoredHashes(storage_name)),
            (EDGES_SIDE, [EDGES.field("storage"), EDGES.field("key")], _StoredKeys(storage_name)),
            (CONTAINERS_SIDE, [CONTAINERS.field("container")], _Addresses(storage_name, resolver)),
        ):
            paths = segments.paths(side)
            rows = sum(part.rows for run in runs for part in run.entry.parts if part.belongs_to(side))
            if paths:
                yield _Source(ParquetScan(files, pa.schema(columns), tuple(paths), tuple(map(files.size, paths))), rows, hashes_of)
        graph = context.table(COMMIT_GRAPH, lake.name)
        if graph.rows:
            columns = pa.schema([COMMIT_GRAPH.schema.field("content_roots")])
            yield _Source(ParquetScan.of(files, columns, graph.path, graph.parts()), graph.rows, _ContentRoots(storage_name))


def _run(spark: SparkSession, source: _Source, search: _FindHashes, task_bytes: int) -> NDArray[np.int64]:
    """Search the rows of a source, in the driver if there are only a few."""
    scan = source.scan
    is_few = tasks.column_fits_in_process(source.rows, scan.sizes) and task_bytes <= tasks.MAX_IN_PROCESS_COLUMN_BYTES
    if is_small(spark) or is_few:
        return np.concatenate([batch.column("key_hash").to_numpy() for batch in search(scan.read_batches())])
    return collect_arrow(scan.map_arrow(spark, search, spark_schema(_HASH)), _HASH).column("key_hash").to_numpy()


class _HashesOf(Protocol):
    """Hash the keys in a batch that belong to one storage, on Spark executors."""

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class _StoredHashes:
    storage: str

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        return batch.filter(pc.equal(batch.column("storage"), self.storage)).column("key_hash").to_numpy()


@dataclass(frozen=True)
class _StoredKeys:
    storage: str

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        return xxhash64(batch.filter(pc.equal(batch.column("storage"), self.storage)).column("key"))


@dataclass(frozen=True)
class _Addresses:
    """Hash the keys of decoded containers, which are only stored as addresses.

    If an address cannot be resolved now, the container is not a candidate.
    """

    storage: str
    resolver: KeyResolver

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        storages, keys = self.resolver.locate(batch.column("container"))
        return xxhash64(keys.filter(pc.equal(storages, self.storage)))


@dataclass(frozen=True)
class _ContentRoots:
    storage: str

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        roots = pc.list_flatten(batch.column("content_roots"))
        return xxhash64(pc.struct_field(roots, "key").filter(pc.equal(pc.struct_field(roots, "storage"), self.storage)))


@dataclass(frozen=True)
class _FindHashes:
    """Find the distinct key hashes of published rows that equal the key hash of a candidate.

    It is pickled and sent to Spark executors.
    """

    files: Files
    candidates: tuple[str, ...]
    hashes_of: _HashesOf = _StoredHashes("")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, found = _candidate_hashes(self.files, self.candidates), list[NDArray[np.int64]]()
        for batch in batches:
            hashes = self.hashes_of(batch)
            found.append(sort_distinct(hashes[is_in_sorted(hashes, wanted)]))
        yield pa.RecordBatch.from_arrays([pa.array(sort_distinct(np.concatenate([np.empty(0, np.int64), *found])))], schema=_HASH)


@lru_cache(maxsize=1)
def _candidate_hashes(files: Files, paths: tuple[str, ...]) -> NDArray[np.int64]:
    return sort_distinct(xxhash64(read_parts(files, list(paths), CANDIDATES, ["key"]).column("key")))


@dataclass(frozen=True)
class _KeepNamed:
    """Write the candidates that were ever referenced and have not changed since the listing.

    It is pickled and sent to Spark executors.

    Attributes:
        named: Sorted key hashes of the candidates that a container or commit ever referenced.
    """

    store: Store
    files: Files
    run: TableRun
    named: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, CANDIDATES, CANDIDATES_SIDE)
        totals: dict[tuple[str, ...], Totals] = dict.fromkeys([(CANDIDATE,), (UNNAMED,), (CHANGED,)], Totals())

        def count(name: str, rows: pa.RecordBatch) -> None:
            totals[(name,)] += Totals(rows.num_rows, pc.sum(rows.column("size_bytes")).as_py() or 0)

        for batch in batches:
            is_named = pa.array(is_in_sorted(xxhash64(batch.column("key")), self.named))
            count(UNNAMED, batch.filter(pc.invert(is_named)))
            named = batch.filter(is_named)
            now = [None if found is None else found.etag for found in find_objects(self.store, named.column("key").to_pylist())]
            is_same = pc.fill_null(pc.equal(named.column("etag"), pa.array(now, pa.string())), False)
            count(CHANGED, named.filter(pc.invert(is_same)))
            kept = named.filter(is_same)
            count(CANDIDATE, kept)
            writer.write(kept)
        yield report_parts(writer.close(), totals={name: total for name, total in totals.items() if total.rows or name == (CANDIDATE,)})
