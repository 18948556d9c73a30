"""`doctor` reports commits whose times cannot be right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import zarr
from pyspark.sql import SparkSession

from gc_assets.core.findings import OK, WARN, Finding
from gc_assets.stages.read.doctor_clocks import check_clocks
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark


def write_chunk(group: zarr.Group, age: float) -> None:
    group.attrs["age"] = age


def run_and_check(spark: SparkSession, root: Path, days: Sequence[float]) -> tuple[Lakehouse, RepositoryBuilder, list[str]]:
    """Make a repository with commits of these ages, and run the mark and the listing."""
    house = Lakehouse(spark, root)
    builder = RepositoryBuilder.create(house.warehouse / "weather", days_ago(90))
    ids = [builder.commit("main", days_ago(age), partial(write_chunk, age=age)) for age in days]
    house.lakes = [house.weather()]
    return house, builder, ids


def findings(house: Lakehouse) -> list[Finding]:
    house.mark()
    storage_inventory(house.spark, house.run_context(), STORAGE)
    return list(check_clocks(house.run_context(), "weather"))


def test_increasing_commit_times_pass_clock_check(spark: SparkSession, tmp_path: Path) -> None:
    house, _, _ = run_and_check(spark, tmp_path, (60, 50))
    [found] = findings(house)
    assert (found.verdict, found.found) == (OK, "3 commits: none is older than a parent")


def test_commit_older_than_its_parent_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    house, _, ids = run_and_check(spark, tmp_path, (50, 60))
    [found] = findings(house)
    assert found.verdict == WARN
    assert f"1 commit is older than a parent: {ids[1]}" in found.found
    assert ids[0] in found.found


def test_snapshot_time_that_differs_from_object_time_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    house, builder, ids = run_and_check(spark, tmp_path, (60, 50))
    later = (days_ago(50) + timedelta(hours=2)).timestamp()
    os.utime(builder.snapshot_file(ids[1]), (later, later))
    [found] = findings(house)
    assert found.verdict == WARN
    assert f"1 snapshot differs from the time of the object by more than 5m: {ids[1]} by 2:00:00 behind" in found.found


def test_dangling_snapshot_is_not_compared_with_its_parent(spark: SparkSession, tmp_path: Path) -> None:
    house, builder, _ = run_and_check(spark, tmp_path, (60,))
    builder.abandon_snapshot("main", days_ago(70), partial(write_chunk, age=70))
    [found] = findings(house)
    assert found.verdict == OK


def test_lake_without_run_has_no_clock_finding(spark: SparkSession, tmp_path: Path) -> None:
    house, _, _ = run_and_check(spark, tmp_path, (60,))
    assert list(check_clocks(house.run_context(), "weather")) == []
