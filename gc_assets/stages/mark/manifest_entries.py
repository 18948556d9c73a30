"""Decode new containers (metadata files) and append their entries to a cache.

Containers are immutable, so each one is decoded only once. The cache identifies its entries by the
container's address, length and ETag. If an object changes nevertheless, it is decoded again, and
the entries of both versions remain valid. Such a change is found immediately if the store returns
ETags without an extra request. Otherwise, the sweep finds it in its inventory, and the next run
decodes the object.

Each run publishes a segment of the cache. All child containers in a published segment have been
decoded too, unless they could not be read. The side table `_unreadable` lists those, and every run
tries them again. `live_files` decides which entries are relevant.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets._version import __version__
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.key_resolver import LOOSE_FORM, KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_local
from gc_assets.engine.tables import WrittenParts, merge_written, parallelism, publish, write_parts
from gc_assets.engine.tasks import run_single_task, run_tasks
from gc_assets.lakes.protocol import Lake, with_prefixes
from gc_assets.stages.mark.content_roots import RootTables, find_root_inputs, open_root_tables
from gc_assets.stages.mark.dead_entries import drop_dead_entries, refuse_dropped_since
from gc_assets.stages.mark.decoding import Decode
from gc_assets.stages.mark.earlier_entries import copy_entries, find_decoded
from gc_assets.stages.mark.former_metadata import read_last_live_roots
from gc_assets.stages.mark.lake_refs import frozen_prefixes
from gc_assets.stages.mark.last_known import find_last_known
from gc_assets.stages.mark.object_sizes import read_sizes
from gc_assets.stages.mark.pending_containers import FindPending
from gc_assets.stages.mark.resolution import are_links_unchanged, find_resolvable, resolve_segments
from gc_assets.stages.mark.unread_tables import list_unread_tables, unread_reasons
from gc_assets.stages.records.newest_sweeps import is_in_future
from gc_assets.stages.sweep.listings import has_earlier_listing
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, MANIFEST_ENTRIES, ORPHAN_FILES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EDGES_SIDE,
    HASHES,
    LAST_KNOWN_SIDE,
    LINKS,
    LINKS_SIDE,
    LOCATIONS_SIDE,
    REWRITTEN_SIDE,
    ROOTS,
    STATES_SIDE,
    TASKS,
    TASKS_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, ManifestEntriesSummary, SegmentSummary, SweepSummary

# Before the first job of a local session, this process decodes this many bytes of containers, which
# have about half a million entries. The job would need longer to start.
MAX_FIRST_BYTES: Final = 48 * 2**20


@dataclass(frozen=True, slots=True)
class EntryCache:
    """Published segments of cached entries with the same fingerprint as this run.

    Attributes:
        segments: Segments whose keys are current.
        outdated: Segments whose addresses were resolved with other storages or symbolic links.
    """

    segments: list[PastRun]
    outdated: list[PastRun]


def find_segments(context: RunContext, lake_name: str) -> list[PastRun]:
    """Return the segments of cached entries that are valid for this run (see `find_entry_cache`)."""
    return find_entry_cache(context, lake_name).segments


def find_entry_cache(context: RunContext, lake_name: str) -> EntryCache:
    """Find the segments of cached entries with this run's fingerprint, and check symbolic links.

    A segment is skipped if another one contains all its rows with newer keys.
    """
    decoder, resolver = cache_fingerprint(context, lake_name), context.resolver()
    runs = [run for run in context.state.history(lake_name, MANIFEST_ENTRIES.name) if run.summary(SegmentSummary).decoded_as == decoder]
    same_storages = [run for run in runs if run.summary(SegmentSummary).resolved_as == resolver.settings_digest]
    current = _with_same_links(context.state, resolver, same_storages)
    cache, replaced = EntryCache([], []), set[str]()
    for run in sorted(runs, key=lambda run: run.run_id, reverse=True):
        if run.run_id not in replaced:
            (cache.segments if run.run_id in current else cache.outdated).append(run)
            replaced.update(run.summary(SegmentSummary).resolved_again)
    return EntryCache(cache.segments[::-1], cache.outdated[::-1])


def _with_same_links(state: State, resolver: KeyResolver, runs: Sequence[PastRun]) -> set[str]:
    """Return the ids of the runs whose recorded symbolic links are unchanged."""
    paths = state.paths(runs, LINKS_SIDE)
    if not paths or are_links_unchanged(resolver, read_parts(state.files, paths, LINKS)):
        return {run.run_id for run in runs}
    own = ((run.run_id, read_parts(state.files, run.paths(LINKS_SIDE), LINKS)) for run in runs)
    return {run_id for run_id, links in own if are_links_unchanged(resolver, links)}


def _are_links_readable(state: State, resolver: KeyResolver, runs: Sequence[PastRun]) -> bool:
    """Check whether the directories that some runs recorded can be resolved now."""
    links = read_parts(state.files, state.paths(runs, LINKS_SIDE), LINKS).column("directory").unique().to_pylist() if runs else []
    return len(find_resolvable(links, resolver)) == len(links)


def cache_fingerprint(context: RunContext, lake_name: str) -> str:
    """Return a digest of the settings and versions that determine how containers are decoded.

    Containers, storages and links are not included. The gc-assets release is included, because a
    new release may have a better decoder and must decode all containers again.
    """
    settings = context.config.lake(lake_name).decoding_settings([storage.location for storage in context.config.storages])
    columns = [MANIFEST_ENTRIES.schema.names, CONTAINERS.names, HASHES.names]
    return hashlib.sha256(json.dumps([__version__, LOOSE_FORM, *columns, *settings]).encode()).hexdigest()


def count_segment_rows(runs: Sequence[PastRun], side: str) -> int:
    """Count the rows that the given segments have in a side table."""
    return sum(part.rows for segment in runs for part in segment.entry.parts if part.name.startswith(f"{side}/"))


@log_progress(MANIFEST_ENTRIES)
def manifest_entries(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish this run's segment of `manifest_entries`: the entries of newly found containers.

    The rows of segments with outdated keys are copied to it with their current keys.

    Raises:
        LakeUnreadable: If executors cannot find containers that the driver finds.
        StateError: If another run dropped entries from the cache at the same time.
    """
    state = context.state
    inputs = find_root_inputs(context, lake_name)
    cache, resolver = find_entry_cache(context, lake_name), context.resolver()
    run = start_run(context, lake_name, MANIFEST_ENTRIES)
    if not cache.outdated:  # containers in outdated segments refer to containers in other segments
        drop_dead_entries(spark, context, lake_name, cache.segments, run)
    elif not _are_links_readable(state, resolver, cache.outdated):
        cache = replace(cache, outdated=[])  # their containers are decoded again, which reports errors by table
    segments, outdated = state.segments(cache.segments), state.segments(cache.outdated)
    resolved = WrittenParts((), 0)
    if cache.outdated:
        log_activity(f"resolving the addresses of {len(cache.outdated):,} cache segments again")
        resolved = resolve_segments(spark, outdated, resolver, state.files, run)
    level = _Level(
        known=[*segments.paths(CONTAINERS_SIDE), *resolved.paths(run, CONTAINERS_SIDE)],
        parents=[*segments.paths(UNREADABLE_CONTAINERS_SIDE), *outdated.paths(UNREADABLE_CONTAINERS_SIDE)],
        roots=open_root_tables(context, lake_name, inputs),
        rows=sum(table.rows for table in inputs.values()) + count_segment_rows([*cache.segments, *cache.outdated], CONTAINERS_SIDE),
    )
    failed = level.parents
    last_known = _write_last_known(context, lake_name, inputs, run)
    level = replace(level, parents=[*level.parents, *last_known])
    named_prefixes = frozen_prefixes(inputs[LAKE_REFS.name])
    locations = (*segments.paths(LOCATIONS_SIDE), *resolved.paths(run, LOCATIONS_SIDE)) if named_prefixes is not None else ()
    find = FindPending(
        state.files,
        context.objects(),
        tuple(level.known),
        tuple(level.parents),
        (*segments.paths(EDGES_SIDE), *resolved.paths(run, EDGES_SIDE)),
        tuple(_rewritten_paths(context)),
        level.roots,
        run,
        parallelism(spark),
        resolver,
        named_prefixes,
        locations,
        may_list=context.verification_id is not None or not has_earlier_listing(context),
        examined=_find_examined(context, lake_name),
    )
    levels = _decode_levels(spark, context, lake_name, level, find, failed)
    for path in last_known:
        state.files.delete(path)
    written = _merge_levels([resolved, *levels])
    counts = {"decoded": 0, "entries": 0, "external": 0, "unreadable": 0, "container_bytes": 0, **written.summary}
    counts |= {"levels": len(levels), "segments": len(cache.segments) + 1, "decoded_as": cache_fingerprint(context, lake_name)}
    counts |= {"resolved_as": resolver.settings_digest, "resolved_again": [run.run_id for run in cache.outdated]}
    summary = ManifestEntriesSummary.model_validate(counts)
    refuse_dropped_since(context, lake_name, cache.segments, segments)
    return publish(state, run, written, context.clock, inputs=list(inputs.values()), summary=summary, unsafe=context.unsafe)


def _write_last_known(context: RunContext, lake_name: str, inputs: Mapping[str, PublishedTable], run: TableRun) -> list[str]:
    """Write the containers that unreadable tables and former metadata needed in earlier runs.

    The cache may lack these containers if another release decoded them.

    Returns:
        Paths of the new parts (`TASKS` columns).
    """
    frozen_at = inputs[LAKE_REFS.name].summary(LakeRefsSummary).frozen_at
    last_known = find_last_known(context, lake_name, frozen_at) if list_unread_tables(inputs) else None
    roots = [read_last_live_roots(context, lake_name, frozen_at)]
    roots += [] if last_known is None else [last_known.roots_of(unread_reasons(inputs, last_known)).select(ROOTS.names)]
    found = pa.concat_tables(roots)
    containers = found.filter(found.column("is_container"))
    if not containers.num_rows:
        return []
    columns = {name: containers.column(name) for name in TASKS.names if name in containers.column_names}
    rows = pa.table({field.name: columns.get(field.name, pa.nulls(containers.num_rows, field.type)) for field in TASKS}).cast(TASKS)
    return [f"{run.path}/{part.name}" for part in write_parts(rows, run, context.state.files, LAST_KNOWN_SIDE)]


@dataclass(frozen=True, slots=True)
class _Level:
    """The inputs from which one level of containers is found and decoded.

    Attributes:
        known: Parts with containers that are already decoded.
        parents: Parts that reference the containers of this level.
        roots: The tables with content roots, for the first level only.
        rows: Number of rows that are read to find pending containers.
    """

    known: list[str]
    parents: list[str]
    roots: RootTables | None
    rows: int

    def following(self, run: TableRun, written: WrittenParts) -> _Level:
        """Return the next level, whose containers this level references."""
        rows = sum(map(written.side_rows, (CONTAINERS_SIDE, EDGES_SIDE)))
        return _Level(self.known + written.paths(run, CONTAINERS_SIDE), written.paths(run, EDGES_SIDE), None, self.rows + rows)


def _decode_levels(
    spark: SparkSession, context: RunContext, lake_name: str, level: _Level, find: FindPending, failed: Sequence[str]
) -> list[WrittenParts]:
    """Decode all pending containers, level by level, until a level references no new container.

    Args:
        level: The first level.
        find: Finds the pending containers of this level.
        failed: Parts with containers that earlier runs could not read.
    """
    levels, run = list[WrittenParts](), find.run
    while level.roots is not None or level.parents:
        find = replace(find, known=tuple(level.known), parents=tuple(level.parents), roots=level.roots)
        pending = merge_written(run_single_task(spark, find, level.rows, len(level.known) + len(level.parents)))
        if TASKS_SIDE not in pending.side:
            break
        lake = with_prefixes(context.lake(lake_name), find.named_prefixes)
        levels.append(_decode(spark, context, lake, run, pending, failed, len(levels) + 1))
        level = level.following(run, levels[-1])
    return levels


def _decode(
    spark: SparkSession, context: RunContext, lake: Lake, run: TableRun, pending: WrittenParts, failed: Sequence[str], number: int
) -> WrittenParts:
    state, tasks = context.state, pending.paths(run, TASKS_SIDE)
    containers = pending.side_rows(TASKS_SIDE)
    log_activity(f"level {number}: {containers:,} containers to decode in {len(tasks):,} tasks")
    decode = Decode(lake, context.resolver(), context.objects(), state.files, run, tuple(tasks), tuple(failed))
    written = merge_written(run_tasks(spark, decode, len(tasks), pending.summary["size_bytes"], MAX_FIRST_BYTES))
    if not is_local(spark):
        failures = read_parts(state.files, written.paths(run, UNREADABLE_CONTAINERS_SIDE), UNREADABLE_CONTAINERS, ["address", "absent"])
        refuse_blind_executors(context.objects(), lake.name, failures, may_list=not has_earlier_listing(context))
    state.files.delete_directory(f"{run.path}/{TASKS_SIDE}")
    return _merge_levels([written, *_copy_undecoded(context, lake.name, run, written)])


def _copy_undecoded(context: RunContext, lake_name: str, run: TableRun, written: WrittenParts) -> Iterator[WrittenParts]:
    """Copy the entries of damaged containers that an earlier release could still decode.

    If entries depend on settings of the lake, nothing is copied, because entries that were decoded
    with other settings may lack files. Missing containers are skipped too, because they may be in
    quarantine, and treating them as readable could allow needed files to be purged.
    """
    state, storages = context.state, [storage.name for storage in context.config.storages]
    if context.config.lake(lake_name).decoding_settings([storage.location for storage in context.config.storages]):
        return
    paths = written.paths(run, UNREADABLE_CONTAINERS_SIDE)
    unreadable = read_parts(state.files, paths, UNREADABLE_CONTAINERS, ["address", "absent"])
    failed = unreadable.filter(pc.invert(unreadable.column("absent"))).column("address").combine_chunks().unique()
    decoders: dict[str | None, list[PastRun]] = {cache_fingerprint(context, lake_name): []}
    for past in reversed(list(state.history(lake_name, MANIFEST_ENTRIES.name)) if len(failed) else []):
        decoders.setdefault(past.summary(SegmentSummary).decoded_as, []).insert(0, past)
    for number, runs in enumerate(decoders.values()):
        segments = state.segments(runs)
        known = find_decoded(state.files, segments, failed)
        if len(known) and number:  # the rows of the first decoder are in the cache
            reports = copy_entries(state.files, segments, known, context.resolver(), storages, run)
            yield merge_written([row for batch in reports for row in batch.to_pylist()])
        failed = failed.filter(pc.invert(pc.is_in(failed, known)))


def refuse_blind_executors(objects: Objects, lake_name: str, failures: pa.Table, *, may_list: bool = True) -> None:
    """Raise `LakeUnreadable` if executors cannot find containers that the driver process finds.

    This happens if an executor has not mounted a disk, or uses another S3 server. Without this
    check, all containers would look missing, and the entries of missing optional containers are
    ignored.

    Args:
        failures: Containers that executors could not read (columns address, absent).
        may_list: False if the run must not send LIST requests.

    Raises:
        LakeUnreadable: If the driver process finds one of the missing containers.
    """
    absent = failures.filter(failures.column("absent")).column("address").to_pylist()
    found = [address for address, size in zip(absent, read_sizes(objects, absent, may_list=may_list), strict=True) if size >= 0]
    if found:
        raise LakeUnreadable(
            f"lake {lake_name}: executors do not find {len(found):,} metadata objects that the driver finds, such as {found[0]}; every "
            "machine must mount the same disks and use the same S3 server (docs/clusters.md)"
        )


def _rewritten_paths(context: RunContext) -> Iterator[str]:
    """Yield the parts in which the last sweeps list containers whose objects have changed.

    The parts have the `REWRITTEN` columns. The order of sweeps is given by sequence numbers,
    because a rehearsal, or a clock that was ahead, publishes sweeps in the future.
    """
    for storage in context.config.storages:
        sweeps = context.state.history(storage.name, ORPHAN_FILES.name)
        past = [run for run in sweeps if not is_in_future(context, run.entry.created_at)]
        last = max(past, key=lambda run: (run.entry.sequence_number, run.entry.created_at, run.run_id), default=None)
        if last is not None and last.summary(SweepSummary).rewritten:
            yield from context.state.open(last).paths(REWRITTEN_SIDE)


def _find_examined(context: RunContext, lake_name: str) -> tuple[str, ...] | None:
    """Return the parts with the containers that an apply examines, or None if this is a run.

    The apply examines the containers that were needed in the run of the plan. A container that was
    overwritten after the last listing of its storage may reference files that the plan removes.
    """
    if context.verification_id is None:
        return None
    planned = context.state.current(lake_name, LIVE_FILES.name, context.run_date)
    return () if planned is None else tuple(planned.paths(STATES_SIDE))


def _merge_levels(levels: list[WrittenParts]) -> WrittenParts:
    side: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for level in levels:
        for name, parts in level.side.items():
            side[name] = (*side.get(name, ()), *parts)
        for name, value in level.summary.items():
            summary[name] = summary[name] + value if name in summary else value
    parts = tuple(part for level in levels for part in level.parts)
    return WrittenParts(parts, sum(level.digest for level in levels) % 2**64, side, {}, summary)
