"""Reads the commit graph and stores it with generation numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets._version import __version__
from gc_assets.core.errors import LakeUnreadable, StateError, StoreError
from gc_assets.core.graph import CommitGraph
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine import tasks as engine
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    WrittenParts,
    frame_from_arrow,
    parallelism,
    publish,
    read_paths,
    read_rows,
    read_table,
    spark_schema,
    write_frame,
    write_parts,
    write_rows,
)
from gc_assets.lakes.protocol import Commit, CommitSource, Lake, as_incremental
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from gc_assets.state.side_tables import DRIVER_COMMITS_SIDE, READ_FROM_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import CommitGraphSummary

# Up to so many sources are read one after the other in this process.
MAX_IN_PROCESS_SOURCES: Final = 64
# A task hands rows on in batches of this many commits, so that a long history does not sit in a
# worker twice.
BATCH_COMMITS = 5_000
# Tables that together begin within so many commits are numbered together: each round goes over all.
SHARE_COMMITS = 100_000


@log_progress(COMMIT_GRAPH)
def commit_graph(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publishes every commit behind the frozen refs' sources, dangling ones too, with topological
    levels.

    Where a lake's commits never change, those of earlier nights are taken over, also those of refs
    that were dropped since. So are those of tables whose metadata files hold the same bytes. After
    an upgrade, or where a storage moved, all are read anew.

    Commits that two sources share (a table registered twice) are one row with the union of their
    content roots. Raises `LakeUnreadable` naming a source that could not be read. A lake that is
    one repository has no commits then, and the facts say why.
    """
    state = context.state
    refs = context.table(LAKE_REFS, lake_name)
    run = start_run(context, context.group(lake_name), COMMIT_GRAPH)
    sources = read_parts(state.files, refs.paths(SOURCES_SIDE), SOURCES)
    lake, meaning = context.lake(lake_name), graph_fingerprint(context, lake_name)
    is_growing, before = as_incremental(lake) is not None, _last(context, lake_name)
    has_digests = sources.column("digest").null_count < sources.num_rows
    last = _opened(state, before, grows=is_growing) if before is not None and (is_growing or has_digests) else None
    earlier = last if last is not None and last.summary(CommitGraphSummary).read_as == meaning else None
    known = _Known.of(state, sources, earlier, grows=is_growing)
    read = _ReadCommits(
        lake,
        context.resolver(),
        state.files,
        tuple(refs.paths(SOURCES_SIDE)),
        known.to_read(sources),
        tuple(earlier.paths()) if earlier is not None and is_growing else (),
        tuple(last.paths()) if last is not None and earlier is None and is_growing else (),
    )
    log_activity(f"{len(read.wanted):,} of {sources.num_rows:,} histories to read, {known.rows:,} commits known")
    bearable = engine.MAX_TRIAL_ROWS if earlier is None else engine.MAX_IN_PROCESS_ROWS
    is_small, unread = len(read.wanted) <= MAX_IN_PROCESS_SOURCES and (before is None or before.rows <= bearable), None
    try:
        written = _written_here(read, known, run, state) if is_small else None
        if written is None:
            written = _written_by_executors(spark, read, known, run, state)
    except (LakeUnreadable, StoreError) as error:
        if not context.kind(lake_name).is_one_table:
            raise
        written, unread = write_rows(COMMIT_GRAPH.schema.empty_table(), COMMIT_GRAPH, run, state.files), str(error)
    if has_digests:
        written = replace(written, side={READ_FROM_SIDE: tuple(write_parts(sources, run, state.files, READ_FROM_SIDE))})
    summary = CommitGraphSummary(commits=written.rows, known=known.rows, read_as=meaning, unread=unread)
    return publish(state, run, written, context.clock, inputs=[refs], summary=summary, unsafe=context.unsafe)


@dataclass(frozen=True)
class _Known:
    """The graph of an earlier night, if there is one, and the uuids of the tables whose commits are
    taken over from it. Null uuids: all commits are, and new ones join them. `rows` is how many are.
    """

    graph: PublishedTable | None
    tables: pa.Array | None
    rows: int

    @classmethod
    def of(cls, state: State, sources: pa.Table, earlier: PublishedTable | None, *, grows: bool) -> Self:
        """Returns what an earlier graph, read in the same way, spares tonight. Of a lake that does not
        grow that is nothing where the graph holds other bytes than were written: all can be read anew.
        """
        if earlier is None or grows:
            return cls(earlier, None, earlier.receipt.rows if earlier is not None else 0)
        try:
            tables = _unchanged(state.files, sources, earlier)
            rows = _commits_of(state.files, earlier, tables) if len(tables) else None
        except (StateError, OSError, pa.ArrowException):
            return cls(None, None, 0)
        return cls(None, None, 0) if rows is None else cls(earlier, tables, rows)

    def to_read(self, sources: pa.Table) -> tuple[int, ...]:
        """Returns the numbers of the sources to read."""
        if self.tables is None:
            return tuple(range(sources.num_rows))
        return tuple(np.flatnonzero(pc.invert(pc.is_in(sources.column("table_uuid"), self.tables)).to_numpy()).tolist())

    def taken_over(self, state: State) -> pa.Table:
        """Returns the commits that are taken over, in the memory of this process."""
        if self.graph is None:
            return COMMIT_GRAPH.schema.empty_table()
        rows = read_rows(state, COMMIT_GRAPH, self.graph)
        return rows if self.tables is None else rows.filter(pc.is_in(rows.column("table_uuid"), self.tables))

    def frame(self, spark: SparkSession, state: State) -> DataFrame:
        """Returns the same as a frame."""
        rows = read_table(spark, state, COMMIT_GRAPH, self.graph)
        if self.tables is None:
            return rows
        chosen = frame_from_arrow(spark, pa.table({"table_uuid": self.tables}))
        return rows.join(F.broadcast(chosen), "table_uuid", "left_semi").select(*rows.columns)


def _unchanged(files: Files, sources: pa.Table, earlier: PublishedTable) -> pa.Array:
    """Returns the uuids of the tables that have the same sources, of the same digests and under the
    same names, as when `earlier` was read.
    """
    before = read_parts(files, earlier.paths(READ_FROM_SIDE), SOURCES)
    now_by, then_by = _by_table(sources), _by_table(before)
    return pa.array([uuid for uuid, read_from in now_by.items() if None not in read_from and then_by.get(uuid) == read_from], pa.string())


def _commits_of(files: Files, graph: PublishedTable, tables: pa.Array) -> int | None:
    """Returns how many commits of these tables a graph has, null where it is damaged."""
    rows = 0
    for part, content in zip(graph.receipt.files, files.contents(graph.paths()), strict=True):
        if hashlib.sha256(content).hexdigest() != part.sha256:
            return None
        uuids = pq.read_table(pa.BufferReader(content), columns=["table_uuid"]).column("table_uuid")
        rows += pc.sum(pc.is_in(uuids, tables)).as_py() or 0
    return rows


def _by_table(sources: pa.Table) -> dict[str, frozenset[tuple[str, ...] | None]]:
    """Returns what each table was read from. A source without a digest is null."""
    found: dict[str, set[tuple[str, ...] | None]] = {}
    for row in sources.select(["table_uuid", "table_name", "address", "digest"]).to_pylist():
        if row["table_uuid"] is not None:
            of = None if None in row.values() else tuple(row.values())
            found.setdefault(row["table_uuid"], set()).add(of)
    return {uuid: frozenset(of) for uuid, of in found.items()}


def _written_here(read: _ReadCommits, known: _Known, run: TableRun, state: State) -> WrittenParts | None:
    """Writes the graph in this process. Returns null where it turns out to be too large for that."""
    commits = engine.try_in_process(read, len(read.wanted))
    if commits is None:
        return None
    leveled = add_generations(iter([*commits, *known.taken_over(state).to_batches()]))
    return write_rows(pa.Table.from_batches(leveled, COMMIT_GRAPH.schema), COMMIT_GRAPH, run, state.files)


def _written_by_executors(spark: SparkSession, read: _ReadCommits, known: _Known, run: TableRun, state: State) -> WrittenParts:
    ddl, passed_on, count = spark_schema(COMMIT_GRAPH.schema), list[str](), len(read.wanted)
    if as_incremental(read.lake) is None:
        commits = spark.range(0, count, 1, max(1, min(count, parallelism(spark)))).mapInArrow(read, ddl)
    else:
        passed_on = _passed_on(read, run, state.files)
        commits = read_paths(spark, state.files, COMMIT_GRAPH.schema, passed_on)
    if known.graph is not None:
        commits = commits.unionByName(known.frame(spark, state))
    written = write_frame(commits.repartition(1).mapInArrow(add_generations, ddl), COMMIT_GRAPH, run, state)
    for path in passed_on:
        state.files.delete(path)
    return written


def _passed_on(read: _ReadCommits, run: TableRun, files: Files) -> list[str]:
    """Reads the commits in this process, which alone can log in at their server, and leaves them in
    the state for executors.
    """
    writer = PartWriter(files, run.path, COMMIT_GRAPH.schema, DRIVER_COMMITS_SIDE)
    for batch in read(iter([pa.RecordBatch.from_pydict({"id": pa.array(range(len(read.wanted)), pa.int64())})])):
        writer.write(batch)
    return [f"{run.path}/{part.name}" for part in writer.close()]


def graph_fingerprint(context: RunContext, lake_name: str) -> str:
    """Returns a digest of what the rows of a graph depend on besides the commits.

    That is the release, where the lake is, and the storages that its keys lie in.
    """
    places = sorted((storage.name, storage.location) for storage in context.config.storages)
    server = context.config.lake(lake_name).server()
    return hashlib.sha256(json.dumps([__version__, places, server]).encode()).hexdigest()


def _last(context: RunContext, lake_name: str) -> PastRun | None:
    """Returns the graph that was published last, however it was read."""
    return max(context.state.history(lake_name, COMMIT_GRAPH.name), key=lambda run: run.entry.created_at, default=None)


def _opened(state: State, run: PastRun, *, grows: bool) -> PublishedTable | None:
    """Returns a graph, or null where it is damaged and can be read anew.

    Raises `StateError` for that of a growing lake: nothing else knows the commits of dropped refs.
    """
    try:
        graph = state.open(run)
        graph.summary(CommitGraphSummary)
    except StateError:
        if grows:
            raise
        return None
    return graph


def tips(graph: pa.Table) -> list[str]:
    """Returns the commits of a graph that are nobody's parent. All others lie behind them."""
    ids = graph.column("commit_id")
    return ids.filter(pc.invert(pc.is_in(ids, pc.list_flatten(graph.column("parents"))))).to_pylist()


@dataclass(frozen=True)
class _ReadCommits:
    """Takes numbers of `wanted` and yields the commits of those sources.

    `known` is the graph of an earlier night that a growing lake's new commits join. `forgotten` is
    one that has to be read anew.
    """

    lake: Lake
    resolver: KeyResolver
    files: Files
    sources: tuple[str, ...]
    wanted: tuple[int, ...]
    known: tuple[str, ...]
    forgotten: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = read_parts(self.files, list(self.sources), SOURCES)
        known = frozenset(read_parts(self.files, list(self.known), COMMIT_GRAPH.schema, ["commit_id"]).column("commit_id").to_pylist())
        former = tips(read_parts(self.files, list(self.forgotten), COMMIT_GRAPH.schema, ["commit_id", "parents"]))
        for batch in batches:
            chosen = np.array(self.wanted, np.int64)[batch.column("id").to_numpy()]
            for row in sources.take(pa.array(chosen)).to_pylist(maps_as_pydicts="strict"):
                pending: list[Commit] = []
                source = CommitSource(**row)
                grown = as_incremental(self.lake)
                for commit in grown.new_commits(source, known, former) if grown is not None else self.lake.commits(source):
                    pending.append(commit)
                    if len(pending) == BATCH_COMMITS:
                        yield build_commit_rows(pending, self.resolver)
                        pending = []
                if pending:
                    yield build_commit_rows(pending, self.resolver)


def build_commit_rows(commits: list[Commit], resolver: KeyResolver) -> pa.RecordBatch:
    """Returns commits as rows of `commit_graph`.

    Their generation is still null. Their content roots have canonical keys.
    """
    addresses = [root.address for commit in commits for root in commit.content_roots]
    storages, keys = (column.to_pylist() for column in resolver.resolve(pa.array(addresses, pa.string())))
    place = iter(zip(storages, keys, strict=True))
    rows: list[dict[str, Any]] = []
    for commit in commits:
        roots: list[dict[str, Any]] = []
        for root in commit.content_roots:
            storage, key = next(place)
            roots.append(
                {
                    "address": root.address,
                    "kind": root.kind,
                    "is_container": root.is_container,
                    "size_bytes": root.size_bytes,
                    "must_exist": root.must_exist,
                    "storage": storage,
                    "key": key,
                }
            )
        rows.append(
            {
                "table_uuid": commit.table_uuid,
                "commit_id": commit.commit_id,
                "parents": list(commit.parents),
                "committed_at": commit.committed_at,
                "generation": None,
                "content_roots": roots,
                "message": commit.message,
                "table_name": commit.table_name,
                "summary": list(commit.summary.items()),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=COMMIT_GRAPH.schema)


def add_generations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges shared commits of the whole graph in one task, and numbers the levels of each table."""
    held = list(batches)
    if not held:
        return
    for part in _by_uuid(merge_commits(pa.Table.from_batches(held))):
        levels = CommitGraph.build(part.column("commit_id"), part.column("parents"), part.column("committed_at")).generation
        generation = pa.array(levels, pa.int64(), mask=levels < 0)
        index = part.schema.get_field_index("generation")
        yield from part.set_column(index, part.schema.field(index), generation).to_batches(max_chunksize=BATCH_COMMITS)


def _by_uuid(graph: pa.Table) -> Iterator[pa.Table]:
    """Yields the commits of each table. Some tables are copied at a time, so the graph is not held
    twice, and no column grows beyond the 2 GiB of text that one Arrow array holds.
    """
    uuids = pc.fill_null(graph.column("table_uuid"), "").combine_chunks().dictionary_encode().indices.to_numpy()
    rows_of = np.bincount(uuids)
    share_of = (np.cumsum(rows_of) - rows_of) // SHARE_COMMITS
    for share in np.unique(share_of):
        mask = share_of[uuids] == share
        own = uuids[mask]
        order = np.argsort(own, kind="stable")
        some = graph.filter(pa.array(mask)).combine_chunks().take(pa.array(order))
        starts = np.flatnonzero(np.diff(own[order], prepend=-1))
        for start, end in pairwise([*starts.tolist(), some.num_rows]):
            yield some.slice(start, end - start)


def merge_commits(rows: pa.Table) -> pa.Table:
    """Returns one row per table and commit. The content roots of repeated rows are united."""
    keys = rows.group_by(["table_uuid", "commit_id"]).aggregate([([], "count_all")])
    if keys.num_rows == rows.num_rows:
        return rows
    merged: dict[tuple[str | None, str], dict[str, Any]] = {}
    for row in rows.to_pylist(maps_as_pydicts="lossy"):
        first = merged.setdefault((row["table_uuid"], row["commit_id"]), row)
        known = {root["address"] for root in first["content_roots"]}
        first["content_roots"] += [root for root in row["content_roots"] if root["address"] not in known]
    return pa.Table.from_pylist([{**row, "summary": list(row["summary"].items())} for row in merged.values()], schema=rows.schema)
