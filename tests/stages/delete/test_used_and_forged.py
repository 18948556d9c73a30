"""A plan is applied once, and rows that are added to a plan with a new checksum are refused."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import Amount, PlanHeader, seal
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.records.plans import find_plan
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.summaries import DeletionPlanSummary
from gc_assets.stores.local.objects import etag_of
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import log_row, publish_log
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, counts, days_ago

pytestmark = pytest.mark.spark

TIMES = {"plan_id", "keyed", "approve_before", "apply_before"}


def forge_plan(house: Lakehouse, header: PlanHeader, *rows: dict[str, Any]) -> PlanHeader:
    """Return the plan with additional rows, sealed and published by a user who can write the state."""
    state = house.run_context().state
    before = read_rows(state, DELETION_PLAN, find_plan(house.config, header.plan_id).published)
    like = before.to_pylist()[0]
    added = pa.Table.from_pylist([{**like, **row} for row in rows], DELETION_PLAN.schema)
    run = state.start(STORAGE, DELETION_PLAN.name, header.run_date, house.clock)
    written = write_rows(pa.concat_tables([before.cast(DELETION_PLAN.schema), added]), DELETION_PLAN, run, state.files)
    kept = {name: getattr(header, name) for name in PlanHeader.model_fields if name not in TIMES}
    totals = {
        action: Amount(files=files)
        for action, files in Counter([*before.column("action").to_pylist(), *added.column("action").to_pylist()]).items()
    }
    other = seal(**{**kept, "rows": written.rows, "rows_digest": f"{written.digest:016x}", "totals": totals, "by_kind": {}})
    publish(state, run, written, house.clock, summary=DeletionPlanSummary(plan_id=other.plan_id, header=other))
    return other


def planned_file(path: Path, days: float) -> dict[str, Any]:
    """Write a file with this age in days, and return a row of a plan that removes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"precious")
    os.utime(path, (days_ago(days).timestamp(),) * 2)
    return {"size_bytes": 8, "etag": etag_of(path.stat()), "kind": None}


def test_repeated_plan_gets_new_id_and_forged_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings={"quarantine_days": 30}), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    lost = {house.key(path) for path in table.leftovers(days_ago(20), 1)}
    before = house.files()

    first = house.plan()
    assert counts(house.approve_and_apply(first).by_outcome) == {("quarantine", "done"): len(lost)}
    house.restore(first.plan_id)
    assert house.files() == before
    second = house.plan()  # the same run date, the same files
    assert (second.rows_digest, second.repeats) == (first.rows_digest, 1)
    assert second.plan_id != first.plan_id
    assert header_of(deletion_plan(spark, house.run_context(), STORAGE)).plan_id == second.plan_id

    unowned, young = house.warehouse / "people" / "payroll.parquet", house.warehouse / "db" / "t" / "data" / "being-written.parquet"
    rows = {house.key(unowned): planned_file(unowned, 30), house.key(young): planned_file(young, 1)}
    etag = f"8-{int(days_ago(20).timestamp())}000000000-1"
    held = [f"db/t/data/{name}.parquet" for name in ("waiting", "another")]
    publish_log(house.run_context(), *(log_row(key, "quarantine", "p0", etag=etag, size_bytes=8) for key in held))
    early = {"key": held[0], "action": "purge", "source_plan_id": "p0", "etag": etag, "kind": None}
    another = {**early, "key": held[1], "etag": etag.replace("8-", "9-", 1)}
    header = forge_plan(house, second, *({"key": key, **row} for key, row in rows.items()), early, another)
    assert counts(house.approve_and_apply(header).by_outcome) == {
        ("quarantine", "done"): len(lost),
        ("quarantine", "denied"): 2,
        ("purge", "denied"): 1,
        ("purge", "changed"): 1,
    }
    errors = {row["key"]: row["error"] for row in house.rows("deletion_log") if row["outcome"] == "denied"}
    assert errors.keys() == rows.keys() | {early["key"]}
    assert "which is less than 30 days" in errors[early["key"]]
    assert "no lake claims this key" in errors[house.key(unowned)]
    assert "too young" in errors[house.key(young)]
    assert unowned.read_bytes() == young.read_bytes() == b"precious"
    assert find_plan(house.config, header.plan_id).status_at(NOW) == "partially applied"
