"""Explanations of keys with recorded actions, and of keys that are never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.explain import Explanation, explain
from gc_assets.state.schemas import STORAGE_INVENTORY
from tests.records import NOW, STORAGE, log_row, publish_log, publish_mark, publish_table, run_context_at


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


def test_purge_of_an_absent_file_ends_its_quarantine(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "purge", "p2", outcome="absent", minutes=9, source="p1"))
    assert explain_key(context).verdict == "purged"


def test_other_copy_stays_in_quarantine_after_a_purge(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "quarantine", "p2", minutes=5))
    publish_log(context, log_row("a", "purge", "p3", minutes=9, source="p1"))
    assert explain_key(context).verdict == "quarantined"
    assert "by plan p2" in explain_key(context).sentence


def test_restored_file_is_reported_as_restored(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p1"))
    assert explain_key(context).verdict == "restored"


def test_state_under_a_claim_is_unowned(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    inside = context.config.model_copy(update={"state": f"{tmp_path}/warehouse/weather/state"})
    context = RunContext.of(inside, context.clock, context.run_date)
    publish_mark(context, [{"key": "weather/"}])
    for key in ("weather/state/x.parquet", "weather/chunks/X"):
        listed = {"objects": 1, "bytes": 1, "problems": {}, "tasks": 1, "full_listing_on": NOW.date().isoformat()}
        publish_table(context, STORAGE, STORAGE_INVENTORY, [{"key": key, "size_bytes": 1, "last_modified": NOW}], **listed)
        assert (explain_key(context, key).verdict == "unowned") == key.startswith("weather/state/")
