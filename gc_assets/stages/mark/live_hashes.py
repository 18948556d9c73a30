"""The live set of a lake as hashes of keys: container states joined with cached entries.

One pass over the hashes in the entry cache finds, for every file, the strongest container state.
Equal hashes count as one key. A collision of two keys can only make a count one too small, because
candidates are compared with live files by their keys (`exact_comparison.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import Amount
from gc_assets.engine.sessions import is_local, is_small
from gc_assets.engine.state_scan import group_by_size, read_errors
from gc_assets.engine.tables import Task, collect_arrow, read_paths, spark_schema
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.container_states import NumberedStates, hash_keys, read_states, route_of
from gc_assets.stages.mark.released_files import ReleasedFiles
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.parts import missing_columns, open_part, read_parts
from gc_assets.state.side_tables import HASHES, HASHES_SIDE, LIFECYCLE_SIDE, ROUTED_SIDES, TOTALS

# Rows of hashes that this process reads itself: about 35 bytes each. A cluster reads more rows in
# executors. In a local session the executors share this machine, so they save no time.
MAX_IN_PROCESS_HASHES: Final = 2_000_000
MAX_LOCAL_HASHES: Final = 40_000_000
# Rows that are sorted together. Sorting needs about 100 bytes per row.
_GROUPED_ROWS: Final = 2_000_000
_KINDS: Final = len(FILE_KINDS)
_TEXTS: Final = ("container", "storage", "kind")
# Position of external files, which have no storage.
EXTERNAL: Final = -1

# One row per entry and directly referenced file. `storage` is a position in the storages of the
# configuration, `strongest` is the number of the witness and the kind.
MATCHED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("key_hash", pa.int64()),
        ("loose_hash", pa.int64()),
        ("strongest", pa.int64()),
        ("size_bytes", pa.int64()),
        ("must_exist", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class Expanding:
    """Containers whose entries are needed, with their witnesses."""

    addresses: pa.Array
    witness: NDArray[np.int64]
    must_exist: NDArray[np.bool_]

    @classmethod
    def of(cls, states: NumberedStates) -> Expanding:
        rows = states.witnesses.filter(states.witnesses.column("expands"))
        numbers, must_exist = rows.column("witness").to_numpy(), rows.column("container_must_exist").to_numpy()
        return cls(rows.column("container").combine_chunks(), numbers, must_exist)

    def match(self, entries: pa.Table) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.bool_]]:
        """Select the entries of these containers.

        Returns:
            The entries, the number of the witness of each, and whether each must exist.
        """
        containers, container = encode(entries.column("container"))
        position = pc.fill_null(pc.index_in(containers, self.addresses), -1).to_numpy(zero_copy_only=False)[container]
        selected = np.flatnonzero(position >= 0)
        position = position[selected]
        if len(selected) < entries.num_rows:
            entries = entries.take(pa.array(selected))
        must_exist = entries.column("must_exist").to_numpy() & self.must_exist[position]
        return entries, self.witness[position], must_exist


@dataclass(frozen=True)
class HashScan:
    """Task that matches groups of hash parts with the container states.

    The input column `id` contains group numbers. The number after the last group selects the
    directly referenced files. Yields batches with the columns `MATCHED`.

    Attributes:
        states: Parts of the states (columns `STATES`), relative to the state.
        groups: Parts of the hashes (columns `HASHES`), in groups.
        storages: Names of the storages, for the positions in `MATCHED`.
    """

    files: Files
    states: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    storages: tuple[str, ...]

    @property
    def tasks(self) -> int:
        """Number of valid input numbers."""
        return len(self.groups) + 1

    def numbers(self) -> Iterator[pa.RecordBatch]:
        """Return all input numbers, for a call in this process."""
        return iter([pa.RecordBatch.from_pydict({"id": pa.array(range(self.tasks), pa.int64())})])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = numbered_states(self.files, self.states)
        expanding = Expanding.of(states)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self._match_group(self.groups[number], expanding) if number < len(self.groups) else self._match_direct(states)

    def _match_group(self, paths: Sequence[str], expanding: Expanding) -> Iterator[pa.RecordBatch]:
        contents, number = self.files.contents(paths), 0
        while number < len(paths):
            with read_errors(f"{self.files.root}/{paths[number]}"):
                source = open_part(next(contents), _TEXTS)
                missing = missing_columns(source.schema_arrow, HASHES)
                names = [name for name in HASHES.names if name not in missing]
                for group in range(source.num_row_groups):
                    if (rows := self._match_entries(source.read_row_group(group, names), expanding)).num_rows:
                        yield rows
            number += 1

    def _match_entries(self, rows: pa.Table, expanding: Expanding) -> pa.RecordBatch:
        rows, witness, must_exist = expanding.match(rows)
        return self._to_matched(rows, witness, must_exist)

    def _match_direct(self, states: NumberedStates) -> Iterator[pa.RecordBatch]:
        rows = hash_keys(states.direct)
        size = pc.coalesce(rows.column("size_bytes"), rows.column("container_size_bytes"))
        rows = rows.set_column(rows.schema.get_field_index("size_bytes"), "size_bytes", size)
        yield self._to_matched(rows, rows.column("witness").to_numpy(), rows.column("must_exist").to_numpy())

    def _to_matched(self, rows: pa.Table, witness: NDArray[np.int64], must_exist: NDArray[np.bool_]) -> pa.RecordBatch:
        columns = {
            "storage": to_positions(rows.column("storage"), self.storages, EXTERNAL).astype(np.int16),
            "key_hash": rows.column("key_hash"),
            "loose_hash": pc.coalesce(rows.column("loose_hash"), rows.column("key_hash")),
            "strongest": witness * _KINDS + to_kind_numbers(rows.column("kind")),
            "size_bytes": rows.column("size_bytes"),
            "must_exist": must_exist,
        }
        return pa.table(columns, schema=MATCHED).combine_chunks().to_batches(max_chunksize=None)[0] if rows.num_rows else _NO_MATCH


_NO_MATCH: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in MATCHED], schema=MATCHED)


@lru_cache(maxsize=4)
def numbered_states(files: Files, paths: tuple[str, ...]) -> NumberedStates:
    """Read published states once per process. Parts are never rewritten under the same name."""
    return read_states(files, paths)


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct values of a text column, and the index of each row or -1."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    combined = encoded.unify_dictionaries().combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # a column without chunks
        return pa.array([], pa.string()), np.empty(0, np.int64)
    return combined.dictionary, pc.fill_null(combined.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def to_positions(column: pa.ChunkedArray, names: Sequence[str], missing: int) -> NDArray[np.int64]:
    """Return the position of each value in `names`, or `missing` for a missing one.

    Raises:
        StateError: For any other value.
    """
    values, index = encode(column)
    positions = pc.fill_null(pc.index_in(values, pa.array(list(names), pa.string())), -1).to_numpy(zero_copy_only=False)
    if (positions < 0).any():
        unknown = values.filter(pa.array(positions < 0))[0].as_py()
        raise StateError(f"the entry cache names {unknown!r}, which is not one of {', '.join(names)}; run manifest_entries again")
    return np.append(positions, missing)[index]  # the index -1 selects `missing`


def to_kind_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the position of each kind in `FILE_KINDS`.

    An unknown kind stops the run, because its file would be missing from the live set.
    """
    numbers = to_positions(column, FILE_KINDS, -1)
    if (numbers < 0).any():
        raise StateError("an entry has no file kind; run manifest_entries again")
    return numbers


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Distinct keys of one storage, as parallel arrays.

    Attributes:
        key_hash: Hashes, each once.
        strongest: Strongest witness and kind of each key.
        size_bytes: Largest recorded size of each key, or -1.
        entries: Number of rows of `MATCHED` with each key.
    """

    key_hash: NDArray[np.int64]
    strongest: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[KeyGroup]) -> KeyGroup:
        """Merge groups that may have keys in common."""
        key_hash, strongest, size_bytes, entries = (
            np.concatenate([getattr(group, name) for group in groups]) for name in ("key_hash", "strongest", "size_bytes", "entries")
        )
        order = np.argsort(key_hash)
        key_hash = key_hash[order]
        starts = np.flatnonzero(np.append(True, key_hash[1:] != key_hash[:-1]))
        return cls(
            key_hash[starts],
            np.minimum.reduceat(strongest[order], starts),
            np.maximum.reduceat(size_bytes[order], starts),
            np.add.reduceat(entries[order], starts),
        )


def group_hashes(batches: Iterator[pa.RecordBatch], expected: int) -> Iterator[tuple[int, KeyGroup]]:
    """Group matched rows (columns `MATCHED`) by storage and key.

    Memory is proportional to the number of distinct keys, because rows are grouped whenever as many
    have been added.

    Args:
        batches: Matched rows.
        expected: Approximate number of rows.

    Yields:
        The position of a storage with some of its keys. All groups are disjoint.
    """
    parts = -(-max(1, expected) // _GROUPED_ROWS)
    buckets = dict[tuple[int, int], _Bucket]()
    for batch in batches:
        storage, key_hash = batch.column("storage").to_numpy(), batch.column("key_hash").to_numpy()
        size = pc.fill_null(batch.column("size_bytes"), -1).to_numpy()
        columns = (key_hash, batch.column("strongest").to_numpy(), size, np.ones(batch.num_rows, np.int64))
        part = (key_hash.view(np.uint64) % np.uint64(parts)).astype(np.int64)
        for position in np.unique(storage).tolist():
            for number in range(parts):
                is_mine = (storage == position) & (part == number)
                bucket = buckets.setdefault((position, number), _Bucket())
                bucket.add(KeyGroup(*(columns if is_mine.all() else (column[is_mine] for column in columns))))
    for (position, _), bucket in buckets.items():
        if (group := bucket.close()) is not None:
            yield position, group


@dataclass(slots=True)
class _Bucket:
    """Some of the keys of a storage. At least half of the rows in memory are grouped or new."""

    grouped: list[KeyGroup] = field(default_factory=list[KeyGroup])
    added: list[KeyGroup] = field(default_factory=list[KeyGroup])
    added_rows: int = 0

    def add(self, rows: KeyGroup) -> None:
        if not len(rows.key_hash):
            return
        self.added.append(rows)
        self.added_rows += len(rows.key_hash)
        if self.added_rows > max(_GROUPED_ROWS, sum(len(group.key_hash) for group in self.grouped)):
            self.grouped, self.added, self.added_rows = [KeyGroup.of([*self.grouped, *self.added])], [], 0

    def close(self) -> KeyGroup | None:
        """Return the keys, or None for an empty bucket."""
        groups, self.grouped, self.added = [*self.grouped, *self.added], [], []
        return KeyGroup.of(groups) if groups else None


@dataclass(frozen=True, slots=True)
class LiveTotals:
    """Files and bytes of a live set.

    Attributes:
        rows: Columns `TOTALS`.
        expected: Expected number of entries and directly referenced files.
        found: Number of those found.
    """

    rows: pa.Table
    expected: int
    found: int

    @classmethod
    def of(cls, rows: pa.Table, expected: int, found: int) -> LiveTotals:
        """Sum rows with the columns `TOTALS`."""
        summed = rows.group_by(TOTALS.names[:5]).aggregate([("files", "sum"), ("bytes", "sum")])
        return cls(summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(TOTALS.names), expected, found)

    def by(self, column: str, *, kind: str | None = None) -> dict[str, Amount]:
        """Return the amounts of live files by a column, for all kinds or only one."""
        found = self.by_all(column, kind=kind)
        return {str(name): found[name,] for (name,) in sorted(found)}

    def by_all(self, *columns: str, kind: str | None = None) -> dict[tuple[str | None, ...], Amount]:
        """Return the amounts of live files by a combination of columns, for all kinds or only one."""
        live = self.rows.filter(pc.equal(self.rows.column("route"), ""))
        live = live if kind is None else live.filter(pc.equal(live.column("kind"), kind))
        found = live.group_by(list(columns)).aggregate([("files", "sum"), ("bytes", "sum")]).to_pylist()
        return {tuple(row[name] for name in columns): Amount(files=row["files_sum"], bytes=row["bytes_sum"]) for row in found}

    def files(self, route: str) -> int:
        """Return the number of files of a route."""
        return pc.sum(self.rows.filter(pc.equal(self.rows.column("route"), route)).column("files")).as_py() or 0


@dataclass(frozen=True)
class SelectLive:
    """Task that selects the live rows of one storage (columns key_hash, loose_hash).

    Attributes:
        position: Position of the storage.
        first_released: Smallest value of `strongest` that is not live.
        released: Sorted hashes of released files.
    """

    position: int
    first_released: int
    released: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_live = (batch.column("strongest").to_numpy() < self.first_released) & (batch.column("storage").to_numpy() == self.position)
            if len(self.released):
                is_live &= ~np.isin(batch.column("key_hash").to_numpy(), self.released)
            yield batch.select(["key_hash", "loose_hash"]).filter(pa.array(is_live))


_WITNESS: Final = pa.schema([("witness", pa.int64())])


@dataclass(frozen=True)
class _WitnessesOf:
    """Task that yields the distinct witnesses of the keys with these sorted hashes."""

    scan: HashScan
    hashes: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [np.empty(0, np.int64)]
        for batch in self.scan(batches):
            is_wanted = np.isin(batch.column("key_hash").to_numpy(), self.hashes)
            found.append(np.unique(batch.column("strongest").to_numpy()[is_wanted] // _KINDS))
        yield pa.RecordBatch.from_pydict({"witness": np.unique(np.concatenate(found))})


_ENTRIES: Final = pa.schema([("witness", pa.int64()), ("entries", pa.int64())])


@dataclass(frozen=True)
class _CountEntries:
    """Task that counts the entries of each container, by the number of its witness."""

    scan: HashScan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = np.zeros(numbered_states(self.scan.files, self.scan.states).witnesses.num_rows, np.int64)
        for batch in self.scan(batches):
            found = np.bincount(batch.column("strongest").to_numpy() // _KINDS)
            counts[: len(found)] += found
        numbers = np.flatnonzero(counts)
        yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(counts[numbers])], schema=_ENTRIES)


@dataclass(frozen=True)
class LiveHashes:
    """The live set of one lake and run, as hashes.

    Attributes:
        spark: Session for live sets that do not fit in this process. If None, this process reads
            them all.
        scan: Reads and matches the hashes.
        rows: Number of hashes in the entry cache.
        released: Released files, or None if the lake has no such rules.
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
        """Open the live set with these states (parts with the columns `STATES`)."""
        paths = cache.paths(HASHES_SIDE)
        rows = sum(part.rows for run in cache.runs for part in run.entry.parts if part.name.startswith(f"{HASHES_SIDE}/"))
        with read_errors(files.root):
            groups = (tuple(paths),) if fits_in_process(spark, rows) else group_by_size(paths, files.sizes(paths))
        return cls(spark, HashScan(files, tuple(states), groups if paths else (), tuple(storages)), rows, released)

    @property
    def runs_in_process(self) -> bool:
        return fits_in_process(self.spark, self.rows)

    def match(self) -> Iterator[pa.RecordBatch]:
        """Yield all entries and directly referenced files in this process (columns `MATCHED`)."""
        return self.scan(self.scan.numbers())

    def match_frame(self) -> DataFrame:
        """Return all entries and directly referenced files as a frame (columns `MATCHED`)."""
        return self._map_groups(self.scan, MATCHED)

    def _map_groups(self, task: Task, schema: pa.Schema) -> DataFrame:
        tasks = self.scan.tasks
        return self._session.range(0, tasks, 1, tasks).mapInArrow(task, spark_schema(schema))

    def grouped_frame(self) -> DataFrame:
        """Return one row per file as a frame (columns of `KeyGroup`, and storage and is_released)."""
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
        """Key hashes of released files by position of the storage."""
        if self.released is None:
            return {}
        paths, schema = self.released.published.paths(), self.released.table.schema
        rows = read_parts(self.scan.files, paths, schema, ["storage", "key", "deduplicated"])
        rows = rows.filter(pc.invert(rows.column("deduplicated")))
        position, hashes = to_positions(rows.column("storage"), self.scan.storages, EXTERNAL), xxhash64(rows.column("key"))
        return {number: np.unique(hashes[position == number]) for number in range(len(self.scan.storages))}

    def live_keys(self, storage: str) -> SelectLive:
        """Return the task that selects the live rows of a storage, without released files."""
        position = self.scan.storages.index(storage)
        released = self._released_hashes.get(position, np.empty(0, np.int64))
        return SelectLive(position, self.first_released, released)

    def totals(self) -> LiveTotals:
        """Count files and bytes."""
        if self.runs_in_process:
            counted = [self._count(position, group) for position, group in group_hashes(self.match(), self.rows)]
            return self._to_totals(pa.concat_tables([_COUNTED.empty_table(), *counted]))
        sums = (F.count("*").alias("files"), F.sum("size_bytes").alias("bytes"), F.sum("entries").alias("entries"))
        counted_frame = self.grouped_frame().groupBy("storage", "strongest", "is_released").agg(*sums)
        return self._to_totals(collect_arrow(counted_frame.select(*_COUNTED.names), _COUNTED))

    def _count(self, position: int, group: KeyGroup) -> pa.Table:
        """Count keys by witness, kind and release (columns `_COUNTED`)."""
        is_released = np.isin(group.key_hash, self._released_hashes.get(position, np.empty(0, np.int64)))
        numbers, index = _number(group.strongest * 2 + is_released)
        sums = {name: np.zeros(len(numbers), np.int64) for name in ("files", "bytes", "entries")}
        np.add.at(sums["files"], index, 1)
        np.add.at(sums["bytes"], index, np.maximum(group.size_bytes, 0))
        np.add.at(sums["entries"], index, group.entries)
        columns = {"storage": np.full(len(numbers), position, np.int16), "strongest": numbers // 2, "is_released": numbers % 2 == 1}
        return pa.table(columns | sums, schema=_COUNTED)

    def witnesses_of(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distinct numbers of all witnesses that name one of these keys (sorted hashes)."""
        return np.unique(self._run(_WitnessesOf(self.scan, hashes), _WITNESS).column("witness").to_numpy())

    def find_unbalanced(self) -> list[str]:
        """Return the containers with another number of cached entries than were decoded."""
        counted, expanding = self._run(_CountEntries(self.scan), _ENTRIES), Expanding.of(self.states)
        found = np.zeros(len(self.states.entries), np.int64)
        np.add.at(found, counted.column("witness").to_numpy(), counted.column("entries").to_numpy())
        is_wrong = (found != self.states.entries)[expanding.witness]
        return expanding.addresses.filter(pa.array(is_wrong)).to_pylist()

    def _run(self, task: Task, schema: pa.Schema) -> pa.Table:
        """Run a task over all groups of hash parts, and return the rows that it yields."""
        if self.runs_in_process:
            return pa.Table.from_batches(task(self.scan.numbers()), schema)
        return collect_arrow(self._map_groups(task, schema), schema)

    @property
    def _session(self) -> SparkSession:
        if self.spark is None:
            raise TypeError("these hashes are read in this process only")
        return self.spark

    @property
    def states(self) -> NumberedStates:
        return numbered_states(self.scan.files, self.scan.states)

    @property
    def first_released(self) -> int:
        """Smallest value of `strongest` that is not live. Witnesses are numbered by rank first."""
        return self.states.live * _KINDS

    def _to_totals(self, counted: pa.Table) -> LiveTotals:
        witnesses = self.states.witnesses.sort_by("witness")
        witness, kind = np.divmod(counted.column("strongest").to_numpy(), _KINDS)
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
        schema, paths = released_files.table.schema, released_files.published.paths()
        released = read_paths(self._session, self.scan.files, schema, paths, ["storage", "key", "deduplicated"]).filter("not deduplicated")
        position = F.array_position(F.array(*map(F.lit, self.scan.storages)), F.col("storage")) - 1
        hashed = released.select(position.cast("smallint").alias("storage"), F.xxhash64("key").alias("key_hash"))
        return hashed.distinct().withColumn("is_released", F.lit(True))


def _number(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted distinct values, and the index of each value among them.

    Sorting takes ten times as long as counting, which needs memory for the largest value.
    """
    if int(values.max()) > 4 * len(values) + 1_000_000:
        return np.unique(values, return_inverse=True)
    numbers = np.flatnonzero(np.bincount(values))
    index = np.empty(int(numbers[-1]) + 1, np.int64)
    index[numbers] = np.arange(len(numbers))
    return numbers, index[values]


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
    """Check if this process reads this many hashes itself. Without a session, it reads any number."""
    return spark is None or is_small(spark) or hashes <= (MAX_LOCAL_HASHES if is_local(spark) else MAX_IN_PROCESS_HASHES)
