"""A half-written metadata file of a known table is a leftover like any other.

A writer that is killed while it writes `metadata.json` leaves a part of it. One such file must not end the collection of its table. If
the table is unknown, or the file may be metadata of another table, it protects its directory and is reported. Tables can share a
metadata directory, and metadata of version 1 needs no `table-uuid`.

Source: sample lakes, of which 17 of 19 planned none of their garbage because of one such file.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.read.doctor_records import check_last_run
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
# Only names of the format's writers are planned in the location of a table.
UUID, OTHER_UUID = "0b0b0b0b-1111-4222-8333-444444444444", "0c0c0c0c-1111-4222-8333-444444444444"
CONTENTS = {
    "empty": b"",
    "object": b"{}",
    "list": b"[]",
    "cut": b'{"format-version": 2, "table-uuid": "0b0b',
    "hole": b'{"format-version": 2, "table-uuid": "0b0b' + bytes(600) + b'"snapshots": []}',
    "gzip": gzip.compress(b"{}")[:-4],
    "other": b'{"owner": "ada"}',
}
# Complete metadata of a table in a catalog that is not configured.
NO_UUID = b'{"format-version": 1, "location": "file:///w", "snapshots": []}'


@dataclass
class Runs:
    """Plans without and with half-written files, and the keys of those files.

    Attributes:
        own: One file in the metadata directory of each known table.
        strange: A file in a directory without a known table.
        foreign: A file next to metadata of a known table, which may be metadata of another table.
    """

    house: Lakehouse
    before: dict[str, str]
    after: dict[str, str]
    header: PlanHeader
    own: set[str]
    strange: str
    foreign: str


def write_old(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    at = days_ago(30).timestamp()
    os.utime(path, (at, at))
    return path


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    house = Lakehouse(spark, tmp_path_factory.mktemp("half"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    for number, name in enumerate([*CONTENTS, "shared"]):
        table = lake.table(f"db.{name}", days_ago(40), properties={"history.expire.max-snapshot-age-ms": "86400000"})
        table.overwrite(days_ago(30))
        if number >= len(CONTENTS) - 2:
            table.set_properties(days_ago(25), {"write.metadata.path": f"file://{house.warehouse}/logs/{name}"})
        table.overwrite(days_ago(20))
        table.leftovers(days_ago(20), 1)
    house.lakes = [lake.config("sales")]
    house.plan()
    before = house.planned_actions()
    files = [
        write_old(table.with_name(f"00009-{UUID}.gz.metadata.json" if name == "gzip" else f"00009-{UUID}.metadata.json"), content)
        for name, content in CONTENTS.items()
        for table in [Path(lake.catalog.load_table(f"db.{name}").metadata_location.removeprefix("file://"))]
    ]
    # A table that now writes its metadata to another directory has such a file in the former one.
    files.append(write_old(house.warehouse / f"db/gzip/metadata/00000-{UUID}.metadata.json", b"{}"))
    inner = write_old(house.warehouse / f"db/list/data/metadata/00000-{UUID}.metadata.json", b"{}")
    shared = write_old(house.warehouse / f"logs/shared/00009-{OTHER_UUID}.metadata.json", NO_UUID)
    header = house.plan()
    return Runs(house, before, house.planned_actions(), header, set(map(house.key, files)), house.key(inner), house.key(shared))


def test_half_written_metadata_of_known_tables_is_collected(runs: Runs) -> None:
    assert not runs.house.failed_gates(runs.header)
    assert set(runs.before.values()) == {"quarantine"}
    protected = {key for key in runs.before if key.startswith(("db/list/data/", "logs/shared/"))}
    assert set(runs.after) == (runs.before.keys() - protected) | runs.own


def test_half_written_metadata_of_unknown_table_protects_the_directory(runs: Runs) -> None:
    assert [key for key in runs.before if key.startswith("db/list/data/")]
    assert not [key for key in runs.after if key.startswith("db/list/data/")]
    gate = next(gate for gate in runs.header.gates if gate.name == "foreign_metadata")
    assert runs.strange in gate.message
    assert not [key for key in runs.own if key in gate.message]


def test_unreadable_metadata_of_another_table_protects_the_shared_directory(runs: Runs) -> None:
    assert [key for key in runs.before if key.startswith("logs/shared/")]
    assert not [key for key in runs.after if key.startswith("logs/shared/")]
    gate = next(gate for gate in runs.header.gates if gate.name == "foreign_metadata")
    assert f"{runs.foreign}: table metadata that cannot be read" in gate.message


def test_files_next_to_unreadable_metadata_are_named_as_left_out(runs: Runs) -> None:
    (left_out,) = runs.header.left_out
    kept = {key for key in runs.before if key.startswith(("db/list/data/", "logs/shared/"))}
    assert left_out.files == len(kept | {runs.strange, runs.foreign})
    assert left_out.bytes == sum((runs.house.warehouse / key).stat().st_size for key in kept | {runs.strange, runs.foreign})
    assert f"{runs.foreign}: table metadata that cannot be read" in left_out.reason
    assert f"{runs.strange}: table metadata that cannot be read" in left_out.reason
    assert "Repair these objects, or remove them" in left_out.reason
    (finding,) = [item for item in check_last_run(runs.house.run_context(), runs.house.config.storages[0], {}) if item.check == "left_out"]
    assert str(left_out) in finding.found
