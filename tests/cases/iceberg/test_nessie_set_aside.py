"""A Nessie table whose metadata cannot be decoded is unreadable alone, unless the lake has claims of its own.

Its locations are protected, in claims of other lakes too, and the other tables of the server are collected.

Source: sample lakes with one table of a newer format version.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import UNREADABLE_ROOTS, UNREADABLE_ROOTS_SIDE
from tests.cases.iceberg.test_set_aside import set_format_version
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]


def test_locations_of_undecodable_metadata_are_protected(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    sold = lake.table("db.sold", days_ago(40))
    sold.append(days_ago(30))
    leftovers = {house.key(path) for path in sold.leftovers(days_ago(20), 2)}
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    # The files of this table are in a directory of the other lake, which only this table's metadata references.
    data = f"file://{house.warehouse}/db/sold/apart"
    newer = main.new("shop.newer", location=f"file://{house.warehouse}/metadata_only", properties={"write.data.path": data})
    main.date_files(LONG_AGO)
    for path in newer.path(f"file://{house.warehouse}/metadata_only/metadata").glob("*.metadata.json"):
        assert json.loads(path.read_text())["properties"]["write.data.path"] == data
        set_format_version(path, 9)
    good = main.new("shop.good")
    leftovers |= {house.key(path) for path in good.leftovers(LONG_AGO, 2)}
    house.lakes = [lake.config("sales"), builder.config()]
    apart = {key for key in house.files() if key.startswith("db/sold/apart/")}
    assert apart

    header = house.plan()

    planned = set(house.planned_actions())
    assert [(item.name, item.good_on) for item in header.unreadable] == [("table shop.newer of lake shop", None)]
    assert not {key for key in planned if key.startswith("metadata_only/")}
    assert not planned & apart
    assert planned >= leftovers


def test_truncated_metadata_affects_only_one_table(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    now = next_noon(days=2)
    house = Lakehouse(spark, tmp_path, now=now, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    torn, good = main.new("shop.torn"), main.new("shop.good")
    house.lakes = [builder.config(retention={"default": "1"})]
    house.plan()
    of_torn = {house.key(path) for path in torn.leftovers(LONG_AGO, 2)}
    of_good = {house.key(path) for path in good.leftovers(LONG_AGO, 2)}
    main.overwrite("shop.torn")
    main.overwrite("shop.good")
    path = torn.path(torn.metadata_location)
    content = path.read_bytes()
    path.write_bytes(content[:100])
    for day in (1, 2):
        house.now = now + timedelta(days=day)
        header = house.plan()
        [unreadable] = header.unreadable
        assert (unreadable.table_name, unreadable.good_on) == ("shop.torn", now.date())
        planned = set(house.planned_actions())
        assert planned >= of_good
        assert not {key for key in planned if key.startswith("shop/torn_")}
        live = house.find_table("live_files", "shop")
        roots = read_parts(house.run_context().state.files, live.paths(UNREADABLE_ROOTS_SIDE), UNREADABLE_ROOTS).to_pylist()
        assert len({str(row) for row in roots}) == len(roots) > 0
    path.write_bytes(content)
    house.now = now + timedelta(days=3)
    header = house.plan()
    assert not header.unreadable
    assert set(house.planned_actions()) >= of_torn | of_good
    house.approve(header)
    path.write_bytes(content[:100])
    assert outcomes(house.apply(header)) == {"done", "changed"}
    assert not of_good & house.files().keys()
    assert of_torn <= house.files().keys()


def test_lake_with_configured_claims_is_unreadable_as_a_whole(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, now=next_noon(days=2))
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    newer, good = main.new("shop.newer"), main.new("shop.good")
    good.leftovers(LONG_AGO, 2)
    set_format_version(newer.path(newer.metadata_location), 9)
    house.lakes = [builder.config(claims=[f"file://{house.warehouse}/shop/"])]
    [unreadable] = house.plan().unreadable
    assert unreadable.is_whole_lake
    assert not house.planned_actions()
