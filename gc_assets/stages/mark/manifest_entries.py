"""Decodes containers that were never decoded before and appends their children to the cache (design
3.4).

A container's children never change. So a container is read once in the life of the platform; its
address, its length and the identity of its object name it. A container whose object is another one
by now is decoded again, and what either object named counts. A store may tell identities without a
request. Else the sweep sees them in its inventory, and the next night is told.

A published segment is closed: every container below its containers was decoded too, or stands in
`_unreadable` and is tried again every night. The live set decides which of them matter.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets._version import __version__
from gc_assets.core.errors import LakeUnreadable, StoreError
from gc_assets.core.objects import Objects
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_local
from gc_assets.engine.tables import WrittenParts, merge_written, parallelism, publish, report_parts, side_paths, write_parts
from gc_assets.engine.tasks import run_single_task, run_tasks
from gc_assets.stages.mark.content_roots import RELEASED, RootTables, find_root_inputs, open_root_tables, read_content_roots
from gc_assets.stages.mark.decoding import CONCURRENT_READS, Decode
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES, ORPHAN_FILES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EDGES,
    EDGES_SIDE,
    REWRITTEN,
    REWRITTEN_SIDE,
    TASKS,
    TASKS_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
)
from gc_assets.state.summaries import ManifestEntriesSummary, Segment, Sweep

# A listing of 1,000 keys costs as much CPU as asking for 8 objects, and by AWS's prices as 12.
MIN_LISTED_KEYS: Final = 8
LISTED_KEYS_PER_HEAD: Final = 125
ROOT_COLUMNS: Final = [name for name in TASKS.names if name not in {"expected_entries", "snapshot_id"}]


def find_segments(context: RunContext, lake_name: str) -> list[PastRun]:
    """Returns every published segment of the cache, of all run dates, that was decoded as this run
    would decode it.

    Rows carry the storage and key of each child, and a release may understand a format better than
    the one before. So everything is decoded anew after a change of the storages or of the release.
    """
    meaning = cache_fingerprint(context, lake_name)
    return [run for run in context.state.history(lake_name, MANIFEST_ENTRIES.name) if run.headline(Segment).decoded_as == meaning]


def cache_fingerprint(context: RunContext, lake_name: str) -> str:
    """Returns a digest of what a segment's rows depend on besides the containers themselves."""
    places = sorted((storage.name, storage.location) for storage in context.config.storages)
    chosen = context.config.lake(lake_name).decoding()
    return hashlib.sha256(json.dumps([__version__, MANIFEST_ENTRIES.schema.names, CONTAINERS.names, places, *chosen]).encode()).hexdigest()


def count_segment_rows(runs: list[PastRun], side: str) -> int:
    """Returns how many rows the side tables of these segments hold."""
    return sum(part.rows for segment in runs for part in segment.entry.parts if part.name.startswith(f"{side}/"))


def count_file_rows(runs: Sequence[PastRun]) -> int:
    """Returns how many entries of these segments name files, and not containers."""
    return sum(segment.rows for segment in runs) - count_segment_rows(list(runs), EDGES_SIDE)


@log_progress(MANIFEST_ENTRIES)
def manifest_entries(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publishes the segment of this run: the children of every container below the lake's commits
    that the cache did not hold.
    """
    state = context.state
    inputs = find_root_inputs(context, lake_name)
    cache = find_segments(context, lake_name)
    run = start_run(context, lake_name, MANIFEST_ENTRIES)
    there = state.pieces(cache)
    known, parents = there.paths(CONTAINERS_SIDE), there.paths(UNREADABLE_CONTAINERS_SIDE)
    roots: RootTables | None = open_root_tables(context, lake_name, inputs)
    metadata = sum(table.rows for table in inputs.values()) + count_segment_rows(cache, CONTAINERS_SIDE)
    levels: list[WrittenParts] = []
    while roots is not None or parents:
        edges, rewritten = tuple(there.paths(EDGES_SIDE)), tuple(_rewritten(context))
        pending = _Pending(state.files, context.objects(), tuple(known), tuple(parents), edges, rewritten, roots, run, parallelism(spark))
        asked = merge_written(run_single_task(spark, pending, metadata, len(known) + len(parents)))
        tasks = side_paths(run, asked, TASKS_SIDE)
        if not tasks:
            break
        containers = sum(part.rows for part in asked.side[TASKS_SIDE])
        log_activity(f"level {len(levels) + 1}: {containers:,} containers to decode in {len(tasks):,} tasks")
        decode = Decode(context.lake(lake_name), context.resolver(), context.objects(), state.files, run, tuple(tasks))
        level = merge_written(run_tasks(spark, decode, len(tasks), asked.summary["size_bytes"]))
        if not is_local(spark):
            failed = read_parts(
                state.files, side_paths(run, level, UNREADABLE_CONTAINERS_SIDE), UNREADABLE_CONTAINERS, ["address", "absent"]
            )
            refuse_blind_executors(context.objects(), lake_name, failed)
        levels.append(level)
        for side in (CONTAINERS_SIDE, EDGES_SIDE):
            metadata += sum(part.rows for part in level.side.get(side) or ())
        known, parents, roots = known + side_paths(run, level, CONTAINERS_SIDE), side_paths(run, level, EDGES_SIDE), None
        state.files.delete_directory(f"{run.path}/{TASKS_SIDE}")
    written = _together(levels)
    counted = {"decoded": 0, "entries": 0, "external": 0, "unreadable": 0, "container_bytes": 0, **written.summary}
    counted |= {"levels": len(levels), "segments": len(cache) + 1, "decoded_as": cache_fingerprint(context, lake_name)}
    summary = ManifestEntriesSummary.model_validate(counted)
    return publish(state, run, written, context.clock, inputs=list(inputs.values()), summary=summary, unsafe=context.unsafe)


def refuse_blind_executors(objects: Objects, lake_name: str, failed: pa.Table) -> None:
    """Raises `LakeUnreadable` where executors did not find a container that this process does find.

    `failed` are those that they could not read (columns address, absent). What is absent may be so
    by right, and then nothing is needed of what it names. A machine that lacks a disk, or asks
    another S3 server, says so of everything.
    """
    absent = failed.filter(failed.column("absent")).column("address").to_pylist()
    seen = [address for address, size in zip(absent, read_sizes(objects, absent), strict=True) if size >= 0]
    if seen:
        raise LakeUnreadable(
            f"lake {lake_name}: executors do not find {len(seen):,} metadata objects that are there, such as {seen[0]}: every machine must "
            "mount the same disks, and ask the same S3 server (docs/clusters.md)"
        )


def _rewritten(context: RunContext) -> Iterator[str]:
    """Yields the paths that name the containers whose objects the last sweep of a storage found to be
    others than were decoded (columns `REWRITTEN`).
    """
    for storage in context.config.storages:
        last = context.state.history(storage.name, ORPHAN_FILES.name)[-1:]
        if last and last[0].headline(Sweep).rewritten:
            yield from context.state.open(last[0]).paths(REWRITTEN_SIDE)


def _together(levels: list[WrittenParts]) -> WrittenParts:
    side: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for level in levels:
        for name, parts in level.side.items():
            side[name] = (*side.get(name, ()), *parts)
        for name, value in level.summary.items():
            summary[name] = summary[name] + value if name in summary else value
    parts = tuple(part for level in levels for part in level.parts)
    return WrittenParts(parts, sum(level.digest for level in levels) % 2**64, side, {}, summary)


@dataclass(frozen=True)
class _Pending:
    """Writes the containers that were never decoded, each once (columns `TASKS`), one part per
    decoding task.

    There are at most `width` tasks. The containers come from `parents` (edges of the level above,
    or what could not be read on earlier nights) and, where `roots` are given, from the content
    roots and from `edges` to decoded containers whose object is another one by now, as the store or
    `rewritten` says.

    Where the parent does not record a container's length, the store is asked for it. A container
    that is not there gets -1, so that no decoded object of that name stands in for it. A freed
    content root that an earlier night decoded or did not see is not asked for again. Otherwise
    collected history would be asked for every night, for ever.

    One task, here or in an executor (`run_single_task`).
    """

    files: Files
    objects: Objects
    known: tuple[str, ...]
    parents: tuple[str, ...]
    edges: tuple[str, ...]
    rewritten: tuple[str, ...]
    roots: RootTables | None
    run: TableRun
    width: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            # A hundred parents name each container: merged part by part they need not be held at once.
            named = (_once(read_parts(self.files, [path], TASKS)) for path in self.parents)
            wanted = pa.concat_tables([TASKS.empty_table(), *named])
            known = read_parts(self.files, list(self.known), CONTAINERS, ["container", "container_size_bytes", "etag"])
            if self.roots is not None:
                stale = self._stale(known)
                if len(stale):
                    known = known.filter(pc.invert(pc.is_in(known.column("container"), stale)))
                    edges = read_parts(self.files, list(self.edges), EDGES)
                    again = edges.filter(pc.is_in(edges.column("address"), stale)).select(TASKS.names)
                    wanted = pa.concat_tables([wanted, again], promote_options="default")
                roots = read_content_roots(self.roots)
                containers = roots.filter(roots.column("is_container"))
                # For a root only tonight's word counts. The length that it had when it could not be
                # read may have been the fault.
                inner = wanted.filter(pc.invert(pc.is_in(wanted.column("address"), containers.column("address"))))
                asked = containers.filter(pc.invert(self._settled(containers, known))).select(ROOT_COLUMNS)
                wanted = pa.concat_tables([inner, asked], promote_options="default")
            tasks = self._sized(_once(wanted))
            decoded = pc.is_in(length_identity(tasks, "address", "size_bytes"), length_identity(known, "container", "container_size_bytes"))
            tasks = tasks.filter(pc.invert(decoded))
            width = min(self.width, -(-tasks.num_rows // CONCURRENT_READS))
            dealt = (tasks.take(np.arange(number, tasks.num_rows, width)) for number in range(width))
            size_bytes = pc.sum(pc.max_element_wise(tasks.column("size_bytes"), 0)).as_py() or 0
            parts = [part for share in dealt for part in write_parts(share, self.run, self.files, TASKS_SIDE)]
            yield report_parts(parts, summary={"size_bytes": size_bytes})

    def _stale(self, known: pa.Table) -> pa.Array:
        """Returns the addresses of decoded containers whose object is none of those that were
        decoded.
        """
        decoded = defaultdict[str, set[str]](set)
        for address, etag in zip(known.column("container").to_pylist(), known.column("etag").to_pylist(), strict=True):
            decoded[address].add(etag)
        told = read_parts(self.files, list(self.rewritten), REWRITTEN)
        listed = dict(zip(told.column("address").to_pylist(), told.column("etag").to_pylist(), strict=True))
        now = {address: self.objects.cached_identity(address) or listed.get(address) for address in decoded}
        return pa.array([address for address, etag in now.items() if etag is not None and etag not in decoded[address]], pa.string())

    def _settled(self, roots: pa.Table, known: pa.Table) -> pa.ChunkedArray:
        """Marks the freed roots of a lake with contents that an earlier night decoded, or that were
        absent then.
        """
        if self.roots is None or self.roots.contents is None:
            return pa.chunked_array([pa.array([False] * roots.num_rows, pa.bool_())])
        failed = read_parts(self.files, list(self.parents), UNREADABLE_CONTAINERS, ["address", "absent"])
        gone = pc.is_in(roots.column("address"), failed.column("address").filter(failed.column("absent")))
        decoded = pc.is_in(roots.column("address"), known.column("container"))
        return pc.and_(pc.greater_equal(roots.column("rank"), RELEASED), pc.or_(gone, decoded))

    def _sized(self, tasks: pa.Table) -> pa.Table:
        sizes = tasks.column("size_bytes")
        missing = pc.is_null(sizes)
        found = pa.array(read_sizes(self.objects, tasks.column("address").filter(missing).to_pylist()), pa.int64())
        filled = pc.replace_with_mask(sizes.combine_chunks(), missing.combine_chunks(), found)
        return tasks.set_column(tasks.schema.get_field_index("size_bytes"), TASKS.field("size_bytes"), filled)


def read_sizes(objects: Objects, addresses: Sequence[str]) -> list[int]:
    """Returns the sizes of objects in bytes, -1 for one that cannot be looked at.

    Objects of one directory are looked at together by listing it, where that costs less than asking
    for each of them.
    """
    together = defaultdict[str, set[str]](set)
    for address in addresses:
        # Percent-encoding may name one object in two ways, and a listing tells only one of them.
        if "%" not in address:
            together[address.rpartition("/")[0] + "/"].add(address)

    def listed(directory: str) -> dict[str, int]:
        wanted, found = together[directory], dict[str, int]()
        try:
            for address, size_bytes, _ in islice(objects.list(directory), LISTED_KEYS_PER_HEAD * len(wanted)):
                if address in wanted:
                    found[address] = size_bytes
        except (OSError, StoreError):
            return {}  # each is asked for by itself
        return found

    def size(address: str) -> int:
        try:
            return objects.size(address)
        except OSError:
            return -1  # the decoder meets the same object and says why it cannot be read

    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        directories = [directory for directory, wanted in together.items() if len(wanted) >= MIN_LISTED_KEYS]
        known = {address: size_bytes for found in pool.map(listed, directories) for address, size_bytes in found.items()}
        rest = [address for address in addresses if address not in known]
        known |= zip(rest, pool.map(size, rest), strict=True)
    return [known[address] for address in addresses]


def _once(wanted: pa.Table) -> pa.Table:
    """Returns one task per address, with what any of its parents says of it."""
    how = {name: "max" for name in TASKS.names if name not in {"address", "snapshot_id"}} | {"snapshot_id": "min"}
    grouped = wanted.group_by("address").aggregate(list(how.items()))
    named = {f"{name}_{function}": name for name, function in how.items()}
    return grouped.rename_columns([named.get(name, name) for name in grouped.column_names]).select(TASKS.names).cast(TASKS)


def length_identity(rows: pa.Table, address: str, length: str) -> pa.ChunkedArray:
    """Returns address and length as one value. It names a decoded object."""
    return pc.binary_join_element_wise(rows.column(address), rows.column(length).cast(pa.string()), "\x1f")
