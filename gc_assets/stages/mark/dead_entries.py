"""Drop cached entries of containers that commits no longer reach.

A container's entries are dropped together with its row in the index of decoded containers. If a
commit reaches the container again later, it is decoded like a new one. The segments that runs wrote
are kept, so rows are only removed from compacted copies (`state.compaction`).

A container is dead if neither the newest run nor the last run at least `KEEP_DAYS` ago contains it,
and no later run decoded it. Entries are kept this long because runs without a listing look for
candidates among them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.core.errors import GcError, StateError
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import merge_written, report_parts, write_parts
from gc_assets.engine.tasks import run_single_task, run_tasks
from gc_assets.state import compaction
from gc_assets.state.compaction import Reduction, Segment, SegmentList, Segments
from gc_assets.state.files import Files
from gc_assets.state.index import Part, PastRun
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartWriter, decode_each, open_part, read_errors, read_parts
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    DEAD_CONTAINERS,
    DEAD_CONTAINERS_SIDE,
    EDGES,
    EDGES_SIDE,
    HASHES_SIDE,
    STATES,
    STATES_SIDE,
)
from gc_assets.state.summaries import LiveFilesSummary

KEEP_DAYS: Final = 30
# Copying a segment is not worthwhile if it has fewer dead entries, or a smaller share of them.
MIN_DEAD_ENTRIES: Final = 100_000
MIN_DEAD_SHARE: Final = 0.5
# Side tables whose rows belong to the entries. Locations stay, because claims depend on them.
_REDUCED_SIDES: Final = ("", HASHES_SIDE, CONTAINERS_SIDE, EDGES_SIDE)
_MAX_RUNS_OPENED: Final = 3
_log = logging.getLogger(__name__)


def drop_dead_entries(spark: SparkSession, context: RunContext, lake_name: str, cache: Sequence[PastRun], run: TableRun) -> None:
    """Drop the entries of dead containers from compacted segments if there are many such entries.

    On failure, a warning is logged and the entries are kept.

    Args:
        context: The run context. Rehearsals, verification marks and runs that lowered a safety
            limit do not drop entries.
        cache: Segments that are valid for this run.
        run: The run of `manifest_entries`, for temporary parts.
    """
    rows = sum(segment.rows for segment in cache)
    if rows < MIN_DEAD_ENTRIES or context.unsafe or context.verification_id is not None or context.clock.is_rehearsal:
        return
    try:
        states = _find_states(context, lake_name)
        if states is not None:
            _drop(spark, context, cache, run, states)
    except (GcError, OSError, PySparkException, pa.ArrowException) as error:
        _log.warning("lake %s: the entries of dead containers were not dropped: %s", lake_name, error)


def refuse_dropped_since(context: RunContext, lake_name: str, cache: Sequence[PastRun], used: Segments) -> None:
    """Raise `StateError` if another run has dropped cached entries since this run read the cache.

    A container that this run decodes may reference a container whose entries were dropped. This run
    would record the latter as decoded, so later runs would not decode it again.

    Args:
        cache: Segments that are valid for this run.
        used: The segments' files, as found at the start of the run.
    """
    if sum(segment.rows for segment in cache) < MIN_DEAD_ENTRIES:
        return
    if _count_dropped(context.state.segments(cache)) > _count_dropped(used):
        raise StateError(
            f"lake {lake_name}: another run removed unused entries from the cache of containers while this run was reading "
            "the cache. Start this run again."
        )


def _count_dropped(segments: Segments) -> int:
    """Count the dropped rows. Compactions preserve this number."""
    return sum({segment.name: segment.dropped_rows for segment in segments.compacted.values()}.values())


@dataclass(frozen=True, slots=True)
class _States:
    """Container states of two runs. The containers in them are not dead.

    Attributes:
        paths: Parts with the containers of the newest run and of an earlier run (`STATES` columns).
        since: Id of the earlier run. Containers decoded after it are not dead either. Run ids sort
            by time.
    """

    paths: tuple[str, ...]
    since: str


def _find_states(context: RunContext, lake_name: str) -> _States | None:
    """Find the container states of the newest run, and of the newest run at least `KEEP_DAYS` ago.

    Returns None if either run is missing or incomplete.
    """
    now = context.clock.now()
    started = [run for run in context.state.history(lake_name, LIVE_FILES.name) if run.entry.created_at <= now]
    runs = sorted(started, key=lambda run: run.run_id, reverse=True)
    newest = _first_complete(context, runs[:1])
    limit = now - timedelta(days=KEEP_DAYS)
    earlier = _first_complete(context, [run for run in runs if run.entry.created_at <= limit][:_MAX_RUNS_OPENED]) if newest else None
    if newest is None or earlier is None:
        return None
    return _States((*newest.paths(STATES_SIDE), *earlier.paths(STATES_SIDE)), earlier.receipt.run_id)


def _first_complete(context: RunContext, runs: Sequence[PastRun]) -> PublishedTable | None:
    """Return the first run with states that read all tables without lowering a safety limit."""
    for run in runs:
        found = context.state.open(run)
        if found.parts(STATES_SIDE) and not found.receipt.unsafe and not found.summary(LiveFilesSummary).unreadable:
            return found
    return None


def _drop(spark: SparkSession, context: RunContext, cache: Sequence[PastRun], run: TableRun, states: _States) -> None:
    state, valid = context.state, {segment.run_id for segment in cache}
    listed = compaction.read_list(state.files, cache[0].group, cache[0].asset)
    runs = state.history(cache[0].group, cache[0].asset)
    segments = [segment for segment in compaction.list_segments(runs, listed) if valid.issuperset(item.run_id for item in segment.runs)]
    if sum(len(segment.runs) for segment in segments) < len(valid):
        return  # some runs are in a segment with invalid ones
    recent = [path for segment in cache if segment.run_id > states.since for path in segment.paths(CONTAINERS_SIDE)]
    find = FindDead(
        state.files,
        run,
        tuple(tuple(segment.paths(CONTAINERS_SIDE)) for segment in segments),
        tuple(path for segment in segments for path in segment.paths(EDGES_SIDE)),
        states.paths,
        tuple(recent),
    )
    rows = sum(part.rows for segment in segments for part, _ in segment.sources() if part.name.startswith((CONTAINERS_SIDE, EDGES_SIDE)))
    found = merge_written(run_single_task(spark, find, rows, find.part_count))
    dead = tuple(found.paths(run, DEAD_CONTAINERS_SIDE))
    if dead:
        log_activity(f"dropping {found.summary['entries']:,} entries of {found.summary['containers']:,} containers that no commit reaches")
        _copy(spark, context, [segments[int(number)] for number in found.summary["segments"]], dead, runs, listed)
        state.files.delete_directory(f"{run.path}/{DEAD_CONTAINERS_SIDE}")


def _copy(
    spark: SparkSession,
    context: RunContext,
    segments: Sequence[Segment],
    dead: tuple[str, ...],
    runs: Sequence[PastRun],
    listed: SegmentList,
) -> None:
    """Replace segments with copies that do not contain the rows of dead containers."""
    reductions: dict[str, Reduction] = {}
    for segment in segments:
        name = uuid.uuid4().hex
        sources = tuple((part, source.path) for part, source in segment.sources())
        task = CopyLive(context.state.files, compaction.segment_directory(segment.base, name), sources, dead)
        written = merge_written(run_tasks(spark, task, len(sources), segment.size_bytes))
        parts = (*written.parts, *(part for side in written.side.values() for part in side))
        reductions[name] = Reduction(segment, parts, written.summary["dropped"])
    compaction.add_reduced(context.state.files, reductions, runs, listed)


CONTAINERS_OF_SEGMENT: Final = pa.schema([CONTAINERS.field("container"), CONTAINERS.field("entries")])
EDGES_OF_CONTAINERS: Final = pa.schema([EDGES.field("container"), EDGES.field("address")])


@dataclass(frozen=True)
class FindDead:
    """Find the dead containers in segments that are worth copying, and write `DEAD_CONTAINERS`.

    A container is kept if another segment contains it, or if a kept container refers to it, because
    the children of a decoded container must be decoded as well.

    Attributes:
        segments: Parts with the decoded containers of each segment (`CONTAINERS` columns).
        edges: Parts with the edges between the containers of all segments.
        states: Parts with containers that are not dead (`STATES` columns).
        recent: Parts with recently decoded containers (`CONTAINERS` columns).
    """

    files: Files
    run: TableRun
    segments: tuple[tuple[str, ...], ...]
    edges: tuple[str, ...]
    states: tuple[str, ...]
    recent: tuple[str, ...]

    @property
    def part_count(self) -> int:
        """The number of parts that this task reads."""
        return sum(map(len, self.segments)) + len(self.edges) + len(self.states) + len(self.recent)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            indexes = [read_parts(self.files, list(paths), CONTAINERS, ["container", "entries"]) for paths in self.segments]
            known = pa.concat_tables(
                [
                    read_parts(self.files, list(self.states), STATES, ["address"]).rename_columns(["container"]),
                    read_parts(self.files, list(self.recent), CONTAINERS, ["container"]),
                ]
            ).column("container")
            chosen = {number: index for number, index in enumerate(indexes) if _is_worth_a_copy(index, known.combine_chunks())}
            others = [index.column("container") for number, index in enumerate(indexes) if number not in chosen]
            kept = pa.chunked_array([chunk for column in (known, *others) for chunk in column.chunks], pa.string()).combine_chunks()
            found = pa.concat_tables([CONTAINERS_OF_SEGMENT.empty_table(), *chosen.values()])
            candidates = found.column("container").filter(pc.invert(pc.is_in(found.column("container"), kept))).unique()
            dead = self._without_named_by_others(candidates) if len(candidates) else candidates
            entries = pc.sum(found.filter(pc.is_in(found.column("container"), dead)).column("entries")).as_py() or 0
            parts = write_parts(pa.table({"container": dead}, DEAD_CONTAINERS), self.run, self.files, DEAD_CONTAINERS_SIDE)
            numbers = dict.fromkeys(map(str, chosen), 1)
            yield report_parts(parts, summary={"entries": entries, "containers": len(dead), "segments": numbers})

    def _without_named_by_others(self, dead: pa.Array) -> pa.Array:
        """Remove containers that a kept container references, until no such container is left."""
        naming = [EDGES_OF_CONTAINERS.empty_table()]
        for rows in decode_each(self.files, self.edges, lambda content: iter((open_part(content).read(EDGES_OF_CONTAINERS.names),))):
            edges = rows.cast(EDGES_OF_CONTAINERS)
            naming.append(edges.filter(pc.is_in(edges.column("address"), dead)))
        edges, count = pa.concat_tables(naming), -1
        while len(dead) != count:
            count = len(dead)
            by_others = edges.filter(pc.invert(pc.is_in(edges.column("container"), dead))).column("address").combine_chunks()
            dead = dead.filter(pc.invert(pc.is_in(dead, by_others)))
        return dead


def _is_worth_a_copy(index: pa.Table, known: pa.Array) -> bool:
    is_dead = pc.invert(pc.is_in(index.column("container"), known))
    dead, entries = (pc.sum(rows.column("entries")).as_py() or 0 for rows in (index.filter(is_dead), index))
    return dead >= MIN_DEAD_ENTRIES and dead >= MIN_DEAD_SHARE * entries


@dataclass(frozen=True)
class CopyLive:
    """Copy parts of segments, which are selected by number, without the rows of dead containers.

    Attributes:
        directory: Directory of the copies, relative to the state.
        dead: Parts with the dead containers (`DEAD_CONTAINERS` columns).
    """

    files: Files
    directory: str
    sources: tuple[tuple[Part, str], ...]
    dead: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dead = read_parts(self.files, list(self.dead), DEAD_CONTAINERS).column("container").combine_chunks()
        writers: dict[str, list[PartWriter]] = {}
        dropped = 0
        for batch in batches:
            for number in batch.column("id").to_pylist():
                part, path = self.sources[number]
                side = part.name.rpartition("/")[0]
                own = writers.setdefault(side, [])
                for rows in self._read(part, path):
                    if not own or not own[-1].schema.equals(rows.schema):  # some columns are missing in parts of older releases
                        own.append(PartWriter(self.files, self.directory, rows.schema, side))
                    kept = rows.filter(pc.invert(pc.is_in(rows.column("container"), dead))) if side in _REDUCED_SIDES else rows
                    dropped += rows.num_rows - kept.num_rows
                    own[-1].write(kept)
        written = [part for own in writers.values() for writer in own for part in writer.close()]
        yield report_parts(written, summary={"dropped": dropped})

    def _read(self, part: Part, path: str) -> Iterator[pa.RecordBatch]:
        with read_errors(f"{self.files.root}/{path}"):
            yield from open_part(compaction.read_verified(self.files, part, path)).iter_batches()
