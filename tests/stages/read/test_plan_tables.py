"""Amounts of a plan by table."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read import plan_tables
from gc_assets.stages.read.plan_tables import TableAmounts, amounts_by_table, list_largest, purges_by_table
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, ORPHAN_FILES, Table
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return platform(tmp_path).run_context(NOW.date())


def publish_table(context: RunContext, group: str, table: Table, rows: list[dict[str, Any]]) -> None:
    run = context.state.start(group, table.name, context.run_date, context.clock)
    publish(context.state, run, write_rows(pa.Table.from_pylist(rows, schema=table.schema), table, run, context.state.files), context.clock)


def publish_names(context: RunContext) -> None:
    """Two tables, of which `orders` has two branches. Every third planned file is of `items`."""
    refs = [("u1", "shop.orders", "main"), ("u1", "shop.orders", "audit"), ("u2", "shop.items", "main")]
    publish_table(context, "sales", LAKE_REFS, [{"table_uuid": uuid, "table_name": name, "ref_name": ref} for uuid, name, ref in refs])
    orphans = [{"key": f"data/{index}.parquet", "lake": "sales", "table_uuid": "u2" if index % 3 == 0 else "u1"} for index in range(9)]
    publish_table(context, "warehouse", ORPHAN_FILES, [*orphans, {"key": "data/young.parquet", "lake": "sales", "table_uuid": "u1"}])


def amounts(tmp_path: Path, context: RunContext, **of_plan: Any) -> list[TableAmounts]:
    published = stored_plan(platform(tmp_path), **of_plan)
    return amounts_by_table(context, header_of(published), published)


def test_planned_files_are_summed_by_table(tmp_path: Path, context: RunContext) -> None:
    publish_names(context)
    assert amounts(tmp_path, context, files=9) == [
        TableAmounts("sales", "shop.orders", {QUARANTINE: Amount(files=6, bytes=600)}),
        TableAmounts("sales", "shop.items", {QUARANTINE: Amount(files=3, bytes=300)}),
    ]


def test_purged_files_are_counted_for_table_at_quarantine_time(tmp_path: Path) -> None:
    """The sweep of the purge does not find the files any more, because they are in quarantine."""
    before = NOW - timedelta(days=9)
    publish_names(platform(tmp_path, now=before).run_context(before.date()))
    source = header_of(stored_plan(platform(tmp_path, now=before), files=9, run_date=str(before.date())))
    context = platform(tmp_path).run_context(NOW.date())
    refs = [("u1", "shop.orders"), ("u2", "shop.items")]
    publish_table(context, "sales", LAKE_REFS, [{"table_uuid": uuid, "table_name": name} for uuid, name in refs])
    publish_table(context, "warehouse", ORPHAN_FILES, [])
    assert amounts(tmp_path, context, files=9, action=PURGE, source_plan_id=source.plan_id) == [
        TableAmounts("sales", "shop.orders", {PURGE: Amount(files=6, bytes=600)}),
        TableAmounts("sales", "shop.items", {PURGE: Amount(files=3, bytes=300)}),
    ]


def test_purges_of_a_run_are_summed_by_table(tmp_path: Path, context: RunContext) -> None:
    publish_names(context)
    stored_plan(platform(tmp_path), files=9, action=PURGE)
    assert purges_by_table(context, ["warehouse"]) == {
        ("sales", "shop.orders"): Amount(files=6, bytes=600),
        ("sales", "shop.items"): Amount(files=3, bytes=300),
    }
    stored_plan(platform(tmp_path), files=8)
    assert purges_by_table(context, ["warehouse"]) == {}


def test_actions_of_omitted_tables_are_summed_by_action() -> None:
    tables = [
        TableAmounts("sales", "a", {PURGE: Amount(files=1, bytes=2), QUARANTINE: Amount(files=3, bytes=4)}, 5, 4),
        TableAmounts("sales", "b", {PURGE: Amount(files=6, bytes=7), RESTORE: Amount(files=8, bytes=9)}, 1, 0),
    ]
    sums = {PURGE: Amount(files=7, bytes=9), QUARANTINE: Amount(files=3, bytes=4), RESTORE: Amount(files=8, bytes=9)}
    assert list_largest(tables, 0) == [TableAmounts("", "2 more tables", sums, 6, 4)]
    assert list_largest(tables, 1) == [tables[0], replace(tables[1], lake="", table="1 more table")]
    assert list_largest(tables, 2) == tables


def test_deleted_branches_do_not_count_as_irreversible_edits(tmp_path: Path, context: RunContext) -> None:
    """The history of an Iceberg table does not come back, but a deleted branch does."""
    edits = [{"table_uuid": "u1", "table_name": "shop.orders", "action": name} for name in ("remove_snapshot", "delete_idle_branch")]
    publish_table(context, "sales", EXPIRY_PLAN, edits)
    how = {"files": 0, "expiry_actions": {"sales": 2}, "idle_branches": {"sales": 1}}
    assert amounts(tmp_path, context, **how) == [TableAmounts("sales", "shop.orders", edits=2, final_edits=1)]
    publish_table(context, "sales", EXPIRY_PLAN, edits[:1])
    assert amounts(tmp_path, context, **how) == [TableAmounts("sales", None, edits=2, final_edits=1)]


def test_history_edits_are_counted_by_table(tmp_path: Path, context: RunContext) -> None:
    publish_names(context)
    edits = [
        {"table_uuid": "u1", "table_name": "shop.orders", "snapshot_id": str(number), "action": "remove_snapshot"} for number in range(4)
    ]
    publish_table(context, "sales", EXPIRY_PLAN, edits)
    found = amounts(tmp_path, context, files=0, expiry_actions={"sales": 4, "weather": 2})
    assert found == [TableAmounts("sales", "shop.orders", edits=4, final_edits=4), TableAmounts("weather", None, edits=2)]


def test_history_edits_of_another_run_are_counted_by_lake(tmp_path: Path, context: RunContext) -> None:
    publish_table(context, "sales", EXPIRY_PLAN, [{"table_uuid": "u1", "table_name": "shop.orders", "action": "remove_snapshot"}])
    assert amounts(tmp_path, context, files=0, expiry_actions={"sales": 4}) == [TableAmounts("sales", None, edits=4, final_edits=4)]


def test_files_are_summed_by_lake_if_sweep_table_is_missing(tmp_path: Path, context: RunContext) -> None:
    assert amounts(tmp_path, context, files=9) == [TableAmounts("sales", None, {QUARANTINE: Amount(files=9, bytes=900)})]


def test_large_plan_is_summed_by_lake(tmp_path: Path, context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_names(context)
    monkeypatch.setattr(plan_tables, "MAX_ROWS", 8)
    assert amounts(tmp_path, context, files=9) == [TableAmounts("sales", None, {QUARANTINE: Amount(files=9, bytes=900)})]


def test_empty_plan_has_no_tables(tmp_path: Path, context: RunContext) -> None:
    publish_names(context)
    assert amounts(tmp_path, context, files=0) == []
