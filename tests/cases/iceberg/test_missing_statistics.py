"""Missing statistics files (Puffin) are reported and change nothing else.

The statistics of a listed snapshot and of one that is no longer listed are deleted. Before, the latter made the table unreadable.

Source: format/spec.md, "Table Statistics": "Statistics files are optional ... Readers can choose to ignore statistics information".
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.state.summaries import OrphanFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_missing_statistics_are_reported_as_note(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    table.leftovers(days_ago(20))
    listed = table.table.current_snapshot().snapshot_id
    files = [*table.statistics(days_ago(39), str(listed)), *table.statistics(days_ago(38), "4711")]
    house.lakes = [builder.config("sales")]
    complete = house.plan()
    assert OrphanFilesSummary.model_validate(house.summary("orphan_files")).notes == ()

    for address in files:
        Path(address.removeprefix("file://")).unlink()
    header = house.plan()
    assert house.failed_gates(header) == set()
    assert (header.unreadable, header.totals) == ((), complete.totals)
    (note,) = OrphanFilesSummary.model_validate(house.summary("orphan_files")).notes
    assert note.startswith(f"{len(files)} statistics files of tables are missing, for example ")
