"""An override of `live_listed` accepts lost files in later runs, until others are lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from tests.cli.lakes import SPARK
from tests.dates import now_before_midnight
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder

pytestmark = [pytest.mark.spark, in_turn]


class Shop:
    """A lake with two tables on the first disk, and a table with garbage on the second one."""

    def __init__(self, root: Path) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        lake = LakeBuilder(root, warehouse=root)
        self.orders, self.visits, other = (
            lake.table(f"shop.{name}", self.days_ago(40), location=f"file://{root}/{disk}/{name}")
            for name, disk in (("orders", "disk1"), ("visits", "disk1"), ("other", "disk2"))
        )
        for table in (self.orders, self.visits, other):
            table.append(self.days_ago(30))
        self.orders.append(self.days_ago(29))
        self.garbage = {str(path.relative_to(root / "disk2")) for path in other.leftovers(self.days_ago(20))}
        lake.date_files(self.days_ago(30))
        document = {
            "state": "./state",
            "storages": [{"name": name, "location": f"file://{root}/{name}/"} for name in ("disk1", "disk2")],
            "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.properties}],
            "spark": SPARK,
        }
        self.config = root / "lakes.yaml"
        self.config.write_text(json.dumps(document))

    def days_ago(self, days: int) -> datetime:
        return self.now - timedelta(days=days)

    def command(self, *arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments, "--config", str(self.config)])
        assert result.exit_code in {0, 3}, result.output
        return result.stdout

    def run(self) -> set[str]:
        """Run, and return the planned keys of the second disk."""
        self.command("run")
        return {row["key"] for row in json.loads(self.command("show", "deletion_plan", "--storage", "disk2", "--format", "json"))}


def test_accepted_loss_survives_prune_and_ends_if_another_file_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    now_before_midnight(minutes=10)
    shop = Shop(tmp_path)
    (visit,), (order, other) = shop.visits.data_files(), sorted(shop.orders.data_files())
    content = visit.read_bytes()
    for lost in (visit, order):
        lost.unlink()
    assert shop.run() == set()
    (plan,) = (row for row in json.loads(shop.command("plans", "--format", "json")) if row["storage"] == "disk1")
    shop.command("approve", plan["plan_id"], "--by", "ada", "--override", "live_listed", "--yes")
    assert shop.run() == shop.garbage
    visit.write_bytes(content)
    assert shop.run() == shop.garbage, "its sweep replaces the one that the user approved"
    assert shop.run() == shop.garbage
    assert "disk1/orphan_files" in shop.command("prune", "--keep-days", "0"), "the sweeps in between"
    assert shop.run() == shop.garbage
    other.unlink()
    assert shop.run() == set(), "as many files are missing as before, but not the same"
