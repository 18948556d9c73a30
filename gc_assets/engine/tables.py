"""Read and write the tables of the state with Spark.

While an executor writes rows to a Parquet part, it also counts, hashes and sums them, so that one
Spark job is enough. Side tables are further tables of the same run. Only data frames and
`mapInArrow` are used, because they work with classic sessions as well as with Spark Connect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import MapType, StructType

from gc_assets._version import __version__
from gc_assets.core import errors
from gc_assets.core.clock import Clock
from gc_assets.core.hashing import digest as digest_rows
from gc_assets.core.hashing import row_hashes
from gc_assets.core.plan import Amount
from gc_assets.core.requests import Requests, record_requests
from gc_assets.engine.arrow_frames import create_frame, to_arrow
from gc_assets.engine.progress import jobs_started, record_publication, requests_sent
from gc_assets.engine.sessions import is_small
from gc_assets.engine.state_scan import ColumnFilter, scan, scan_in_process
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance, PartFile, Receipt
from gc_assets.state.schemas import Table
from gc_assets.state.summaries import Summary

# A function that `DataFrame.mapInArrow` accepts.
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROW_HASH = "_row_hash"
ROUTE = "_route"
VERSION = "_version"
_FULL_DISK = "No space left on device"
# Finds exceptions of `core.errors` in tracebacks of executors, which Spark passes on as text.
_OWN_ERROR = re.compile(
    r"^gc_assets\.core\.errors\.(?P<name>\w+): (?P<message>.*?)"
    r"(?=\n\s*SQLSTATE|\n\s*at org\.|\n\nThe above exception was|\n\nDuring handling of|\n*\Z)",
    re.DOTALL | re.MULTILINE,
)
# If this setting is `true`, Spark itself reads a state on an object store.
READ_BY_SPARK = "spark.sql.gc_assets.state_by_spark"
# A cluster may have these settings enabled, but rows of the state would then be lost silently.
_STRICT_READ = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
# Spark would interpret these characters in a path as a pattern.
_GLOB = re.compile(r"[\\\[\]{}*?]")
# In this column, a task reports the requests that it has sent, as JSON in one row of each batch.
REQUESTS = "requests"
PARTS_DDL = f"parts string, digest long, totals string, summary string, {REQUESTS} string"
PARTS = pa.schema([("parts", pa.string()), ("digest", pa.int64()), *((name, pa.string()) for name in ("totals", "summary", REQUESTS))])
MAX_SAMPLES = 20


@dataclass(frozen=True)
class TaskChain:
    """A task that runs another one on the output of the first. It can be pickled for executors."""

    first: Task
    second: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.second(self.first(batches))


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of rows, and the sum of `size_bytes`, in a group of a table's rows."""

    rows: int = 0
    size_bytes: int = 0

    @property
    def amount(self) -> Amount:
        """The totals as an amount of files, for tables with one row per file."""
        return Amount(files=self.rows, bytes=self.size_bytes)

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.rows + other.rows, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """The parts, counts and digest of a table that was written but is not published yet.

    Attributes:
        parts: The parts of the table itself.
        digest: The sum of all row hashes.
        side: The parts of each side table, keyed by its name.
        totals: The totals for each combination of values in the columns `totals_by`.
        summary: The summaries of all tasks, merged.
    """

    parts: tuple[PartFile, ...]
    digest: int
    side: dict[str, tuple[PartFile, ...]] = field(default_factory=dict[str, tuple[PartFile, ...]])
    totals: dict[tuple[str, ...], Totals] = field(default_factory=dict[tuple[str, ...], Totals])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def paths(self, run: TableRun, side: str | None = None) -> list[str]:
        """Return the paths of all parts, or of the parts of a side table, relative to the state."""
        return [f"{run.path}/{part.name}" for part in (self.parts if side is None else self.side.get(side, ()))]

    def side_rows(self, side: str) -> int:
        """Count the rows of a side table."""
        return sum(part.rows for part in self.side.get(side, ()))


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def read_table(
    spark: SparkSession,
    state: State,
    table: Table,
    published: PublishedTable | None,
    side: str | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Read a published table as a data frame, which is empty if `published` is None."""
    parts = published.parts(side) if published is not None else ()
    paths = published.paths(side) if published is not None else []
    return read_paths(spark, state.files, table.schema, paths, columns, [part.size_bytes for part in parts])


def read_paths(
    spark: SparkSession,
    files: Files,
    schema: pa.Schema,
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    only: ColumnFilter | None = None,
) -> DataFrame:
    """Read Parquet parts of the state as a data frame.

    If the session is for small inputs, the driver process reads the parts. Otherwise Spark reads a
    local state, and Python code on executors reads a state on an object store, unless
    `READ_BY_SPARK` is set.

    Args:
        spark: The session.
        files: The files of the state.
        schema: The columns of the files.
        paths: The paths of the parts, relative to the state root.
        columns: The columns to read, by default all.
        sizes: The sizes of the parts in bytes. Passing them saves requests.
        only: Skip row groups that cannot match this filter. Spark's reader ignores it, so the
            caller must filter the rows as well.
    """
    wanted = pa.schema([schema.field(name) for name in columns or schema.names])
    if is_small(spark) or not paths:
        return frame_from_arrow(spark, scan_in_process(files, wanted, paths, only))
    if not files.are_local and spark.conf.get(READ_BY_SPARK, "false") != "true":
        return scan(spark, files, wanted, spark_schema(wanted), paths, sizes, only)
    # Spark reads only the selected columns of the files.
    addresses = [_GLOB.sub(r"\\\g<0>", files.spark_uri(path)) for path in paths]
    read = spark.read.options(**_STRICT_READ).schema(spark_schema(schema)).parquet(*addresses)
    return read if columns is None else read.select(*columns)


def frame_from_arrow(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert an Arrow table to a data frame that Spark processes in one task."""
    content = rows if rows.num_rows else rows.schema.empty_table()  # Spark fails on columns without chunks
    return create_frame(spark, content, spark_schema(rows.schema)).coalesce(1)


def read_rows(state: State, table: Table, published: PublishedTable, columns: list[str] | None = None) -> pa.Table:
    """Read a table into memory. The caller must make sure that it is small."""
    return read_parts(state.files, published.paths(), table.schema, columns)


def row_hash(schema: StructType) -> Column:
    """Build a Spark column with the `xxhash64` of each row. Maps are hashed as sorted entries.

    `core.hashing.row_hashes` computes the same hashes without Spark.
    """
    values = [f"array_sort(map_entries(`{f.name}`))" if isinstance(f.dataType, MapType) else f"`{f.name}`" for f in schema.fields]
    return F.expr(f"xxhash64({', '.join(values)})")


def write_frame(
    frame: DataFrame,
    table: Table,
    run: TableRun,
    state: State,
    totals_by: Sequence[str] = (),
    routes: Sequence[str] = (),
    *,
    counted: bool = False,
) -> WrittenParts:
    """Write the rows of a data frame as parts of a run, and evaluate the frame only once.

    Args:
        frame: The rows. Columns are cast to the schema of the table.
        table: The table.
        run: The unpublished run of the table.
        state: The state.
        totals_by: Columns by which rows and `size_bytes` are summed.
        routes: The names of side tables. If there are any, the frame must have a `_route` column. A
            row with one of these names is written to that side table.
        counted: Whether the frame has a `requests` column, which `BudgetedTask` adds.

    Returns:
        The parts, which are not published yet.
    """
    schema = spark_schema(table.schema)
    # SQL text, because each column function costs a JVM call and tables have many columns.
    columns = [f"cast(`{f.name}` as {f.dataType.simpleString()}) as `{f.name}`" for f in schema.fields]
    extra = [*([ROUTE] if routes else []), *([REQUESTS] if counted else [])]
    hashed = frame.selectExpr(*columns, *extra).withColumn(ROW_HASH, row_hash(schema))
    task = _WriteParts(state.files, run.path, table.name, table.schema, tuple(totals_by), tuple(routes))
    return merge_written(run_over_frame(hashed, task, PARTS_DDL))


def write_routed(
    rows: pa.Table | DataFrame, table: Table, run: TableRun, state: State, totals_by: Sequence[str], routes: Sequence[str]
) -> WrittenParts:
    """Write rows that have a `_route` column (see `write_frame`).

    The driver process writes an Arrow table, and executors write a data frame.
    """
    if isinstance(rows, DataFrame):
        return write_frame(rows, table, run, state, totals_by, routes)
    hashes = row_hashes(rows.select(table.schema.names).cast(table.schema))
    task = _WriteParts(state.files, run.path, table.name, table.schema, tuple(totals_by), tuple(routes))
    return merge_written(run_in_process(task, rows.append_column(ROW_HASH, pa.array(hashes)).combine_chunks().to_batches()))


def run_over_frame(frame: DataFrame, task: Task, schema: StructType | str) -> Sequence[Any]:
    """Run a task on the rows of a data frame, and collect the rows that it yields.

    The task runs on executors, or in the driver process if the session is for small inputs.

    Args:
        frame: The rows.
        task: The task.
        schema: The columns that the task yields.
    """
    if not is_small(frame.sparkSession):
        return collect(frame.mapInArrow(task, schema))
    with _restore_errors():
        rows = to_arrow(frame)
    return run_in_process(task, rows.to_batches())


def run_in_process(task: Task, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Run a task in the current process, and collect the rows that it yields."""
    return [row for batch in task(iter(batches)) for row in batch.to_pylist()]


def map_arrow(frame: DataFrame, task: Task, schema: pa.Schema) -> DataFrame:
    """Apply a task to the rows of a data frame.

    The result is lazy, unless the session is for small inputs. In that case, the task runs
    immediately, in the driver process.

    Args:
        frame: The rows.
        task: The task.
        schema: The columns that the task yields.
    """
    if not is_small(frame.sparkSession):
        return frame.mapInArrow(task, spark_schema(schema))
    with _restore_errors():
        rows = to_arrow(frame)
    yielded = (batch.select(schema.names).cast(schema) for batch in task(iter(rows.to_batches())))
    return frame_from_arrow(frame.sparkSession, pa.Table.from_batches(yielded, schema))


def collect(frame: DataFrame) -> list[Row]:
    """Collect the rows of a small data frame.

    Raises:
        GcError: If an executor raises an error of gc-assets. Its class and message are restored.
    """
    with _restore_errors():
        return frame.collect()


def collect_arrow(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """Collect a small data frame as an Arrow table. Errors are the same as for `collect`."""
    with _restore_errors():
        return to_arrow(frame).cast(schema)


@contextmanager
def _restore_errors() -> Generator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = list(_OWN_ERROR.finditer(str(error)))
        if not ours and _FULL_DISK in str(error):
            raise errors.GcError(
                f"Spark cannot write its temporary files: {_FULL_DISK}. Free some space in its directory, or set `spark.local.dir` in "
                "`spark.conf` to another one, and repeat the command."
            ) from error
        if not ours:
            raise
        found = ours[-1]  # in a traceback, an error follows its cause
        kind = getattr(errors, found["name"], errors.GcError)
        raise kind(found["message"].strip()) from error


def write_rows(
    rows: pa.Table, table: Table, run: TableRun, files: Files, side: dict[str, pa.Table] | None = None, totals_by: Sequence[str] = ()
) -> WrittenParts:
    """Write rows that are in memory, with the same result as `write_frame` but without a Spark job.

    Args:
        rows: The rows. Columns are cast to the schema of the table.
        table: The table.
        run: The unpublished run of the table.
        files: The files of the state.
        side: The rows of side tables, keyed by name.
        totals_by: Columns by which rows and `size_bytes` are summed.
    """
    cast_rows = rows.select(table.schema.names).cast(table.schema)
    sides = {name: tuple(write_parts(content, run, files, name)) for name, content in (side or {}).items()}
    totals: dict[tuple[str, ...], Totals] = {}
    for batch in cast_rows.to_batches():
        add_totals(totals, batch, totals_by)
    parts = tuple(write_parts(cast_rows, run, files, ""))
    return WrittenParts(parts, digest_rows(cast_rows), {name: parts for name, parts in sides.items() if parts}, totals)


def write_parts(rows: pa.Table, run: TableRun, files: Files, prefix: str) -> list[PartFile]:
    """Write rows that are in memory as parts of a run.

    `prefix` is the name of a side table, or empty for the table itself.
    """
    writer = PartWriter(files, run.path, rows.schema, prefix)
    for batch in rows.to_batches():
        writer.write(batch)
    return writer.close()


def merge_written(rows: Sequence[Any]) -> WrittenParts:
    """Merge the reports of the tasks of a job, which are rows with the `PARTS_DDL` columns.

    Requests sent by the tasks are added to the counts of the driver process.
    """
    main: list[PartFile] = []
    side: dict[str, list[PartFile]] = {}
    totals: dict[tuple[str, ...], Totals] = {}
    digest = 0
    summary: dict[str, Any] = {}
    for row in rows:
        if row[REQUESTS] is not None:
            record_requests(Requests.from_json(row[REQUESTS]))
        reported = json.loads(row["summary"])
        _check_release(reported.pop(VERSION))
        for name, value in reported.items():
            merged = summary[name] + value if name in summary else value
            summary[name] = merged[:MAX_SAMPLES] if isinstance(merged, list) else merged
        for item in json.loads(row["parts"]):
            part = PartFile.model_validate(item)
            prefix = part.name.rpartition("/")[0]
            (side.setdefault(prefix, []) if prefix else main).append(part)
        for *key, count, size in json.loads(row["totals"]):
            totals[tuple(key)] = totals.get(tuple(key), Totals()) + Totals(count, size)
        digest = (digest + int(row["digest"])) % 2**64
    frozen = {name: tuple(sorted(parts, key=lambda part: part.name)) for name, parts in side.items()}
    return WrittenParts(tuple(sorted(main, key=lambda part: part.name)), digest, frozen, totals, summary)


def _check_release(version: str) -> None:
    if version != __version__:
        raise errors.GcError(
            f"an executor runs gc-assets {version}, this process {__version__}: they may read a lake differently. "
            "Install the same release on both."
        )


def report_parts(
    parts: Sequence[PartFile],
    digest: int = 0,
    totals: dict[tuple[str, ...], Totals] | None = None,
    summary: dict[str, Any] | None = None,
    requests: Requests | None = None,
) -> pa.RecordBatch:
    """Build the row in which a task reports its written parts to the driver.

    The driver merges the summaries of all tasks. Numbers are added, and lists are joined up to a
    length of `MAX_SAMPLES`.
    """
    signed = (digest + 2**63) % 2**64 - 2**63
    return pa.RecordBatch.from_pydict(
        {
            "parts": [json.dumps([part.model_dump() for part in parts])],
            "digest": pa.array([signed], pa.int64()),
            "totals": [json.dumps([[*key, value.rows, value.size_bytes] for key, value in (totals or {}).items()])],
            "summary": [json.dumps({**(summary or {}), VERSION: __version__})],
            REQUESTS: pa.array([requests.to_json() if requests else None], pa.string()),
        }
    )


@dataclass(frozen=True)
class _WriteParts:
    """Writes parts on executors for `write_frame`.

    It is a class, because instances can be pickled both in classic sessions and with Spark Connect.
    """

    files: Files
    directory: str
    table: str
    schema: pa.Schema
    totals_by: tuple[str, ...]
    routes: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers = {name: PartWriter(self.files, self.directory, self.schema, name) for name in ("", *self.routes)}
        totals: dict[tuple[str, ...], Totals] = {}
        digest, requests = 0, Requests()
        for batch in batches:
            if REQUESTS in batch.schema.names:
                reported = batch.column(REQUESTS).drop_null().to_pylist()
                requests = sum(map(Requests.from_json, reported), requests)
                batch = batch.drop_columns([REQUESTS])
            for name, rows in self._split_by_route(batch):
                if not name:
                    digest += int(rows.column(ROW_HASH).to_numpy().view(np.uint64).sum())
                    add_totals(totals, rows, self.totals_by)
                writers[name].write(rows.drop_columns([ROW_HASH, *([ROUTE] if self.routes else [])]))
        parts = [part for writer in writers.values() for part in writer.close()]
        yield report_parts(parts, digest, totals, requests=requests)

    def _split_by_route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not self.routes:
            yield "", batch
            return
        route = pc.fill_null(batch.column(ROUTE), "")
        lost = batch.num_rows - (pc.sum(pc.is_in(route, pa.array(["", *self.routes]))).as_py() or 0)
        if lost:
            raise errors.GcError(
                f"Cannot write {self.table}: {lost:,} rows have an unknown route; expected one of {', '.join(self.routes)}"
            )
        for name in ("", *self.routes):
            yield name, batch.filter(pc.equal(route, name))


def add_totals(totals: dict[tuple[str, ...], Totals], rows: pa.RecordBatch, by: Sequence[str]) -> None:
    """Add the rows to the totals for each combination of values in the columns `by`.

    Bytes are only summed if there is a `size_bytes` column. Missing values count as empty strings.
    """
    if not by or rows.num_rows == 0:
        return
    columns = {name: pc.fill_null(rows.column(name).cast(pa.string()), "") for name in by}
    sizes = rows.column("size_bytes") if "size_bytes" in rows.schema.names else pa.nulls(rows.num_rows, pa.int64())
    table = pa.table({**columns, "size_bytes": sizes})
    grouped = table.group_by(list(by)).aggregate([([], "count_all"), ("size_bytes", "sum")]).to_pylist()
    for row in grouped:
        key = tuple(cast(str, row[name]) for name in by)
        totals[key] = totals.get(key, Totals()) + Totals(row["count_all"], row["size_bytes_sum"] or 0)


def publish(
    state: State,
    run: TableRun,
    written: WrittenParts,
    clock: Clock,
    *,
    inputs: Sequence[PublishedTable] = (),
    balances: Sequence[Balance] = (),
    summary: Summary | Mapping[str, Any] | None = None,
    unsafe: Sequence[str] = (),
) -> PublishedTable:
    """Publish written parts as the current table of the run date.

    Files left in the run's directory by failed attempts of tasks are deleted first.

    Args:
        state: The state.
        run: The run of the table.
        written: The written parts.
        clock: The clock.
        inputs: The published tables from which the rows were computed.
        balances: Counts that must agree with the inputs, to prove that no row was lost.
        summary: The summary for the receipt.
        unsafe: The safety limits that the environment lowers.

    Raises:
        StateError: If counts do not agree, or if another run was published in the meantime.
    """
    named = {part.name for part in (*written.parts, *(part for parts in written.side.values() for part in parts))}
    listed = state.files.list(run.path, recursive=True)
    for item in listed:
        if item.name.endswith(".parquet") and item.name not in named:
            state.files.delete(f"{run.path}/{item.name}")
    receipt = Receipt(
        group=run.group,
        asset=run.asset,
        run_date=run.run_date,
        run_id=run.run_id,
        created_at=clock.now(),
        rows=written.rows,
        size_bytes=written.size_bytes,
        digest=f"{written.digest:016x}",
        files=written.parts,
        side=written.side,
        inputs={f"{item.receipt.group}/{item.receipt.asset}/{item.receipt.run_date}": item.receipt.reference for item in inputs},
        balances=tuple(balances),
        summary=(summary.to_json() if isinstance(summary, Summary) else dict(summary or {})) | _work_statistics(),
        unsafe=tuple(unsafe),
    )
    published = state.publish(run, receipt, listed)
    record_publication(published)
    return published


def _work_statistics() -> dict[str, Any]:
    requests, jobs = requests_sent(), jobs_started()
    sent = {"requests": dict(requests.counts), "requests_usd": requests.usd} if requests else {}
    return sent if jobs is None else {**sent, "spark_jobs": jobs}


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks in a Spark stage (`spark.sql.shuffle.partitions`)."""
    return int(cast(str, spark.conf.get("spark.sql.shuffle.partitions")))
