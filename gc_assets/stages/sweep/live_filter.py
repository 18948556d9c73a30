"""Builds the bloom filter of a storage's live keys, and proves it by reading it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from xxhash import xxh64_intdigest

from gc_assets.core.errors import GcError
from gc_assets.core.filter import TARGET_FPR, Filter, FilterSpec
from gc_assets.core.plan import Amount, LiveCount
from gc_assets.stages import engine
from gc_assets.stages.mark.sides import EXPIRED_SIDE
from gc_assets.stages.night import Night
from gc_assets.stages.progress import begin, doing, logged
from gc_assets.stages.tables import (
    PARTS_DDL,
    Task,
    answers,
    collect,
    frame_of,
    here,
    merge_written,
    parallelism,
    publish,
    read_table,
    report_parts,
    spark_schema,
)
from gc_assets.state.facts import LiveFilesFacts, LiveFilterFacts
from gc_assets.state.files import Files
from gc_assets.state.journal import Published, Run
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LIVE_FILES, LIVE_FILTER

# Each slice is built, merged and probed whole in one worker's memory. This many keys make about 100
# MiB.
SLICE_KEYS: Final = 20_000_000
FALSE_POSITIVE_SAMPLES: Final = 1_000_000
PARTIAL: Final = pa.schema([LIVE_FILTER.schema.field(name) for name in ("slice", "keys", "filter")])


def live_tables(night: Night) -> list[Published]:
    """Returns `live_files` of every lake.

    Any lake may point into any storage, so a storage's live set is the union of all (design 2).
    """
    return [night.table(LIVE_FILES, lake.name) for lake in night.config.lakes]


def live_keys(spark: SparkSession, night: Night, storage_name: str, live: list[Published]) -> DataFrame:
    """Returns the rows of `live_files` of all lakes that lie in the storage.

    A key that two lakes need appears twice.
    """
    frames = [read_table(spark, night.state, LIVE_FILES, table) for table in live]
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    return everything.filter(F.col("storage") == storage_name)


def asked_of_live_keys(
    spark: SparkSession, night: Night, storage_name: str, live: list[Published], column: str, task: Task, ddl: str, task_bytes: int
) -> Sequence[Any]:
    """Returns what a task yields for one column of `live_keys` (rows of `ddl`). The task reads
    `task_bytes` of its own.
    """
    paths = [path for table in live for path in table.paths()]
    if task_bytes > engine.HERE_BYTES or not engine.is_little(sum(table.rows for table in live), len(paths)):
        return answers(live_keys(spark, night, storage_name, live).select(column), task, ddl)
    return here(task, _column_here(night.state.files, paths, storage_name, column).to_batches())


def _column_here(files: Files, paths: Sequence[str], storage_name: str, column: str) -> pa.Table:
    rows = read_parts(files, list(paths), LIVE_FILES.schema, ["storage", column])
    return rows.filter(pc.equal(rows.column("storage"), storage_name)).select([column])


def expired_keys(spark: SparkSession, night: Night, storage_name: str, live: list[Published]) -> DataFrame:
    """Returns the files that only expired history needs, columns of `live_files`.

    The policy no longer keeps that history, but the lake has not let go of it yet. Lakes whose
    history is never edited hold nothing here.
    """
    edited = [table for table in live if night.kind(table.receipt.owner).edits_history]
    everything = frame_of(spark, LIVE_FILES.schema.empty_table())
    for table in edited:
        everything = everything.unionByName(read_table(spark, night.state, LIVE_FILES, table, EXPIRED_SIDE))
    return everything.filter(F.col("storage") == storage_name)


def live_count(live: list[Published], storage_name: str) -> LiveCount:
    """Counts the rows of `live_keys` from the receipts, without names that are only possible.

    Such names are no files to count. Lakes that need no file of the storage are left out.
    """
    counts: dict[str, int] = {}
    for table in live:
        facts = table.facts(LiveFilesFacts)
        possible = facts.possible_by_storage.get(storage_name, Amount()).files
        if files := facts.by_storage.get(storage_name, Amount()).files - possible:
            counts[table.receipt.owner] = files
    return LiveCount(sum(counts.values()), counts)


def live_rows(live: list[Published], storage_name: str) -> int:
    """Counts the rows of `live_keys` from the receipts."""
    return sum(table.facts(LiveFilesFacts).by_storage.get(storage_name, Amount()).files for table in live)


def seed_of(run_date: date) -> int:
    """Returns another seed each night.

    A fixed seed would keep the same false positives for ever (reliability.md 7.4).
    """
    return run_date.toordinal()


@logged(LIVE_FILTER)
def live_filter(spark: SparkSession, night: Night, storage_name: str) -> Published:
    """Publishes the filter over all live keys of a storage, sized from their exact count.

    After publication every live key is looked up in the published artefact. One miss raises
    `GcError`, and the partition fails. The receipt carries the measured false-positive rate.
    """
    state = night.state
    live = live_tables(night)
    count = live_rows(live, storage_name)
    slices = max(1, -(-count // SLICE_KEYS))
    run = begin(night, storage_name, LIVE_FILTER)
    spec = FilterSpec.sized(keys=max(1, -(-count // slices) if slices == 1 else int(count / slices * 1.1)), seed=seed_of(night.run_date))
    hashes = _hashes(spark, night, storage_name, live, slices)
    merge = _Merge(spec, slices, state.files, run)
    doing(f"{count:,} live keys in {slices:,} slices")
    written = merge_written(hashes.built(_Build(spec), merge))
    missing_slices = slices - written.rows
    facts = LiveFilterFacts(
        keys=count,
        slices=slices,
        bits_per_key=round(spec.size_bytes * 8 / max(1, spec.keys), 2),
        false_positive_target=TARGET_FPR,
        false_positives_measured=written.facts.get("false_positives", 0.0) / max(1, written.rows),
        empty_slices=missing_slices,
    )
    published = publish(
        state,
        run,
        written,
        night.clock,
        inputs=live,
        balances=[Balance(name="live keys", expected=count, found=int(written.facts.get("added", 0)))],
        facts=facts,
        unsafe=night.unsafe,
    )
    doing(f"looking up {count:,} live keys")
    _look_up(hashes, state.files, published, count)
    return published


def _look_up(hashes: _Keys, files: Files, published: Published, expected: int) -> None:
    """Looks up every live key in the filter as read back from storage.

    Raises `GcError` with the counts unless all of them are in it.
    """
    probe = ProbeFilter(files, tuple(published.paths()))
    rows = hashes.answers(_CountHits(probe), "probed long, hits long")
    probed, hits = sum(row["probed"] for row in rows), sum(row["hits"] for row in rows)
    if not probed == hits == expected:
        raise GcError(
            f"live_filter of {published.path}: of {expected:,} live keys {probed:,} were looked up and {hits:,} found; "
            "a filter that misses a live key would delete it. Run live_filter again; if it persists, report a bug."
        )


class _Keys(Protocol):
    """The hashes of a storage's live keys (columns `key_hash` and `slice`), read anew at each call."""

    def answers(self, task: Task, ddl: str) -> Sequence[Any]:
        """Returns what the task yields for all of them, rows of `ddl`."""
        ...

    def built(self, build: Task, merge: Task) -> Sequence[Any]:
        """Returns what `merge` yields (rows of `PARTS_DDL`) for all that `build` yields (columns of
        `PARTIAL`), each slice in one call.
        """
        ...


def _hashes(spark: SparkSession, night: Night, storage_name: str, live: list[Published], slices: int) -> _Keys:
    paths = tuple(path for table in live for path in table.paths())
    rows = sum(table.receipt.rows for table in live)
    if slices == 1 and engine.is_little(rows, len(paths)):
        return _KeysHere(night.state.files, paths, storage_name)
    frame = live_keys(spark, night, storage_name, live).select(
        "key_hash", F.pmod(F.col("key_hash"), F.lit(slices)).cast("int").alias("slice")
    )
    return _KeysInExecutors(frame.repartition(slices, "slice") if slices > 1 else frame, min(slices, parallelism(spark)))


@dataclass(frozen=True)
class _KeysHere:
    """Few hashes, of one slice, in this process."""

    files: Files
    paths: tuple[str, ...]
    storage: str

    def answers(self, task: Task, ddl: str) -> Sequence[Any]:  # noqa: ARG002 - Arrow batches bring their own schema
        return here(task, self._batches())

    def built(self, build: Task, merge: Task) -> Sequence[Any]:
        return here(merge, build(self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        mine = _column_here(self.files, self.paths, self.storage, "key_hash")
        return iter(mine.append_column("slice", pa.array(np.zeros(mine.num_rows, np.int32))).to_batches())


@dataclass(frozen=True)
class _KeysInExecutors:
    frame: DataFrame
    width: int

    def answers(self, task: Task, ddl: str) -> Sequence[Any]:
        return collect(self.frame.mapInArrow(task, ddl))

    def built(self, build: Task, merge: Task) -> Sequence[Any]:
        partial = self.frame.mapInArrow(build, spark_schema(PARTIAL)).repartition(self.width, "slice")
        return collect(partial.mapInArrow(merge, PARTS_DDL))


@dataclass(frozen=True)
class ProbeFilter:
    """Looks hashes up in a published filter.

    Pickles as paths. Each worker process reads the artefact once.
    """

    files: Files
    paths: tuple[str, ...]

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        slices, filters = _load(self.files, self.paths)
        if slices == 0:
            return np.zeros(len(hashes), dtype=bool)
        found = np.zeros(len(hashes), dtype=bool)
        which = np.mod(hashes, slices)
        for number, bloom in filters.items():
            mine = which == number
            found[mine] = bloom.contains(hashes[mine])
        return found


@lru_cache(maxsize=2)
def _load(files: Files, paths: tuple[str, ...]) -> tuple[int, dict[int, Filter]]:
    rows = read_parts(files, list(paths), LIVE_FILTER.schema).to_pylist()
    return (rows[0]["slices"] if rows else 0), {row["slice"]: Filter.from_bytes(row["filter"]) for row in rows}


@dataclass(frozen=True)
class _Build:
    """Adds the hashes of a partition to partial filters, one per slice that it meets."""

    spec: FilterSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filters: dict[int, Filter] = {}
        keys: dict[int, int] = {}
        for batch in batches:
            hashes, slices = batch.column("key_hash").to_numpy(), batch.column("slice").to_numpy()
            for number in np.unique(slices).tolist():
                mine = hashes[slices == number]
                filters.setdefault(number, Filter.empty(self.spec)).add(mine)
                keys[number] = keys.get(number, 0) + len(mine)
        for number, bloom in filters.items():
            row = {"slice": number, "keys": keys[number], "filter": bloom.to_bytes()}
            yield pa.RecordBatch.from_pylist([row], schema=PARTIAL)


@dataclass(frozen=True)
class _Merge:
    """Unites the partial filters of a slice and writes the published artefact."""

    spec: FilterSpec
    slices: int
    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        merged: dict[int, Filter] = {}
        keys: dict[int, int] = {}
        for batch in batches:
            for row in batch.to_pylist():
                number, part = row["slice"], Filter.from_bytes(row["filter"])
                keys[number] = keys.get(number, 0) + row["keys"]
                if number in merged:
                    merged[number].merge(part)
                else:
                    merged[number] = part
        writer = PartWriter(self.files, self.run.path, LIVE_FILTER.schema)
        digest, rates = 0, 0.0
        for number, bloom in merged.items():
            content = bloom.to_bytes()
            row = {"slice": number, "slices": self.slices, "keys": keys[number], "filter": content}
            writer.write(pa.RecordBatch.from_pylist([row], schema=LIVE_FILTER.schema))
            digest += xxh64_intdigest(content)
            rates += bloom.measured_fpr(FALSE_POSITIVE_SAMPLES, np.random.default_rng(self.spec.seed))
        yield report_parts(writer.close(), digest % 2**64, facts={"added": sum(keys.values()), "false_positives": rates})


@dataclass(frozen=True)
class _CountHits:
    probe: ProbeFilter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        probed = hits = 0
        for batch in batches:
            probed += batch.num_rows
            hits += int(self.probe.contains(batch.column("key_hash").to_numpy()).sum())
        yield pa.RecordBatch.from_pydict({"probed": [probed], "hits": [hits]})
