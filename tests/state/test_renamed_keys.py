"""JSON that earlier releases stored is read, and written with the current keys."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.deliveries import Deliveries
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import GateResult, gate_name
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, find_plan, refuse_gates
from gc_assets.state.compaction import CompactedSegments
from gc_assets.state.index import IndexEntry
from gc_assets.state.receipts import Receipt
from gc_assets.state.summaries import (
    DeletionLogSummary,
    ExpiryLogSummary,
    ExpiryOutcomes,
    LiveFilesSummary,
    OrphanFilesSummary,
    StorageInventorySummary,
)
from tests.assets.platforms import platform, stored_plan

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC).isoformat()
DAY = date(2026, 3, 14).isoformat()
AMOUNT = {"files": 1, "bytes": 2}

STORED: list[tuple[type[RenamedKeys], dict[str, Any], dict[str, Any]]] = [
    (ApprovalEvent, {"plan_id": "p", "by": "ada", "at": NOW}, {"said": "rejected"}),
    (
        Receipt,
        {
            "group": "sales",
            "asset": "live_files",
            "run_date": DAY,
            "run_id": "r",
            "created_at": NOW,
            "rows": 0,
            "size_bytes": 0,
            "digest": "0",
            "files": [],
        },
        {"facts": {"files": 1}},
    ),
    (
        IndexEntry,
        {"run_date": DAY, "run_id": "r", "created_at": NOW, "rows": 0, "receipt_sha256": "s"},
        {"facts": {"files": 1}, "is_there": True},
    ),
    (CompactedSegments, {}, {"folds": [{"name": "a", "runs": ["r"], "parts": []}], "former": [], "replaced": {"b": NOW}}),
    (
        LiveFilesSummary,
        {
            "files": 1,
            "live_bytes": 2,
            "by_kind": {},
            "by_storage": {},
            "metadata_by_storage": {},
            "expired_files": 0,
            "dangling_files": 0,
            "external_files": 0,
        },
        {"sick": [{"lake": "sales", "why": "torn", "since": NOW}]},
    ),
    (
        StorageInventorySummary,
        {"objects": 1, "bytes": 2, "problems": {}, "tasks": 1, "full_listing_on": DAY},
        {"carried_directories": 3, "carried_objects": 4},
    ),
    (
        OrphanFilesSummary,
        {
            "grace_cutoff": NOW,
            "historical": False,
            "by_reason": {},
            "live_keys": 0,
            "missing_metadata": [],
            "missing_metadata_count": 0,
            "live_unlisted": [],
            "live_unlisted_count": 0,
            "foreign_metadata": [],
            "foreign_metadata_count": 0,
            "behind_links": [],
            "behind_links_count": 0,
            "false_negatives": 0,
            "near_misses": 0,
            "stopped_samples": [],
        },
        {"waterfall": {"live": AMOUNT}, "sick": [{"lake": "sales", "why": "torn", "since": NOW}]},
    ),
    (
        DeletionLogSummary,
        {"plan_id": "p"},
        {"books": {"quarantine/done": AMOUNT}, "words": [{"plan_id": "p", "by": "ada", "at": NOW, "said": "approved"}]},
    ),
    (ExpiryLogSummary, {"plan_id": "p"}, {"books": {"done": 1}}),
    (ExpiryOutcomes, {}, {"books": {"done": 1}}),
]


@pytest.mark.parametrize("model, common, old", STORED, ids=[model.__name__ for model, _, _ in STORED])
def test_stored_old_keys_are_read_and_new_keys_written(model: type[RenamedKeys], common: dict[str, Any], old: dict[str, Any]) -> None:
    assert model.RENAMED.keys() == old.keys()
    earlier = model.model_validate({**common, **old})
    current = model.model_validate({**common, **{model.RENAMED[key]: value for key, value in old.items()}})
    written = json.loads(earlier.model_dump_json())
    assert earlier == current
    assert set(model.RENAMED.values()) <= earlier.model_fields_set
    assert set(model.RENAMED.values()) <= written.keys()
    assert model.model_validate(written) == earlier


@pytest.mark.parametrize("model, common, old", STORED, ids=[model.__name__ for model, _, _ in STORED])
def test_stored_old_and_new_key_together_count_as_damage(model: type[RenamedKeys], common: dict[str, Any], old: dict[str, Any]) -> None:
    for key, value in old.items():
        with pytest.raises(ValidationError, match=f"{model.RENAMED[key]} and its old name {key}"):
            model.model_validate({**common, **old, model.RENAMED[key]: value})


def test_stored_override_of_renamed_gate_has_new_name() -> None:
    event = ApprovalEvent.model_validate({"plan_id": "p", "by": "ada", "at": NOW, "overrides": ["sick_tables", "live_drop"]})
    assert event.overrides == ("unreadable_tables", "live_drop")
    assert [gate_name(name) for name in ("spoilt_histories", "damaged_histories")] == ["damaged_histories"] * 2


UNREADABLE = GateResult(name="unreadable_tables", passed=False, message="2 tables", overridable=True)


@pytest.mark.parametrize("stored", ["sick_tables", "unreadable_tables"])
@pytest.mark.parametrize("given", ["sick_tables", "unreadable_tables"])
def test_gate_can_be_overridden_by_old_or_new_name(tmp_path: Path, stored: str, given: str) -> None:
    at = platform(tmp_path)
    plan_id = header_of(stored_plan(at, gates=(UNREADABLE.model_copy(update={"name": stored}),))).plan_id
    with pytest.raises(GateRefused, match="is refused by its gates"):
        approve(at.config, at.clock, plan_id, "ada")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        approve(at.config, at.clock, plan_id, "ada", (given,))
    assert [item.category for item in caught] == ([FutureWarning] if (given, stored) == ("sick_tables", "unreadable_tables") else [])
    plan = find_plan(at.config, plan_id)
    assert plan.verdict.overrides == ("unreadable_tables",)
    refuse_gates(plan.header, plan.verdict.overrides)


def test_delivered_event_keeps_its_delivery_under_new_name() -> None:
    stored = json.dumps({"mail": ["sales/table_sick/u/2026", "warehouse/night_missed/2026-03-14", "warehouse/plan_ready/p"]})
    assert Deliveries.parse(stored).by_target["mail"] == {
        "sales/table_unreadable/u/2026",
        "warehouse/run_missed/2026-03-14",
        "warehouse/plan_ready/p",
    }
