"""The live set of a lake: states of containers joined with their cached entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import example_count, select_cases
from tests.stages.mark.lake_histories import LAKES, frequent_compaction, large_lake, play

# All histories are in one lake, so that one run marks all of them.
HISTORIES = 200


@pytest.mark.spark
@pytest.mark.parametrize("kind", LAKES)
def test_live_files_of_random_histories_equal_brute_force(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    events = play(spark, tmp_path, kind, HISTORIES, runs=example_count(5, 20))
    assert min(events["live"], events["_external"]) > HISTORIES


@pytest.mark.spark
@pytest.mark.parametrize("kind", select_cases(["lakefs"], ["iceberg", "icechunk", "nessie"]))
def test_spark_computes_the_live_files_of_random_histories(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with large_lake():
        events = play(spark, tmp_path, kind, HISTORIES, runs=example_count(2, 20), with_spark=True)
    assert events["live"] > HISTORIES


@pytest.mark.spark
def test_live_files_do_not_depend_on_compaction(spark: SparkSession, tmp_path: Path) -> None:
    with frequent_compaction():
        play(spark, tmp_path, "iceberg", histories=example_count(2, 6), runs=example_count(4, 6))
    assert list(tmp_path.glob("state/lake/manifest_entries/_folds/*"))
