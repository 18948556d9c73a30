"""One commit with an address that cannot be resolved makes its content unreadable, and never ends the runs of all lakes.

Such a commit may never leave the log. Writers make one with a relative `warehouse`, with `..` in a location, with a scheme that no store
supports, or with a directory as the metadata file. The text of a SQL function is no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.set_aside import set_table_aside
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.builder import NessieBuilder, delete, iceberg_table
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]
GATES = {"max_delete_share": 1, "max_live_drop": 1, "max_unreadable": 9}
FUNCTION = {"type": "UDF", "dialect": "SPARK", "sqlText": "/* see lib/../udf.sql */ SELECT 1"}


@dataclass
class Runs:
    """Runs with the commits on a branch, and after the contents were dropped and expired.

    `near` is the garbage of tables in the directories of two addresses.
    `notes` are those of the last one.
    """

    addresses: dict[str, str]
    garbage: set[str]
    near: set[str]
    first: PlanHeader
    planned: set[str]
    set_aside: PlanHeader
    last: PlanHeader
    planned_last: set[str]
    notes: list[str]


@pytest.fixture(scope="module")
def runs(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    nessie_server.reset()
    root = tmp_path_factory.mktemp("addresses")
    house = Lakehouse(spark, root, now=next_noon(days=30), settings={"gates": GATES})
    builder = NessieBuilder(nessie_server.uri, house.warehouse)
    main = builder.on()
    main.new("db.good")
    for _ in range(2):
        main.overwrite("db.good")
    other = LakeBuilder(root, warehouse=house.warehouse / "sql")
    table = other.table("db.t", days_ago(40))
    table.append(days_ago(30))
    garbage = {house.key(path) for path in table.leftovers(days_ago(20))}
    near = [other.table(f"db.{name}", days_ago(40)) for name in ("u", "v")]
    of_near = [{house.key(path) for path in table.leftovers(days_ago(20))} for table in near]
    folders = [min(keys).partition("/data/")[0] for keys in of_near]
    name = "db/odd/metadata/00000-a.metadata.json"
    addresses = {
        "relative": f"warehouse/{name}",
        "parent": f"file://{house.warehouse}/x/../{name}",
        "host": f"file://nas{house.warehouse}/{name}",
        "empty": "",
        "hdfs": "hdfs://nn:8020/warehouse/db/far/metadata/00000-a.metadata.json",
        "web": f"http://gateway:9000/bucket/{folders[0]}/metadata/00000-a.metadata.json",
        "directory": f"file://{house.warehouse}/{folders[1]}/metadata",
    }
    builder.branch("experiment")
    for number, (key, address) in enumerate(addresses.items()):
        builder.put([key], iceberg_table(address, number), "experiment")
    builder.put(["function"], FUNCTION, "experiment")
    house.lakes = [builder.config(retention={"default": "1"}), other.config("sales")]
    first, planned = house.plan(), set(house.planned_actions())
    for key in addresses:
        set_table_aside(house.config, house.clock, key, "ops")
    house.now += timedelta(hours=1)
    set_aside = house.plan()
    builder.commit([delete([key]) for key in addresses], "experiment")
    house.now = next_noon(days=31)
    last = house.plan()
    notes = house.summary("live_files", "shop")["notes"]
    return Runs(addresses, garbage, set().union(*of_near), first, planned, set_aside, last, set(house.planned_actions()), notes)


def test_only_contents_with_unresolvable_addresses_are_unreadable(runs: Runs) -> None:
    assert {item.table_name for item in runs.first.unreadable} == set(runs.addresses)


def test_reason_contains_address_commit_and_next_step(runs: Runs) -> None:
    for item in runs.first.unreadable:
        assert runs.addresses[item.table_name or ""] in item.why
        assert "needed by commit" in item.why
        assert "Commit its table again with another address, or drop it" in item.why


def test_garbage_of_other_tables_and_lakes_is_planned(runs: Runs) -> None:
    assert runs.garbage <= runs.planned
    assert any(key.startswith("db/good") for key in runs.planned)


def test_directory_of_unresolvable_address_is_protected_in_every_storage(runs: Runs) -> None:
    assert len(runs.near) > 2
    assert not runs.near & runs.planned
    assert runs.near <= runs.planned_last


def test_every_unreadable_content_can_be_set_aside(runs: Runs) -> None:
    assert {item.table_name for item in runs.set_aside.unreadable if item.set_aside is not None} == set(runs.addresses)


def test_content_is_no_longer_unreadable_after_commits_expire(runs: Runs) -> None:
    assert list(runs.last.unreadable) == []
    assert runs.planned <= runs.planned_last
    assert any("7 metadata objects of expired history cannot be read" in note for note in runs.notes)


def test_text_of_a_sql_function_is_not_treated_as_address(runs: Runs) -> None:
    assert not any("udf" in note for note in runs.notes)


def test_table_is_unreadable_while_the_link_to_the_metadata_is_broken(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, now=next_noon(days=30), settings={"gates": GATES})
    builder = NessieBuilder(nessie.uri, house.warehouse)
    builder.on().new("db.good")
    link = tmp_path / "link"
    link.symlink_to("link")
    builder.branch("experiment")
    builder.put(["odd"], iceberg_table(f"file://{link}/db/odd/metadata/00000-a.metadata.json", 1), "experiment")
    other = LakeBuilder(tmp_path, warehouse=house.warehouse / "sql")
    table = other.table("db.t", days_ago(40))
    garbage = {house.key(path) for path in table.leftovers(days_ago(20))}
    house.lakes = [builder.config(), other.config("sales")]
    (unreadable,) = house.plan().unreadable
    assert (unreadable.lake, unreadable.table_name) == ("shop", "odd")
    assert "make it readable for this process, or repair the link" in unreadable.why
    assert garbage <= set(house.planned_actions())
