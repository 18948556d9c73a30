"""Explanations of keys with recorded actions, and of keys that are never changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.cli.explain import explanation_lines
from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.explain import Explanation, explain
from gc_assets.stages.records.plans import approve, execution_directory, find_plan, record_finished, reject
from gc_assets.state.schemas import STORAGE_INVENTORY
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import NOW, STORAGE, log_row, publish_log, publish_mark, publish_table, run_context_at
from tests.stages.lakehouse import Lakehouse, days_ago


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    context = run_context_at(tmp_path)
    publish_mark(context)
    return context


def explain_key(context: RunContext, key: str = "a") -> Explanation:
    (found,) = explain(context, key)
    return found


def test_file_stays_in_quarantine_after_a_failed_purge(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "purge", "p2", outcome="failed", minutes=9, source="p1", error="disk full"))
    assert explain_key(context).verdict == "quarantined"
    assert "by plan p1" in explain_key(context).sentence


def test_purge_of_absent_file_removes_it_from_quarantine(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "purge", "p2", outcome="absent", minutes=9, source="p1"))
    assert explain_key(context).verdict == "purged"


def test_second_copy_stays_in_quarantine_after_purge_of_first(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "quarantine", "p2", minutes=5))
    publish_log(context, log_row("a", "purge", "p3", minutes=9, source="p1"))
    assert explain_key(context).verdict == "quarantined"
    assert "by plan p2" in explain_key(context).sentence


def test_restored_file_is_reported_as_restored(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p1"))
    assert explain_key(context).verdict == "restored"


def test_file_whose_copy_a_restore_does_not_find_is_lost(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p1", outcome="absent"))
    assert explain_key(context).verdict == "lost"
    assert "a restore did not find it" in explain_key(context).sentence


def test_state_files_inside_claimed_prefix_are_unowned(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    inside = context.config.model_copy(update={"state": f"{tmp_path}/warehouse/weather/state"})
    context = RunContext.of(inside, context.clock, context.run_date)
    publish_mark(context, [{"key": "weather/"}])
    for key in ("weather/state/x.parquet", "weather/chunks/X"):
        listed = {"objects": 1, "bytes": 1, "problems": {}, "tasks": 1, "full_listing_on": NOW.date().isoformat()}
        publish_table(context, STORAGE, STORAGE_INVENTORY, [{"key": key, "size_bytes": 1, "last_modified": NOW}], **listed)
        assert (explain_key(context, key).verdict == "unowned") == key.startswith("weather/state/")


@pytest.fixture
def listed(context: RunContext) -> RunContext:
    keys = ("shop/orders/data/1.parquet", "shop/orders/data/2.parquet", "shop/visits/data/1.parquet")
    rows = [{"key": key, "size_bytes": 1, "last_modified": NOW} for key in keys]
    publish_table(
        context, STORAGE, STORAGE_INVENTORY, rows, objects=3, bytes=3, problems={}, tasks=1, full_listing_on=NOW.date().isoformat()
    )
    publish_log(context, log_row("shop/gone/3.parquet", "quarantine", "p1"))
    return context


@pytest.mark.parametrize(
    "text, key",
    [
        ("2.parquet", "shop/orders/data/2.parquet"),
        ("shop/v", "shop/visits/data/1.parquet"),
        ("shop/v…1.parquet", "shop/visits/data/1.parquet"),
        ("…2.parquet", "shop/orders/data/2.parquet"),
        ("3.parquet", "shop/gone/3.parquet"),
    ],
)
def test_unique_part_of_key_identifies_file(listed: RunContext, text: str, key: str) -> None:
    assert explain_key(listed, text).key == key


def test_ambiguous_part_of_key_raises_error_with_matches(listed: RunContext) -> None:
    with pytest.raises(
        UsageError, match=r"(?s)2 keys begin or end with this text.*shop/orders/data/1\.parquet\n  warehouse: shop/visits/data/1\.parquet"
    ):
        explain(listed, "data/1.parquet")


def test_unmatched_part_of_key_is_unknown(listed: RunContext) -> None:
    assert explain_key(listed, "orders/data").verdict == "unknown"
    assert explain_key(listed, "shop/orders/data/2.parquet…2.parquet").verdict == "unknown"


def test_explanation_lists_decisions_and_actions_in_time_order() -> None:
    event = ApprovalEvent(plan_id="ab" * 32, by="ada", at=NOW + timedelta(minutes=1), overrides=("live_drop",), comment="agreed\x07")
    history = (
        log_row("a", "quarantine", "cd" * 32, outcome="failed", error="disk full") | {"at": NOW + timedelta(microseconds=123456)},
        log_row("a", "quarantine", "ab" * 32, minutes=9),
        log_row("a", "restore", "restore-1", minutes=12, source="ab" * 32),
    )
    rows = tuple({"error": None, **row} for row in history)
    item = Explanation(STORAGE, "a", "restored", "It was restored.", history=rows, approval_events=({**event.model_dump(), "text": ""},))
    assert explanation_lines(item) == [
        "warehouse: a",
        "  restored: It was restored.",
        "  2026-11-20 03:00:00Z quarantine failed by plan cdcdcdcdcdcd: disk full",
        "  2026-11-20 03:01:00Z plan abababababab approved by ada, overriding live_drop: agreed\\x07",
        "  2026-11-20 03:09:00Z quarantine done by plan abababababab",
        "  2026-11-20 03:12:00Z restore done by gc-assets restore, of plan abababababab",
    ]


@pytest.mark.spark
def test_verdict_depends_on_decision_for_plan(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(20))
    leftover, *_ = table.leftovers(days_ago(20), 1)
    house.lakes = [lake.config("sales")]
    header, key = house.plan(), house.key(leftover)
    assert explain_key(house.run_context(), key).verdict == "planned"
    reject(house.config, house.clock, header.plan_id, "ada")
    assert explain_key(house.run_context(), key).verdict == "rejected"
    approve(house.config, house.clock, header.plan_id, "ada")
    context = replace(house.run_context(), clock=Clock(header.apply_before))
    late = explain_key(context, key)
    assert (late.verdict, "But the plan is expired" in late.sentence) == ("waiting", True)
    house.run_context().state.files.replace(f"{execution_directory(header)}/log.json", b"{}")
    begun = explain_key(house.run_context(), key)
    again = f"has not ended, so this may be done already. To continue it: `gc-assets apply {header.plan_id[:12]}`."
    assert (begun.verdict, again in begun.sentence) == ("planned", True)
    ended = {"at": house.now.isoformat(), "by_outcome": {"quarantine/changed": {"files": 1, "bytes": 1}}}
    record_finished(house.run_context().state, find_plan(house.config, header.plan_id).header, ended)
    left = explain_key(house.run_context(), key)
    assert (left.verdict, "But the plan is partially applied" in left.sentence) == ("waiting", True)
