"""Files of tables that no ref and no retained commit of a Nessie server shows are collected after a waiting time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dates import next_noon
from tests.lakes.nessie.builder import NessieBuilder, put
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = pytest.mark.spark

START = next_noon(days=2)


@pytest.fixture
def house(spark: SparkSession, nessie: Server, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path, now=START, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})


def planned_tables(house: Lakehouse, day: float) -> set[str]:
    """Run, and return the tables of the planned files."""
    house.now = START + timedelta(days=day)
    house.plan()
    return {key.split("/")[1].partition("_")[0] for key in house.keys("deletion_plan", reason="dropped")}


def test_dropped_and_undropped_tables(house: Lakehouse, nessie: Server) -> None:
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    for name in ("db.a", "db.returns", "db.tagged", "db.b", "db.c", "db.d", "db.renamed"):
        main.new(name)
    house.lakes = [builder.config(retention={"default": "1"})]
    house.plan()
    returns = builder.content(["db", "returns"])
    assert returns is not None
    main.drop("db.a")
    main.drop("db.returns")
    builder.tag("v1")
    main.drop("db.tagged")
    main.rename("db.renamed", "db.new")
    assert planned_tables(house, 4) == set()  # the last commit with the tables has left the grace period
    assert planned_tables(house, 10) == set()
    builder.put(["db", "returns"], {name: value for name, value in returns.items() if name != "id"})
    assert planned_tables(house, 12) == {"a"}
    header = house.plan()
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    assert planned_tables(house, 12.1) == set()
    assert {key.split("/")[1].partition("_")[0] for key in house.files()} == {"returns", "tagged", "b", "c", "d", "renamed"}


def test_whole_claims_of_a_server_are_collected_as_before(house: Lakehouse, nessie: Server) -> None:
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    main.new("db.a")
    main.new("db.b")
    house.lakes = [builder.config(retention={"default": "1"}, claims=[f"file://{house.warehouse}/"])]
    house.plan()
    builder.commit([{"type": "DELETE", "key": {"elements": ["db", "a"]}}, put(["other"], {"type": "NAMESPACE", "elements": ["other"]})])
    house.now = START + timedelta(days=4)
    house.plan()
    assert {key.split("/")[1].partition("_")[0] for key in house.keys("deletion_plan")} == {"a"}
