"""The messages after an apply state its outcomes, not what its plan intended.

Before, an apply in which each file was absent or changed printed that 21 files go to quarantine and that their bytes become free. The
library itself had expired and collected the repository between plan and apply.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.delete.execution import ApplyResult, header_of_result
from gc_assets.stages.read.reversibility import describe_outcomes, describe_reversibility
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_messages_after_an_apply_report_actual_outcomes(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    gone, changed, moved = (path for age in (20, 19, 18) for path in table.leftovers(days_ago(age), 1)[:1])
    house.lakes = [builder.config("sales")]
    header = house.plan()
    others = header.rows - 2
    gone.unlink()
    changed.write_bytes(b"another file")
    applied = house.approve_and_apply(header)
    (line,) = describe_outcomes(header, {key: total.rows for key, total in applied.by_outcome.items()})
    assert line == (
        f"Quarantine: {others} files moved to quarantine; 1 was gone already, 1 is needed, changed or waits, so it was left alone."
    )
    done = header_of_result(header, applied)
    assert f"{others} files (" in describe_reversibility(done, house.config).can_be_undone
    assert not moved.exists()

    nothing = header_of_result(header, ApplyResult(None, {}))
    assert describe_reversibility(nothing, house.config).lines == (
        "Can be undone: nothing.",
        "Cannot be undone: nothing.",
        "Becomes free: nothing.",
    )
