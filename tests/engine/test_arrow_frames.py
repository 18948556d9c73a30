"""Arrow tables in Spark 3.5, whose DataFrames cannot exchange them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine import arrow_frames
from gc_assets.engine.arrow_frames import create_frame, to_arrow
from gc_assets.engine.tables import spark_schema
from gc_assets.lakes.kinds import all_tables
from tests.engine.test_tables import rows_of

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def without_arrow_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_frames, "has_arrow_frames", lambda _: False)


@pytest.mark.parametrize("name", ["live_files", "deletion_plan", "snapshot_history"])
def test_serialised_rows_keep_values_types_and_order(spark: SparkSession, name: str) -> None:
    rows = rows_of(all_tables()[name])
    frame = create_frame(spark, rows, spark_schema(rows.schema))
    assert frame.schema == spark_schema(rows.schema)
    assert to_arrow(frame).cast(rows.schema).equals(rows)


def test_large_table_is_divided(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_frames, "STREAM_BYTES", 64)
    rows = pa.table({"id": pa.array(range(1000), pa.int64())})
    assert to_arrow(create_frame(spark, rows, spark_schema(rows.schema))).column("id").to_pylist() == list(range(1000))


def test_empty_frame_has_its_schema(spark: SparkSession) -> None:
    rows = all_tables()["live_files"].schema.empty_table()
    found = to_arrow(create_frame(spark, rows, spark_schema(rows.schema)).filter("false"))
    assert found.cast(rows.schema).equals(rows)
