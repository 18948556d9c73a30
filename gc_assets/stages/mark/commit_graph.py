"""Publish a lake's commit graph with generation numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets._version import __version__
from gc_assets.core.errors import LakeUnreadable, StateError, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine import tasks
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    WrittenParts,
    frame_from_arrow,
    map_arrow,
    parallelism,
    publish,
    read_paths,
    spark_schema,
    write_frame,
    write_parts,
    write_rows,
)
from gc_assets.lakes.protocol import Lake, as_incremental
from gc_assets.stages.mark.commit_rows import ReadCommits, add_generations, keep_first_of_each_commit
from gc_assets.stages.mark.lake_refs import freeze_without
from gc_assets.stages.mark.resolution import resolve_content_roots
from gc_assets.stages.records.newest_graphs import list_newest_graphs
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from gc_assets.state.side_tables import DRIVER_COMMITS_SIDE, READ_FROM_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import CommitGraphSummary

# Maximum number of sources to read sequentially in this process.
MAX_IN_PROCESS_SOURCES: Final = 64


@log_progress(COMMIT_GRAPH)
def commit_graph(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish the commits of a lake's histories, even dangling commits, with generation numbers.

    Commits that an earlier run read are reused if the lake's commits never change, or if a table's
    metadata file is unchanged. The former also preserves the commits of deleted refs. In both
    cases, the addresses of their content roots are resolved again. After an upgrade, all commits
    are read again.

    If two sources (places from which a history is read) contain the same commit, for example
    because a table is registered twice, the commit becomes one row with the content roots of both.
    If a single-repository lake is unreadable, the table is empty and the summary contains the
    reason. If only one table of a lake is unreadable, `lake_refs` is published again without this
    table's refs, and lists the table as unreadable.

    Raises:
        LakeUnreadable: If the source of a whole lake could not be read.
    """
    refs, lake = context.table(LAKE_REFS, lake_name), context.lake(lake_name)
    while True:
        try:
            return _publish_graph(spark, context, lake, refs)
        except _UnreadableSources as error:
            refs = freeze_without(context, lake_name, refs, error.reasons)


class _UnreadableSources(Exception):
    """Raised if the commits of some tables cannot be read.

    Attributes:
        reasons: Why each source cannot be read, keyed by its row number in the side table of
            sources.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


def _publish_graph(spark: SparkSession, context: RunContext, lake: Lake, refs: PublishedTable) -> PublishedTable:
    state = context.state
    run = start_run(context, context.group(lake.name), COMMIT_GRAPH)
    sources = read_parts(state.files, refs.paths(SOURCES_SIDE), SOURCES)
    has_digests = sources.column("digest").null_count < sources.num_rows
    previous = _PreviousGraphs.find(context, lake, has_digests=has_digests)
    known = _find_known_commits(state, sources, previous, context.resolver())
    read = ReadCommits(
        lake,
        context.resolver(),
        state.files,
        tuple(refs.paths(SOURCES_SIDE)),
        known.sources_to_read(sources),
        previous.known_paths,
        previous.outdated_paths,
    )
    log_activity(f"{len(read.wanted):,} of {sources.num_rows:,} histories to read, {known.rows:,} commits known")
    written, unread = None, None
    try:
        if len(read.wanted) <= MAX_IN_PROCESS_SOURCES and previous.fits_in_process(spark):
            written = _write_in_process(read, known, run, state)
        if written is None:
            written = _write_with_spark(spark, read, known, run, state)
    except (LakeUnreadable, StoreError) as error:
        if not context.kind(lake.name).fails_alone:
            log_activity("reading each history separately, because one of them could not be read")
            if reasons := read.find_unreadable():
                raise _UnreadableSources(reasons) from error
            raise
        written, unread = write_rows(COMMIT_GRAPH.schema.empty_table(), COMMIT_GRAPH, run, state.files), str(error)
    if has_digests:
        written = replace(written, side={READ_FROM_SIDE: tuple(write_parts(sources, run, state.files, READ_FROM_SIDE))})
    summary = CommitGraphSummary(
        commits=written.rows,
        known=known.rows,
        read_as=graph_fingerprint(context, lake.name),
        unread=unread,
        bases=tuple(base.run_id for base in previous.runs),
    )
    return publish(state, run, written, context.clock, inputs=[refs], summary=summary, unsafe=context.unsafe)


def graph_fingerprint(context: RunContext, lake_name: str) -> str:
    """Return a digest of everything that determines a lake's commits, except the sources.

    The digest covers the gc-assets release and the lake's server. A run reuses commits of an
    earlier run only if both have the same digest. Storages and symbolic links are not included,
    because every run resolves the addresses of reused commits again.
    """
    return hashlib.sha256(json.dumps([__version__, context.config.lake(lake_name).server()]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _PreviousGraphs:
    """The last published commit graphs of a lake. There are several if runs overlapped.

    Attributes:
        runs: The runs of the graphs.
        valid: Graphs that were published with this run's fingerprint, without damaged ones. Empty
            if no commit can be reused.
        outdated: Graphs that were published with another fingerprint, without damaged ones.
        is_incremental: True if the lake's commits never change, so that new commits are appended.
    """

    runs: tuple[PastRun, ...]
    valid: tuple[PublishedTable, ...]
    outdated: tuple[PublishedTable, ...]
    is_incremental: bool

    @classmethod
    def find(cls, context: RunContext, lake: Lake, *, has_digests: bool) -> _PreviousGraphs:
        """Open the last graphs if their commits can be reused.

        Raises:
            StateError: If a graph of an incremental lake is damaged, because no other table
                contains the commits of deleted refs.
        """
        is_incremental = as_incremental(lake) is not None
        runs = list_newest_graphs(context.state, lake.name)
        found = [_open_graph(context.state, run, required=is_incremental) for run in runs] if is_incremental or has_digests else []
        graphs = [graph for graph in found if graph is not None]
        fingerprint = graph_fingerprint(context, lake.name)
        valid = tuple(graph for graph in graphs if graph.summary(CommitGraphSummary).read_as == fingerprint)
        return cls(tuple(runs), valid, tuple(graph for graph in graphs if graph not in valid), is_incremental)

    @property
    def known_paths(self) -> tuple[str, ...]:
        return _paths(self.valid) if self.is_incremental else ()

    @property
    def outdated_paths(self) -> tuple[str, ...]:
        return _paths(self.outdated) if self.is_incremental else ()

    def fits_in_process(self, spark: SparkSession) -> bool:
        """Check whether the driver process can copy the graphs without Spark executors."""
        rows = sum(run.rows for run in self.runs)
        if not self.valid:
            return rows <= tasks.MAX_TRIAL_ROWS
        return tasks.table_fits_in_process(spark, rows, len(_paths(self.valid)))


def _paths(graphs: Iterable[PublishedTable]) -> tuple[str, ...]:
    return tuple(path for graph in graphs for path in graph.paths())


def _open_graph(state: State, run: PastRun, *, required: bool) -> PublishedTable | None:
    try:
        graph = state.open(run)
        graph.summary(CommitGraphSummary)
    except StateError:
        if required:
            raise
        return None
    return graph


@dataclass(frozen=True)
class _KnownCommits:
    """Commits that are reused from earlier graphs.

    Attributes:
        tables: UUIDs of the tables whose commits are reused. If None, all commits are reused and
            new commits are appended.
        resolver: Resolves the addresses of the commits' content roots again.
    """

    graphs: tuple[PublishedTable, ...]
    tables: pa.Array | None
    rows: int
    resolver: KeyResolver

    @property
    def is_separate(self) -> bool:
        """True if entire table graphs are reused, so that their generation numbers stay correct."""
        return self.tables is not None

    def sources_to_read(self, sources: pa.Table) -> tuple[int, ...]:
        """Return the row numbers of the sources that still have to be read."""
        if self.tables is None:
            return tuple(range(sources.num_rows))
        return tuple(np.flatnonzero(pc.invert(pc.is_in(sources.column("table_uuid"), self.tables)).to_numpy()).tolist())

    def read(self, state: State) -> pa.Table:
        """Read the reused commits into memory."""
        rows = read_parts(state.files, list(_paths(self.graphs)), COMMIT_GRAPH.schema)
        if len(self.graphs) > 1:
            rows = keep_first_of_each_commit(rows)
        known = rows if self.tables is None else rows.filter(pc.is_in(rows.column("table_uuid"), self.tables))
        return pa.Table.from_batches(resolve_content_roots(iter(known.to_batches()), self.resolver), known.schema)

    def read_frame(self, spark: SparkSession, state: State) -> DataFrame:
        sizes = [part.size_bytes for graph in self.graphs for part in graph.parts()]
        rows = read_paths(spark, state.files, COMMIT_GRAPH.schema, list(_paths(self.graphs)), sizes=sizes)
        if len(self.graphs) > 1:
            rows = rows.dropDuplicates(["table_uuid", "commit_id"])
        if self.tables is not None:
            tables = frame_from_arrow(spark, pa.table({"table_uuid": self.tables}))
            rows = rows.join(F.broadcast(tables), "table_uuid", "left_semi").select(*rows.columns)
        return map_arrow(rows, partial(resolve_content_roots, resolver=self.resolver), COMMIT_GRAPH.schema)


def _find_known_commits(state: State, sources: pa.Table, previous: _PreviousGraphs, resolver: KeyResolver) -> _KnownCommits:
    """Find the commits of the previous graphs that can be reused.

    If a graph is damaged and the lake can be read again, no commit is reused.
    """
    if not previous.valid or previous.is_incremental:
        return _KnownCommits(previous.valid, None, sum(graph.receipt.rows for graph in previous.valid), resolver)
    graph = previous.valid[-1]
    try:
        tables = find_unchanged_tables(sources, read_parts(state.files, graph.paths(READ_FROM_SIDE), SOURCES))
        rows = _count_commits(state.files, graph, tables) if len(tables) else None
    except (StateError, OSError, pa.ArrowException):
        return _KnownCommits((), None, 0, resolver)
    return _KnownCommits((), None, 0, resolver) if rows is None else _KnownCommits((graph,), tables, rows, resolver)


def find_unchanged_tables(sources: pa.Table, previous: pa.Table) -> pa.Array:
    """Return the UUIDs of tables whose metadata files and names are the same as in an earlier run.

    Args:
        sources: The current sources (`SOURCES` columns).
        previous: The sources of an earlier run.
    """
    known = _sources_by_table(previous)
    return pa.array([uuid for uuid, own in _sources_by_table(sources).items() if None not in own and known.get(uuid) == own], pa.string())


def _sources_by_table(sources: pa.Table) -> dict[str, frozenset[tuple[str, ...] | None]]:
    """Group sources by table UUID. A source without a digest is represented by None."""
    found: dict[str, set[tuple[str, ...] | None]] = {}
    for row in sources.select(["table_uuid", "table_name", "address", "digest"]).to_pylist():
        if row["table_uuid"] is not None:
            source = None if None in row.values() else tuple(row.values())
            found.setdefault(row["table_uuid"], set()).add(source)
    return {uuid: frozenset(own) for uuid, own in found.items()}


def _count_commits(files: Files, graph: PublishedTable, tables: pa.Array) -> int | None:
    """Count the commits of some tables in a published graph, or return None if it is damaged."""
    rows = 0
    for part, content in zip(graph.receipt.files, files.contents(graph.paths()), strict=True):
        if hashlib.sha256(content).hexdigest() != part.sha256:
            return None
        uuids = pq.read_table(pa.BufferReader(content), columns=["table_uuid"]).column("table_uuid")
        rows += pc.sum(pc.is_in(uuids, tables)).as_py() or 0
    return rows


def _write_in_process(read: ReadCommits, known: _KnownCommits, run: TableRun, state: State) -> WrittenParts | None:
    """Write the commit graph in the driver process, or return None if it is too large for that."""
    commits = tasks.try_in_process(read, len(read.wanted))
    if commits is None:
        return None
    reused = known.read(state).to_batches()
    batches = [*add_generations(iter(commits)), *reused] if known.is_separate else add_generations(iter([*commits, *reused]))
    return write_rows(pa.Table.from_batches(batches, COMMIT_GRAPH.schema), COMMIT_GRAPH, run, state.files)


def _write_with_spark(spark: SparkSession, read: ReadCommits, known: _KnownCommits, run: TableRun, state: State) -> WrittenParts:
    ddl, driver_paths, count = spark_schema(COMMIT_GRAPH.schema), list[str](), len(read.wanted)
    if as_incremental(read.lake) is None:
        commits = spark.range(0, count, 1, max(1, min(count, parallelism(spark)))).mapInArrow(read, ddl)
    else:
        driver_paths = _write_driver_commits(read, run, state.files)
        commits = read_paths(spark, state.files, COMMIT_GRAPH.schema, driver_paths)
    if known.graphs and not known.is_separate:
        commits = commits.unionByName(known.read_frame(spark, state))
    commits = commits.repartition(1).mapInArrow(add_generations, ddl)
    if known.graphs and known.is_separate:
        commits = commits.unionByName(known.read_frame(spark, state))
    written = write_frame(commits, COMMIT_GRAPH, run, state)
    _delete(state.files, driver_paths)
    return written


def _write_driver_commits(read: ReadCommits, run: TableRun, files: Files) -> list[str]:
    """Read commits in the driver process, and write them to temporary parts for Spark executors.

    Executors cannot read them, because only the driver has the credentials of the lake's server.
    """
    writer = PartWriter(files, run.path, COMMIT_GRAPH.schema, DRIVER_COMMITS_SIDE)
    for batch in read(iter([pa.RecordBatch.from_pydict({"id": pa.array(range(len(read.wanted)), pa.int64())})])):
        writer.write(batch)
    return [f"{run.path}/{part.name}" for part in writer.close()]


def _delete(files: Files, paths: Iterable[str]) -> None:
    for path in paths:
        files.delete(path)
