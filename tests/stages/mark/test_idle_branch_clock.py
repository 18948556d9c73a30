"""The time at which a run saw a branch is the storage's time, if the clock of the host is behind.

Before, one run with a clock that was 40 days behind was evidence that a branch of yesterday had not changed for 30 days.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.idle_branches import search_idle_branches
from gc_assets.stages.mark.lake_refs import lake_refs, read_frozen_refs
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse

DAY = timedelta(days=1)


@pytest.mark.spark
@pytest.mark.parametrize("rule", [[], [{"match": "tmp/.*", "after": "30d"}]])
def test_branch_sighting_uses_storage_clock(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: list[dict[str, str]]
) -> None:
    host, store = datetime.now(UTC), datetime.now(UTC) + 40 * DAY
    house = Lakehouse(spark, tmp_path, now=host)
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", host - 90 * DAY)
    table.branch(host - DAY, "tmp/audit", table.append(host - 80 * DAY))
    house.lakes = [lake.config("sales", retention={"delete_idle": rule})]
    monkeypatch.setattr(type(house.run_context().store(STORAGE)), "now", lambda _: store)
    context = RunContext.of(house.config, Clock(), Clock().today())
    frozen = lake_refs(context, "sales")

    later = store + DAY
    search = search_idle_branches(context, "sales", read_frozen_refs(context, "sales", frozen), later, later)

    assert list(search.unchanged_since.values()) == ([store] if rule else [])
