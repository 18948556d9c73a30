"""The export of costs in the columns of FOCUS 1.2."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.core.phases import PURGE
from gc_assets.core.plan import Amount
from gc_assets.engine.tables import publish, write_rows
from gc_assets.report.focus import COLUMNS, credit_rows
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG
from tests.assets.platforms import NOW, platform, stored_plan
from tests.cli.lakes import SmallLake, small_lake

SPECIFICATION: Mapping[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "focus-1.2.json").read_text())["columns"]
MONEY = {"usd_per_gb_month": 0.023}
Row = dict[str, str]


def find_violations(row: Mapping[str, str | None]) -> list[str]:
    """Return what the specification forbids in a row: nulls, types, values and formats."""
    found: list[str] = []
    for name, value in row.items():
        if name.startswith("x_"):
            continue
        rule = SPECIFICATION[name]
        if not value:
            found += [] if rule["nullable"] else [f"{name} is null"]
            continue
        if "values" in rule and value not in rule["values"]:
            found.append(f"{name}: {value} is not allowed")
        if rule["type"] == "Decimal" and (value != f"{Decimal(value):f}" or value.startswith("+")):
            found.append(f"{name}: {value} is not a number")
        if rule["type"] == "Date/Time":
            datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        if rule["type"] == "JSON" and not all(isinstance(item, str | int | float | bool) for item in json.loads(value).values()):
            found.append(f"{name} is nested")
    if row["ChargeCategory"] == "Usage":
        exact = Decimal(row["ListUnitPrice"] or 0) * Decimal(row["PricingQuantity"] or 0)
        found += [] if exact == Decimal(row["ListCost"] or 0) else ["ListCost is not the product of price and quantity"]
    elif row["ConsumedQuantity"] or row["PricingQuantity"]:
        found.append("a credit has a quantity")
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    lake = small_lake(tmp_path_factory.mktemp("priced"))
    document = json.loads(lake.configure(money=MONEY).read_text())
    document["owners"] = ["team:platform"]
    document["lakes"][0] |= {"owners": ["team:sales", "ada@example.org"], "tags": {"domain": "sales"}}
    lake.lakes_yaml.write_text(json.dumps(document))
    return lake


@pytest.fixture(scope="module")
def exported(spark: SparkSession, lake: SmallLake) -> list[Row]:
    """Run on the lake, and export the run."""
    assert CliRunner().invoke(cli, ["run", "--config", str(lake.lakes_yaml)]).exit_code == 0
    result = CliRunner().invoke(cli, ["export", "focus", "--config", str(lake.lakes_yaml)])
    assert result.exit_code == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_export_columns_match_the_focus_specification() -> None:
    ours = [name for name in COLUMNS if not name.startswith("x_")]
    assert set(ours) <= SPECIFICATION.keys()
    assert {name for name, rule in SPECIFICATION.items() if rule["level"] == "Mandatory"} <= set(ours)
    assert ours == sorted(ours)
    assert list(COLUMNS[len(ours) :]) == [name for name in COLUMNS if name.startswith("x_")]


@pytest.mark.spark
def test_export_rows_match_the_focus_specification(exported: list[Row]) -> None:
    assert [violation for row in exported for violation in find_violations(row)] == []
    assert tuple(exported[0]) == COLUMNS


@pytest.mark.spark
def test_consumed_quantity_covers_every_stored_byte(exported: list[Row], lake: SmallLake) -> None:
    stored = sum((lake.builder.warehouse / key).stat().st_size for key in sorted(lake.keys()))
    assert sum(Decimal(row["ConsumedQuantity"]) for row in exported) == Decimal(stored) / 10**9
    shares = {(row["ResourceName"], row["x_Share"]): int(row["x_Files"]) for row in exported}
    assert shares["shop.orders", "garbage"] == len(lake.leftovers)
    assert shares["warehouse", "unowned"] == shares["warehouse", "within the grace period"] == 1


@pytest.mark.spark
def test_export_rows_contain_table_lake_and_owners(exported: list[Row]) -> None:
    (row,) = (row for row in exported if (row["ResourceName"], row["x_Share"]) == ("shop.orders", "live"))
    assert (row["ResourceId"], row["ResourceType"], row["SubAccountId"]) == ("warehouse/sales/shop.orders", "table", "sales")
    assert row["x_Owners"] == "team:sales, ada@example.org"
    tags = json.loads(row["Tags"])
    assert (tags["domain"], tags["gc-assets/lake"], tags["gc-assets/owners"]) == ("sales", "sales", row["x_Owners"])
    (unowned,) = (row for row in exported if row["x_Share"] == "unowned")
    assert (unowned["x_Owners"], unowned["SubAccountId"]) == ("team:platform", "")


@pytest.mark.spark
def test_error_for_export_without_price_contains_the_missing_key(lake: SmallLake, tmp_path: Path) -> None:
    document = json.loads(lake.lakes_yaml.read_text())
    del document["storages"][0]["money"]
    path = lake.root / "unpriced.yaml"
    path.write_text(json.dumps(document))
    result = CliRunner().invoke(cli, ["export", "focus", "--config", str(path), "-o", str(tmp_path / "focus.csv")])
    assert result.exit_code == 2
    assert "usd_per_gb_month" in result.stderr
    assert not list(tmp_path.iterdir())


def publish_log(at: Platform, plan_id: str, rows: list[dict[str, Any]]) -> None:
    state = State.of(at.config)
    run = state.start("warehouse", DELETION_LOG.name, NOW.date(), at.clock)
    filled = [{"plan_id": plan_id, "run_id": run.run_id, "source_plan_id": "0" * 20, "size_bytes": 10**9, **row} for row in rows]
    written = write_rows(pa.Table.from_pylist(filled, schema=DELETION_LOG.schema), DELETION_LOG, run, state.files)
    publish(state, run, written, at.clock, summary={"plan_id": plan_id, "by_outcome": {"purge/done": Amount(files=1).model_dump()}})


def test_credit_counts_bytes_purged_on_the_day(tmp_path: Path) -> None:
    at = platform(tmp_path, now=None, money=MONEY)
    plan_id = header_of(stored_plan(at, files=4, action=PURGE)).plan_id
    done = {"phase": PURGE, "outcome": "done", "at": NOW, "rehearsal": False}
    publish_log(
        at,
        plan_id,
        [
            {**done, "key": "data/0.parquet"},
            {**done, "key": "data/1.parquet", "at": NOW + timedelta(days=1)},
            {**done, "key": "data/2.parquet", "outcome": "changed"},
            {**done, "key": "data/3.parquet", "rehearsal": True},
            {**done, "key": "data/4.parquet", "phase": "quarantine"},
            {**done, "key": "of a pruned plan", "plan_id": "f" * 20},
        ],
    )
    rows = list(credit_rows(at.run_context(NOW.date())))
    assert [(row["SubAccountId"], row["BilledCost"], row["x_Files"], row["x_Share"]) for row in rows] == [
        (None, "-0.023", "1", "purged"),
        ("sales", "-0.023", "1", "purged"),
    ]
    assert [violation for row in rows for violation in find_violations(row)] == []
    assert [row["BilledCost"] for row in credit_rows(at.run_context(NOW.date() + timedelta(days=1)))] == ["-0.023"]
