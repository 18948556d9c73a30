"""Compute a lake's live files as rows, from container states and cached entries.

The table `live_files` only contains container states, so its readers use this view to get rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import sort_distinct
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_local, is_small, large_session
from gc_assets.engine.state_scan import group_by_size
from gc_assets.engine.tables import (
    ROUTE,
    Task,
    TaskChain,
    collect_arrow,
    frame_from_arrow,
    map_arrow,
    read_table,
    spark_schema,
    write_frame,
    write_parts,
)
from gc_assets.engine.tasks import map_tasks
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT, numbered_states
from gc_assets.stages.mark.container_states import route_of
from gc_assets.stages.mark.entry_scan import (
    KEYED,
    ROUTED_ROWS,
    EntryScan,
    ToRows,
    group_frame,
    group_rows,
    with_columns,
)
from gc_assets.stages.mark.live_hashes import LiveHashes, LiveTotals
from gc_assets.stages.mark.released_files import ReleasedFiles, find_released_files_of
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EXTERNAL_SIDE,
    FORMER_ROOTS_SIDE,
    LIFECYCLE_SIDE,
    RELEASED_SIDES,
    ROUTED_SIDES,
    STATES,
    STATES_SIDE,
    TOTALS,
    TOTALS_SIDE,
)
from gc_assets.state.summaries import LiveFilesSummary, SegmentSummary

# Number of entry rows that this process reads itself, with about 200 bytes each.
MAX_IN_PROCESS_ENTRIES: Final = 200_000

# In a local session, this process looks up keys in more entries, because executors share this
# machine. It only keeps the selected rows.
LOCAL_FACTOR: Final = 50

# Number of entry rows that are grouped at a time if one process lists all files.
MAX_BUCKET_ENTRIES: Final = 2_000_000

# Spark joins longer lists of keys, because otherwise every task would hold all keys in memory.
MAX_KEYS: Final = 200_000


@dataclass(frozen=True)
class LiveSet:
    """The live files of one lake in one run.

    Attributes:
        context: The context of any run. Its state contains the cached entries.
        table: The published `live_files`. In gc-assets 0.3 and older, it contains the rows of live
            files itself.
    """

    context: RunContext
    table: PublishedTable

    @property
    def lake(self) -> str:
        return self.table.receipt.owner

    @property
    def is_view(self) -> bool:
        """False if the published table contains the rows of live files itself."""
        return not any(self.table.paths(route) for route in (None, *RELEASED_SIDES))

    @cached_property
    def totals(self) -> LiveTotals:
        """File and byte counts for each storage, kind, table, commit and side table."""
        if not self.is_view:
            return self._count_rows()
        rows = read_parts(self._files, self.table.paths(TOTALS_SIDE), TOTALS)
        found = pc.sum(rows.column("files")).as_py() or 0
        return LiveTotals(rows, found, found)

    def hashes(self, spark: SparkSession | None) -> LiveHashes:
        """Return the live set as hashes of keys. Requires `is_view`.

        If `spark` is None, the current process reads all hashes.
        """
        return LiveHashes.of(spark, self._files, self._states, self._cache, self._storages, self.released)

    def match(self) -> Iterator[pa.RecordBatch]:
        """Read all file entries and directly referenced files in this process. Requires `is_view`.

        The batches have the `KEYED` columns. Only one part is in memory at a time.
        """
        return self._scan((tuple(self._cache.paths()),)).run()

    def read(self, spark: SparkSession, route: str = "", columns: Sequence[str] | None = None) -> DataFrame:
        """Return the live files as a Spark frame.

        Args:
            spark: Session of the frame.
            route: Name of a side table with referenced files that are not live, such as
                `EXPIRED_SIDE`. By default, live files are returned.
            columns: Names of the columns to return, or None for all.

        Returns:
            A frame with these columns of `live_files`.
        """
        names = list(columns or LIVE_FILES.schema.names)
        if not self.is_view or route == EXTERNAL_SIDE:
            return read_table(spark, self.context.state, LIVE_FILES, self.table, route or None, names)
        return self._frame(spark).filter(F.col(ROUTE) == route).select(*names)

    def batches(self, route: str = "", columns: Sequence[str] | None = None, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the live files in the current process.

        About `MAX_BUCKET_ENTRIES` entries are in memory at a time.

        Args:
            route: Name of a side table, or an empty string for live files.
            columns: Names of the columns to return, or None for all.
            limit: Maximum number of rows. If it is small, not all entries are read.
        """
        left = limit
        for batch in self._batches(route, list(columns or LIVE_FILES.schema.names), limit):
            rows = batch if left is None else batch.slice(0, left)
            if rows.num_rows:
                yield rows
            left = None if left is None else left - rows.num_rows
            if left == 0:
                return

    def _batches(self, route: str, names: list[str], limit: int | None) -> Iterator[pa.RecordBatch]:
        if not self.is_view or route == EXTERNAL_SIDE:
            for path in self.table.paths(route or None):
                yield from read_parts(self._files, [path], LIVE_FILES.schema, names).to_batches()
            return
        if limit is not None and limit <= MAX_KEYS and not route and self.released is None and self.entries > MAX_IN_PROCESS_ENTRIES:
            rows = self.rows_of(None, self._first_live_keys(limit))
            yield from rows.filter(pc.equal(rows.column(ROUTE), route)).select(names).to_batches()
            return
        buckets = -(-max(1, self.entries) // MAX_BUCKET_ENTRIES)
        for number in range(buckets):
            scan = self._scan((tuple(self._cache.paths()),))
            rows = self._in_process(replace(scan, bucket=(number, buckets)) if buckets > 1 else scan)
            yield from rows.filter(pc.equal(rows.column(ROUTE), route)).select(names).to_batches()

    def _first_live_keys(self, limit: int) -> pa.Array:
        """Return the keys of up to `limit` live files."""
        scan = self._scan(tuple((path,) for path in self._cache.paths()))
        first_released = numbered_states(self._files, self._states).live * KIND_COUNT
        found = pa.array([], pa.string())
        for batch in scan.run():
            is_live = pc.and_(pc.less(batch.column("strongest"), first_released), pc.not_equal(batch.column("storage"), EXTERNAL))
            found = pc.unique(pa.concat_arrays([found, batch.column("key").filter(is_live)]))
            if len(found) >= limit:
                break
        return found.slice(0, limit)

    def rows_of(self, spark: SparkSession | None, keys: pa.Array) -> pa.Table:
        """Look up files by their keys, whether they are live or not.

        Args:
            spark: Used only if there are too many entries for this process. If None, this process
                reads them part by part.
            keys: At most `MAX_KEYS` keys, or addresses of external files.

        Returns:
            Rows with the `ROUTED_ROWS` columns. `_route` is empty for live files.
        """
        if not self.is_view:
            return self._old_rows_of(keys)
        scan = self._scan((tuple(self._cache.paths()),), keys=keys)
        if self.entries <= MAX_IN_PROCESS_ENTRIES:
            return self._in_process(scan)
        return self._look_up(spark, scan, sort_distinct(xxhash64(keys)))

    def rows_of_hashes(self, spark: SparkSession, hashes: NDArray[np.int64]) -> pa.Table:
        """Look up files by sorted hashes of their keys, like `rows_of`. Requires `is_view`."""
        return self._look_up(spark, replace(self._scan(()), hashes=hashes), hashes)

    def _look_up(self, spark: SparkSession | None, scan: EntryScan, hashes: NDArray[np.int64]) -> pa.Table:
        """Return the rows that a scan selects. Only segments with the given key hashes are read."""
        session = None if spark is None else large_session(spark)
        containers = _containers_with(self.hashes(session), hashes)
        paths, entries = self._paths_with(containers)
        if session is None or entries <= MAX_IN_PROCESS_ENTRIES * (LOCAL_FACTOR if is_local(session) else 1):
            return self._in_process(replace(scan, groups=(tuple(paths),) if paths else (), containers=containers))
        groups = group_by_size(paths, self._files.sizes(paths))
        return self._to_rows(collect_arrow(replace(scan, groups=groups, containers=containers).frame(session), KEYED))

    def find_witnesses(self, table_uuids: Collection[str]) -> pa.Table:
        """Return the witnesses of the live files of the given tables, as rows of `WITNESSES`.

        Requires `is_view`.
        """
        states = numbered_states(self._files, self._states)
        rows, wanted = states.witnesses, pa.array(sorted(table_uuids), pa.string())
        return rows.filter(pc.and_(pc.is_in(rows.column("table_uuid"), wanted), pc.less(rows.column("witness"), states.live)))

    def run_on(self, spark: SparkSession, witnesses: pa.Table, task: Task, schema: pa.Schema) -> pa.Table:
        """Run a task on the files of some witnesses, and return its output. Requires `is_view`.

        On executors, the task runs once per group of parts.

        Args:
            witnesses: The witnesses (`WITNESSES` columns).
            task: Called with batches of the `KEYED` columns, which may include files of other
                witnesses.
            schema: The columns of the result.
        """
        containers = tuple(sorted(witnesses.filter(witnesses.column("expands")).column("container").to_pylist()))
        paths, entries = self._paths_with(containers)
        session, scan = large_session(spark), replace(self._scan((tuple(paths),)), containers=containers)
        if entries <= MAX_IN_PROCESS_ENTRIES * (LOCAL_FACTOR if is_local(session) else 1):
            return pa.Table.from_batches(task(scan.run()), schema)
        scan = replace(scan, groups=group_by_size(paths, self._files.sizes(paths)))
        return collect_arrow(map_tasks(session, TaskChain(scan, task), scan.tasks, spark_schema(schema)), schema)

    def direct_rows(self) -> pa.Table:
        """Return the containers and the files that commits reference directly.

        Requires `is_view`. Since cached entries are ignored, a file may have a stronger witness.

        Returns:
            Rows with the `ROUTED_ROWS` columns.
        """
        return self._in_process(self._scan(()))

    def hash_batches(self, storage: str) -> Iterator[NDArray[np.int64]]:
        """Yield the key hashes of a storage's live files.

        If several containers reference a file, its hash is repeated for each container.
        """
        if not self.is_view:
            for batch in self.batches("", ["storage", "key_hash"]):
                yield batch.filter(pc.equal(batch.column("storage"), storage)).column("key_hash").to_numpy()
            return
        hashes = self.hashes(None)
        for batch in hashes.live_keys(storage)(hashes.match()):
            yield batch.column("key_hash").to_numpy()

    def container(self, address: str) -> dict[str, Any] | None:
        """Return a container's state as a row of `ROUTED_ROWS`, or None if it is unknown.

        Requires `is_view`.
        """
        states = numbered_states(self._files, self._states)
        own = states.direct.filter(pc.equal(states.direct.column("address"), address)).sort_by("witness").slice(0, 1)
        if not own.num_rows:
            return None
        row, witness = own.to_pylist()[0], states.witnesses.filter(pc.equal(states.witnesses.column("witness"), own.column("witness")[0]))
        needed_by = witness.to_pylist()[0]
        size = row["size_bytes"] if row["size_bytes"] is not None else row["container_size_bytes"]
        columns = {name: needed_by[name] for name in ("commit_id", "container", "table_uuid")}
        key = row["key"] if row["key"] is not None else row["address"]
        route = EXTERNAL_SIDE if row["storage"] is None else route_of(needed_by["rank"])
        found = row | columns | {"lake": self.lake, "size_bytes": size, "key": key, ROUTE: route, "key_hash": xxhash64(pa.array([key]))[0]}
        return {name: found[name] for name in ROUTED_ROWS.names}

    @cached_property
    def released(self) -> ReleasedFiles | None:
        """Files released by lifecycle rules, or None if there are no such rules.

        If a table is unreadable, or while lost commits are kept, no files are released.
        """
        if self.table.summary(LiveFilesSummary).unreadable or self.table.paths(FORMER_ROOTS_SIDE):
            return None
        return find_released_files_of(self.context, self.table)

    def _frame(self, spark: SparkSession) -> DataFrame:
        """Return the `ROUTED_ROWS` of all files, whether live or not."""
        if is_small(spark):
            return frame_from_arrow(spark, self._in_process(self._scan((tuple(self._cache.paths()),))))
        scan = self._scan(self._grouped_paths())
        rows = map_arrow(group_frame(scan.frame(spark)), self._row_task, ROUTED_ROWS)
        if self.released is None:
            return rows
        released = self.released.keys_frame(spark, self._files).withColumn("is_released", F.lit(True))
        flagged = rows.join(released, ["storage", "key"], "left")
        route = F.when((F.col(ROUTE) == "") & F.coalesce("is_released", F.lit(False)), LIFECYCLE_SIDE).otherwise(F.col(ROUTE))
        return flagged.withColumn(ROUTE, route).select(*ROUTED_ROWS.names)

    def _in_process(self, scan: EntryScan) -> pa.Table:
        return self._to_rows(pa.Table.from_batches(scan.run(), KEYED))

    def _to_rows(self, matched: pa.Table) -> pa.Table:
        rows = pa.Table.from_batches(self._row_task(iter(group_rows(matched).to_batches())), ROUTED_ROWS)
        if self.released is None:
            return rows
        released = self.released.read_keys(self._files)
        is_released = pc.and_(pc.equal(rows.column(ROUTE), ""), pc.is_in(_identity(rows), _identity(released)))
        return with_columns(rows, {ROUTE: pc.if_else(is_released, LIFECYCLE_SIDE, rows.column(ROUTE))})

    def read_released(self, storage: str) -> pa.ChunkedArray:
        """Return the keys of a storage's files that lifecycle rules release."""
        if self.released is None:
            return pa.chunked_array([], pa.string())
        rows = self.released.read_keys(self._files)
        return rows.column("key").filter(pc.equal(rows.column("storage"), storage))

    def _count_rows(self) -> LiveTotals:
        by, counted, found = TOTALS.names[:5], list[pa.Table](), 0
        for route in ("", *ROUTED_SIDES):
            for batch in self.batches(route, ["storage", "kind", "table_uuid", "commit_id", "size_bytes"]):
                route_column = pa.array([route] * batch.num_rows, pa.string())
                rows = pa.Table.from_batches([batch]).append_column("route", route_column).group_by(by)
                counted.append(rows.aggregate([([], "count_all"), ("size_bytes", "sum")]).select([*by, "count_all", "size_bytes_sum"]))
                found += batch.num_rows
        rows = pa.concat_tables([TOTALS.empty_table(), *(some.rename_columns(TOTALS.names).cast(TOTALS) for some in counted)])
        return LiveTotals.of(rows, found, found)

    def _old_rows_of(self, keys: pa.Array) -> pa.Table:
        found = [ROUTED_ROWS.empty_table()]
        for route in ("", *ROUTED_SIDES):
            for path in self.table.paths(route or None):
                rows = read_parts(self._files, [path], LIVE_FILES.schema)
                rows = rows.filter(pc.is_in(rows.column("key"), keys))
                found.append(rows.append_column(ROUTE, pa.array([route] * rows.num_rows, pa.string())))
        return pa.concat_tables(found)

    def _scan(self, groups: tuple[tuple[str, ...], ...], *, keys: pa.Array | None = None) -> EntryScan:
        return EntryScan(self._files, self._states, groups if any(groups) else (), self._storages, keys)

    def _grouped_paths(self) -> tuple[tuple[str, ...], ...]:
        paths = self._cache.paths()
        return group_by_size(paths, self._files.sizes(paths)) if paths else ()

    def _paths_with(self, containers: tuple[str, ...]) -> tuple[list[str], int]:
        """Return the parts of segments with the given containers, and the number of entries."""
        wanted, found, entries = pa.array(containers, pa.string()), set[str](), 0
        for path in self._cache.paths(CONTAINERS_SIDE):
            index = read_parts(self._files, [path], CONTAINERS, ["container", "files"])
            index = index.filter(pc.is_in(index.column("container"), wanted))
            if index.num_rows:
                found.add(path.rpartition("/")[0].removesuffix(f"/{CONTAINERS_SIDE}"))
                entries += pc.sum(index.column("files")).as_py() or 0
        return [path for path in self._cache.paths() if path.rpartition("/")[0] in found], entries

    @property
    def _row_task(self) -> ToRows:
        return ToRows(self._files, self._states, self._storages, self.lake)

    @property
    def entries(self) -> int:
        """The number of rows that `read` reads."""
        return sum(run.rows for run in self._cache.runs) if self.is_view else self.table.rows

    @cached_property
    def _cache(self) -> Segments:
        """The segments of cached entries that the run used.

        Raises:
            StateError: If some entries of a needed container are no longer cached.
        """
        wanted = set(self.table.summary(LiveFilesSummary).segments)
        history = self.context.state.history(self.lake, MANIFEST_ENTRIES.name)
        # Runs without rows are part of compacted segments, which can only be read as a whole.
        runs = [run for run in history if run.run_id in wanted or not run.entry.parts]
        for complete in (False, True):  # containers needed only by an earlier run may be missing in reduced segments
            cache = self.context.state.segments(runs, complete=complete)
            missing = _find_missing(self._files, self._states, tuple(cache.paths(CONTAINERS_SIDE)))
            if not len(missing):
                return cache
        raise StateError(
            f"the live files of lake {self.lake} on {self.table.receipt.run_date} cannot be listed: the cache of containers "
            f"lacks entries of {len(missing):,} containers, such as {missing[0]}. Run `gc-assets run` for the current date."
        )

    @property
    def _states(self) -> tuple[str, ...]:
        return tuple(self.table.paths(STATES_SIDE))

    @property
    def _files(self) -> Files:
        return self.context.state.files

    @property
    def _storages(self) -> tuple[str, ...]:
        return tuple(storage.name for storage in self.context.config.storages)


@lru_cache(maxsize=4)
def _find_missing(files: Files, state_paths: tuple[str, ...], index_paths: tuple[str, ...]) -> pa.ChunkedArray:
    """Return the addresses of containers with fewer cached file entries than the walk found.

    The result is cached, because parts are never rewritten under the same name.

    Args:
        state_paths: Parts with container states (`STATES` columns).
        index_paths: Parts with decoded containers (`CONTAINERS` columns). A container may have been
            decoded again since the walk.
    """
    states = read_parts(files, list(state_paths), STATES, ["address", "files"])
    index = read_parts(files, list(index_paths), CONTAINERS, ["container", "files"])
    counted = index.group_by("container").aggregate([("files", "sum")])
    found = counted.column("files_sum").take(pc.index_in(states.column("address"), counted.column("container")))
    return states.column("address").filter(pc.less(pc.fill_null(found, 0), pc.fill_null(states.column("files"), 0)))


def _containers_with(hashes: LiveHashes, wanted: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the sorted addresses of containers that reference a file with one of the given hashes."""
    witnesses = hashes.states.witnesses.sort_by("witness")
    found = hashes.witnesses_of(wanted)
    selected = witnesses.take(pa.array(found))
    return tuple(sorted(selected.filter(selected.column("expands")).column("container").to_pylist()))


def _identity(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(pc.fill_null(rows.column("storage"), ""), rows.column("key"), "\x1f")


def write_external(
    spark: SparkSession, context: RunContext, lake_name: str, hashes: LiveHashes, cache: Segments, run: TableRun
) -> tuple[PartFile, ...]:
    """Record the live files that are outside all storages in the side table `EXTERNAL_SIDE`.

    Args:
        spark: Used only if there are too many entries for the driver process.
        hashes: The live set of the run.
    """
    files, states, storages = context.state.files, hashes.scan.states, hashes.scan.storages
    paths = cache.paths() if any(segment.summary(SegmentSummary).external for segment in cache.runs) else []
    scan = EntryScan(files, states, tuple((path,) for path in paths), storages, external=True)
    to_rows = ToRows(files, states, storages, lake_name)
    if sum(segment.rows for segment in cache.runs) <= MAX_IN_PROCESS_ENTRIES:
        matched = group_rows(pa.Table.from_batches(scan.run(), KEYED))
        rows = pa.Table.from_batches(to_rows(iter(matched.to_batches())), ROUTED_ROWS)
        return tuple(write_parts(rows.select(LIVE_FILES.schema.names), run, files, EXTERNAL_SIDE))
    rows = map_arrow(group_frame(scan.frame(spark)), to_rows, ROUTED_ROWS)
    return write_frame(rows, LIVE_FILES, run, context.state, routes=(EXTERNAL_SIDE,)).side.get(EXTERNAL_SIDE, ())
