"""Files of tables that no ref and no retained commit of a Nessie server shows are collected after a waiting time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.nessie.builder import NessieBuilder, put
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = [pytest.mark.spark, in_turn]

START = next_noon(days=2)


@pytest.fixture
def house(spark: SparkSession, nessie: Server, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path, now=START, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})


def planned_tables(house: Lakehouse, day: float) -> set[str]:
    """Run, and return the tables of the planned files."""
    house.now = START + timedelta(days=day)
    house.plan()
    return {key.split("/")[1].partition("_")[0] for key in house.keys("deletion_plan", reason="dropped")}


def test_tables_that_existed_only_on_deleted_branch_are_dropped(house: Lakehouse, nessie: Server) -> None:
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    main.new("db.b")
    main.new("db.c")
    builder.branch("dev")
    dev = builder.on("dev")
    dev.new("db.tagged")
    builder.tag("v1", "dev")
    dev.new("db.a")
    dev.new("db.returns")
    house.lakes = [builder.config(retention={"default": "1"})]
    house.plan()
    files = {key for key in house.files() if key.startswith("db/a_")}
    returns = builder.content(["db", "returns"], "dev")
    assert returns is not None
    builder.drop("dev")
    assert planned_tables(house, 1) == set()  # the commits of the branch are in the grace period
    builder.put(["db", "returns"], {name: value for name, value in returns.items() if name != "id"})
    assert planned_tables(house, 5) == set()  # no commit shows db.a any more
    assert planned_tables(house, 13) == {"a"}
    assert house.keys("deletion_plan", reason="dropped") == files
    assert outcomes(house.approve_and_apply(house.plan())) == {"done"}
    assert {key.split("/")[1].partition("_")[0] for key in house.files() if "/data/" in key} == {"b", "c", "returns", "tagged"}


def test_configured_claims_of_nessie_lake_are_collected(house: Lakehouse, nessie: Server) -> None:
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    main.new("db.a")
    main.new("db.b")
    house.lakes = [builder.config(retention={"default": "1"}, claims=[f"file://{house.warehouse}/"])]
    house.plan()
    builder.commit([{"type": "DELETE", "key": {"elements": ["db", "a"]}}, put(["other"], {"type": "NAMESPACE", "elements": ["other"]})])
    house.now = START + timedelta(days=4)
    house.plan()
    assert {key.split("/")[1].partition("_")[0] for key in house.keys("deletion_plan") if "/data/" in key} == {"a"}
