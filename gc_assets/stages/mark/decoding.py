"""Read and decode containers, and write their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gc_assets.core.claims import find_table_location
from gc_assets.core.errors import DecodingAborted, FormatError, StoreError, UndecodedTable, UnresolvedAddresses, UnresolvedContainer
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.core.paths import is_of_known_scheme, scheme_of
from gc_assets.engine.tables import report_parts
from gc_assets.lakes.file_kinds import LOCATION_KINDS, Kind
from gc_assets.lakes.protocol import Container, Lake, decode_batch
from gc_assets.stages.mark.resolution import build_links
from gc_assets.stages.mark.segment_writer import SegmentWriter, count_by_container
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    LINKS_SIDE,
    LOCATIONS_SIDE,
    TASKS,
    UNREAD_LOCATIONS,
    UNREAD_LOCATIONS_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
    UNRESOLVED,
    UNRESOLVED_SIDE,
)

# Number of concurrent reads per task: enough to hide store latency, few enough to bound memory.
# Fewer containers are not split into several tasks, because a task costs more.
CONCURRENT_READS: Final = 16
# Number of entries resolved and written together, across containers.
BATCH_ENTRIES: Final = 65_536
# Bytes of small containers decoded together. Larger containers are decoded separately.
CHUNK_BYTES: Final = 4 * 2**20


class _UnresolvedAddressError(OSError):
    """Raised if a container's address cannot be resolved, so that nothing was read."""


# The object's bytes and ETag, or the error.
_ReadResult = tuple[bytes, str] | OSError
# A task (a row of `TASKS`) and the result of reading its object.
_Read = tuple[dict[str, Any], _ReadResult]


@dataclass(frozen=True, slots=True)
class _DecodedContainer:
    """A container that was read and decoded.

    Attributes:
        task: The decoding task, a row of `TASKS`.
        length: Length in bytes.
        content_digest: Digest of the bytes.
        digest: Digest of the bytes and the address.
        rows: The entries that the lake decoded (`ENTRY_SCHEMA`, possibly with more columns).
    """

    task: dict[str, Any]
    length: int
    etag: str
    content_digest: str
    digest: int
    rows: pa.RecordBatch

    @property
    def recorded_length(self) -> int | None:
        """The length that the parent recorded, or None if it is missing or correct."""
        recorded: int | None = self.task["size_bytes"]
        return None if recorded == self.length else recorded


def content_digest(raw: bytes) -> str:
    """Return the digest of a container's bytes, as recorded in the cache."""
    return xxhash.xxh64_hexdigest(raw)


@dataclass(frozen=True)
class Decode:
    """Decode containers, which are selected by number, and write their entries.

    `run_tasks` calls it in the driver process or on executors.

    Attributes:
        tasks: Parts that list the containers, one part per number (`TASKS` columns).
        failed: Parts that list the containers that earlier runs could not read
            (`UNREADABLE_CONTAINERS` columns). If a decoder exceeded its limits, it is not run again
            on the same bytes.
    """

    lake: Lake
    resolver: KeyResolver
    objects: Objects
    files: Files
    run: TableRun
    tasks: tuple[str, ...]
    failed: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = _DecodedWriter(self.files, self.run, self.resolver)
        aborted = self._read_aborted()
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            for batch in batches:
                tasks = read_parts(self.files, [self.tasks[number] for number in batch.column("id").to_pylist()], TASKS)
                pending, rows = list[_DecodedContainer](), 0
                for reads in chunk_reads(_read_ahead(pool, self._read, tasks.to_pylist(), CONCURRENT_READS)):
                    for task, result, decoded in self._decode(reads, aborted):
                        if isinstance(decoded, FormatError):
                            writer.add_failure(task, decoded, result)
                            continue
                        pending.append(decoded)
                        rows += decoded.rows.num_rows
                        if rows >= BATCH_ENTRIES:
                            self._write(pending, writer)
                            pending, rows = [], 0
                self._write(pending, writer)
        yield writer.close()

    def _read(self, task: dict[str, Any]) -> _ReadResult:
        try:
            is_external = self.resolver.resolve_one(task["address"]) is None
        except FormatError as error:
            return _UnresolvedAddressError(str(error))  # readers may resolve the address to different objects
        except StoreError as error:
            return OSError(str(error))
        if is_external and not is_of_known_scheme(task["address"]):
            return _UnresolvedAddressError(f"this release does not read the scheme {scheme_of(task['address'])}")
        try:
            return self.objects.read_identified(task["address"])
        except OSError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the address or the object makes only this container unreadable
            return OSError(f"{type(error).__name__}: {error}")

    def _read_aborted(self) -> dict[tuple[str, str], str]:
        """Return the earlier errors of aborted decoders, keyed by container address and digest."""
        rows = read_parts(self.files, list(self.failed), UNREADABLE_CONTAINERS, ["address", "digest", "error"])
        return {(row["address"], row["digest"]): row["error"] for row in rows.filter(pc.is_valid(rows.column("digest"))).to_pylist()}

    def _decode(
        self, reads: list[_Read], aborted: Mapping[tuple[str, str], str]
    ) -> Iterator[tuple[dict[str, Any], _ReadResult, _DecodedContainer | FormatError]]:
        """Yield each task with its read result, and the decoded container or the error."""
        known = _find_aborted(reads, aborted) if aborted else {}
        contents = [
            (_to_container(task), result[0]) for task, result in reads if not isinstance(result, OSError) and task["address"] not in known
        ]
        entries = iter(decode_batch(self.lake, contents))
        for task, result in reads:
            if isinstance(result, _UnresolvedAddressError):
                reason = f"{task['kind']} {task['address']} cannot be found: {result}"
                yield task, result, UnresolvedContainer(f"{reason}. Commit its table again with another address, or drop it")
                continue
            if isinstance(result, IsADirectoryError):
                reason = f"{task['kind']} {task['address']} is a directory. Commit its table again with another address, or drop it"
                yield task, result, UndecodedTable(reason, [find_table_location(f"{task['address'].rstrip('/')}/")])
                continue
            if isinstance(result, OSError):
                is_external = self.resolver.locate_one(task["address"]) is None
                error = UnresolvedContainer if is_external else FormatError
                yield task, result, error(f"{task['kind']} {task['address']} cannot be read: {result}")
                continue
            if task["address"] in known:
                yield task, result, DecodingAborted(known[task["address"]])
                continue
            (raw, etag), rows = result, next(entries)
            if isinstance(rows, FormatError):
                yield task, result, rows
                continue
            digest = xxhash.xxh64_intdigest(raw, seed=len(task["address"])) + xxhash.xxh64_intdigest(task["address"].encode())
            yield task, result, _DecodedContainer(task, len(raw), etag, content_digest(raw), digest, rows)

    def _write(self, pending: list[_DecodedContainer], writer: _DecodedWriter) -> None:
        """Write the entries of several containers in one call, because each call is expensive.

        If the call fails, each container is written separately to find the faulty ones.
        """
        try:
            if pending:
                writer.add(pending, self._build_entries(pending))
        except (FormatError, StoreError) as error:  # an address that cannot be resolved
            if len(pending) == 1:
                undecoded = UndecodedTable(f"{pending[0].task['address']}: {error}", _locations_of(pending[0].rows))
                writer.add_failure(pending[0].task, undecoded)
                return
            for item in pending:
                self._write([item], writer)

    def _build_entries(self, containers: list[_DecodedContainer]) -> pa.RecordBatch:
        rows = pa.concat_batches([item.rows for item in containers])
        storage, key = self.resolver.resolve(rows.column("address"))
        number = pa.array(np.repeat(np.arange(len(containers)), [item.rows.num_rows for item in containers]))
        columns = {name: rows.column(name) for name in rows.schema.names} | {
            "container": pa.array([item.task["address"] for item in containers]).take(number),
            "container_size_bytes": pa.array([item.length for item in containers]).take(number),
            "storage": storage,
            "key": key,
        }
        count = rows.num_rows
        arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in MANIFEST_ENTRIES.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=MANIFEST_ENTRIES.schema)


class _DecodedWriter:
    """Write the containers that one task decodes, and collect their digest and counts."""

    def __init__(self, files: Files, run: TableRun, resolver: KeyResolver) -> None:
        self._segment = SegmentWriter(files, run)
        self._resolver = resolver
        self._digest = 0
        self._counts = {"decoded": 0, "entries": 0, "external": 0, "unreadable": 0, "container_bytes": 0}

    def add(self, decoded: list[_DecodedContainer], children: pa.RecordBatch) -> None:
        """Write containers and their entries (columns of `manifest_entries`)."""
        is_location = pc.is_in(children.column("kind"), pa.array(LOCATION_KINDS))
        entries = children.filter(pc.invert(is_location))
        hashes = self._segment.add_entries(entries)
        self._segment.add(LOCATIONS_SIDE, children.filter(is_location))
        counts, files = count_by_container(entries), count_by_container(hashes)
        rows = [
            {
                "container": item.task["address"],
                "kind": item.task["kind"],
                "container_size_bytes": item.length,
                "entries": counts.get(item.task["address"], 0),
                "etag": item.etag,
                "digest": item.content_digest,
                "recorded_size_bytes": item.recorded_length,
                "files": files.get(item.task["address"], 0),
            }
            for item in decoded
        ]
        self._segment.add(CONTAINERS_SIDE, pa.RecordBatch.from_pylist(rows, schema=CONTAINERS))
        self._digest += sum(item.digest for item in decoded)
        self._counts["decoded"] += len(decoded)
        self._counts["entries"] += entries.num_rows
        self._counts["external"] += entries.column("storage").null_count
        self._counts["container_bytes"] += sum(item.length for item in decoded)

    def add_failure(self, task: dict[str, Any], error: FormatError, result: _ReadResult | None = None) -> None:
        digest = content_digest(result[0]) if isinstance(error, DecodingAborted) and isinstance(result, tuple) else None
        row = {**task, "container": None, "container_size_bytes": None, "error": str(error)}
        row |= {"absent": isinstance(result, FileNotFoundError), "digest": digest}
        self._segment.add(UNREADABLE_CONTAINERS_SIDE, pa.RecordBatch.from_pylist([row], schema=UNREADABLE_CONTAINERS))
        self._counts["unreadable"] += 1
        if isinstance(error, UnresolvedAddresses):
            addresses = pa.array(error.addresses, pa.string())
            columns = [pa.repeat(pa.scalar(task["address"]), len(addresses)), addresses]
            self._segment.add(UNRESOLVED_SIDE, pa.RecordBatch.from_arrays(columns, schema=UNRESOLVED))
        if isinstance(error, UnresolvedContainer):
            # The address may lead to a storage by another name.
            rows = [
                {"container": task["address"], "address": self._resolver.address(storage, key), "storage": storage, "key": key}
                for storage, key in sorted(set(self._resolver.find_namesakes(task["address"])))
            ]
            self._segment.add(UNREAD_LOCATIONS_SIDE, pa.RecordBatch.from_pylist(rows, schema=UNREAD_LOCATIONS))
        if isinstance(error, UndecodedTable):
            located = list(_locate_each(error.locations, self._resolver))
            rows = [{"container": task["address"], "address": address, "storage": storage, "key": key} for address, storage, key in located]
            self._segment.add(UNREAD_LOCATIONS_SIDE, pa.RecordBatch.from_pylist(rows, schema=UNREAD_LOCATIONS))

    def close(self) -> pa.RecordBatch:
        """Record the symbolic links that the keys depend on, and return the task's report."""
        self._segment.add(LINKS_SIDE, build_links(self._resolver))
        return report_parts(self._segment.close(), self._digest % 2**64, summary=self._counts)


def _find_aborted(reads: list[_Read], aborted: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return the recorded decoding errors of objects whose bytes are unchanged, keyed by address."""
    addresses = {address for address, _ in aborted}
    digests = {
        task["address"]: content_digest(result[0])
        for task, result in reads
        if task["address"] in addresses and not isinstance(result, OSError)
    }
    return {address: aborted[address, digest] for address, digest in digests.items() if (address, digest) in aborted}


def _locations_of(rows: pa.RecordBatch) -> list[str]:
    """Return the table locations among a container's entries."""
    selected: list[str] = rows.filter(pc.equal(rows.column("kind"), Kind.TABLE_LOCATION)).column("address").to_pylist()
    return selected


def _locate_each(addresses: Sequence[str], resolver: KeyResolver) -> Iterator[tuple[str, str, str]]:
    """Yield the address, storage and key of each address that is inside a configured storage."""
    for address in addresses:
        if (found := resolver.locate_one(address)) is not None:
            yield address, *found


def _to_container(task: dict[str, Any]) -> Container:
    return Container(task["address"], task["kind"], task["size_bytes"], task["expected_entries"], task["snapshot_id"])


def chunk_reads(reads: Iterator[_Read]) -> Iterator[list[_Read]]:
    """Group containers that are decoded together.

    A group contains at most `CHUNK_BYTES`, unless it consists of a single larger container.
    """
    chunk, size_bytes = list[_Read](), 0
    for task, result in reads:
        length = 0 if isinstance(result, OSError) else len(result[0])
        if chunk and size_bytes + length > CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append((task, result))
        size_bytes += length
    if chunk:
        yield chunk


def _read_ahead(
    pool: ThreadPoolExecutor, read: Callable[[dict[str, Any]], _ReadResult], tasks: list[dict[str, Any]], depth: int
) -> Iterator[_Read]:
    """Yield tasks with the results of their reads, of which at most `depth` are kept in memory."""
    futures = [pool.submit(read, task) for task in tasks[:depth]]
    for index, task in enumerate(tasks):
        result = futures[index].result()
        futures[index] = futures[0]  # releases the bytes that the consumer has received
        if index + depth < len(tasks):
            futures.append(pool.submit(read, tasks[index + depth]))
        yield task, result
