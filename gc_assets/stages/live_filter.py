"""Builds the bloom filter of a storage's live keys in executors, and proves it by reading it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from xxhash import xxh64_intdigest

from gc_assets.core.errors import GcError
from gc_assets.core.files import Files
from gc_assets.core.filter import TARGET_FPR, Filter, FilterSpec
from gc_assets.core.parts import PartWriter, read_parts
from gc_assets.core.receipts import Balance, Published, Run
from gc_assets.lakes.registry import EDITED_HISTORIES
from gc_assets.schemas import LIVE_FILES, LIVE_FILTER
from gc_assets.stages.live_files import EXPIRED_SIDE
from gc_assets.stages.night import Night
from gc_assets.stages.tables import PARTS_DDL, collect, merge_written, parallelism, publish, read_table, report_parts, spark_schema

# A slice is built, merged and probed whole in one worker's memory; this many keys make about 100 MiB.
SLICE_KEYS: Final = 20_000_000
FALSE_POSITIVE_SAMPLES: Final = 1_000_000
PARTIAL: Final = pa.schema([LIVE_FILTER.schema.field(name) for name in ("slice", "keys", "filter")])


def live_tables(night: Night) -> list[Published]:
    """`live_files` of every lake: any lake may point into any storage, so a storage's live set is the union of all (design 2)."""
    return [night.state.require(night.group(lake.name), LIVE_FILES.name, night.run_date) for lake in night.config.lakes]


def live_keys(spark: SparkSession, night: Night, storage_name: str, live: list[Published]) -> DataFrame:
    """Rows of `live_files` of all lakes that lie in the storage; a key that two lakes need appears twice."""
    frames = [read_table(spark, night.state, LIVE_FILES, table) for table in live]
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    return everything.filter(F.col("storage") == storage_name)


def expired_keys(spark: SparkSession, night: Night, storage_name: str, live: list[Published]) -> DataFrame:
    """Rows of files that only history needs which the policy no longer keeps and which is not edited yet, in the shape of `live_files`."""
    edited = [table for table in live if night.config.lake(_lake_of(table)).kind in EDITED_HISTORIES]
    everything = spark.createDataFrame([], spark_schema(LIVE_FILES.schema))
    for table in edited:
        everything = everything.unionByName(read_table(spark, night.state, LIVE_FILES, table, EXPIRED_SIDE))
    return everything.filter(F.col("storage") == storage_name)


def _lake_of(live: Published) -> str:
    """A fresh mark's tables lie below other groups than the night's."""
    return live.receipt.group.rpartition("/")[2]


def live_count(live: list[Published], storage_name: str) -> int:
    """Rows of `live_keys`, from the receipts, without names that are only possible: they are no files to count."""
    possible = sum(table.receipt.facts.get("possible_by_storage", {}).get(storage_name, {"files": 0})["files"] for table in live)
    return live_rows(live, storage_name) - possible


def live_rows(live: list[Published], storage_name: str) -> int:
    """Rows of `live_keys`, from the receipts."""
    return sum(table.receipt.facts["by_storage"].get(storage_name, {"files": 0})["files"] for table in live)


def seed_of(run_date: date) -> int:
    """Another seed each night: a fixed one would keep the same false positives for ever (reliability.md 7.4)."""
    return run_date.toordinal()


def live_filter(spark: SparkSession, night: Night, storage_name: str) -> Published:
    """The filter over all live keys of a storage, sized from their exact count.

    After publication every live key is looked up in the published artefact by the executors that will use it; one miss
    raises `GcError` and the partition fails. The receipt carries the measured false-positive rate.
    """
    state = night.state
    live = live_tables(night)
    count = live_rows(live, storage_name)
    slices = max(1, -(-count // SLICE_KEYS))
    run = state.start(storage_name, LIVE_FILTER.name, night.run_date, night.clock)
    spec = FilterSpec.sized(keys=max(1, -(-count // slices) if slices == 1 else int(count / slices * 1.1)), seed=seed_of(night.run_date))
    hashes = live_keys(spark, night, storage_name, live).select(
        "key_hash", F.pmod(F.col("key_hash"), F.lit(slices)).cast("int").alias("slice")
    )
    if slices > 1:
        hashes = hashes.repartition(slices, "slice")
    partial = hashes.mapInArrow(_Build(spec), spark_schema(PARTIAL)).repartition(min(slices, parallelism(spark)), "slice")
    merge = _Merge(spec, slices, state.files, run)
    written = merge_written(collect(partial.mapInArrow(merge, PARTS_DDL)))
    missing_slices = slices - written.rows
    facts = {
        "keys": count,
        "slices": slices,
        "bits_per_key": round(spec.size_bytes * 8 / max(1, spec.keys), 2),
        "false_positive_target": TARGET_FPR,
        "false_positives_measured": written.facts.get("false_positives", 0.0) / max(1, written.rows),
        "empty_slices": missing_slices,
    }
    published = publish(
        state,
        run,
        written,
        night.clock,
        inputs=live,
        balances=[Balance(name="live keys", expected=count, found=int(written.facts.get("added", 0)))],
        facts=facts,
        unsafe=night.unsafe,
    )
    self_test(hashes, state.files, published, count)
    return published


def self_test(hashes: DataFrame, files: Files, published: Published, expected: int) -> None:
    """Every live key is in the filter as read back from storage. Raises `GcError` with the counts otherwise."""
    probe = ProbeFilter(files, tuple(published.paths()))
    rows = collect(hashes.mapInArrow(_CountHits(probe), "probed long, hits long"))
    probed, hits = sum(row["probed"] for row in rows), sum(row["hits"] for row in rows)
    if not probed == hits == expected:
        raise GcError(
            f"live_filter of {published.path}: of {expected:,} live keys {probed:,} were looked up and {hits:,} found; "
            "a filter that misses a live key would delete it. Run live_filter again; if it persists, report a bug."
        )


@dataclass(frozen=True)
class ProbeFilter:
    """Looks hashes up in a published filter. Pickles as paths; each worker process reads the artefact once."""

    files: Files
    paths: tuple[str, ...]

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        slices, filters = _load(self.files, self.paths)
        if slices == 0:
            return np.zeros(len(hashes), dtype=bool)
        found = np.zeros(len(hashes), dtype=bool)
        which = np.mod(hashes, slices)
        for number, bloom in filters.items():
            mine = which == number
            found[mine] = bloom.contains(hashes[mine])
        return found


@lru_cache(maxsize=2)
def _load(files: Files, paths: tuple[str, ...]) -> tuple[int, dict[int, Filter]]:
    rows = read_parts(files, list(paths), LIVE_FILTER.schema).to_pylist()
    return (rows[0]["slices"] if rows else 0), {row["slice"]: Filter.from_bytes(row["filter"]) for row in rows}


@dataclass(frozen=True)
class _Build:
    """Hashes of a partition into partial filters, one per slice met."""

    spec: FilterSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filters: dict[int, Filter] = {}
        keys: dict[int, int] = {}
        for batch in batches:
            hashes, slices = batch.column("key_hash").to_numpy(), batch.column("slice").to_numpy()
            for number in np.unique(slices).tolist():
                mine = hashes[slices == number]
                filters.setdefault(number, Filter.empty(self.spec)).add(mine)
                keys[number] = keys.get(number, 0) + len(mine)
        for number, bloom in filters.items():
            row = {"slice": number, "keys": keys[number], "filter": bloom.to_bytes()}
            yield pa.RecordBatch.from_pylist([row], schema=PARTIAL)


@dataclass(frozen=True)
class _Merge:
    """Partial filters of a slice OR-ed together and written as the published artefact."""

    spec: FilterSpec
    slices: int
    files: Files
    run: Run

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
        yield report_parts(writer.close(), digest % 2**64, facts={"added": sum(keys.values()), "false_positives": rates})


@dataclass(frozen=True)
class _CountHits:
    probe: ProbeFilter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        probed = hits = 0
        for batch in batches:
            probed += batch.num_rows
            hits += int(self.probe.contains(batch.column("key_hash").to_numpy()).sum())
        yield pa.RecordBatch.from_pydict({"probed": [probed], "hits": [hits]})
