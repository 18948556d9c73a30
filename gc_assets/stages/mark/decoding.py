"""Decodes containers: reads each one, has its lake decode it, and writes what it names
(design 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gc_assets.core.errors import FormatError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.engine.tables import report_parts
from gc_assets.lakes.file_kinds import LOCATION_KINDS
from gc_assets.lakes.protocol import Container, Lake, decode_batch
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EDGES,
    EDGES_SIDE,
    LOCATIONS,
    LOCATIONS_SIDE,
    TASKS,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
)

# This many objects of one task are read at the same time: enough to hide a store's latency, few
# enough to bound memory. Fewer containers than that are one task's work, because starting another
# costs more.
CONCURRENT_READS = 16
# Children are resolved and written this many at a time, from as many containers as it takes.
BATCH_ENTRIES = 65_536
# Small containers are decoded together, as many as hold this. A larger one is decoded by itself.
CHUNK_BYTES = 4 * 2**20


# The bytes of an object and its identity, or why there are none; and the container that was asked for.
_Found = tuple[bytes, str] | OSError
_Read = tuple[dict[str, Any], _Found]


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A container that was read.

    `etag` is the identity of the object, `content_digest` that of its bytes. `rows` are its children
    as the lake decodes them (`ENTRY_SCHEMA` or more), `digest` is that of its bytes and address.
    """

    task: dict[str, Any]
    length: int
    etag: str
    content_digest: str
    digest: int
    rows: pa.RecordBatch


def content_digest(raw: bytes) -> str:
    """Returns the digest by which a container's bytes are known again."""
    return xxhash.xxh64_hexdigest(raw)


@dataclass(frozen=True)
class Decode:
    """Reads and decodes the containers of the `tasks` whose numbers come in, and writes their
    children.

    Many tasks, here or in executors (`run_tasks`).
    """

    lake: Lake
    resolver: KeyResolver
    objects: Objects
    files: Files
    run: TableRun
    tasks: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segment = _Segment(self.files, self.run)
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            for batch in batches:
                tasks = read_parts(self.files, [self.tasks[number] for number in batch.column("id").to_pylist()], TASKS)
                held, rows = list[_Decoded](), 0
                for some in _chunks(_ahead(pool, self._read, tasks.to_pylist(), CONCURRENT_READS)):
                    for task, found, decoded in self._decoded(some):
                        if isinstance(decoded, FormatError):
                            segment.failed(task, decoded, absent=isinstance(found, FileNotFoundError))
                            continue
                        held.append(decoded)
                        rows += decoded.rows.num_rows
                        if rows >= BATCH_ENTRIES:
                            self._keep(held, segment)
                            held, rows = [], 0
                self._keep(held, segment)
        yield segment.close()

    def _read(self, task: dict[str, Any]) -> _Found:
        try:
            return self.objects.read_identified(task["address"])
        except OSError as error:
            return error

    def _decoded(self, some: list[_Read]) -> Iterator[tuple[dict[str, Any], _Found, _Decoded | FormatError]]:
        """Yields what was read of each container, and its children or why they cannot be told."""
        there = [(_container(task), found[0]) for task, found in some if not isinstance(found, OSError)]
        children = iter(decode_batch(self.lake, there))
        for task, found in some:
            if isinstance(found, OSError):
                yield task, found, FormatError(f"{task['kind']} {task['address']} cannot be read: {found}")
                continue
            (raw, etag), rows = found, next(children)
            if isinstance(rows, FormatError):
                yield task, found, rows
                continue
            digest = xxhash.xxh64_intdigest(raw, seed=len(task["address"])) + xxhash.xxh64_intdigest(task["address"].encode())
            yield task, found, _Decoded(task, len(raw), etag, content_digest(raw), digest, rows)

    def _keep(self, held: list[_Decoded], segment: _Segment) -> None:
        """Writes the children of many containers at once, because a call costs more than a few rows
        do.

        Where one of the containers cannot be kept, they are written one by one.
        """
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

    def __init__(self, files: Files, run: TableRun) -> None:
        # Apart, so that who wants the files passes over the containers by the statistics of parts.
        self._entries, self._inner = (PartWriter(files, run.path, MANIFEST_ENTRIES.schema) for _ in range(2))
        self._containers = PartWriter(files, run.path, CONTAINERS, CONTAINERS_SIDE)
        self._edges = PartWriter(files, run.path, EDGES, EDGES_SIDE)
        self._places = PartWriter(files, run.path, LOCATIONS, LOCATIONS_SIDE)
        self._unreadable = PartWriter(files, run.path, UNREADABLE_CONTAINERS, UNREADABLE_CONTAINERS_SIDE)
        self._digest = 0
        self._facts = {"decoded": 0, "entries": 0, "external": 0, "unreadable": 0, "container_bytes": 0}

    def add(self, decoded: list[_Decoded], children: pa.RecordBatch) -> None:
        """Writes containers and all their children (columns of `manifest_entries`), in the
        containers' order.
        """
        place = pc.is_in(children.column("kind"), pa.array(LOCATION_KINDS))
        entries = children.filter(pc.invert(place))
        inner = entries.filter(entries.column("is_container"))
        self._entries.write(entries.filter(pc.invert(entries.column("is_container"))))
        self._inner.write(inner)
        self._places.write(children.filter(place))
        self._edges.write(inner)
        named = pc.value_counts(entries.column("container"))
        counts = dict(zip(named.field("values").to_pylist(), named.field("counts").to_pylist(), strict=True))
        rows = [
            {
                "container": item.task["address"],
                "kind": item.task["kind"],
                "container_size_bytes": item.length,
                "entries": counts.get(item.task["address"], 0),
                "etag": item.etag,
                "digest": item.content_digest,
            }
            for item in decoded
        ]
        self._containers.write(pa.RecordBatch.from_pylist(rows, schema=CONTAINERS))
        self._digest += sum(item.digest for item in decoded)
        self._facts["decoded"] += len(decoded)
        self._facts["entries"] += entries.num_rows
        self._facts["external"] += entries.column("storage").null_count
        self._facts["container_bytes"] += sum(item.length for item in decoded)

    def failed(self, task: dict[str, Any], error: FormatError, *, absent: bool) -> None:
        row = {**task, "container": None, "container_size_bytes": None, "error": str(error), "absent": absent}
        self._unreadable.write(pa.RecordBatch.from_pylist([row], schema=UNREADABLE_CONTAINERS))
        self._facts["unreadable"] += 1

    def close(self) -> pa.RecordBatch:
        """Returns what the driver is told of the task."""
        writers = (self._entries, self._inner, self._containers, self._edges, self._places, self._unreadable)
        return report_parts([part for writer in writers for part in writer.close()], self._digest % 2**64, summary=self._facts)


def _container(task: dict[str, Any]) -> Container:
    return Container(task["address"], task["kind"], task["size_bytes"], task["expected_entries"], task["snapshot_id"])


def _chunks(reads: Iterator[_Read]) -> Iterator[list[_Read]]:
    """Yields containers that are decoded together."""
    some, size_bytes = list[_Read](), 0
    for task, found in reads:
        length = 0 if isinstance(found, OSError) else len(found[0])
        if some and size_bytes + length > CHUNK_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append((task, found))
        size_bytes += length
    if some:
        yield some


def _ahead(pool: ThreadPoolExecutor, read: Callable[[dict[str, Any]], _Found], tasks: list[dict[str, Any]], depth: int) -> Iterator[_Read]:
    """Yields tasks with what was read for them, in order.

    At most `depth` reads are in flight or held.
    """
    futures = [pool.submit(read, task) for task in tasks[:depth]]
    for index, task in enumerate(tasks):
        result = futures[index].result()
        futures[index] = futures[0]  # drops the bytes once they are handed on
        if index + depth < len(tasks):
            futures.append(pool.submit(read, tasks[index + depth]))
        yield task, result
