"""The mark before a purge reuses nothing of earlier runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete import verification
from gc_assets.state.journal import PublishedTable
from gc_assets.state.summaries import LiveFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_mark_before_a_purge_reuses_no_live_files(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    leftovers = table.leftovers(days_ago(20), 1)
    house.lakes = [lake.config("sales")]
    mark, marked = verification.mark, list[tuple[str | None, str | None]]()

    def record_mark(session: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
        live = mark(session, context, lake_name)
        summary = live.summary(LiveFilesSummary)
        marked.append((summary.reused_from, summary.full_recompute_reason))
        return live

    monkeypatch.setattr(verification, "mark", record_mark)
    assert house.approve_and_apply(house.plan()).by_outcome
    house.now += timedelta(days=1)
    purge = house.plan()
    assert set(purge.totals) == {"purge"}
    assert house.approve_and_apply(purge).by_outcome
    assert not any(path.exists() for path in leftovers)
    (first_reused, _), (reused_from, reason) = marked
    assert first_reused is not None
    assert (reused_from, reason) == (None, "full_every is 0")
