"""Locations in Nessie metadata that the first run cannot decode are protected, in claims of other lakes too.

Source: sample lakes with one table of a newer format version.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cases.iceberg.test_set_aside import set_format_version
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_locations_of_undecodable_metadata_are_protected(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    sold = lake.table("db.sold", days_ago(40))
    sold.append(days_ago(30))
    leftovers = {house.key(path) for path in sold.leftovers(days_ago(20), 2)}
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    # The files of this table are in a directory of the other lake, and only its metadata names it.
    data = f"file://{house.warehouse}/db/sold/apart"
    newer = main.new("shop.newer", location=f"file://{house.warehouse}/metadata_only", properties={"write.data.path": data})
    main.date_files(LONG_AGO)
    for path in newer.path(f"file://{house.warehouse}/metadata_only/metadata").glob("*.metadata.json"):
        assert json.loads(path.read_text())["properties"]["write.data.path"] == data
        set_format_version(path, 9)
    house.lakes = [lake.config("sales"), builder.config()]
    apart = {key for key in house.files() if key.startswith("db/sold/apart/")}
    assert apart

    header = house.plan()

    planned = set(house.planned_actions())
    assert header.unreadable
    assert not planned & apart
    assert planned >= leftovers
