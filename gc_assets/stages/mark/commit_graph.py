"""Reads the commit graph and stores it with generation numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets import __version__
from gc_assets.core.errors import LakeUnreadable, StoreError
from gc_assets.core.graph import CommitGraph
from gc_assets.core.paths import KeyResolver
from gc_assets.lakes.protocol import Commit, CommitSource, Lake, growing
from gc_assets.stages import engine
from gc_assets.stages.mark.lake_refs import SOURCES_SIDE
from gc_assets.stages.night import Night
from gc_assets.stages.progress import begin, doing, logged
from gc_assets.stages.tables import Written, parallelism, publish, read_paths, read_rows, read_table, spark_schema, write_frame, write_rows
from gc_assets.state.facts import CommitGraphFacts
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import Published, Run, State
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, SOURCES

# Up to so many sources are read one after the other in this process.
HERE_SOURCES: Final = 64
_PASSED_ON: Final = "_passed_on"
# A task hands rows on in batches of this many commits, so that a long history does not sit in a
# worker twice.
BATCH_COMMITS = 5_000


@logged(COMMIT_GRAPH)
def commit_graph(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """Publishes every commit behind the frozen refs' sources, dangling ones too, with topological
    levels.

    Where a lake's commits never change, those of earlier nights are taken over, also those of refs
    that were dropped since. After an upgrade, or where a storage moved, all are read anew.

    Commits that two sources share (a table registered twice) are one row with the union of their
    content roots. Raises `LakeUnreadable` naming a source that could not be read. A lake that is
    one repository has no commits then, and the facts say why.
    """
    state = night.state
    refs = night.table(LAKE_REFS, lake_name)
    run = begin(night, night.group(lake_name), COMMIT_GRAPH)
    count = sum(part.rows for part in refs.receipt.side.get(SOURCES_SIDE, ()))
    lake, meaning = night.lake(lake_name), read_as(night, lake_name)
    before = _last(night, lake_name)
    last = state.open(before) if before is not None and growing(lake) is not None else None
    earlier = last if last is not None and last.facts(CommitGraphFacts).read_as == meaning else None
    known = tuple(earlier.paths()) if earlier is not None else ()
    forgotten = tuple(last.paths()) if last is not None and earlier is None else ()
    read = _ReadCommits(lake, night.resolver(), state.files, tuple(refs.paths(SOURCES_SIDE)), known, forgotten)
    doing(f"{count:,} histories to read, {earlier.receipt.rows if earlier is not None else 0:,} commits known")
    is_small, unread = count <= HERE_SOURCES and (before is None or before.rows <= engine.BEGUN_ROWS), None
    try:
        written = _written_here(read, count, run, state, earlier) if is_small else None
        if written is None:
            written = _written_by_executors(spark, read, count, run, state, earlier)
    except (LakeUnreadable, StoreError) as error:
        if not night.kind(lake_name).is_one_table:
            raise
        written, unread = write_rows(COMMIT_GRAPH.schema.empty_table(), COMMIT_GRAPH, run, state.files), str(error)
    known_rows = earlier.receipt.rows if earlier is not None else 0
    facts = CommitGraphFacts(commits=written.rows, known=known_rows, read_as=meaning, unread=unread)
    return publish(state, run, written, night.clock, inputs=[refs], facts=facts, unsafe=night.unsafe)


def _written_here(read: _ReadCommits, sources: int, run: Run, state: State, earlier: Published | None) -> Written | None:
    """Writes the graph in this process. Returns null where it turns out to be too large for that."""
    commits = engine.begun(read, sources)
    if commits is None:
        return None
    if earlier is not None:
        commits += read_rows(state, COMMIT_GRAPH, earlier).to_batches()
    leveled = pa.Table.from_batches(with_generations(iter(commits)), COMMIT_GRAPH.schema)
    return write_rows(leveled, COMMIT_GRAPH, run, state.files)


def _written_by_executors(
    spark: SparkSession, read: _ReadCommits, sources: int, run: Run, state: State, earlier: Published | None
) -> Written:
    ddl, passed_on = spark_schema(COMMIT_GRAPH.schema), list[str]()
    if growing(read.lake) is None:
        commits = spark.range(0, sources, 1, max(1, min(sources, parallelism(spark)))).mapInArrow(read, ddl)
    else:
        passed_on = _passed_on(read, sources, run, state.files)
        commits = read_paths(spark, state.files, COMMIT_GRAPH.schema, passed_on)
    if earlier is not None:
        commits = commits.unionByName(read_table(spark, state, COMMIT_GRAPH, earlier))
    written = write_frame(commits.repartition(1).mapInArrow(with_generations, ddl), COMMIT_GRAPH, run, state)
    for path in passed_on:
        state.files.delete(path)
    return written


def _passed_on(read: _ReadCommits, sources: int, run: Run, files: Files) -> list[str]:
    """Reads the commits in this process, which alone can log in at their server, and leaves them in
    the state for executors.
    """
    writer = PartWriter(files, run.path, COMMIT_GRAPH.schema, _PASSED_ON)
    for batch in read(iter([pa.RecordBatch.from_pydict({"id": pa.array(range(sources), pa.int64())})])):
        writer.write(batch)
    return [f"{run.path}/{part.name}" for part in writer.close()]


def read_as(night: Night, lake_name: str) -> str:
    """Returns a digest of what the rows of a graph depend on besides the commits.

    That is the release, where the lake is, and the storages that its keys lie in.
    """
    places = sorted((storage.name, storage.location) for storage in night.config.storages)
    server = night.config.lake(lake_name).server()
    return hashlib.sha256(json.dumps([__version__, places, server]).encode()).hexdigest()


def _last(night: Night, lake_name: str) -> PastRun | None:
    """Returns the graph that was published last, however it was read."""
    return max(night.state.history(lake_name, COMMIT_GRAPH.name), key=lambda run: run.entry.created_at, default=None)


def tips(graph: pa.Table) -> list[str]:
    """Returns the commits of a graph that are nobody's parent. All others lie behind them."""
    ids = graph.column("commit_id")
    return ids.filter(pc.invert(pc.is_in(ids, pc.list_flatten(graph.column("parents"))))).to_pylist()


@dataclass(frozen=True)
class _ReadCommits:
    """Takes numbers of sources and yields their commits.

    `known` is the graph of an earlier night that is taken over. `forgotten` is one that has to be
    read anew.
    """

    lake: Lake
    resolver: KeyResolver
    files: Files
    sources: tuple[str, ...]
    known: tuple[str, ...]
    forgotten: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = read_parts(self.files, list(self.sources), SOURCES)
        known = frozenset(read_parts(self.files, list(self.known), COMMIT_GRAPH.schema, ["commit_id"]).column("commit_id").to_pylist())
        former = tips(read_parts(self.files, list(self.forgotten), COMMIT_GRAPH.schema, ["commit_id", "parents"]))
        for batch in batches:
            for row in sources.take(batch.column("id")).to_pylist(maps_as_pydicts="strict"):
                pending: list[Commit] = []
                source = CommitSource(**row)
                grown = growing(self.lake)
                for commit in grown.new_commits(source, known, former) if grown is not None else self.lake.commits(source):
                    pending.append(commit)
                    if len(pending) == BATCH_COMMITS:
                        yield commit_rows(pending, self.resolver)
                        pending = []
                if pending:
                    yield commit_rows(pending, self.resolver)


def commit_rows(commits: list[Commit], resolver: KeyResolver) -> pa.RecordBatch:
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


def with_generations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges shared commits of the whole graph in one task, and numbers the levels of each table."""
    held = list(batches)
    if not held:
        return
    graph = merged_commits(pa.Table.from_batches(held))
    for table_uuid in pc.unique(graph.column("table_uuid")):
        same = pc.is_null(graph.column("table_uuid")) if not table_uuid.is_valid else pc.equal(graph.column("table_uuid"), table_uuid)
        part = graph.filter(same).combine_chunks()
        levels = CommitGraph.build(part.column("commit_id"), part.column("parents"), part.column("committed_at")).generation
        generation = pa.array(levels, pa.int64(), mask=levels < 0)
        index = part.schema.get_field_index("generation")
        yield from part.set_column(index, part.schema.field(index), generation).to_batches(max_chunksize=BATCH_COMMITS)


def merged_commits(rows: pa.Table) -> pa.Table:
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
