"""Publish the live set of a lake: every file needed by retained commits, with a witness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.plan import Unreadable
from gc_assets.core.printable import to_message
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, merge_written, publish
from gc_assets.engine.tasks import run_single_task
from gc_assets.stages.mark.content_roots import find_root_inputs, open_root_tables
from gc_assets.stages.mark.incremental import (
    Baseline,
    BaselineInvalid,
    FullRecompute,
    NeedChanges,
    find_baseline,
    fingerprint,
    full_recompute_reason,
    segments_digest,
    segments_with_rows,
)
from gc_assets.stages.mark.last_known import LastKnown, find_last_known
from gc_assets.stages.mark.live_rows import LiveRows, LiveRowWriter, WalkOutput
from gc_assets.stages.mark.live_walk import CachePaths, LiveWalk
from gc_assets.stages.mark.manifest_entries import count_file_rows, count_segment_rows, find_segments
from gc_assets.stages.mark.needs import PreviousNeeds
from gc_assets.stages.mark.released_files import ReleasedFiles, find_released_files
from gc_assets.stages.mark.unknown_addresses import write_unknown_addresses
from gc_assets.stages.mark.unread_tables import list_unread_tables, list_unreadable, unread_reasons
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
    LIFECYCLE_SIDE,
    LOCATIONS_SIDE,
    PUBLISHED_SIDES,
    ROUTED_SIDES,
    UNREADABLE_CONTAINERS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Input tables of a run's live set.

    Attributes:
        roots: Content root tables by name.
        entries: The cache segment of this run.
        cache: All cache segments.
        released: Released files, or None if the lake has no such rules.
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


@dataclass(frozen=True, slots=True)
class _WalkResult:
    """Result of the walk.

    Attributes:
        scratch: Output needed only to compute the rows.
        published: Side tables to publish.
        summary: Counts and notes.
        unreadable: Unreadable tables.
    """

    scratch: WalkOutput
    published: Mapping[str, Any]
    summary: Mapping[str, Any]
    unreadable: tuple[Unreadable, ...]


@log_progress(LIVE_FILES)
def live_files(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `live_files` of a run date.

    Side tables list files of expired or dangling commits only, files released by lifecycle rules,
    and external addresses. Rows unaffected by changes since an earlier run are reused
    (`incremental.py`).

    A table is unreadable if reading it failed or if a container needed by a retained commit or an
    expiry action could not be decoded. All files that it needs according to this run, or needed
    when last read in full, are live. Files under its claims are never collected
    (docs/adr/0009-unreadable-tables.md). The summary lists it, even if no run ever read it.
    """
    inputs = _Inputs(
        find_root_inputs(context, lake_name),
        context.table(MANIFEST_ENTRIES, lake_name),
        find_segments(context, lake_name),
        find_released_files(context, lake_name),
    )
    baseline = find_baseline(context, lake_name, inputs.cache, inputs.released)
    try:
        return _compute(spark, context, lake_name, inputs, baseline)
    except BaselineInvalid as error:
        uncompared = baseline.summary.uncompared_runs + 1 if isinstance(baseline, Baseline) else baseline.uncompared_runs
        return _compute(spark, context, lake_name, inputs, FullRecompute(str(error), uncompared_runs=uncompared))


def _compute(
    spark: SparkSession, context: RunContext, lake_name: str, inputs: _Inputs, baseline: Baseline | FullRecompute
) -> PublishedTable:
    """Publish the table, or delete its parts and raise `BaselineInvalid`."""
    state = context.state
    run = start_run(context, context.group(lake_name), LIVE_FILES)
    walked = _walk(spark, context, lake_name, inputs, run, baseline)
    full = full_recompute_reason(
        baseline,
        None if walked.unreadable else walked.scratch.changes,
        context.config.full_every,
        count_file_rows(inputs.cache),
    )
    released = None if walked.unreadable else inputs.released
    writer = LiveRowWriter(spark, context, lake_name, run, state.segments(inputs.cache), walked.scratch, released)
    try:
        rows = writer.write(baseline, full)
    except BaselineInvalid:
        state.files.delete_directory(run.path)
        raise
    for side in walked.scratch.side:
        state.files.delete_directory(f"{run.path}/{side}")
    unknown = write_unknown_addresses(spark, context, run, rows.written.side.get(EXTERNAL_SIDE, ()), inputs.entries)
    written = replace(rows.written, side={**rows.written.side, **walked.published, **unknown.side})
    reused = rows.reused
    return publish(
        state,
        run,
        written,
        context.clock,
        inputs=inputs.published,
        balances=[] if reused is None else [Balance(name="reused rows", expected=reused.expected, found=reused.found)],
        summary=_summary(context, lake_name, inputs, walked, rows, written).model_copy(
            update={
                "unknown_addresses": unknown.summary.get("addresses", 0),
                "unknown_address_samples": tuple(unknown.summary.get("samples", ())),
            }
        ),
        unsafe=context.unsafe,
    )


def _walk(
    spark: SparkSession, context: RunContext, lake_name: str, inputs: _Inputs, run: TableRun, baseline: Baseline | FullRecompute
) -> _WalkResult:
    state, refs, cache = context.state, inputs.refs, _cache_paths(context, inputs)
    frozen_at = refs.summary(LakeRefsSummary).frozen_at
    has_unread = bool(list_unread_tables(inputs.roots))
    last_known = find_last_known(context, lake_name, frozen_at) if has_unread else None
    previous_needs = None
    if isinstance(baseline, Baseline) and not has_unread:
        new_containers = state.paths(baseline.new_segments, CONTAINERS_SIDE)
        previous_needs = PreviousNeeds.from_baseline(baseline, new_containers, context.config.full_every, count_file_rows(inputs.cache))
    walk = LiveWalk(
        lake_name,
        open_root_tables(context, lake_name, inputs.roots),
        cache,
        _deletion_log_paths(context),
        run,
        tuple(refs.paths(CLAIMS_SIDE)),
        last_known,
        unread_reasons(inputs.roots, last_known),
        is_last_known_read=has_unread,
        previous_needs=previous_needs,
    )
    log_activity(f"following the content roots through {len(inputs.cache):,} segments of decoded containers")
    sides = (EDGES_SIDE, CONTAINERS_SIDE, LOCATIONS_SIDE)
    rows = sum(table.rows for table in inputs.roots.values()) + sum(count_segment_rows(inputs.cache, side) for side in sides)
    try:
        written = merge_written(run_single_task(spark, walk, rows, cache.count))
    except LakeUnreadable:
        # Look up the last known state only on demand.
        if has_unread:
            raise
        last_known = find_last_known(context, lake_name, frozen_at)
        written = merge_written(run_single_task(spark, replace(walk, last_known=last_known, is_last_known_read=True), rows, cache.count))
    return _to_walked(context, lake_name, refs, last_known, written)


def _to_walked(
    context: RunContext, lake_name: str, refs: PublishedTable, last_known: LastKnown | None, written: WrittenParts
) -> _WalkResult:
    changes = written.summary["changes"]
    scratch = WalkOutput(
        {side: parts for side, parts in written.side.items() if side not in PUBLISHED_SIDES},
        NeedChanges(**changes) if changes is not None else None,
        written.summary["all_rows_reusable"],
    )
    return _WalkResult(
        scratch,
        {side: parts for side, parts in written.side.items() if side in PUBLISHED_SIDES},
        written.summary,
        list_unreadable(context, lake_name, refs, last_known, written.summary["unreadable"]),
    )


def _cache_paths(context: RunContext, inputs: _Inputs) -> CachePaths:
    segments = context.state.segments(inputs.cache)
    return CachePaths(
        edges=tuple(segments.paths(EDGES_SIDE)),
        containers=tuple(segments.paths(CONTAINERS_SIDE)),
        unreadable=tuple(inputs.entries.paths(UNREADABLE_CONTAINERS_SIDE)),
        locations=tuple(segments.paths(LOCATIONS_SIDE)),
    )


def _summary(
    context: RunContext, lake_name: str, inputs: _Inputs, walked: _WalkResult, rows: LiveRows, written: WrittenParts
) -> LiveFilesSummary:
    routed = {side: sum(part.rows for part in written.side.get(side, ())) for side in ROUTED_SIDES}
    return LiveFilesSummary(
        files=written.rows,
        metadata_by_storage=walked.summary["metadata_by_storage"],
        optional_by_storage=walked.summary["optional_by_storage"],
        notes=tuple(map(to_message, (*walked.summary["notes"], *(item.message for item in walked.unreadable), *rows.notes))),
        live_bytes=sum(amount.bytes for amount in rows.by_storage.values()),
        by_kind=rows.by_kind,
        by_storage=rows.by_storage,
        possible_by_storage=rows.possible_by_storage,
        expired_files=routed[EXPIRED_SIDE],
        dangling_files=routed[DANGLING_SIDE],
        lifecycle_files=routed[LIFECYCLE_SIDE],
        external_files=routed[EXTERNAL_SIDE],
        unreadable=walked.unreadable,
        fingerprint=fingerprint(context, lake_name),
        segments=tuple(segment.run_id for segment in segments_with_rows(inputs.cache)),
        segments_digest=segments_digest(inputs.cache),
        **asdict(rows.origin),
    )


def _deletion_log_paths(context: RunContext) -> dict[str, tuple[str, ...]]:
    """Return the `deletion_log` parts of all runs, per storage."""
    names = [storage.name for storage in context.config.storages]
    return {name: tuple(context.state.paths(context.state.history(name, DELETION_LOG.name))) for name in names}
