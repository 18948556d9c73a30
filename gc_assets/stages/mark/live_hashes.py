"""Compute a lake's live set as hashes of keys, from container states and cached entries.

A single pass over the hashes of cached file entries finds the strongest witness (why a file is
live) of each file. Equal hashes count as one file. A collision makes a count wrong by one, but does
no other harm, because the sweep compares candidates with live files by their keys
(`exact_comparison.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructType

from gc_assets.core.arrow_rows import aggregate_rows
from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import Amount
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.sessions import is_local, is_small
from gc_assets.engine.state_scan import group_by_size
from gc_assets.engine.tables import Task, TaskChain, collect_arrow, spark_schema
from gc_assets.engine.tasks import map_tasks
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT, Expanding, numbered_states, to_positions
from gc_assets.stages.mark.container_states import NumberedStates, route_of
from gc_assets.stages.mark.content_roots import RELEASED
from gc_assets.stages.mark.hash_scan import (
    ENTRY_COUNTS,
    OLDEST_FILES,
    WITNESS_NUMBERS,
    CountEntries,
    HashScan,
    OldestByWitness,
    SelectLive,
    WitnessesOf,
    read_matched,
)
from gc_assets.stages.mark.key_groups import group_hashes
from gc_assets.stages.mark.released_files import ReleasedFiles
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.parts import read_errors
from gc_assets.state.side_tables import HASHES_SIDE, LIFECYCLE_SIDE, ROUTED_SIDES, TOTALS

# Number of hash rows that this process reads itself, with about 35 bytes each. In a cluster,
# executors read larger numbers of rows. In a local session they save no time, because they share
# this machine.
MAX_IN_PROCESS_HASHES: Final = 2_000_000

MAX_LOCAL_HASHES: Final = 40_000_000


@dataclass(frozen=True, slots=True)
class LiveTotals:
    """File and byte counts of a live set.

    Attributes:
        rows: Counts with the `TOTALS` columns.
        expected: Expected number of file entries and of files that commits reference directly.
        found: Number of these entries and files that were found.
    """

    rows: pa.Table
    expected: int
    found: int

    @classmethod
    def of(cls, rows: pa.Table, expected: int, found: int) -> LiveTotals:
        """Sum rows with the `TOTALS` columns."""
        return cls(aggregate_rows(rows, TOTALS.names[:5], {"files": "sum", "bytes": "sum"}).select(TOTALS.names), expected, found)

    def by(self, column: str, *, kind: str | None = None) -> dict[str, Amount]:
        """Sum live files and bytes for each value of a column, over all kinds of files or one."""
        found = self.by_all(column, kind=kind)
        return {str(name): found[name,] for (name,) in sorted(found)}

    def by_all(self, *columns: str, kind: str | None = None) -> dict[tuple[str | None, ...], Amount]:
        """Sum live files and bytes for each combination of columns, over all kinds of files or one."""
        live = self.rows.filter(pc.equal(self.rows.column("route"), ""))
        live = live if kind is None else live.filter(pc.equal(live.column("kind"), kind))
        found = live.group_by(list(columns)).aggregate([("files", "sum"), ("bytes", "sum")]).to_pylist()
        return {tuple(row[name] for name in columns): Amount(files=row["files_sum"], bytes=row["bytes_sum"]) for row in found}

    def files(self, route: str) -> int:
        """Return the number of files of a side table, or of live files (see `route_of`)."""
        return pc.sum(self.rows.filter(pc.equal(self.rows.column("route"), route)).column("files")).as_py() or 0


@dataclass(frozen=True)
class LiveHashes:
    """The live set of one lake in one run, as hashes of keys.

    Attributes:
        spark: Session for live sets that are too large for the driver process, or None to read all
            in this process.
        scan: Reads and matches the hashes.
        rows: Number of cached hashes.
        released: Files that lifecycle rules release, or None if the lake has no such rules.
    """

    spark: SparkSession | None
    scan: HashScan
    rows: int
    released: ReleasedFiles | None

    @classmethod
    def of(
        cls,
        spark: SparkSession | None,
        files: Files,
        states: Sequence[str],
        cache: Segments,
        storages: Sequence[str],
        released: ReleasedFiles | None = None,
    ) -> LiveHashes:
        """Open the live set that results from published container states.

        Args:
            spark: Session for live sets that are too large for the driver process, or None.
            states: Parts with the container states (`STATES` columns).
            cache: Segments of cached entries.
        """
        paths = cache.paths(HASHES_SIDE)
        rows = sum(part.rows for run in cache.runs for part in run.entry.parts if part.name.startswith(f"{HASHES_SIDE}/"))
        with read_errors(files.root):
            groups = (tuple(paths),) if fits_in_process(spark, rows) else group_by_size(paths, files.sizes(paths))
        return cls(spark, HashScan(files, tuple(states), groups if paths else (), tuple(storages)), rows, released)

    @property
    def runs_in_process(self) -> bool:
        return fits_in_process(self.spark, self.rows)

    def match(self) -> Iterator[pa.RecordBatch]:
        """Read all file entries and directly referenced files in the current process.

        The batches have the `MATCHED` columns.
        """
        return read_matched(self.scan, self.rows)

    def match_frame(self) -> DataFrame:
        """Return the same rows as `match`, but as a frame that executors compute."""
        return self.scan.frame(self._session)

    def grouped_frame(self) -> DataFrame:
        """Return a Spark frame with one row per file.

        It has the `GROUPED` columns and is_released.
        """
        rows = (
            self.match_frame()
            .groupBy("storage", "key_hash")
            .agg(
                F.min("strongest").alias("strongest"),
                F.max("size_bytes").alias("size_bytes"),
                F.count("*").alias("entries"),
            )
        )
        if self.released is None:
            return rows.withColumn("is_released", F.lit(False))
        flagged = rows.join(self._released_frame(self.released), ["storage", "key_hash"], "left")
        return flagged.withColumn("is_released", F.coalesce("is_released", F.lit(False)))

    @cached_property
    def _released_hashes(self) -> dict[int, NDArray[np.int64]]:
        """Sorted key hashes of the files that lifecycle rules release, keyed by storage position."""
        if self.released is None:
            return {}
        rows = self.released.read_keys(self.scan.files)
        with read_errors(f"{self.scan.files.root}/{self.released.published.path}"):
            position = to_positions(rows.column("storage"), self.scan.storages, EXTERNAL)
        hashes = xxhash64(rows.column("key"))
        return {number: sort_distinct(hashes[position == number]) for number in range(len(self.scan.storages))}

    def live_keys(self, storage: str) -> SelectLive:
        """Return a task that selects the key hashes of a storage's live files.

        Files that lifecycle rules release are not live.
        """
        position = self.scan.storages.index(storage)
        released = self._released_hashes.get(position, np.empty(0, np.int64))
        return SelectLive(position, self.first_released, released)

    def files_of(self, storage: str, route: str) -> Iterator[pa.Table]:
        """Yield a storage's live files, or those of one side table, in the current process.

        Args:
            storage: Name of the storage.
            route: `EXPIRED_SIDE` or `DANGLING_SIDE`, or an empty string for live files.

        Yields:
            Tables with the `GROUPED` columns.
        """
        position = self.scan.storages.index(storage)
        released = self._released_hashes.get(position, np.empty(0, np.int64)) if not route else np.empty(0, np.int64)
        ranks = self.states.witnesses.sort_by("witness").column("rank").to_numpy()
        is_on_route = np.array([route_of(rank) == route for rank in range(int(ranks.max(initial=0)) + 1)])[ranks]
        for keys in group_hashes(self.match(), self.rows):
            selected = is_on_route[keys.column("strongest").to_numpy() // KIND_COUNT] & (keys.column("storage").to_numpy() == position)
            selected &= ~is_in_sorted(keys.column("key_hash").to_numpy(), released)
            yield keys.filter(pa.array(selected))

    def totals(self) -> LiveTotals:
        """Count the files and bytes of the live set."""
        if self.runs_in_process:
            counted = [self._count(keys) for keys in group_hashes(self.match(), self.rows)]
            return self._to_totals(pa.concat_tables(counted))
        sums = (F.count("*").alias("files"), F.try_sum("size_bytes").alias("bytes"), F.sum("entries").alias("entries"))
        counted_frame = self.grouped_frame().groupBy("storage", "strongest", "is_released").agg(*sums)
        return self._to_totals(collect_arrow(counted_frame.select(*_COUNTED.names), _COUNTED))

    def _count(self, keys: pa.Table) -> pa.Table:
        """Count files (`GROUPED` columns) for each combination of the first columns of `_COUNTED`."""
        storage, key_hash, is_released = (
            keys.column("storage").to_numpy(),
            keys.column("key_hash").to_numpy(),
            np.zeros(keys.num_rows, bool),
        )
        for position, hashes in self._released_hashes.items():
            is_released |= (storage == position) & is_in_sorted(key_hash, hashes)
        by = keys.append_column("is_released", pa.array(is_released)).group_by(_COUNTED.names[:3])
        counted = by.aggregate([([], "count_all"), ("size_bytes", "sum"), ("entries", "sum")])
        return counted.select([*_COUNTED.names[:3], "count_all", "size_bytes_sum", "entries_sum"]).rename_columns(_COUNTED.names)

    def witnesses_of(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distinct numbers of witnesses that reference at least one of the given files.

        Args:
            hashes: Sorted key hashes of the files.
        """
        return sort_distinct(self.run(WitnessesOf(hashes), WITNESS_NUMBERS).column("witness").to_numpy())

    def oldest_by_table(self, storage: str, hashes: NDArray[np.int64], modified_us: NDArray[np.int64]) -> dict[str, int]:
        """Return when the oldest file that each table references was modified.

        The result is in microseconds since 1970, keyed by table UUID. Files are ignored if their
        witness is a commit that contains several tables.

        Args:
            storage: Name of the files' storage.
            hashes: Sorted distinct key hashes of the files to consider.
            modified_us: Modification time for each hash, in microseconds since 1970.
        """
        rows = self.run(OldestByWitness(self.scan.storages.index(storage), hashes, modified_us), OLDEST_FILES)
        witnesses = self.states.witnesses.sort_by("witness").column("table_uuid").take(rows.column("witness"))
        by_table = pa.table({"table_uuid": witnesses, "modified_us": rows.column("modified_us")}).filter(pc.is_valid(witnesses))
        found = by_table.group_by("table_uuid").aggregate([("modified_us", "min")])
        return dict(zip(found.column("table_uuid").to_pylist(), found.column("modified_us_min").to_pylist(), strict=True))

    def find_unbalanced(self) -> list[str]:
        """Return the addresses of containers with more or fewer cached entries than were decoded."""
        counted, expanding = self.run(CountEntries(len(self.states.entries)), ENTRY_COUNTS), Expanding.of(self.states)
        found = np.zeros(len(self.states.entries), np.int64)
        np.add.at(found, counted.column("witness").to_numpy(), counted.column("entries").to_numpy())
        is_wrong = (found != self.states.entries)[expanding.witness]
        return expanding.addresses.filter(pa.array(is_wrong)).to_pylist()

    def run(self, task: Task, schema: pa.Schema) -> pa.Table:
        """Run a task on all matched entries, and return its output rows.

        The task receives the `MATCHED` columns. On executors, it runs once per group of hash parts.
        """
        if self.runs_in_process:
            return pa.Table.from_batches(task(self.match()), schema)
        return collect_arrow(self.map_frame(task, spark_schema(schema)), schema)

    def map_frame(self, task: Task, schema: StructType | str) -> DataFrame:
        """Run a task on all matched entries on executors, and return its output as a frame."""
        return map_tasks(self._session, TaskChain(self.scan, task), self.scan.tasks, schema)

    @property
    def _session(self) -> SparkSession:
        if self.spark is None:
            raise TypeError("Cannot read key hashes of live files on executors: no Spark session was given")
        return self.spark

    @property
    def states(self) -> NumberedStates:
        return numbered_states(self.scan.files, self.scan.states)

    @property
    def first_released(self) -> int:
        """The smallest value of `strongest` for files that are not live.

        This is well defined because witnesses are numbered by rank first.
        """
        return self.states.live * KIND_COUNT

    @property
    def first_dangling(self) -> int:
        """The smallest value of `strongest` for files that neither live nor expired commits need."""
        return int(np.count_nonzero(self.states.witnesses.column("rank").to_numpy() <= RELEASED)) * KIND_COUNT

    def _to_totals(self, counted: pa.Table) -> LiveTotals:
        witnesses = self.states.witnesses.sort_by("witness")
        witness, kind = np.divmod(counted.column("strongest").to_numpy(), KIND_COUNT)
        ranks = witnesses.column("rank").to_numpy()[witness]
        routes = np.array([route_of(rank) for rank in range(int(ranks.max(initial=0)) + 1)], object)[ranks]
        storage = counted.column("storage").to_numpy()
        routes[(routes == "") & counted.column("is_released").to_numpy()] = LIFECYCLE_SIDE
        routes[storage == EXTERNAL] = ROUTED_SIDES[-1]
        rows = pa.table(
            {
                "storage": pa.array([*self.scan.storages, None], pa.string()).take(pa.array(storage % (len(self.scan.storages) + 1))),
                "kind": pa.array(FILE_KINDS).take(pa.array(kind)),
                "table_uuid": witnesses.column("table_uuid").take(pa.array(witness)),
                "commit_id": witnesses.column("commit_id").take(pa.array(witness)),
                "route": pa.array(routes, pa.string()),
                "files": counted.column("files"),
                "bytes": pc.fill_null(counted.column("bytes"), 0),
            }
        )
        expected = self.states.expected + self.states.direct.num_rows
        return LiveTotals.of(rows.cast(TOTALS), expected, pc.sum(counted.column("entries")).as_py() or 0)

    def _released_frame(self, released_files: ReleasedFiles) -> DataFrame:
        position = F.array_position(F.array(*map(F.lit, self.scan.storages)), F.col("storage")) - 1
        released = released_files.keys_frame(self._session, self.scan.files)
        hashed = released.select(position.cast("smallint").alias("storage"), F.xxhash64("key").alias("key_hash"))
        return hashed.distinct().withColumn("is_released", F.lit(True))


_COUNTED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("strongest", pa.int64()),
        ("is_released", pa.bool_()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("entries", pa.int64()),
    ]
)


def fits_in_process(spark: SparkSession | None, hashes: int) -> bool:
    """Check whether a number of hashes is small enough to be read in the driver process.

    Without a Spark session, the result is always True.
    """
    return spark is None or is_small(spark) or hashes <= (MAX_LOCAL_HASHES if is_local(spark) else MAX_IN_PROCESS_HASHES)
