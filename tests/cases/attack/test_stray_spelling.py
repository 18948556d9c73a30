"""A stray object whose name differs from a live one only in spelling is kept, and the rest is collected.

Any writer of the bucket could stop every plan of a storage with one such object.

Source: attack case 05, after Trino #24872.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import GateResult
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@dataclass
class Strays:
    """A lake with one stray of each kind.

    In the second run, one live file exists only under another spelling.
    """

    house: Lakehouse
    leftovers: set[str]
    kept: set[str] = field(default_factory=set)
    gate: GateResult | None = None
    planned: set[str] = field(default_factory=set)
    refused_by: list[set[str]] = field(default_factory=list)


def write_old(path: Path) -> Path:
    path.write_bytes(b"x")
    at = days_ago(30).timestamp()
    os.utime(path, (at, at))
    return path


@pytest.fixture(scope="module")
def strays(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Strays:
    house = Lakehouse(spark, tmp_path_factory.mktemp("spelling"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    [live] = (house.warehouse / "db/t/data").glob("*.parquet")
    named = write_old(live.with_name("caf\N{LATIN SMALL LETTER E WITH ACUTE}.parquet"))
    named.write_bytes(live.read_bytes())
    with lake.at(days_ago(20)):
        table.table.add_files([f"file://{named}"], check_duplicate_files=False)
    leftovers = {house.key(path) for path in table.leftovers(days_ago(20), 2)}
    # An engine deleted an old metadata file that the log still lists, so its name may be missing.
    old = min((house.warehouse / "db/t/metadata").glob("*.metadata.json"))
    kept = [
        live.with_name(live.name.replace("-", "%2D", 1)),
        live.with_name(live.name.replace("-", "%252D")),
        named.with_name(unicodedata.normalize("NFD", named.name)),
        old.with_name(old.name.replace("-", "%2D", 1)),
        live.with_name(live.name.upper()),
    ]
    old.unlink()
    house.lakes = [lake.config("sales")]
    found = Strays(house, leftovers, {house.key(write_old(path)) for path in kept})
    header = house.plan()
    found.planned = house.leftovers()
    found.gate = next(gate for gate in header.gates if gate.name == "spelling")
    found.refused_by.append(house.failed_gates(header))
    live.unlink()
    found.refused_by.append(house.failed_gates(house.plan()))
    return found


def test_objects_that_differ_from_live_keys_only_in_spelling_are_kept(strays: Strays) -> None:
    assert not strays.refused_by[0]
    assert strays.planned == strays.leftovers


def test_gate_reports_files_kept_for_similar_spelling(strays: Strays) -> None:
    assert strays.gate is not None
    assert strays.gate.numbers == {"hits": 0, "kept": len(strays.kept)}
    assert "%2D" in strays.gate.message


def test_live_file_found_only_under_another_spelling_refuses_the_plan(strays: Strays) -> None:
    assert "spelling" in strays.refused_by[1]


def test_live_file_found_only_in_another_letter_case_refuses_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """On an SMB mount, both names lead to the file, and a listing returns one of them."""
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    [live] = (house.warehouse / "db/t/data").glob("*.parquet")
    listed = live.rename(live.with_name(live.name.upper()))
    refused_by = house.failed_gates(house.plan())
    assert "spelling" in refused_by
    assert house.key(listed) not in house.planned_actions()
    house.settings["protect"] = [house.key(listed)]
    assert "spelling" not in house.failed_gates(house.plan())
