"""Publish which containers (metadata files) of a lake are live, and count its live files.

A container is live if a retained commit reaches it. The live files are the cached entries of live
containers (`live_set.py`), so the table itself does not have rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from gc_assets.core.errors import LakeUnreadable, StateError
from gc_assets.core.plan import Amount, Unreadable
from gc_assets.core.printable import to_message
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import MAX_SAMPLES, WrittenParts, merge_written, publish, write_parts
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import as_repository
from gc_assets.stages.mark.content_roots import find_root_inputs, open_root_tables
from gc_assets.stages.mark.former_metadata import FormerMetadata, find_former_metadata
from gc_assets.stages.mark.last_known import LastKnown, find_last_known
from gc_assets.stages.mark.live_hashes import LiveHashes, LiveTotals
from gc_assets.stages.mark.live_set import write_external
from gc_assets.stages.mark.live_walk import CachePaths, LiveWalk
from gc_assets.stages.mark.lost_commits import find_lost_commits
from gc_assets.stages.mark.manifest_entries import count_segment_rows, find_segments
from gc_assets.stages.mark.released_files import ReleasedFiles, find_released_files
from gc_assets.stages.mark.unknown_addresses import write_unknown_addresses
from gc_assets.stages.mark.unread_tables import list_unread_tables, list_unreadable, unread_reasons
from gc_assets.state.compaction import Segments
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG, LAKE_REFS, LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CLAIMS_SIDE,
    CONTAINERS_SIDE,
    DANGLING_SIDE,
    EDGES_SIDE,
    EXPIRED_SIDE,
    EXTERNAL_SIDE,
    FORMER_ROOTS_SIDE,
    LIFECYCLE_SIDE,
    LOCATIONS_SIDE,
    STATES_SIDE,
    TOTALS_SIDE,
    UNREAD_LOCATIONS_SIDE,
    UNREADABLE_CONTAINERS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The tables from which a run computes its live set.

    Attributes:
        roots: The published tables that contain content roots, by table name.
        entries: The cache segment that this run wrote.
        cache: All cache segments that the run uses.
        released: Files that lifecycle rules release, or None if the lake has no such rules.
    """

    roots: dict[str, PublishedTable]
    entries: PublishedTable
    cache: list[PastRun]
    released: ReleasedFiles | None

    @property
    def refs(self) -> PublishedTable:
        return self.roots[LAKE_REFS.name]

    @property
    def published(self) -> list[PublishedTable]:
        return [*self.roots.values(), self.entries, *([self.released.published] if self.released is not None else [])]


@log_progress(LIVE_FILES)
def live_files(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `live_files` for a run date: the container states, and the counts of live files.

    A table is unreadable if reading it failed, or if a container that a retained commit or an
    expiry action needs could not be decoded. All files that such a table needs according to this
    run are live, and so are those that it needed when a run last read it completely. Files under
    its claims are never collected (docs/adr/0009-unreadable-tables.md). The summary lists every
    unreadable table, even if no run has ever read it.

    Raises:
        StateError: If the cached entries of a needed container are incomplete.
    """
    inputs = _Inputs(
        find_root_inputs(context, lake_name),
        context.table(MANIFEST_ENTRIES, lake_name),
        find_segments(context, lake_name),
        find_released_files(context, lake_name),
    )
    stage = _Stage(
        spark, context, lake_name, inputs, context.state.segments(inputs.cache), start_run(context, context.group(lake_name), LIVE_FILES)
    )
    last_known, former, walked = stage.walk()
    unreadable = list_unreadable(context, lake_name, inputs.roots, last_known, walked.summary["unreadable"])
    log_activity("counting the files of live containers")
    hashes = stage.open_hashes(walked, None if unreadable or FORMER_ROOTS_SIDE in walked.side else inputs.released)
    stage.refuse_unbalanced(hashes)
    totals = hashes.totals()
    written = stage.add_counted(walked, hashes, totals)
    return publish(
        context.state,
        stage.run,
        written,
        context.clock,
        inputs=inputs.published,
        balances=[Balance(name="entries of needed containers", expected=totals.expected, found=totals.found)],
        summary=_summary(inputs, written, totals, unreadable, former.notes),
        unsafe=context.unsafe,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """The steps of `live_files`, which share the unpublished run and the cached entries."""

    spark: SparkSession
    context: RunContext
    lake_name: str
    inputs: _Inputs
    segments: Segments
    run: TableRun

    def walk(self) -> tuple[LastKnown | None, FormerMetadata, WrittenParts]:
        """Walk the containers, beginning at the files that commits reference directly.

        Returns:
            The lake's last known state if it was used, its former metadata, and the container
            states.
        """
        inputs, frozen_at = self.inputs, self.inputs.refs.summary(LakeRefsSummary).frozen_at
        has_unread = bool(list_unread_tables(inputs.roots))
        last_known = find_last_known(self.context, self.lake_name, frozen_at) if has_unread else None
        cache, unread = self._cache_paths(), unread_reasons(inputs.roots, last_known)
        is_repository = as_repository(self.context.lake(self.lake_name)) is not None
        find_former = find_lost_commits if is_repository else find_former_metadata
        former = find_former(self.context, self.lake_name, inputs.roots, unread)
        sides = {side: tuple(write_parts(rows, self.run, self.context.state.files, side)) for side, rows in former.build_sides().items()}
        walk = LiveWalk(
            self.lake_name,
            open_root_tables(self.context, self.lake_name, inputs.roots),
            cache,
            _deletion_log_paths(self.context),
            self.run,
            tuple(inputs.refs.paths(CLAIMS_SIDE)),
            last_known,
            unread,
            is_last_known_read=has_unread,
            former_roots=tuple(f"{self.run.path}/{part.name}" for part in sides.get(FORMER_ROOTS_SIDE, ())),
        )
        log_activity(f"following the content roots through {len(inputs.cache):,} segments of decoded containers")
        cached = (EDGES_SIDE, CONTAINERS_SIDE, LOCATIONS_SIDE)
        rows = sum(table.rows for table in inputs.roots.values()) + sum(count_segment_rows(inputs.cache, side) for side in cached)
        try:
            tasks = run_single_task(self.spark, walk, rows, cache.count)
        except LakeUnreadable:
            # The last known state is looked up only if it is needed.
            if has_unread:
                raise
            last_known = find_last_known(self.context, self.lake_name, frozen_at)
            tasks = run_single_task(self.spark, replace(walk, last_known=last_known, is_last_known_read=True), rows, cache.count)
        walked = merge_written(tasks)
        return last_known, former, replace(walked, side={**walked.side, **sides})

    def open_hashes(self, walked: WrittenParts, released: ReleasedFiles | None) -> LiveHashes:
        """Open the live set that a walk found, as hashes of keys."""
        states = walked.paths(self.run, STATES_SIDE)
        storages = [storage.name for storage in self.context.config.storages]
        return LiveHashes.of(self.spark, self.context.state.files, states, self.segments, storages, released)

    def refuse_unbalanced(self, hashes: LiveHashes) -> None:
        """Raise `StateError` if too few or too many entries of a needed container are cached."""
        if containers := hashes.find_unbalanced():
            raise StateError(
                f"lake {self.lake_name}: live_files cannot be computed: the cache of containers contains a wrong number of "
                f"entries for {len(containers):,} containers, such as {containers[0]}. Remove "
                f"{self.context.state.files.root}/{self.lake_name}/{MANIFEST_ENTRIES.name}, run `gc-assets doctor --repair` and "
                "start the run again, which decodes all containers again."
            )

    def add_counted(self, walked: WrittenParts, hashes: LiveHashes, totals: LiveTotals) -> WrittenParts:
        """Write the totals, the external files, and the external files with unknown addresses."""
        context, run = self.context, self.run
        counted = tuple(write_parts(totals.rows, run, context.state.files, TOTALS_SIDE))
        has_external = bool(totals.files(EXTERNAL_SIDE))
        external = write_external(self.spark, context, self.lake_name, hashes, self.segments, run) if has_external else ()
        unknown = write_unknown_addresses(self.spark, context, run, external, self.inputs.entries)
        added = {side: parts for side, parts in ((TOTALS_SIDE, counted), (EXTERNAL_SIDE, external)) if parts}
        sides = {**walked.side, **added, **unknown.side}
        return replace(walked, side=sides, summary={**walked.summary, **unknown.summary})

    def _cache_paths(self) -> CachePaths:
        return CachePaths(
            edges=tuple(self.segments.paths(EDGES_SIDE)),
            containers=tuple(self.segments.paths(CONTAINERS_SIDE)),
            unreadable=tuple(self.inputs.entries.paths(UNREADABLE_CONTAINERS_SIDE)),
            locations=tuple(self.segments.paths(LOCATIONS_SIDE)),
            unread_locations=tuple(self.inputs.entries.paths(UNREAD_LOCATIONS_SIDE)),
        )


def _summary(
    inputs: _Inputs, written: WrittenParts, totals: LiveTotals, unreadable: Sequence[Unreadable], notes: Sequence[str]
) -> LiveFilesSummary:
    by_storage, found = totals.by("storage"), written.summary
    return LiveFilesSummary(
        files=totals.files(""),
        metadata_by_storage=found["metadata_by_storage"],
        optional_by_storage=found["optional_by_storage"],
        notes=tuple(map(to_message, (*found["notes"], *notes, *(item.message for item in unreadable)))),
        live_bytes=Amount.total(by_storage.values()).bytes,
        by_kind=totals.by("kind"),
        by_storage=by_storage,
        possible_by_storage=totals.by("storage", kind=Kind.POSSIBLE_OBJECT),
        expired_files=totals.files(EXPIRED_SIDE),
        dangling_files=totals.files(DANGLING_SIDE),
        lifecycle_files=totals.files(LIFECYCLE_SIDE),
        external_files=totals.files(EXTERNAL_SIDE),
        unknown_addresses=found.get("addresses", 0),
        unknown_address_samples=tuple(sorted(found.get("samples", ()))[:MAX_SAMPLES]),
        unreadable=tuple(unreadable),
        segments=tuple(sorted(run.run_id for run in inputs.cache if run.entry.parts)),
    )


def _deletion_log_paths(context: RunContext) -> dict[str, tuple[str, ...]]:
    """Return the paths of the parts of all `deletion_log` runs, keyed by storage."""
    names = [storage.name for storage in context.config.storages]
    return {name: tuple(context.state.paths(context.state.history(name, DELETION_LOG.name))) for name in names}
