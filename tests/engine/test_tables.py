"""Executors and driver write the same tables, and executor errors keep type and message."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.clock import Clock
from gc_assets.core.errors import FormatError, GateRefused, GcError, LakeUnreadable
from gc_assets.core.hashing import digest
from gc_assets.engine.arrow_frames import create_frame
from gc_assets.engine.tables import (
    PARTS_DDL,
    ROUTE,
    Totals,
    WrittenParts,
    collect,
    publish,
    read_rows,
    read_table,
    spark_schema,
    write_frame,
    write_rows,
)
from gc_assets.lakes.kinds import all_tables
from gc_assets.state.journal import State
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import LIVE_FILES, Table

CLOCK = Clock(datetime(2026, 3, 14, 9, 30, tzinfo=UTC))
DAY = date(2026, 3, 14)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.at(str(tmp_path / "state"))


def value(type_: pa.DataType, number: int) -> Any:
    """Some value of a type; every fourth is null where Spark and Arrow allow it."""
    if pt.is_string(type_):
        return f"é/𝄞 %20 {number}"
    if pt.is_binary(type_):
        return bytes([number]) * 3
    if pt.is_integer(type_):
        return number - 2
    if pt.is_boolean(type_):
        return number % 2 == 0
    if pt.is_date(type_):
        return date(1969, 12, 30 + number % 2)
    if pt.is_timestamp(type_):
        return datetime(1969, 7, 20, 20, 17, 40, 123456 + number, UTC)
    if pt.is_map(type_):
        return [(f"k{key}", None if key == 1 else f"v{key}") for key in range(number % 3)][::-1]
    if pt.is_list(type_):
        return [value(type_.value_type, number + index) for index in range(number % 3)]
    if pt.is_struct(type_):
        return {field.name: None if field.nullable and number % 2 else value(field.type, number) for field in type_}
    raise AssertionError(type_)


def rows_of(table: Table) -> pa.Table:
    fields = list(enumerate(table.schema))
    rows = [
        {field.name: None if (number + position) % 4 == 0 else value(field.type, number) for position, field in fields}
        for number in range(9)
    ]
    return pa.Table.from_pylist(rows, schema=table.schema)


def live(*keys: str) -> pa.Table:
    made = [{"storage": "warehouse", "key": key, "key_hash": 0, "kind": "data", "size_bytes": len(key)} for key in keys]
    return pa.Table.from_pylist(made, schema=LIVE_FILES.schema)


def parquet_names(state: State, path: str) -> set[str]:
    return {item.name for item in state.files.list(path, recursive=True) if item.name.endswith(".parquet")}


# The filter has a stage of its own, and no row hash covers its bytes.
TABLES = all_tables()
HASHED = [name for name, table in TABLES.items() if not any(pt.is_binary(field.type) for field in table.schema)]


@pytest.mark.spark
@pytest.mark.parametrize("name", HASHED)
def test_executors_and_driver_write_equal_tables(spark: SparkSession, state: State, name: str) -> None:
    table, rows = TABLES[name], rows_of(TABLES[name])
    run = state.start("group", name, DAY, CLOCK)
    by_driver = publish(state, run, write_rows(rows, table, run, state.files), CLOCK)
    frame = create_frame(spark, rows, spark_schema(table.schema)).repartition(3)
    again = state.start("group", name, DAY, CLOCK)
    by_executors = publish(state, again, write_frame(frame, table, again, state), CLOCK)
    assert by_executors.receipt.digest == by_driver.receipt.digest == f"{digest(rows):016x}"
    assert by_executors.receipt.rows == by_driver.receipt.rows == rows.num_rows
    assert f"{digest(read_rows(state, table, by_executors)):016x}" == by_driver.receipt.digest
    assert read_rows(state, table, by_driver).equals(rows)


@pytest.mark.spark
def test_routed_rows_are_written_to_side_tables(spark: SparkSession, state: State) -> None:
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    parts = write_rows(live("a", "bb", "cc", "side", "none"), LIVE_FILES, run, state.files)
    source = publish(state, run, parts, CLOCK)
    route = F.when(F.col("key") == "side", "_expired").when(F.col("key") != "none", "")
    frame = read_table(spark, state, LIVE_FILES, source).repartition(2).withColumn(ROUTE, route)
    target = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    written = write_frame(frame, LIVE_FILES, target, state, ["storage", "kind"], ["_expired", "_dangling"])
    published = publish(state, target, written, CLOCK)
    assert sorted(read_rows(state, LIVE_FILES, published).column("key").to_pylist()) == ["a", "bb", "cc", "none"]
    assert read_parts(state.files, published.paths("_expired"), LIVE_FILES.schema).column("key").to_pylist() == ["side"]
    assert written.totals == {("warehouse", "data"): Totals(4, 9)}
    assert f"{written.digest:016x}" == f"{digest(live('a', 'bb', 'cc', 'none')):016x}"
    assert set(written.side) == {"_expired"}
    assert read_table(spark, state, LIVE_FILES, published, "_dangling").count() == 0
    assert spark.read.parquet(state.files.uri(published.path)).count() == 4


@pytest.mark.spark
def test_unknown_route_stops_write(spark: SparkSession, state: State) -> None:
    frame = spark.createDataFrame([], spark_schema(LIVE_FILES.schema)).unionByName(
        spark.range(1).selectExpr("'lost' AS key"), allowMissingColumns=True
    )
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    with pytest.raises(GcError, match="Cannot write live_files: 1 rows have an unknown route; expected one of _expired"):
        write_frame(frame.withColumn(ROUTE, F.lit("_misspelt")), LIVE_FILES, run, state, routes=["_expired"])


@pytest.mark.spark
@pytest.mark.parametrize("folder", ["a b", "a%20b", "[a]", "{a,b}", "été"])
def test_state_directory_name_may_contain_any_characters(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    state = State.at(str(tmp_path / folder))
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    published = publish(state, run, write_rows(live("a", "b"), LIVE_FILES, run, state.files), CLOCK)
    assert sorted(row["key"] for row in read_table(spark, state, LIVE_FILES, published).collect()) == ["a", "b"]


def raise_lake_unreadable() -> None:
    raise LakeUnreadable("lake sales: 2 refs cannot be read:\n  ref main: gone\n  at least one more\n  Repair them.")


def raise_format_error() -> None:
    raise FormatError("manifest m.avro: expected 3 entries, found 2")


def raise_with_cause() -> None:
    try:
        raise_format_error()
    except FormatError as error:
        raise LakeUnreadable("lake sales: manifest m.avro is damaged") from error


def raise_during_handling() -> None:
    try:
        raise_format_error()
    except FormatError:
        raise GateRefused("second")  # noqa: B904  (an error met while another was handled is what is tried)


def raise_foreign_error() -> None:
    raise ZeroDivisionError("not one of ours")


def raise_full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def task_calling(what: Callable[[], None]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        what()
        yield from batches

    return task


@pytest.mark.spark
@pytest.mark.parametrize(
    "what, kind, message",
    [
        (
            raise_lake_unreadable,
            LakeUnreadable,
            "lake sales: 2 refs cannot be read:\n  ref main: gone\n  at least one more\n  Repair them.",
        ),
        (raise_with_cause, LakeUnreadable, "lake sales: manifest m.avro is damaged"),
        (raise_during_handling, GateRefused, "second"),
    ],
)
def test_executor_error_keeps_type_and_message(spark: SparkSession, what: Callable[[], None], kind: type[GcError], message: str) -> None:
    with pytest.raises(GcError) as arrived:
        collect(spark.range(0, 1, 1, 1).mapInArrow(task_calling(what), PARTS_DDL))
    assert (type(arrived.value), str(arrived.value)) == (kind, message)


@pytest.mark.spark
def test_unknown_executor_error_is_raised_as_spark_error(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="not one of ours") as arrived:
        collect(spark.range(0, 1, 1, 1).mapInArrow(task_calling(raise_foreign_error), PARTS_DDL))
    assert not isinstance(arrived.value, GcError)


@pytest.mark.spark
def test_full_spark_disk_is_reported_as_message(spark: SparkSession) -> None:
    with pytest.raises(GcError, match=r"Spark cannot write its temporary files: No space left on device.*`spark.local.dir`"):
        collect(spark.range(0, 1, 1, 1).mapInArrow(task_calling(raise_full_disk), PARTS_DDL))


def test_publish_removes_parts_of_failed_attempts(state: State) -> None:
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    for prefix in ("", "_expired"):
        stray = PartWriter(state.files, run.path, LIVE_FILES.schema, prefix)
        stray.write(live("from an attempt that was lost").to_batches()[0])
        stray.close()
    written = write_rows(live("a"), LIVE_FILES, run, state.files, {"_dangling": live("b")})
    published = publish(state, run, written, CLOCK)
    assert parquet_names(state, published.path) == {part.name for part in (*written.parts, *written.side["_dangling"])}


def test_publish_keeps_plan_header_file(state: State) -> None:
    """Publication once deleted `_header.json`, which users read without gc-assets."""
    run = state.start("warehouse", "deletion_plan", DAY, CLOCK)
    state.files.replace(f"{run.path}/_header.json", b"{}")
    published = publish(state, run, WrittenParts((), 0), CLOCK)
    assert state.files.read(f"{published.path}/_header.json") == b"{}"


def test_empty_table_is_published_with_zero_digest(state: State) -> None:
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    published = publish(state, run, write_rows(live(), LIVE_FILES, run, state.files), CLOCK)
    assert (published.receipt.rows, published.receipt.digest, published.paths()) == (0, "0" * 16, [])
    assert read_rows(state, LIVE_FILES, published).equals(LIVE_FILES.schema.empty_table())


def test_receipt_references_inputs(state: State) -> None:
    first = state.start("sales", "lake_refs", DAY, CLOCK)
    refs = publish(state, first, write_rows(live("a"), LIVE_FILES, first, state.files), CLOCK)
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    published = publish(state, run, write_rows(live("b"), LIVE_FILES, run, state.files), CLOCK, inputs=[refs], unsafe=["the floor is low"])
    assert published.receipt.inputs == {"sales/lake_refs/2026-03-14": refs.receipt.reference}
    assert published.receipt.unsafe == ("the floor is low",)


@pytest.mark.spark
@pytest.mark.parametrize("lost", ["gone", "damaged"])
def test_lax_spark_error_settings_lose_no_rows(spark: SparkSession, state: State, lost: str) -> None:
    lax = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    published = publish(state, run, write_rows(rows_of(LIVE_FILES), LIVE_FILES, run, state.files), CLOCK)
    for name in lax:
        spark.conf.set(name, "true")
    try:
        frame = read_table(spark, state, LIVE_FILES, published)
        (path,) = published.paths()
        state.files.delete(path) if lost == "gone" else state.files.replace(path, b"no Parquet")
        with pytest.raises(Exception, match=r"part-00000-.*\.parquet"):
            frame.collect()
    finally:
        for name in lax:
            spark.conf.unset(name)
