"""Queries on a session of this process use what the session keeps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JVMView
from pyspark.sql import SparkSession
from pyspark.sql.functions import abs as size_of
from pyspark.sql.functions import col, lit

from gc_assets.engine.sessions import is_remote

pytestmark = pytest.mark.spark


def test_queries_do_not_look_up_java_classes_by_name(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_remote(spark):
        pytest.skip("Spark Connect uses no Java classes")
    names, look_up = list[str](), JVMView.__getattr__

    def record(view: JVMView, name: str) -> Any:
        names.append(name)
        return look_up(view, name)

    monkeypatch.setattr(JVMView, "__getattr__", record)
    numbers = spark.createDataFrame(pa.table({"number": [1, -2]}))
    found = numbers.filter(col("number") < 0).select(size_of("number").alias("size"), lit("x").alias("text")).toArrow()
    assert found.to_pylist() == [{"size": 2, "text": "x"}]
    assert names == []
