"""Build the Bloom filter of a storage's live keys, and verify it by reading it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from xxhash import xxh64_intdigest

from gc_assets.core.errors import GcError
from gc_assets.core.filter import TARGET_FPR, Filter, FilterSpec
from gc_assets.core.plan import Amount, LiveCount
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    PARTS_DDL,
    collect,
    frame_from_arrow,
    merge_written,
    parallelism,
    publish,
    report_parts,
    run_in_process,
    spark_schema,
)
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LIVE_FILES, LIVE_FILTER
from gc_assets.state.side_tables import EXPIRED_SIDE
from gc_assets.state.summaries import LiveFilesSummary, LiveFilterSummary

# Each slice is built, merged and probed in the memory of one worker. This number of keys needs
# about 100 MiB.
SLICE_KEYS: Final = 20_000_000
# Detects false-positive rates of 1e-4 and more, a hundred times the target.
FALSE_POSITIVE_SAMPLES: Final = 100_000
# Each partial filter is as large as the merged filter, so their number per slice is limited.
MAX_PARTIAL_FILTERS: Final = 8
SLICED_DDL: Final = "key_hash long, slice int"
_HITS: Final = pa.schema([("probed", pa.int64()), ("hits", pa.int64())])
PARTIAL: Final = pa.schema([LIVE_FILTER.schema.field(name) for name in ("slice", "keys", "filter")])


def live_keys(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> DataFrame:
    """Return the live files of all lakes in a storage, as rows of `live_files`.

    If two lakes need a key, it occurs twice. Use `LiveKeys` instead if hashes are sufficient,
    because this function joins all entries.
    """
    frames = [LiveSet(context, table).read(spark) for table in live]
    return reduce(DataFrame.unionByName, frames).filter(F.col("storage") == storage_name)


def expired_keys(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> DataFrame:
    """Return the files that only expired history needs, as rows of `live_files`.

    The policy no longer keeps this history, but the lake still contains it. Lakes whose history is
    never edited do not have such files.
    """
    edited = [table for table in live if context.kind(table.receipt.owner).edits_history]
    frames = [LiveSet(context, table).read(spark, EXPIRED_SIDE) for table in edited if table.summary(LiveFilesSummary).expired_files]
    empty = frame_from_arrow(spark, LIVE_FILES.schema.empty_table())
    return reduce(DataFrame.unionByName, frames, empty).filter(F.col("storage") == storage_name)


def live_count(live: list[PublishedTable], storage_name: str) -> LiveCount:
    """Count the rows of `live_keys` for each lake, based on the receipts of `live_files`.

    Keys that may not exist (`possible_by_storage`) are not counted. Lakes that do not need any
    files in the storage are omitted.
    """
    counts: dict[str, int] = {}
    for table in live:
        summary = table.summary(LiveFilesSummary)
        possible = summary.possible_by_storage.get(storage_name, Amount()).files
        if files := summary.by_storage.get(storage_name, Amount()).files - possible:
            counts[table.receipt.owner] = files
    return LiveCount(sum(counts.values()), counts)


def live_rows(live: list[PublishedTable], storage_name: str) -> int:
    """Count the rows of `live_keys`, based on the receipts of `live_files`."""
    return sum(table.summary(LiveFilesSummary).by_storage.get(storage_name, Amount()).files for table in live)


def seed_for(run_date: date) -> int:
    """Return the hash seed of a run date.

    With a fixed seed, every run would have the same false positives.
    """
    return run_date.toordinal()


@log_progress(LIVE_FILTER)
def live_filter(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Publish a filter over all live keys of a storage, sized for their exact number.

    After publication, every live key is looked up in the filter. The measured false-positive rate
    is part of the receipt.

    The filter is always built from scratch. An extended version of the previous filter would still
    contain keys that are no longer live, so their files would never become candidates.

    Raises:
        GcError: If a live key is missing from the published filter.
    """
    state = context.state
    live = context.lake_tables(LIVE_FILES)
    count = live_rows(live, storage_name)
    slices = max(1, -(-count // SLICE_KEYS))
    run = start_run(context, storage_name, LIVE_FILTER)
    spec = FilterSpec.for_keys(
        keys=max(1, -(-count // slices) if slices == 1 else int(count / slices * 1.1)), seed=seed_for(context.run_date)
    )
    keys = LiveKeys.of(spark, context, storage_name, live)
    merge = _MergeFilters(spec, slices, state.files, run)
    log_activity(f"{count:,} live keys in {count_of(slices, 'slice')}")
    written = merge_written(_build_slices(keys, spec, slices, merge))
    missing_slices = slices - written.rows
    summary = LiveFilterSummary(
        keys=count,
        slices=slices,
        bits_per_key=round(spec.size_bytes * 8 / max(1, spec.keys), 2),
        false_positive_target=TARGET_FPR,
        false_positives_measured=written.summary.get("false_positives", 0.0) / max(1, written.rows),
        empty_slices=missing_slices,
    )
    published = publish(
        state,
        run,
        written,
        context.clock,
        inputs=live,
        balances=[Balance(name="live keys", expected=count, found=int(written.summary.get("added", 0)))],
        summary=summary,
        unsafe=context.unsafe,
    )
    log_activity(f"looking up {count:,} live keys")
    _look_up(keys, state.files, published, count)
    return published


def _look_up(keys: LiveKeys, files: Files, published: PublishedTable, expected: int) -> None:
    """Read the filter back from the state, and look up all live entries in it.

    Raises:
        GcError: If any entry is missing from the filter. The message contains the counts.
    """
    rows = keys.run_task(_CountHits(ProbeFilter(files, tuple(published.paths()))), _HITS)
    probed, hits = (pc.sum(rows.column(name)).as_py() or 0 for name in _HITS.names)
    if not probed == hits >= expected:
        raise GcError(
            f"Cannot use live_filter in {published.path}, because it is incomplete: {expected:,} live keys, {probed:,} "
            f"entries looked up, {hits:,} found. A live key that is missing from the filter would be deleted. Run live_filter again; "
            "if the error persists, report a bug."
        )


def _build_slices(keys: LiveKeys, spec: FilterSpec, slices: int, merge: _MergeFilters) -> Sequence[Any]:
    """Build all slices (partitions by key hash) of the filter, and return the reports of `merge`.

    A single call of `merge` merges each slice.
    """
    build = _BuildPartialFilters(spec, slices)
    if slices == 1 and keys.runs_in_process:
        return run_in_process(merge, build(keys.distinct()))
    if slices == 1:
        partial = keys.distinct_frame().coalesce(MAX_PARTIAL_FILTERS).mapInArrow(build, spark_schema(PARTIAL))
    else:
        # Without the repartition, every task would build filters for all slices.
        sliced = keys.distinct_frame().mapInArrow(_AddSlice(slices), SLICED_DDL).repartition(slices, "slice")
        partial = sliced.mapInArrow(build, spark_schema(PARTIAL))
    width = min(slices, parallelism(keys.spark))
    return collect(partial.repartition(width, "slice").mapInArrow(merge, PARTS_DDL))


def _slice_of(hashes: np.ndarray, slices: int) -> np.ndarray:
    """Return the slice number of each hash, computed like Spark's `pmod`."""
    return np.mod(hashes, slices)


def _by_slice(hashes: np.ndarray, slices: int) -> Iterator[tuple[int, slice | np.ndarray]]:
    """Yield each slice number that occurs, with an index that selects the hashes in that slice."""
    if slices == 1:
        yield from [(0, slice(None))] if len(hashes) else []
        return
    which = _slice_of(hashes, slices)
    for number in np.unique(which).tolist():
        yield number, which == number


@dataclass(frozen=True)
class ProbeFilter:
    """Look up hashes in a published filter.

    When it is pickled for Spark executors, it only contains paths. Each worker process reads the
    filter once.
    """

    files: Files
    paths: tuple[str, ...]

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        slices, filters = _load(self.files, self.paths)
        if slices == 0:
            return np.zeros(len(hashes), dtype=bool)
        found = np.zeros(len(hashes), dtype=bool)
        for number, mine in _by_slice(hashes, slices):
            if (bloom := filters.get(number)) is not None:
                found[mine] = bloom.contains(hashes[mine])
        return found


@lru_cache(maxsize=2)
def _load(files: Files, paths: tuple[str, ...]) -> tuple[int, dict[int, Filter]]:
    rows = read_parts(files, list(paths), LIVE_FILTER.schema).to_pylist()
    return (rows[0]["slices"] if rows else 0), {row["slice"]: Filter.from_bytes(row["filter"]) for row in rows}


@dataclass(frozen=True)
class _AddSlice:
    """Add the slice number to each hash, as described by `SLICED_DDL`."""

    slices: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            hashes = batch.column("key_hash")
            numbers = pa.array(_slice_of(hashes.to_numpy(), self.slices), pa.int32())
            yield pa.RecordBatch.from_pydict({"key_hash": hashes, "slice": numbers})


@dataclass(frozen=True)
class _BuildPartialFilters:
    """Add a partition's hashes to partial filters, one for each slice that occurs."""

    spec: FilterSpec
    slices: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filters: dict[int, Filter] = {}
        keys: dict[int, int] = {}
        for batch in batches:
            hashes = batch.column("key_hash").to_numpy()
            for number, mine in _by_slice(hashes, self.slices):
                if number not in filters:
                    filters[number] = Filter.empty(self.spec)
                filters[number].add(hashes[mine])
                keys[number] = keys.get(number, 0) + len(hashes[mine])
        for number, bloom in filters.items():
            row = {"slice": number, "keys": keys[number], "filter": bloom.to_bytes()}
            yield pa.RecordBatch.from_pylist([row], schema=PARTIAL)


@dataclass(frozen=True)
class _MergeFilters:
    """Merge the partial filters of each slice, and write the published filter."""

    spec: FilterSpec
    slices: int
    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        merged: dict[int, Filter] = {}
        keys: dict[int, int] = {}
        for batch in batches:
            for row in batch.to_pylist():
                number, part = row["slice"], Filter.from_bytes(row["filter"])
                keys[number] = keys.get(number, 0) + row["keys"]
                if number in merged:
                    merged[number].merge(part)
                else:
                    merged[number] = part
        writer = PartWriter(self.files, self.run.path, LIVE_FILTER.schema)
        digest, rates = 0, 0.0
        for number, bloom in merged.items():
            content = bloom.to_bytes()
            row = {"slice": number, "slices": self.slices, "keys": keys[number], "filter": content}
            writer.write(pa.RecordBatch.from_pylist([row], schema=LIVE_FILTER.schema))
            digest += xxh64_intdigest(content)
            rates += bloom.measured_fpr(FALSE_POSITIVE_SAMPLES, np.random.default_rng(self.spec.seed))
        yield report_parts(writer.close(), digest % 2**64, summary={"added": sum(keys.values()), "false_positives": rates})


@dataclass(frozen=True)
class _CountHits:
    probe: ProbeFilter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        probed = hits = 0
        for batch in batches:
            probed += batch.num_rows
            hits += int(self.probe.contains(batch.column("key_hash").to_numpy()).sum())
        yield pa.RecordBatch.from_pydict({"probed": [probed], "hits": [hits]}, schema=_HITS)
