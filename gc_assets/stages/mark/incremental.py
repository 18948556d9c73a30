"""Carries rows of `live_files` over from an earlier night, where nothing that names their files
came, went or changed.

A row is made of the names that commits and containers give a file (`NEEDS`), of the cached entries
that name it, and of who needs their containers, which stands in `NEEDS` too. So a key is *touched*
if one of its own rows there differs, if an entry names it whose container somebody else needs by
now, or nobody, or if an entry of a new segment of the cache names it. Rows of other keys stay as
they are. Those of touched keys are computed anew, as all rows are where everything is computed.

Touched keys are known by their hashes. Where two keys have one hash, both are touched.

Whatever is in doubt is no base: then everything is computed, and the facts say why.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import digest
from gc_assets.core.plan import Amount
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import MAX_SMALL_ROWS
from gc_assets.engine.tables import (
    PARTS_DDL,
    ROUTE,
    Totals,
    WrittenParts,
    add_totals,
    collect,
    merge_written,
    read_paths,
    report_parts,
    row_hash,
    run_over_frame,
    side_paths,
    spark_schema,
)
from gc_assets.engine.tasks import run_tasks
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.manifest_entries import cache_fingerprint, count_file_rows
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import (
    CHANGED_CONTAINERS,
    CHANGED_CONTAINERS_SIDE,
    CHANGED_KEYS,
    CHANGED_KEYS_SIDE,
    DIRTY_KEYS,
    DIRTY_KEYS_SIDE,
    NEEDS,
    NEEDS_SIDE,
    ROUTED_SIDES,
)
from gc_assets.state.summaries import Compared, LiveFilesSummary

# By what of a row with `expands` the entries of its container are judged.
_JUDGED_BY: Final = ["address", "rank", "commit_id", "table_uuid", "must_exist"]
# Whoever changes what a row says changes this number.
FORMAT: Final = 1
# Where more than this share of the rows is touched, computing all of them costs less.
MAX_DIRTY_SHARE: Final = 0.25
# So few rows are all computed by one job without a shuffle, which costs less than finding what is
# touched.
MIN_INCREMENTAL_ROWS: Final = MAX_SMALL_ROWS
# Runs of other conditions that are looked at in search of a base.
MAX_BASELINES_OPENED: Final = 3
# A part below this is written again together with others, so that parts do not become ever more.
SMALL_BYTES: Final = 4 * 2**20
# One task copies so many bytes.
BUNDLE_BYTES: Final = 48 * 2**20
# Up to so many hashes go to every executor.
BROADCAST_ROWS: Final = 2_000_000
_LOW: Final = 2**32 - 1
BASELINE_DAMAGED: Final = "the earlier night is damaged"


class BaselineInvalid(Exception):
    """A base that turned out to be none. Its text says why."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier `live_files` of the lake, made as tonight's would be.

    `came` are the segments of the cache that it did not know. `released` are tables of files that
    lifecycle rules release, of whose keys any may have changed.
    """

    published: PublishedTable
    summary: LiveFilesSummary
    came: tuple[PastRun, ...]
    released: tuple[PublishedTable, ...]

    @property
    def rows(self) -> int:
        """Rows of the table and of the sides that hold rows like its own."""
        return sum(part.rows for part in self.parts)

    @property
    def parts(self) -> tuple[PartFile, ...]:
        sides = (parts for side, parts in self.published.receipt.side.items() if side in ROUTED_SIDES)
        return (*self.published.receipt.files, *(part for parts in sides for part in parts))

    def is_due(self, full_every: int) -> bool:
        """Says whether everything is to be computed again, and compared."""
        return max(self.summary.incremental_runs, self.summary.uncompared_runs) + 1 >= full_every

    @property
    def new_rows(self) -> int:
        """Rows by which keys may be touched besides those that `NEEDS` tells."""
        return count_file_rows(self.came) + sum(table.rows for table in self.released)


@dataclass(frozen=True, slots=True)
class FullRecompute:
    """Everything is computed, and why. With `compare` the result is held against what carrying over
    would have given. `distrusted_on` is the run date that found carried rows to be wrong, and
    `uncompared_runs` counts the nights since the last comparison, tonight among them.
    """

    why: str
    compare: bool = False
    distrusted_on: date | None = None
    uncompared_runs: int = 0

    @property
    def in_short(self) -> str:
        """The same without addresses, which log lines must not hold."""
        return self.why.partition(": ")[0]


def fingerprint(context: RunContext, lake_name: str) -> str:
    """Returns a digest of what rows depend on besides `NEEDS`, entries and released files."""
    rules = [cache_fingerprint(context, lake_name), lake_name, FORMAT, LIVE_FILES.schema.names, NEEDS.names, list(FILE_KINDS)]
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def segments_with_rows(cache: Sequence[PastRun]) -> list[PastRun]:
    """Returns the segments that hold rows, in the order of their ids."""
    return sorted((run for run in cache if run.entry.parts), key=lambda run: run.run_id)


def segments_digest(cache: Sequence[PastRun]) -> str:
    """Returns a digest of segments and their receipts."""
    return hashlib.sha256(json.dumps([[run.run_id, run.entry.receipt_sha256] for run in segments_with_rows(cache)]).encode()).hexdigest()


def find_baseline(
    context: RunContext, lake_name: str, cache: Sequence[PastRun], lifecycle: PublishedTable | None
) -> Baseline | FullRecompute:
    """Returns the newest `live_files` of the lake that rows may be carried over from, or why there
    is none.

    Its rows follow from what it was made of, so it may be of any run date, also of a later one. But
    a run that a clock ahead of ours made would stay the newest for years, and is none. A night
    under real limits takes none that was made under lowered ones or a rehearsal's clock. A fresh
    mark takes those of nights, and no night takes that of a fresh mark.
    """
    if context.config.full_every == 0:
        return FullRecompute("full_every is 0")
    state, now = context.state, context.clock.now()
    try:
        history, mine = state.history(lake_name, LIVE_FILES.name), fingerprint(context, lake_name)
        if wrong := [run.run_date for run in history if run.headline(Compared).wrong == mine]:
            return FullRecompute(f"rows that this release carried over were wrong on {max(wrong)}", distrusted_on=max(wrong))
        latest = f"{now:%Y%m%dT%H%M%SZ}~"  # behind every id of a run that began by now
        made = [run for run in history if run.entry.created_at <= now and run.run_id <= latest]
        runs = sorted(made, key=lambda run: run.run_id, reverse=True)
        opened = (state.open(run) for run in runs[:MAX_BASELINES_OPENED])
        last = next((found for found in opened if set(found.receipt.unsafe) <= set(context.unsafe)), None)
        if last is None:
            return FullRecompute(
                "there is no earlier night" if not runs else "the last nights ran under other limits or a rehearsal's clock"
            )
        summary = last.summary(LiveFilesSummary)
        if summary.fingerprint != mine:
            return FullRecompute("the earlier night was of another release, of other storages or of other settings")
        found = _fit(context, lake_name, last, cache, lifecycle)
        return found if isinstance(found, Baseline) else replace(found, uncompared_runs=summary.uncompared_runs + 1)
    except (StateError, OSError) as error:
        return FullRecompute(f"{BASELINE_DAMAGED}: {error}")


def _fit(
    context: RunContext, lake_name: str, last: PublishedTable, cache: Sequence[PastRun], lifecycle: PublishedTable | None
) -> Baseline | FullRecompute:
    summary = last.summary(LiveFilesSummary)
    if summary.unreadable:
        return FullRecompute("the earlier night could not read everything")
    known, now = set(summary.segments), segments_with_rows(cache)
    if segments_digest([run for run in now if run.run_id in known]) != summary.segments_digest:
        return FullRecompute("segments of the cache are gone")
    released = _released(context, lake_name, last, lifecycle)
    if isinstance(released, FullRecompute):
        return released
    base = Baseline(last, summary, tuple(run for run in now if run.run_id not in known), released)
    if not base.rows:
        return FullRecompute("the earlier night had no rows")
    return base if last.parts(NEEDS_SIDE) else FullRecompute(f"the earlier night lacks {NEEDS_SIDE}")


def _released(
    context: RunContext, lake_name: str, last: PublishedTable, lifecycle: PublishedTable | None
) -> tuple[PublishedTable, ...] | FullRecompute:
    """Returns the tables of released files, of both nights, unless they are equal. Raises
    `StateError` where the earlier one is damaged.
    """
    then = [text for name, text in last.receipt.inputs.items() if name.split("/")[-2] == LIFECYCLE_OBJECTS.name]
    if not then:
        return () if lifecycle is None else (lifecycle,)
    run_id, _, told = then[0].partition(":")
    if lifecycle is not None and lifecycle.receipt.digest == told:
        return ()
    found = [run for run in context.state.history(lake_name, LIFECYCLE_OBJECTS.name) if run.run_id == run_id]
    if not found:
        return FullRecompute(f"{LIFECYCLE_OBJECTS.name} of the earlier night is gone")
    earlier = context.state.open(found[0])
    context.state.verify(earlier)
    return (earlier, *([lifecycle] if lifecycle is not None else []))


def full_recompute_reason(
    base: Baseline | FullRecompute, found: Mapping[str, Any], full_every: int, *, unreadable: bool, entries: int
) -> FullRecompute | None:
    """Decides whether everything is computed; null where rows are carried over.

    `found` are the facts of `Before.compare`, `entries` is how many cached entries there are.
    """
    if isinstance(base, FullRecompute):
        return base
    if damaged := found.get("damaged"):
        return FullRecompute(damaged)
    if unreadable or "entries" not in found:
        return FullRecompute("not everything can be read")
    if base.is_due(full_every):
        how_often = "every night" if full_every == 1 else f"every {full_every:,} nights"
        return FullRecompute(f"{how_often} all of them are named, and compared", compare=True)
    touched = found["entries"] + found["keys"] + base.new_rows
    if touched and entries <= MIN_INCREMENTAL_ROWS:
        return FullRecompute("there are few rows")
    if touched > MAX_DIRTY_SHARE * base.rows:
        return FullRecompute(f"up to {touched:,} of {base.rows:,} rows are touched")
    return None


def build_needs(direct: pa.Table, expands: npt.NDArray[np.bool_], lengths: pa.ChunkedArray) -> pa.Table:
    """Returns containers and files with who needs them (columns `NEEDS`). `direct` has the columns
    of `ROOTS`.
    """
    columns = {"container": direct.column("parent"), "expands": pa.array(expands), "container_size_bytes": lengths}
    return pa.table({name: columns[name] if name in columns else direct.column(name) for name in NEEDS.names}).cast(NEEDS)


def compare_needs(before: pa.Table, now: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Returns the containers that another commit needs, or in another way, and the keys of rows
    that stand on one side only, each once. Both tables have the columns `NEEDS`.
    """
    tagged = [rows.append_column("side", pa.array(np.full(rows.num_rows, side, np.int8))) for side, rows in enumerate((before, now))]
    differ = _of_one_side(pa.concat_tables(tagged), NEEDS.names)
    keys = pc.unique(pc.coalesce(differ.column("key"), differ.column("address")))
    containers = _of_one_side(differ.filter(differ.column("expands")), _JUDGED_BY)
    return pc.unique(containers.column("address")), keys


def _of_one_side(tagged: pa.Table, names: list[str]) -> pa.Table:
    """Returns the rows, each once, that only one side has. Nulls are equal."""
    grouped = tagged.group_by(names).aggregate([("side", "min"), ("side", "max")])
    alone = grouped.filter(pc.equal(grouped.column("side_min"), grouped.column("side_max")))
    return alone.select([*names, "side_min"]).rename_columns([*names, "side"])


@dataclass(frozen=True)
class PreviousNeeds:
    """What the base's needs were, for the task that knows tonight's. Pickles.

    `needs` are the parts with their digests. `came` are the paths of the containers that only new
    segments hold. `may_stand` is true where nothing but other needs would touch a key tonight.
    Without `tells` nobody asks which keys are touched, only whether any is.
    """

    path: str
    needs: tuple[PartFile, ...]
    came: frozenset[str]
    may_stand: bool
    tells: bool

    @classmethod
    def of(cls, base: Baseline, came: Sequence[str], full_every: int, entries: int) -> PreviousNeeds:
        """`entries` is how many cached entries there are."""
        is_due = base.is_due(full_every)
        tells = entries > MIN_INCREMENTAL_ROWS or is_due
        return cls(base.published.path, tuple(base.published.parts(NEEDS_SIDE)), frozenset(came), not base.new_rows and not is_due, tells)

    def is_all(self, found: Mapping[str, Any]) -> bool:
        """Says whether the base's rows are tonight's, by the facts of `compare`."""
        return self.may_stand and found.get("keys") == 0 and found.get("changed") == 0

    def compare(
        self, files: Files, needs: pa.Table, index: pa.Table, known: pa.ChunkedArray, edges: pa.Table
    ) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Returns the scratch sides `CHANGED_CONTAINERS_SIDE` and `CHANGED_KEYS_SIDE`, and facts.

        `index` are all decoded containers (columns container, entries), `known` those of segments
        that the base knew: only these have entries that are not new anyway. Those that never named
        anything but containers, by `edges`, have no entry that counts. A container that was decoded
        again may name files in one segment and containers in another, so all segments are counted.
        """
        try:
            before = pa.concat_tables([NEEDS.empty_table(), *(_read(files, self.path, part, NEEDS) for part in self.needs)])
        except (StateError, OSError) as error:
            return {}, {"damaged": f"{BASELINE_DAMAGED}: {error}"}
        containers, keys = compare_needs(before, needs)
        earlier = containers.filter(pc.is_in(containers, known.unique()))
        total = index.filter(pc.is_in(index.column("container"), earlier)).group_by("container").aggregate([("entries", "sum")])
        inner = pc.value_counts(edges.column("container"))
        at = pc.index_in(total.column("container"), inner.field("values").cast(pa.string()))
        files_of = pc.subtract(total.column("entries_sum"), pc.fill_null(pa.chunked_array([inner.field("counts")]).take(at), 0))
        changed = total.filter(pc.not_equal(files_of, 0))
        entries = pc.sum(pc.max_element_wise(files_of, 0)).as_py() or 0
        sides = {
            CHANGED_CONTAINERS_SIDE: changed.select(["container"]).cast(CHANGED_CONTAINERS),
            CHANGED_KEYS_SIDE: pa.table({"key": keys}).cast(CHANGED_KEYS),
        }
        return sides if self.tells else {}, {"entries": entries, "keys": len(keys), "changed": changed.num_rows}


def _read(files: Files, directory: str, part: PartFile, schema: pa.Schema) -> pa.Table:
    """Returns the rows of a part. Raises `StateError` where its bytes are not those that were
    published.
    """
    return pq.read_table(io.BytesIO(_verified(files, directory, part))).cast(schema)


def _verified(files: Files, directory: str, part: PartFile) -> bytes:
    content = files.read(f"{directory}/{part.name}")
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise StateError(f"{directory}/{part.name} holds other bytes than were published")
    return content


def file_key(frame: DataFrame) -> Column:
    """Returns the key of a file, which is its address where it lies in no storage. A frame without
    addresses has no such file.
    """
    return F.coalesce("key", "address") if "address" in frame.columns else F.col("key")


def write_dirty_keys(frames: Sequence[DataFrame], files: Files, run: TableRun) -> WrittenParts:
    """Writes the keys of these frames, each once, with their hashes (`DIRTY_KEYS_SIDE`)."""
    keys = [frame.select(file_key(frame).alias("key")) for frame in frames]
    distinct = reduce(DataFrame.unionByName, keys).distinct().withColumn("key_hash", F.xxhash64("key"))
    return merge_written(run_over_frame(distinct, _Put(files, run.path, DIRTY_KEYS, DIRTY_KEYS_SIDE), PARTS_DDL))


@dataclass(frozen=True)
class _Put:
    """Writes rows as parts below `prefix`; runs in executors."""

    files: Files
    directory: str
    schema: pa.Schema
    prefix: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.directory, self.schema, self.prefix)
        for batch in batches:
            writer.write(batch)
        yield report_parts(writer.close())


def filter_dirty(frame: DataFrame, touched: DataFrame, rows: int) -> DataFrame:
    """Returns the rows of touched keys. `touched` has so many rows (column `key_hash`)."""
    few = F.broadcast(touched) if rows <= BROADCAST_ROWS else touched
    return frame.withColumn("key_hash", F.xxhash64(file_key(frame))).join(few, "key_hash", "left_semi").drop("key_hash")


@dataclass(frozen=True, slots=True)
class ReusedRows:
    """Parts that were carried over. `digest` is that of the table's rows in them. `dropped` are the
    base's rows of the table that are not, by storage and kind.
    """

    parts: tuple[PartFile, ...]
    side: dict[str, tuple[PartFile, ...]]
    digest: int
    dropped: dict[tuple[str, ...], Totals]
    expected: int
    found: int

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def reuse_rows(spark: SparkSession, base: Baseline, run: TableRun, files: Files, touched: Sequence[str]) -> ReusedRows:
    """Copies the base's rows of untouched keys into the run. Raises `BaselineInvalid` where the base is
    damaged.
    """
    bundles = _bundles(base.parts)
    carry = _Carry(files, run, base.published.path, tuple(bundles), tuple(touched))
    size_bytes = sum(part.size_bytes for part in base.parts)
    written = merge_written(run_tasks(spark, carry, len(bundles), size_bytes))
    if damaged := written.summary["damaged"]:
        raise BaselineInvalid(f"{BASELINE_DAMAGED}: {damaged[0]}")
    kept = sum(part.rows for part in (*written.parts, *(part for parts in written.side.values() for part in parts)))
    digest = (int(base.published.receipt.digest, 16) - written.digest) % 2**64
    return ReusedRows(written.parts, written.side, digest, written.totals, base.rows - written.summary["dropped"], kept)


def _bundles(parts: Sequence[PartFile]) -> list[tuple[PartFile, ...]]:
    """Returns the parts in groups, one for each task, of about `BUNDLE_BYTES`."""
    bundles: list[list[PartFile]] = []
    room = 0
    for part in sorted(parts, key=lambda part: (part.name.rpartition("/")[0], part.size_bytes, part.name)):
        if not bundles or part.size_bytes > room:
            bundles.append([])
            room = BUNDLE_BYTES
        bundles[-1].append(part)
        room -= part.size_bytes
    return [tuple(bundle) for bundle in bundles]


@dataclass(frozen=True)
class _Carry:
    """Copies parts of a base, without the rows of touched keys.

    A part that holds none of these is copied byte by byte. Small ones are written again together.
    Reports as digest and totals those of the table's rows that it left out.
    """

    files: Files
    run: TableRun
    path: str
    bundles: tuple[tuple[PartFile, ...], ...]
    touched: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        touched = np.sort(read_parts(self.files, list(self.touched), DIRTY_KEYS, ["key_hash"]).column("key_hash").to_numpy())
        parts: list[PartFile] = []
        totals: dict[tuple[str, ...], Totals] = {}
        gone, dropped = 0, 0
        damaged: list[str] = []
        for batch in batches:
            for number in batch.column("id").to_pylist():
                writers: dict[str, PartWriter] = {}
                for part in self.bundles[number]:
                    try:
                        content = _verified(self.files, self.path, part)
                        out = self._part(part, content, touched, writers)
                    except (StateError, OSError, pa.ArrowException) as error:
                        damaged.append(str(error))
                        continue
                    if out is None:
                        parts.append(part)
                        continue
                    dropped += out.num_rows
                    if "/" not in part.name:
                        gone = (gone + digest(out)) % 2**64
                        for rows in out.to_batches():
                            add_totals(totals, rows, ["storage", "kind"])
                parts += [part for writer in writers.values() for part in writer.close()]
        yield report_parts(parts, gone, totals, summary={"dropped": dropped, "damaged": damaged})

    def _part(self, part: PartFile, content: bytes, touched: npt.NDArray[np.int64], writers: dict[str, PartWriter]) -> pa.Table | None:
        """Copies a part. Returns the rows that it left out, null where it copied it as it was."""
        source = pq.ParquetFile(pa.BufferReader(content))
        if source.metadata.num_rows != part.rows:
            raise StateError(f"{self.path}/{part.name} has {source.metadata.num_rows:,} rows, its receipt says {part.rows:,}")
        is_hit = _among(source.read(["key_hash"]).column("key_hash").to_numpy(), touched)
        if not is_hit.any() and (part.size_bytes >= SMALL_BYTES or not len(touched)):
            self.files.replace(f"{self.run.path}/{part.name}", content)
            return None
        prefix = part.name.rpartition("/")[0]
        writer = writers.setdefault(prefix, PartWriter(self.files, self.run.path, LIVE_FILES.schema, prefix))
        out: list[pa.Table] = []
        first = 0
        for group in range(source.num_row_groups):
            rows = source.read_row_group(group).select(LIVE_FILES.schema.names).cast(LIVE_FILES.schema)
            mine = is_hit[first : first + rows.num_rows]
            first += rows.num_rows
            if mine.any():
                out.append(rows.filter(pa.array(mine)))
                rows = rows.filter(pa.array(~mine))
            for batch in rows.to_batches():
                writer.write(batch)
        return pa.concat_tables([LIVE_FILES.schema.empty_table(), *out])


def _among(values: npt.NDArray[np.int64], ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Marks the values that stand among ordered ones."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def amend_amounts(before: Mapping[str, Amount], dropped: Mapping[str, Amount], new: Mapping[str, Amount]) -> dict[str, Amount]:
    """Returns amounts without those of dropped rows and with those of new ones. Raises `BaselineInvalid`
    where more would be dropped than there was.
    """
    found: dict[str, Amount] = {}
    for name in sorted({*before, *dropped, *new}):
        was, less, more = (amounts.get(name, Amount()) for amounts in (before, dropped, new))
        files, size = was.files - less.files + more.files, was.bytes - less.bytes + more.bytes
        if was.files < less.files or was.bytes < less.bytes:
            raise BaselineInvalid(f"the earlier night counts {was.files:,} files of {name!r}, and holds at least {less.files:,}")
        if files:
            found[name] = Amount(files=files, bytes=size)
    return found


def read_routes(session: SparkSession, files: Files, paths: Mapping[str, Sequence[str]]) -> DataFrame:
    """Returns rows of the table and of its sides with their route; the paths are by route."""
    frames = [read_paths(session, files, LIVE_FILES.schema, list(named)).withColumn(ROUTE, F.lit(route)) for route, named in paths.items()]
    return reduce(DataFrame.unionByName, frames)


def filter_clean(rows: DataFrame, touched: DataFrame, count: int) -> DataFrame:
    """Returns the rows of `live_files` whose keys are not touched."""
    return rows.join(F.broadcast(touched) if count <= BROADCAST_ROWS else touched, "key_hash", "left_anti").select(rows.columns)


def sum_hashes(rows: DataFrame) -> dict[str, tuple[int, int]]:
    """Returns for each route how many rows it has, and the sum of their hashes modulo 2^64."""
    schema = spark_schema(LIVE_FILES.schema)
    columns = [f"cast(`{field.name}` as {field.dataType.simpleString()}) as `{field.name}`" for field in schema.fields]
    hashed = rows.selectExpr(*columns, ROUTE).select(ROUTE, row_hash(schema).alias("h"))
    low, high = F.col("h").bitwiseAND(F.lit(_LOW)), F.shiftrightunsigned("h", 32)
    found = collect(hashed.groupBy(ROUTE).agg(F.count("*").alias("n"), F.sum(low).alias("low"), F.sum(high).alias("high")))
    return {row[ROUTE]: (row["n"], (row["low"] + (row["high"] << 32)) % 2**64) for row in found}


def describe_differences(carried: Mapping[str, tuple[int, int]], computed: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """Returns in words where rows that were carried over are not those that are computed."""
    told: list[str] = []
    for route in sorted({*carried, *computed}):
        mine, other = carried.get(route, (0, 0)), computed.get(route, (0, 0))
        if mine != other:
            told.append(f"{LIVE_FILES.name}{'/' if route else ''}{route}: {mine[0]:,} rows carried over or renewed, {other[0]:,} computed")
    return tuple(told)


def published_routes(table: PublishedTable) -> dict[str, list[str]]:
    """Returns the paths of a published table and of its sides, by route."""
    return {"": table.paths()} | {side: table.paths(side) for side in ROUTED_SIDES}


def written_routes(run: TableRun, written: WrittenParts) -> dict[str, list[str]]:
    """Returns the same of a table that is not published yet."""
    return {"": [f"{run.path}/{part.name}" for part in written.parts]} | {side: side_paths(run, written, side) for side in ROUTED_SIDES}
