"""Tests that `make compat` runs in every cell: the tables and plan ids of the shared lakes.

The environment variable `GC_ASSETS_COMPAT` is a directory with `scene.json`. The reference environment writes `reference.json` there, and
the cells compare with it.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.kinds import all_tables
from tests.compat.scene import Scene
from tests.stages.lakehouse import Lakehouse
from tests.stages.remote_execution import all_remote

pytestmark = [pytest.mark.spark, pytest.mark.compat]


def table_digests(house: Lakehouse) -> dict[str, Any]:
    """Return the row count and digest of every published table of a run date."""
    state, run_date = house.run_context().state, house.clock.today()
    found = dict[str, Any]()
    for group in (house.storage, *(lake.name for lake in house.lakes)):
        for asset in all_tables():
            if (table := state.current(group, asset, run_date)) is not None:
                found[f"{group}/{asset}"] = [table.receipt.rows, table.receipt.digest]
    return found


def plan_results(house: Lakehouse) -> dict[str, Any]:
    header = house.plan()
    assert header.failed_gates == []
    return {"plan": header.plan_id, "tables": table_digests(house)}


def test_plans_and_tables_equal_those_of_the_reference_environment(spark: SparkSession, tmp_path: Path) -> None:
    folder = Path(os.environ["GC_ASSETS_COMPAT"])
    scene, reference = Scene.read(folder / "scene.json"), folder / "reference.json"
    house = Lakehouse(spark, scene.root, scene.configurations(), now=scene.now, state=str(tmp_path / "state"))
    first = plan_results(house)
    house.now += timedelta(days=1)
    incremental = plan_results(house)
    house.now, house.state = scene.now, str(tmp_path / "state of executors")
    with all_remote():
        assert plan_results(house) == first
    results = {"first run": first, "incremental run": incremental}
    if not reference.exists():
        reference.write_text(json.dumps(results))
    assert results == json.loads(reference.read_text())
