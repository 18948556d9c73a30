"""One object that cannot be read as expected does not affect other tables of the lake.

One lake has a view under the former name of a renamed table (iceberg/01), manifests that are longer than their lists state
(iceberg/03), a property with a duration instead of milliseconds (iceberg/06), and JSON with values of wrong types under a table location
(attack/08). Its first run plans everything that is garbage.

Sources: apache/iceberg #7052, #13719 and #9123, the Iceberg view spec ("View Metadata"), and format/spec.md ("Manifest Lists").
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.state.summaries import LiveFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
ONE_DAY = {"history.expire.max-snapshot-age-ms": "86400000"}
ODD_REF = "a\n'\"$(x) \N{RIGHT-TO-LEFT OVERRIDE}\N{ZERO WIDTH SPACE}"
VIEW_UUID = "8f0a291b-f981-472c-9e4d-33ed4e5bab50"
# Wrong values of metadata next to that of a table. Each is in a directory of its own.
WRONG_TYPES: dict[str, dict[str, Any]] = {"old": {"table-uuid": ["x"]}} | {
    f"old_{field}_{digits}_digits": {field: value}
    for digits, value in ((20, 2**64), (31, 10**30))
    for field in ("table-uuid", "format-version", "last-updated-ms", "current-snapshot-id", "snapshots")
}


@dataclass
class Run:
    """The lake and its first plan. The sets contain keys."""

    house: Lakehouse
    header: PlanHeader
    planned: dict[str, str]
    leftovers: set[str]
    view: str
    replaced_view: str
    stale_manifests: set[str]

    def planned_under(self, prefix: str) -> set[str]:
        return {key for key in self.planned if key.startswith(prefix)}


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    house = Lakehouse(spark, tmp_path_factory.mktemp("doubt"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    leftovers = set[str]()
    settings = dict.fromkeys(("t", "good", "stale", "odd"), ONE_DAY) | {"bad": {"history.expire.max-snapshot-age-ms": "5d"}}
    for name, properties in settings.items():
        table = lake.table(f"db.{name}", days_ago(40), properties=properties)
        for days in (30, 25, 20) if name == "odd" else (30, 20):
            table.append(days_ago(days))
        leftovers.update(map(house.key, table.leftovers(days_ago(20), 1)))
    write_odd_values(TableBuilder(lake, "db.odd"))
    stale = set(map(house.key, lengthen_manifests(TableBuilder(lake, "db.stale"))))
    lake.catalog.rename_table("db.t", "db.t_base")  # its location stays db/t
    replaced, view = (write_view(house.warehouse / "db/t/metadata" / f"0000{version}-v.gz.metadata.json", version) for version in (1, 2))
    register_view(house.root / "catalog.db", view)
    for directory, fields in WRONG_TYPES.items():
        document = json.dumps({"format-version": 2, "snapshots": [], **fields})
        write_old(house.warehouse / f"db/good/{directory}/metadata/00000-z.metadata.json", document.encode())
    house.lakes = [lake.config("sales")]
    header = house.plan()
    return Run(house, header, house.planned_actions(), leftovers, house.key(view), house.key(replaced), stale)


def write_old(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (days_ago(30).timestamp(),) * 2)
    return path


def write_view(path: Path, version: int) -> Path:
    """Write view metadata as Iceberg's Java library does, gzipped."""
    at = int(days_ago(40 - version).timestamp() * 1000)
    query = {"type": "sql", "sql": "select * from db.t_base", "dialect": "spark"}
    versions = [
        {"version-id": version, "timestamp-ms": at, "schema-id": 0, "summary": {}, "default-namespace": ["db"], "representations": [query]}
    ]
    document = {"view-uuid": VIEW_UUID, "format-version": 1, "location": f"file://{path.parent.parent}", "current-version-id": version}
    return write_old(path, gzip.compress(json.dumps({**document, "versions": versions}).encode()))


def register_view(catalog: Path, view: Path) -> None:
    """Insert the row that Iceberg's JDBC catalog (schema V1) writes for `create view db.t`."""
    row = ("default", "db", "t", f"file://{view}", "VIEW")
    columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
    with closing(sqlite3.connect(catalog)) as database, database:
        database.execute(f"insert into iceberg_tables ({columns}) values (?, ?, ?, ?, ?)", row)  # noqa: S608


def lengthen_manifests(table: TableBuilder) -> Iterator[Path]:
    """Rewrite the manifests with more bytes, as Spark's rewrite_table_path does for a longer prefix."""
    for manifest in table.table.inspect.all_manifests()["path"].to_pylist():
        path = Path(manifest.removeprefix("file://"))
        reader: Any = fastavro.reader(io.BytesIO(path.read_bytes()))
        records, metadata = list(reader), {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        if "pad" not in metadata:
            longer = io.BytesIO()
            fastavro.writer(longer, reader.writer_schema, records, codec="deflate", metadata={**metadata, "pad": "x" * 20})
            yield write_old(path, longer.getvalue())


def write_odd_values(table: TableBuilder) -> None:
    """Change values to the first and the last time, and to text that no terminal or shell expects."""
    path = table.path(table.metadata_location)
    document = json.loads(path.read_text())
    first, second, *_ = document["snapshots"]
    first |= {"timestamp-ms": -62135596800000, "summary": {**first["summary"], "note": "\ud800", "\udfff": "\u001b[31m"}}
    second |= {"timestamp-ms": 253402300799999}
    document["refs"][ODD_REF] = {"snapshot-id": second["snapshot-id"], "type": "tag"}
    document["properties"] |= {"note": "\ud800", "\ud800": "x", "history.expire.max-ref-age-ms": str(2**63 - 1)}
    write_old(path, json.dumps(document).encode())


def test_table_with_unusual_values_is_still_collected(run: Run) -> None:
    states = {row["commit_id"]: row["state"] for row in run.house.rows("reachable_snapshots", "sales") if row["table_name"] == "db.odd"}
    assert sorted(states.values()).count("expired") >= 1
    assert ODD_REF in {row["ref_name"] for row in run.house.rows("lake_refs", "sales")}


def test_first_run_passes_all_gates(run: Run) -> None:
    assert run.house.failed_gates(run.header) == set()


def test_leftovers_of_all_tables_are_planned(run: Run) -> None:
    assert run.leftovers <= run.planned.keys()


def test_metadata_of_view_is_live(run: Run) -> None:
    assert run.view in run.house.live()
    assert run.view not in run.planned


def test_metadata_of_an_old_view_version_is_planned(run: Run) -> None:
    assert run.replaced_view in run.planned


def test_manifests_with_wrong_recorded_length_are_read_and_noted(run: Run) -> None:
    assert run.stale_manifests & run.house.live()
    notes = run.house.find_table("live_files", "sales").summary(LiveFilesSummary).notes
    assert [note for note in notes if "another length than their manifest lists state" in note and "rewrite" in note]


def test_history_of_table_with_invalid_retention_property_is_kept(run: Run) -> None:
    states = {(row["table_name"], row["state"]) for row in run.house.rows("reachable_snapshots", "sales")}
    assert ("db.good", "expired") in states
    assert ("db.bad", "retained") in states
    assert ("db.bad", "expired") not in states


def test_note_contains_the_invalid_property(run: Run) -> None:
    notes = run.house.summary("reachable_snapshots", "sales")["notes"]
    assert [note for note in notes if "db.bad" in note and "history.expire.max-snapshot-age-ms is '5d'" in note]


@pytest.mark.parametrize("directory", WRONG_TYPES)
def test_json_with_wrong_types_protects_only_one_directory(run: Run, directory: str) -> None:
    assert run.planned_under(f"db/good/{directory}/") == set()
    assert run.planned_under("db/good/")


def test_second_run_plans_equal_garbage_without_decoding_again(run: Run) -> None:
    decoded = run.house.decoded_counts("sales")
    again = run.house.plan()
    assert run.house.planned_actions() == run.planned
    assert run.house.failed_gates(again) == set()
    assert run.house.decoded_counts("sales")[len(decoded) :] == [0]
