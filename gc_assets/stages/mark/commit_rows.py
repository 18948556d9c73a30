"""Read commits from a lake and convert them to rows of `commit_graph`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import GcError, LakeUnreadable, StoreError
from gc_assets.core.graph import CommitGraph, merge_parents
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.lakes.protocol import Commit, CommitSource, Lake, as_incremental
from gc_assets.state.files import Files
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.state.side_tables import SOURCES

# Commits per batch, so that workers do not hold a long history in memory twice.
BATCH_COMMITS: Final = 5_000
# Generations are computed for groups of tables with about this many commits. Each group scans all
# rows.
SHARE_COMMITS: Final = 100_000
# Number of concurrent reads of tables if a table is unreadable. Stores take tens of milliseconds to
# respond.
CONCURRENT_READS: Final = 16


@dataclass(frozen=True)
class ReadCommits:
    """Read the commits of a lake's sources, which are selected by their numbers.

    Attributes:
        resolver: Resolves the addresses of content roots.
        sources: Parts that list all sources (`SOURCES` columns).
        wanted: Row numbers of the sources to read.
        known: Parts of an earlier graph. A walk along parents stops at its commits.
        outdated: Parts of an earlier graph whose commits are read again from the lake.
    """

    lake: Lake
    resolver: KeyResolver
    files: Files
    sources: tuple[str, ...]
    wanted: tuple[int, ...]
    known: tuple[str, ...]
    outdated: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = read_parts(self.files, list(self.sources), SOURCES)
        known = frozenset(read_parts(self.files, list(self.known), COMMIT_GRAPH.schema, ["commit_id"]).column("commit_id").to_pylist())
        previous = tips(read_parts(self.files, list(self.outdated), COMMIT_GRAPH.schema, ["commit_id", "parents"]))
        incremental = as_incremental(self.lake)
        for batch in batches:
            numbers = np.array(self.wanted, np.int64)[batch.column("id").to_numpy()]
            for row in sources.take(pa.array(numbers)).to_pylist(maps_as_pydicts="strict"):
                source = CommitSource(**row)
                commits = self.lake.commits(source) if incremental is None else incremental.new_commits(source, known, previous)
                yield from self._build_rows(source, commits)

    def find_unreadable(self) -> dict[int, str]:
        """Return why tables cannot be read, keyed by the row number of each table's source.

        A source that contains the commits of a whole lake is skipped.
        """
        sources = read_parts(self.files, list(self.sources), SOURCES).take(pa.array(self.wanted, pa.int64()))
        rows = [CommitSource(**row) for row in sources.to_pylist(maps_as_pydicts="strict")]
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            reasons = pool.map(self._find_error, rows)
            return {number: reason for number, reason in zip(self.wanted, reasons, strict=True) if reason is not None}

    def _find_error(self, source: CommitSource) -> str | None:
        if source.table_name is None:
            return None
        try:
            for _ in self._build_rows(source, self.lake.commits(source)):
                pass
        except (LakeUnreadable, StoreError) as error:
            return str(error)
        return None

    def _build_rows(self, source: CommitSource, commits: Iterator[Commit]) -> Iterator[pa.RecordBatch]:
        """Yield the commits of a source as rows, and add the source to unexpected errors."""
        pending: list[Commit] = []
        try:
            for commit in commits:
                pending.append(commit)
                if len(pending) == BATCH_COMMITS:
                    yield build_commit_rows(pending, self.resolver)
                    pending = []
            if pending:
                yield build_commit_rows(pending, self.resolver)
        except GcError:
            raise
        except Exception as error:
            name = f"table {source.table_name}" if source.table_name is not None else f"lake {self.lake.name}"
            raise LakeUnreadable(f"{name}: the commits in {source.address} cannot be read: {type(error).__name__}: {error}") from error


def tips(graph: pa.Table) -> list[str]:
    """Return the ids of the commits without children. All other commits are reachable from them."""
    ids = graph.column("commit_id")
    return ids.filter(pc.invert(pc.is_in(ids, pc.list_flatten(graph.column("parents"))))).to_pylist()


def build_commit_rows(commits: list[Commit], resolver: KeyResolver) -> pa.RecordBatch:
    """Build rows of `commit_graph` with canonical keys, but without generation numbers.

    If a content root's address cannot be resolved, its key is None. When such a root is a container
    of a retained commit, the live walk later marks its table or content as unreadable.
    """
    addresses = [root.address for commit in commits for root in commit.content_roots]
    storages, keys = (column.to_pylist() for column in resolver.locate(pa.array(addresses, pa.string())))
    locations = iter(zip(storages, keys, strict=True))
    rows: list[dict[str, Any]] = []
    for commit in commits:
        roots: list[dict[str, Any]] = []
        for root in commit.content_roots:
            storage, key = next(locations)
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
                "parents_differ": False,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=COMMIT_GRAPH.schema)


def add_generations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge duplicate commits and add generation numbers per table."""
    graph = list(batches)
    if not graph:
        return
    for part in _split_by_table(merge_commits(pa.Table.from_batches(graph))):
        levels = CommitGraph.build(part.column("commit_id"), part.column("parents"), part.column("committed_at")).generation
        generation = pa.array(levels, pa.int64(), mask=levels < 0)
        index = part.schema.get_field_index("generation")
        yield from part.set_column(index, part.schema.field(index), generation).to_batches(max_chunksize=BATCH_COMMITS)


def _split_by_table(graph: pa.Table) -> Iterator[pa.Table]:
    """Yield each table's commits.

    Tables are copied in groups, so that the whole graph is never in memory twice and no column
    exceeds Arrow's 2 GiB limit for string arrays.
    """
    uuids = pc.fill_null(graph.column("table_uuid"), "").combine_chunks().dictionary_encode().indices.to_numpy()
    rows_of = np.bincount(uuids)
    share_of = (np.cumsum(rows_of) - rows_of) // SHARE_COMMITS
    for share in np.unique(share_of):
        mask = share_of[uuids] == share
        own = uuids[mask]
        order = np.argsort(own, kind="stable")
        group = graph.filter(pa.array(mask)).combine_chunks().take(pa.array(order))
        starts = np.flatnonzero(np.diff(own[order], prepend=-1))
        for start, end in pairwise([*starts.tolist(), group.num_rows]):
            yield group.slice(start, end - start)


def keep_first_of_each_commit(rows: pa.Table) -> pa.Table:
    """Keep one row per commit.

    Args:
        rows: Rows of several graphs of a lake whose commits never change.
    """
    ids = pc.binary_join_element_wise(pc.fill_null(rows.column("table_uuid"), ""), rows.column("commit_id"), "\x1f")
    _, first = np.unique(ids.combine_chunks().dictionary_encode().indices.to_numpy(), return_index=True)
    return rows.take(pa.array(np.sort(first)))


def merge_commits(rows: pa.Table) -> pa.Table:
    """Merge the rows of commits that a table has twice, and unite their parents and content roots.

    The other columns are taken from the first row. Since commits never change, only the name of an
    Iceberg table can differ between the rows.
    """
    keys = rows.group_by(["table_uuid", "commit_id"]).aggregate([([], "count_all")])
    if keys.num_rows == rows.num_rows:
        return rows
    merged: dict[tuple[str | None, str], dict[str, Any]] = {}
    for row in rows.to_pylist(maps_as_pydicts="lossy"):
        first = merged.setdefault((row["table_uuid"], row["commit_id"]), row)
        parents, differ = merge_parents([first["parents"], row["parents"]])
        differ = any((differ, first["parents_differ"], row["parents_differ"]))
        first |= {"parents": parents, "parents_differ": differ}
        known = {root["address"] for root in first["content_roots"]}
        first["content_roots"] += [root for root in row["content_roots"] if root["address"] not in known]
    return pa.Table.from_pylist([{**row, "summary": list(row["summary"].items())} for row in merged.values()], schema=rows.schema)
