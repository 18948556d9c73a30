"""Decodes containers that were never decoded before and appends their children to the cache (design 3.4).

A container's children never change, so it is read once in the life of the platform, known by address and length. A
published segment is closed: all containers below its containers were decoded too, or stand in `_unreadable` and are
tried again every night. Which of them matter is decided where the live set is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import SparkSession

from gc_assets import __version__
from gc_assets.core.errors import FormatError
from gc_assets.core.files import Files
from gc_assets.core.parts import PartWriter, read_parts
from gc_assets.core.paths import KeyResolver
from gc_assets.core.receipts import Published, Run
from gc_assets.lakes.protocol import PLACE_KINDS, Container, Lake, Objects
from gc_assets.schemas import CONTAINERS, EDGES, MANIFEST_ENTRIES, PLACES, UNREADABLE
from gc_assets.stages.content_roots import RELEASED, RootTables, content_roots, inputs_of, root_tables
from gc_assets.stages.night import Night
from gc_assets.stages.tables import PARTS_DDL, Written, collect, merge_written, parallelism, paths_of, publish, put, report_parts
from gc_assets.stores.local import LocalObjects

CONTAINERS_SIDE, EDGES_SIDE, PLACES_SIDE, UNREADABLE_SIDE = "_containers", "_edges", "_places", "_unreadable"
# What one level has to decode, a part for each decoding task; deleted afterwards.
TASKS_SIDE = "_tasks"
# Objects of one task that are read at the same time: enough to hide a store's latency, few enough to bound memory. Fewer containers
# than that are one task's work, because starting another costs more.
CONCURRENT_READS = 16
# Children are resolved and written this many at a time, of as many containers as it takes.
BATCH_ENTRIES = 65_536
TASKS: Final = pa.schema([field for field in EDGES if field.name not in {"container", "container_size_bytes"}])
ROOT_COLUMNS: Final = [name for name in TASKS.names if name not in {"expected_entries", "snapshot_id"}]


def segments(night: Night, lake_name: str) -> list[Published]:
    """Every published segment of the cache, of all run dates, that was decoded as this run would decode it.

    Rows carry the storage and key of each child, and a release may understand a format better than the one before: after
    a change of the storages or of the release everything is decoded anew.
    """
    meaning = decoded_as(night, lake_name)
    return [item for item in night.state.runs(lake_name, MANIFEST_ENTRIES.name) if item.receipt.facts.get("decoded_as") == meaning]


def decoded_as(night: Night, lake_name: str) -> str:
    """What the rows of a segment depend on besides the containers themselves."""
    places = sorted((storage.name, storage.location) for storage in night.config.storages)
    chosen = night.config.lake(lake_name).decoding()
    return hashlib.sha256(json.dumps([__version__, MANIFEST_ENTRIES.schema.names, places, *chosen]).encode()).hexdigest()


def segment_paths(published: list[Published], side: str | None = None) -> list[str]:
    return [path for segment in published for path in segment.paths(side)]


def manifest_entries(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """The segment of this run: the children of every container below the lake's commits that the cache did not hold."""
    state = night.state
    inputs = inputs_of(night, lake_name)
    cache = segments(night, lake_name)
    run = state.start(lake_name, MANIFEST_ENTRIES.name, night.run_date, night.clock)
    known, parents = segment_paths(cache, CONTAINERS_SIDE), segment_paths(cache, UNREADABLE_SIDE)
    roots: RootTables | None = root_tables(night, lake_name, inputs)
    levels: list[Written] = []
    while roots is not None or parents:
        pending = _Pending(state.files, LocalObjects(), tuple(known), tuple(parents), roots, run, parallelism(spark))
        tasks = paths_of(run, merge_written(collect(spark.range(0, 1, 1, 1).mapInArrow(pending, PARTS_DDL))), TASKS_SIDE)
        if not tasks:
            break
        decode = _Decode(night.lake(lake_name), night.resolver(), LocalObjects(), state.files, run, tuple(tasks))
        level = merge_written(collect(spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(decode, PARTS_DDL)))
        levels.append(level)
        known, parents, roots = known + paths_of(run, level, CONTAINERS_SIDE), paths_of(run, level, EDGES_SIDE), None
        state.files.delete_directory(f"{run.path}/{TASKS_SIDE}")
    written = _together(levels)
    facts = {
        "decoded": 0,
        "entries": 0,
        "unreadable": 0,
        **written.facts,
        "levels": len(levels),
        "segments": len(cache) + 1,
        "decoded_as": decoded_as(night, lake_name),
    }
    return publish(state, run, written, night.clock, inputs=list(inputs.values()), facts=facts, unsafe=night.unsafe)


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
class _Pending:
    """Writes the containers that were never decoded, each once (columns `TASKS`), as a part for each of at most `width` decoding tasks;
    runs in one executor task.

    They come from `parents` (edges of the level above, or what could not be read on earlier nights) and from the content
    roots where those are given. A container whose parent does not record its length is asked for it; one that is not
    there gets -1, so that no decoded object of that name stands in for it. A freed content root that was decoded or gone on an
    earlier night is not asked for again: collected history would be asked for every night, for ever.
    """

    files: Files
    objects: Objects
    known: tuple[str, ...]
    parents: tuple[str, ...]
    roots: RootTables | None
    run: Run
    width: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            wanted = read_parts(self.files, list(self.parents), TASKS)
            known = read_parts(self.files, list(self.known), CONTAINERS, ["container", "container_size_bytes"])
            if self.roots is not None:
                roots = content_roots(self.roots)
                containers = roots.filter(roots.column("is_container"))
                # Of a root only tonight's word counts: the length it had when it could not be read may have been the fault.
                inner = wanted.filter(pc.invert(pc.is_in(wanted.column("address"), containers.column("address"))))
                asked = containers.filter(pc.invert(self._settled(containers, known))).select(ROOT_COLUMNS)
                wanted = pa.concat_tables([inner, asked], promote_options="default")
            tasks = self._sized(_once(wanted))
            decoded = pc.is_in(named_length(tasks, "address", "size_bytes"), named_length(known, "container", "container_size_bytes"))
            tasks = tasks.filter(pc.invert(decoded))
            width = min(self.width, -(-tasks.num_rows // CONCURRENT_READS))
            dealt = (tasks.take(np.arange(number, tasks.num_rows, width)) for number in range(width))
            yield report_parts([part for share in dealt for part in put(share, self.run, self.files, TASKS_SIDE)])

    def _settled(self, roots: pa.Table, known: pa.Table) -> pa.ChunkedArray:
        """Freed roots of a lake with contents that an earlier night decoded or did not find."""
        if self.roots is None or self.roots.contents is None:
            return pa.chunked_array([pa.array([False] * roots.num_rows, pa.bool_())])
        failed = read_parts(self.files, list(self.parents), UNREADABLE, ["address", "absent"])
        gone = pc.is_in(roots.column("address"), failed.column("address").filter(failed.column("absent")))
        decoded = pc.is_in(roots.column("address"), known.column("container"))
        return pc.and_(pc.greater_equal(roots.column("rank"), RELEASED), pc.or_(gone, decoded))

    def _sized(self, tasks: pa.Table) -> pa.Table:
        sizes = tasks.column("size_bytes")
        missing = pc.is_null(sizes)
        addresses = tasks.column("address").filter(missing).to_pylist()
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            found = pa.array(list(pool.map(self._size, addresses)), pa.int64())
        filled = pc.replace_with_mask(sizes.combine_chunks(), missing.combine_chunks(), found)
        return tasks.set_column(tasks.schema.get_field_index("size_bytes"), TASKS.field("size_bytes"), filled)

    def _size(self, address: str) -> int:
        try:
            return self.objects.size(address)
        except OSError:
            return -1  # the decoder meets the same object and says why it cannot be read


def _once(wanted: pa.Table) -> pa.Table:
    """One task per address, with what any of its parents says of it."""
    how = {name: "max" for name in TASKS.names if name not in {"address", "snapshot_id"}} | {"snapshot_id": "min"}
    grouped = wanted.group_by("address").aggregate(list(how.items()))
    named = {f"{name}_{function}": name for name, function in how.items()}
    return grouped.rename_columns([named.get(name, name) for name in grouped.column_names]).select(TASKS.names).cast(TASKS)


def named_length(rows: pa.Table, address: str, length: str) -> pa.ChunkedArray:
    """Address and length as one value, by which a decoded object is known."""
    return pc.binary_join_element_wise(rows.column(address), rows.column(length).cast(pa.string()), "\x1f")


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A container that was read, with its children as the lake decodes them (`ENTRY_SCHEMA` or more) and the digest of its bytes."""

    task: dict[str, Any]
    length: int
    digest: int
    rows: pa.RecordBatch


@dataclass(frozen=True)
class _Decode:
    """Reads and decodes the containers of the `tasks` whose numbers come in, and writes their children; runs in executors."""

    lake: Lake
    resolver: KeyResolver
    objects: Objects
    files: Files
    run: Run
    tasks: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segment = _Segment(self.files, self.run)
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            for batch in batches:
                tasks = read_parts(self.files, [self.tasks[number] for number in batch.column("id").to_pylist()], TASKS)
                held, rows = list[_Decoded](), 0
                for task, raw in _ahead(pool, self._read, tasks.to_pylist(), CONCURRENT_READS):
                    try:
                        decoded = self._decoded(task, raw)
                    except FormatError as error:
                        segment.failed(task, error, absent=isinstance(raw, FileNotFoundError))
                        continue
                    held.append(decoded)
                    rows += decoded.rows.num_rows
                    if rows >= BATCH_ENTRIES:
                        self._keep(held, segment)
                        held, rows = [], 0
                self._keep(held, segment)
        yield segment.close()

    def _read(self, task: dict[str, Any]) -> bytes | OSError:
        try:
            return self.objects.read(task["address"])
        except OSError as error:
            return error

    def _decoded(self, task: dict[str, Any], raw: bytes | OSError) -> _Decoded:
        if isinstance(raw, OSError):
            raise FormatError(f"{task['kind']} {task['address']} cannot be read: {raw}") from raw
        container = Container(task["address"], task["kind"], task["size_bytes"], task["expected_entries"], task["snapshot_id"])
        digest = xxhash.xxh64_intdigest(raw, seed=len(task["address"])) + xxhash.xxh64_intdigest(task["address"].encode())
        return _Decoded(task, len(raw), digest, self.lake.decode(container, raw))

    def _keep(self, held: list[_Decoded], segment: _Segment) -> None:
        """Many containers at once, because a call costs more than a few rows do; one by one where one of them cannot be kept."""
        try:
            if held:
                segment.add(held, self._children(held))
        except FormatError as error:
            if len(held) == 1:
                segment.failed(held[0].task, error, absent=False)
                return
            for item in held:
                self._keep([item], segment)

    def _children(self, held: list[_Decoded]) -> pa.RecordBatch:
        rows = pa.concat_batches([item.rows for item in held])
        storage, key = self.resolver.resolve(rows.column("address"))
        of = pa.array(np.repeat(np.arange(len(held)), [item.rows.num_rows for item in held]))
        columns = {name: rows.column(name) for name in rows.schema.names} | {
            "container": pa.array([item.task["address"] for item in held]).take(of),
            "container_size_bytes": pa.array([item.length for item in held]).take(of),
            "storage": storage,
            "key": key,
        }
        count = rows.num_rows
        arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in MANIFEST_ENTRIES.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=MANIFEST_ENTRIES.schema)


class _Segment:
    """What one task writes: children, containers, edges, places, and what could not be read."""

    def __init__(self, files: Files, run: Run) -> None:
        self._entries = PartWriter(files, run.path, MANIFEST_ENTRIES.schema)
        self._containers = PartWriter(files, run.path, CONTAINERS, CONTAINERS_SIDE)
        self._edges = PartWriter(files, run.path, EDGES, EDGES_SIDE)
        self._places = PartWriter(files, run.path, PLACES, PLACES_SIDE)
        self._unreadable = PartWriter(files, run.path, UNREADABLE, UNREADABLE_SIDE)
        self._digest = 0
        self._facts = {"decoded": 0, "entries": 0, "unreadable": 0, "container_bytes": 0}

    def add(self, decoded: list[_Decoded], children: pa.RecordBatch) -> None:
        """Containers and all their children (columns of `manifest_entries`), in the containers' order."""
        place = pc.is_in(children.column("kind"), pa.array(PLACE_KINDS))
        entries = children.filter(pc.invert(place))
        self._entries.write(entries)
        self._places.write(children.filter(place))
        self._edges.write(entries.filter(entries.column("is_container")))
        named = pc.value_counts(entries.column("container"))
        counts = dict(zip(named.field("values").to_pylist(), named.field("counts").to_pylist(), strict=True))
        rows = [
            {
                "container": item.task["address"],
                "kind": item.task["kind"],
                "container_size_bytes": item.length,
                "entries": counts.get(item.task["address"], 0),
            }
            for item in decoded
        ]
        self._containers.write(pa.RecordBatch.from_pylist(rows, schema=CONTAINERS))
        self._digest += sum(item.digest for item in decoded)
        self._facts["decoded"] += len(decoded)
        self._facts["entries"] += entries.num_rows
        self._facts["container_bytes"] += sum(item.length for item in decoded)

    def failed(self, task: dict[str, Any], error: FormatError, *, absent: bool) -> None:
        row = {**task, "container": None, "container_size_bytes": None, "error": str(error), "absent": absent}
        self._unreadable.write(pa.RecordBatch.from_pylist([row], schema=UNREADABLE))
        self._facts["unreadable"] += 1

    def close(self) -> pa.RecordBatch:
        """What the driver is told of it."""
        writers = (self._entries, self._containers, self._edges, self._places, self._unreadable)
        return report_parts([part for writer in writers for part in writer.close()], self._digest % 2**64, facts=self._facts)


def _ahead(pool: ThreadPoolExecutor, read: Any, tasks: list[dict[str, Any]], depth: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Tasks with what was read for them, in order, `depth` reads in flight and no more held."""
    futures = [pool.submit(read, task) for task in tasks[:depth]]
    for index, task in enumerate(tasks):
        result = futures[index].result()
        futures[index] = futures[0]  # drops the bytes once they are handed on
        if index + depth < len(tasks):
            futures.append(pool.submit(read, tasks[index + depth]))
        yield task, result
