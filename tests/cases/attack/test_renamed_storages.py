"""Storages and lakes get other names in `lakes.yaml`.

Case attack/03: a renamed storage lost its quarantine, plans, approvals and accepted runs, and two
storages that swapped names read each other's. A storage is known by its location and the id in its
`.gc-assets/`, a lake by its catalog.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from tests.cli.lakes import SPARK
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder

pytestmark = [pytest.mark.spark, in_turn]

NOW = datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Lakehouse:
    """The storages and lakes `east` and `west`, each with files of failed writers."""

    root: Path

    def configure(self, storages: Mapping[str, str], lakes: Mapping[str, str]) -> None:
        """Write `lakes.yaml` with these names and their directories."""
        document = {
            "state": "./state",
            "storages": [
                {"name": name, "location": f"file://{self.root}/{place}/warehouse/", "mode": "apply"} for name, place in storages.items()
            ],
            "lakes": [
                {"name": name, "kind": "iceberg", "catalog": LakeBuilder(self.root / place).properties} for name, place in lakes.items()
            ],
            "spark": SPARK,
        }
        self.config.write_text(json.dumps(document))

    @property
    def config(self) -> Path:
        return self.root / "lakes.yaml"

    def __call__(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the JSON output of a command that must succeed."""
        result = CliRunner().invoke(cli, [*arguments, "--format", "json", "--config", str(self.config)])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def doctor(self) -> list[dict[str, Any]]:
        """Return all findings."""
        return json.loads(CliRunner().invoke(cli, ["doctor", "--format", "json", "--config", str(self.config)]).stdout)

    def message(self, *arguments: str) -> str:
        """Return the messages of a command."""
        return CliRunner().invoke(cli, [*arguments, "--config", str(self.config)]).stderr

    def plan(self, storage: str) -> dict[str, Any]:
        """Return the newest plan of a storage."""
        return self("plans", "--storage", storage)[0]

    def in_trash(self, place: str) -> int:
        trash = self.root / place / "warehouse" / ".gc-assets" / "trash"
        return sum(path.is_file() for path in trash.rglob("*"))


@pytest.fixture(scope="module")
def applied(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Plan for both storages, and quarantine the files of `east`."""
    root = tmp_path_factory.mktemp("places")
    for place, count in (("east", 3), ("west", 4)):
        (root / place).mkdir()
        builder = LakeBuilder(root / place)
        table = builder.table(f"{place}.orders", NOW - timedelta(days=40))
        table.append(NOW - timedelta(days=30))
        table.leftovers(NOW - timedelta(days=20), count=count)
        builder.date_files(NOW - timedelta(days=15))
    lakehouse = Lakehouse(root)
    lakehouse.configure({"a": "east", "b": "west"}, {"orders_a": "east", "orders_b": "west"})
    lakehouse("run")
    plan_id = lakehouse.plan("a")["plan_id"]
    lakehouse("approve", plan_id, "--by", "ada")
    lakehouse("apply", plan_id)
    return lakehouse


@pytest.fixture
def lakehouse(applied: Lakehouse) -> Iterator[Lakehouse]:
    """The same places under the first names, with the same state after the test."""
    applied.configure({"a": "east", "b": "west"}, {"orders_a": "east", "orders_b": "west"})
    saved = applied.root / "saved"
    shutil.copytree(applied.root / "state", saved / "state")
    yield applied
    shutil.rmtree(applied.root / "state")
    shutil.move(saved / "state", applied.root / "state")
    shutil.rmtree(saved)


SWAPPED = {"b": "east", "a": "west"}


def test_renamed_storage_keeps_plans_and_approvals(lakehouse: Lakehouse) -> None:
    before = lakehouse("plans")
    lakehouse.configure({"warehouse": "east", "b": "west"}, {"orders_a": "east", "orders_b": "west"})
    renamed = {"a": "warehouse"}
    assert lakehouse("plans") == [{**plan, "storage": renamed.get(plan["storage"], plan["storage"])} for plan in before]
    assert lakehouse.plan("warehouse")["status"] == "applied"


def test_storages_with_swapped_names_keep_plans(lakehouse: Lakehouse) -> None:
    east, west = lakehouse.plan("a"), lakehouse.plan("b")
    lakehouse.configure(SWAPPED, {"orders_a": "east", "orders_b": "west"})
    assert (lakehouse.plan("b")["plan_id"], lakehouse.plan("a")["plan_id"]) == (east["plan_id"], west["plan_id"])
    assert lakehouse.plan("b")["status"] == "applied"


def test_plan_approved_before_a_rename_can_be_applied(lakehouse: Lakehouse) -> None:
    plan_id = lakehouse.plan("b")["plan_id"]
    lakehouse("approve", plan_id, "--by", "ada")
    lakehouse.configure({"a": "east", "archive": "west"}, {"orders_a": "east", "history": "west"})
    outcomes = lakehouse("apply", plan_id)
    assert [(row["phase"], row["outcome"], row["files"]) for row in outcomes] == [("quarantine", "done", lakehouse.in_trash("west"))]
    lakehouse("restore", "--storage", "archive", "--prefix", "")
    assert lakehouse.in_trash("west") == 0


def test_storage_in_state_of_older_release_is_identified_by_plans(lakehouse: Lakehouse) -> None:
    east = lakehouse.plan("a")
    (lakehouse.root / "state" / "registry.json").unlink()
    lakehouse.configure(SWAPPED, {"orders_a": "east", "orders_b": "west"})
    assert lakehouse.plan("b")["plan_id"] == east["plan_id"]


def test_doctor_reports_plans_of_a_lake_whose_name_was_reused(lakehouse: Lakehouse) -> None:
    shutil.copytree(lakehouse.root / "west", lakehouse.root / "other")
    lakehouse.configure({"a": "east", "b": "west"}, {"orders_a": "east", "orders_b": "other"})
    found = [row["found"] for row in lakehouse.doctor() if row["check"] == "lakes" and row["verdict"] == "fail"]
    assert len(found) == 1
    assert "orders_b (its name now belongs to another lake in lakes.yaml, " in found[0]
    shutil.rmtree(lakehouse.root / "other")


def test_run_after_name_swap_gives_equal_plan(lakehouse: Lakehouse) -> None:
    west = lakehouse.plan("b")
    lakehouse.configure(SWAPPED, {"orders_b": "east", "orders_a": "west"})
    assert [(plan["storage"], plan["plan_id"]) for plan in lakehouse("run", "--mode", "plan")] == [("a", west["plan_id"])]
    assert (lakehouse.plan("a")["plan_id"], lakehouse.plan("a")["status"]) == (west["plan_id"], "ready")


def test_new_storage_with_a_reused_name_has_no_plans(lakehouse: Lakehouse) -> None:
    (lakehouse.root / "south" / "warehouse").mkdir(parents=True)
    lakehouse.configure({"a": "south", "b": "west", "c": "east"}, {"orders_a": "east", "orders_b": "west"})
    assert [plan["storage"] for plan in lakehouse("plans")] == ["b", "c"]
    assert "have the name a_2" in lakehouse.message("plans")


def test_storage_moved_with_storage_id_keeps_plans(lakehouse: Lakehouse) -> None:
    shutil.copytree(lakehouse.root / "east", lakehouse.root / "moved")
    plan_id = lakehouse.plan("a")["plan_id"]
    lakehouse.configure({"moved": "moved", "b": "west"}, {"orders_a": "east", "orders_b": "west"})
    assert lakehouse.plan("moved")["plan_id"] == plan_id
    assert "have the name a," in lakehouse.message("plans")


def test_copied_storage_can_restore_quarantine_after_adopt(lakehouse: Lakehouse) -> None:
    shutil.copytree(lakehouse.root / "east", lakehouse.root / "copy")
    plan_id, count = lakehouse.plan("a")["plan_id"], lakehouse.in_trash("copy")
    lakehouse.configure({"a": "copy", "b": "west"}, {"orders_a": "east", "orders_b": "west"})
    found = [row for row in lakehouse.doctor() if row["check"] == "trash" and row["verdict"] == "warn"]
    assert [(row["subject"], row["found"].split()[0], row["todo"]) for row in found] == [("a", str(count), "gc-assets adopt a --by WHO")]
    (adopted,) = lakehouse("adopt", "a", "--by", "ada")
    assert (adopted["files"], adopted["plans"]) == (count, [plan_id])
    assert "are recorded in the state" in lakehouse.message("adopt", "a", "--by", "ada")
    assert not [row for row in lakehouse.doctor() if row["check"] == "trash" and row["verdict"] == "warn"]
    (restored,) = lakehouse("restore", "--plan", plan_id[:12])
    assert (restored["outcome"], restored["files"], lakehouse.in_trash("copy")) == ("done", count, 0)


def test_rename_command_continues_records_for_a_replaced_catalog(lakehouse: Lakehouse) -> None:
    shutil.copytree(lakehouse.root / "west", lakehouse.root / "other")
    lakehouse.configure({"a": "east", "b": "west"}, {"orders_a": "east", "orders_b": "other"})
    assert "gc-assets rename orders_b orders_b --by WHO" in lakehouse.message("plans")
    (renamed,) = lakehouse("rename", "orders_b", "orders_b", "--by", "ada")
    assert renamed["recorded_name"] == "orders_b"
    assert lakehouse.message("plans") == ""
    shutil.rmtree(lakehouse.root / "other")


def test_rename_command_refuses_records_of_a_configured_storage(lakehouse: Lakehouse) -> None:
    assert "belong to a in lakes.yaml" in lakehouse.message("rename", "a", "b", "--by", "ada")
    assert "no storage is on record as 'x'" in lakehouse.message("rename", "x", "b", "--by", "ada")
    assert "unknown storage or lake 'x'; lakes.yaml has" in lakehouse.message("rename", "a", "x", "--by", "ada")


def test_adopt_recovers_quarantine_after_state_loss(lakehouse: Lakehouse) -> None:
    plan_id = lakehouse.plan("a")["plan_id"]
    shutil.rmtree(lakehouse.root / "state" / "a")
    found = [row for row in lakehouse.doctor() if row["check"] == "trash" and row["verdict"] == "warn"]
    assert [(row["subject"], "gc-assets adopt a --by WHO" in row["todo"]) for row in found] == [("a", True)]
    (adopted,) = lakehouse("adopt", "a", "--by", "ada")
    assert (adopted["files"], adopted["plans"]) == (lakehouse.in_trash("east"), [plan_id])
    assert "are recorded in the state" in lakehouse.message("adopt", "a", "--by", "ada")
    (restored,) = lakehouse("restore", "--plan", plan_id[:12])
    assert (restored["outcome"], restored["files"], lakehouse.in_trash("east")) == ("done", adopted["files"], 0)
