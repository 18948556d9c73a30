"""Decodes containers that were never decoded before and appends their children to the cache (design 3.4).

A container's children never change, so it is read once in the life of the platform, known by address and length. A
published segment is closed: all containers below its containers were decoded too, or stand in `_unreadable` and are
tried again every night. Which of them matter is decided where the live set is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import FormatError
from gc_assets.core.files import Files
from gc_assets.core.parts import PartWriter
from gc_assets.core.paths import KeyResolver
from gc_assets.core.receipts import Published, Run
from gc_assets.lakes.protocol import Container, Lake, Objects
from gc_assets.schemas import CONTAINERS, EDGES, MANIFEST_ENTRIES, UNREADABLE
from gc_assets.stages.content_roots import content_roots, inputs_of
from gc_assets.stages.night import Night
from gc_assets.stages.tables import PARTS_DDL, Written, collect, merge_written, parallelism, publish, read_paths, report_parts, spark_schema
from gc_assets.stores.local import LocalObjects

CONTAINERS_SIDE, EDGES_SIDE, UNREADABLE_SIDE = "_containers", "_edges", "_unreadable"
# Objects of one task that are read at the same time: enough to hide a store's latency, few enough to bound memory.
CONCURRENT_READS = 16
TASK_COLUMNS = [field.name for field in EDGES if field.name not in {"container", "container_size_bytes"}]


def segments(night: Night, lake_name: str) -> list[Published]:
    """Every published segment of the cache, of all run dates."""
    return list(night.state.runs(lake_name, MANIFEST_ENTRIES.name))


def segment_paths(published: list[Published], side: str | None = None) -> list[str]:
    return [path for segment in published for path in segment.paths(side)]


def manifest_entries(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """The segment of this run: the children of every container below the lake's commits that the cache did not hold."""
    state = night.state
    inputs = inputs_of(night, lake_name)
    cache = segments(night, lake_name)
    run = state.start(lake_name, MANIFEST_ENTRIES.name, night.run_date, night.clock)
    decode = _Decode(night.lake(lake_name), night.resolver(), LocalObjects(), state.files, run)
    known = read_paths(spark, state.files, CONTAINERS, segment_paths(cache, CONTAINERS_SIDE)).select("container", "container_size_bytes")
    retried = read_paths(spark, state.files, UNREADABLE, segment_paths(cache, UNREADABLE_SIDE)).select(*TASK_COLUMNS)
    frontier = (
        content_roots(spark, night, inputs)
        .filter("is_container")
        .select("address", "kind", "storage", "key", "size_bytes", "must_exist")
        .withColumn("expected_entries", F.lit(None).cast("long"))
        .withColumn("snapshot_id", F.lit(None).cast("string"))
        .select(*TASK_COLUMNS)
        .unionByName(retried)
    )
    levels: list[Written] = []
    while True:
        level = _decode_level(frontier, known, decode, parallelism(spark))
        levels.append(level)
        if not level.side.get(EDGES_SIDE):
            break
        own = [part for written in levels for part in written.side.get(CONTAINERS_SIDE, ())]
        own_paths = [f"{run.path}/{part.name}" for part in own]
        known = known.unionByName(read_paths(spark, state.files, CONTAINERS, own_paths).select("container", "container_size_bytes"))
        edges = [f"{run.path}/{part.name}" for part in level.side[EDGES_SIDE]]
        frontier = read_paths(spark, state.files, EDGES, edges).select(*TASK_COLUMNS)
    written = _together(levels)
    facts = {"decoded": 0, "entries": 0, "unreadable": 0, **written.facts, "levels": len(levels), "segments": len(cache) + 1}
    return publish(state, run, written, night.clock, inputs=list(inputs.values()), facts=facts, unsafe=night.unsafe)


def _decode_level(frontier: DataFrame, known: DataFrame, decode: _Decode, tasks: int) -> Written:
    grouped = frontier.groupBy("address").agg(
        F.first("kind").alias("kind"),
        F.first("storage", ignorenulls=True).alias("storage"),
        F.first("key", ignorenulls=True).alias("key"),
        F.max("size_bytes").alias("size_bytes"),
        F.max("expected_entries").alias("expected_entries"),
        F.min("snapshot_id").alias("snapshot_id"),
        F.max("must_exist").alias("must_exist"),
    )
    sized = grouped.select(*TASK_COLUMNS).mapInArrow(
        _FillSizes(decode.objects), spark_schema(pa.schema([EDGES.field(n) for n in TASK_COLUMNS]))
    )
    same = (F.col("address") == F.col("container")) & (F.col("size_bytes") == F.col("container_size_bytes"))
    pending = sized.join(known, same, "left_anti").repartition(tasks)
    return merge_written(collect(pending.mapInArrow(decode, PARTS_DDL)))


def _together(levels: list[Written]) -> Written:
    side: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for level in levels:
        for name, parts in level.side.items():
            side[name] = (*side.get(name, ()), *parts)
        for name, value in level.facts.items():
            facts[name] = facts[name] + value if name in facts else value
    parts = tuple(part for level in levels for part in level.parts)
    return Written(parts, sum(level.digest for level in levels) % 2**64, side, {}, facts)


@dataclass(frozen=True)
class _FillSizes:
    """Asks the store for the length of containers whose parents do not record it; -1 where there is no such object."""

    objects: Objects

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            for batch in batches:
                sizes = batch.column("size_bytes")
                missing = pc.is_null(sizes)
                if not pc.any(missing).as_py():
                    yield batch
                    continue
                found = list(pool.map(self._size, batch.column("address").filter(missing).to_pylist()))
                filled = pc.replace_with_mask(sizes, missing, pa.array(found, pa.int64()))
                yield batch.set_column(batch.schema.get_field_index("size_bytes"), "size_bytes", filled)

    def _size(self, address: str) -> int:
        try:
            return self.objects.size(address)
        except OSError:
            return -1  # the decoder meets the same object and says why it cannot be read


@dataclass(frozen=True)
class _Decode:
    """Reads and decodes containers and writes their children; runs in executors."""

    lake: Lake
    resolver: KeyResolver
    objects: Objects
    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = PartWriter(self.files, self.run.path, MANIFEST_ENTRIES.schema)
        containers = PartWriter(self.files, self.run.path, CONTAINERS, CONTAINERS_SIDE)
        edges = PartWriter(self.files, self.run.path, EDGES, EDGES_SIDE)
        unreadable = PartWriter(self.files, self.run.path, UNREADABLE, UNREADABLE_SIDE)
        digest = decoded = rows = failed = size_bytes = 0
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            for batch in batches:
                for task, raw in _ahead(pool, self._read, batch.to_pylist(), CONCURRENT_READS):
                    try:
                        children = self._children(task, raw)
                    except FormatError as error:
                        unreadable.write(_unreadable_row(task, str(error)))
                        failed += 1
                        continue
                    entries.write(children)
                    edges.write(_edge_rows(children))
                    length = len(raw)
                    containers.write(
                        pa.RecordBatch.from_pylist(
                            [
                                {
                                    "container": task["address"],
                                    "kind": task["kind"],
                                    "container_size_bytes": length,
                                    "entries": children.num_rows,
                                }
                            ],
                            schema=CONTAINERS,
                        )
                    )
                    digest += xxhash.xxh64_intdigest(raw, seed=len(task["address"])) + xxhash.xxh64_intdigest(task["address"].encode())
                    decoded, rows, size_bytes = decoded + 1, rows + children.num_rows, size_bytes + length
        parts = [part for writer in (entries, containers, edges, unreadable) for part in writer.close()]
        facts = {"decoded": decoded, "entries": rows, "unreadable": failed, "container_bytes": size_bytes}
        yield report_parts(parts, digest % 2**64, facts=facts)

    def _read(self, task: dict[str, Any]) -> bytes | OSError:
        try:
            return self.objects.read(task["address"])
        except OSError as error:
            return error

    def _children(self, task: dict[str, Any], raw: bytes | OSError) -> pa.RecordBatch:
        if isinstance(raw, OSError):
            raise FormatError(f"{task['kind']} {task['address']} cannot be read: {raw}") from raw
        container = Container(task["address"], task["kind"], task["size_bytes"], task["expected_entries"], task["snapshot_id"])
        rows = self.lake.decode(container, raw)
        storage, key = self.resolver.resolve(rows.column("address"))
        count = rows.num_rows
        columns = {name: rows.column(name) for name in rows.schema.names} | {
            "container": pa.repeat(pa.scalar(container.address), count),
            "container_size_bytes": pa.repeat(pa.scalar(len(raw), pa.int64()), count),
            "storage": storage,
            "key": key,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in MANIFEST_ENTRIES.schema.names], schema=MANIFEST_ENTRIES.schema)


def _ahead(pool: ThreadPoolExecutor, read: Any, tasks: list[dict[str, Any]], depth: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Tasks with what was read for them, in order, `depth` reads in flight and no more held."""
    futures = [pool.submit(read, task) for task in tasks[:depth]]
    for index, task in enumerate(tasks):
        result = futures[index].result()
        futures[index] = futures[0]  # drops the bytes once they are handed on
        if index + depth < len(tasks):
            futures.append(pool.submit(read, tasks[index + depth]))
        yield task, result


def _edge_rows(children: pa.RecordBatch) -> pa.RecordBatch:
    return children.filter(children.column("is_container"))


def _unreadable_row(task: dict[str, Any], error: str) -> pa.RecordBatch:
    row = {**task, "container": None, "container_size_bytes": None, "error": error}
    return pa.RecordBatch.from_pylist([row], schema=UNREADABLE)
