"""Purged files of a request to restore, from the deletion logs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records import ledger
from gc_assets.stages.records.ledger import CopySelection
from gc_assets.stages.records.purged_files import PurgedFiles, count_restorable, describe_quarantine, find_purged, find_purged_by
from tests.records import NOW, STORAGE, log_row, publish_log, run_context_at

DAY = 24 * 60


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    found = run_context_at(tmp_path)
    publish_log(found, *(log_row(key, "quarantine", "p1") for key in "abc"))
    publish_log(found, log_row("a", "purge", "p2", minutes=DAY, source="p1"), log_row("b", "restore", "r1", minutes=DAY, source="p1"))
    return found


def find(context: RunContext, **selection: str) -> PurgedFiles | None:
    return find_purged(context.state, STORAGE, CopySelection(**selection))


@pytest.mark.parametrize("selection", [{"key": "a"}, {"prefix": "a"}, {"plan_id": "p1"}, {}])
def test_purged_file_is_found_with_date_and_plan(context: RunContext, selection: dict[str, str]) -> None:
    assert str(find(context, **selection)) == "The file was purged permanently on 2026-11-21 by plan p2, and cannot be restored."


@pytest.mark.parametrize("selection", [{"key": "b"}, {"key": "c"}, {"key": "other"}, {"plan_id": "p2"}])
def test_restored_quarantined_and_unknown_files_are_not_listed_as_purged(context: RunContext, selection: dict[str, str]) -> None:
    assert find(context, **selection) is None


def test_key_with_another_copy_in_quarantine_is_purged_for_one_plan_only(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p3", minutes=2 * DAY))
    publish_log(context, log_row("c", "quarantine", "p3", minutes=2 * DAY), log_row("c", "purge", "p4", minutes=3 * DAY, source="p3"))
    assert [find(context, key=key) for key in "ac"] == [None, None]
    assert [(plan_id, found.amount.files) for plan_id in ("p1", "p3") if (found := find(context, plan_id=plan_id))] == [
        ("p1", 1),
        ("p3", 1),
    ]


def test_object_with_records_of_two_plans_is_purged_for_both_plans(context: RunContext) -> None:
    same = {"etag": "e", "version_id": "v1", "quarantine": "versioned"}
    publish_log(context, *(log_row("d", "quarantine", plan, **same) for plan in ("p5", "p6")))
    publish_log(context, log_row("e", "quarantine", "p5", **same), log_row("e", "quarantine", "p6", **(same | {"version_id": "v2"})))
    assert count_restorable(context.state, STORAGE) == {"p1": 1, "p5": 2, "p6": 2}
    publish_log(context, log_row("d", "purge", "p7", minutes=DAY, source="p6", **same))
    publish_log(context, log_row("e", "purge", "p7", minutes=DAY, source="p6", **(same | {"version_id": "v2"})))
    assert count_restorable(context.state, STORAGE) == {"p1": 1, "p5": 1}
    found = [find(context, plan_id=plan_id) for plan_id in ("p5", "p6")]
    assert [purged and purged.amount.files for purged in found] == [1, 2]
    assert [(found := find(context, key=key)) and found.amount.files for key in "de"] == [1, None]


def test_purged_file_lists_several_plans_and_days(context: RunContext) -> None:
    publish_log(context, *(log_row("c", "purge", plan, minutes=9 * DAY, source="p1", outcome="absent") for plan in ("p5",)))
    found = find(context, plan_id="p1")
    assert str(found) == "2 files (20 B) were purged permanently between 2026-11-21 and 2026-11-29 by plans p2, p5, and cannot be restored."


def test_files_in_quarantine_have_the_date_of_the_first_purge(context: RunContext) -> None:
    publish_log(context, log_row("d", "quarantine", "p3", minutes=2 * DAY))
    first = NOW + timedelta(days=context.storage(STORAGE).quarantine_days)
    assert describe_quarantine(context, STORAGE) == f"2 files (20 B) are in quarantine; the first can be purged from {first:%Y-%m-%d}."
    publish_log(context, *(log_row(key, "purge", "p9", minutes=9 * DAY, source=by) for key, by in (("c", "p1"), ("d", "p3"))))
    assert describe_quarantine(context, STORAGE) is None


def test_purges_of_rehearsals_are_marked(context: RunContext) -> None:
    publish_log(
        context, log_row("d", "quarantine", "p6", rehearsal=True), log_row("d", "purge", "p7", source="p6", minutes=1, rehearsal=True)
    )
    assert str(find(context, key="d")).startswith("REHEARSAL The file was purged permanently on 2026-11-20")


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_purged_files_do_not_depend_on_log_chunk_size(context: RunContext, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    keys = [f"{number}/x" for number in range(40)]
    publish_log(context, *(log_row(key, "quarantine", "p6") for key in keys))
    publish_log(context, *(log_row(key, "purge", "p7", source="p6", minutes=9) for key in keys[:25]))

    def find_all() -> list[object]:
        by_plan = find_purged_by(context.state, STORAGE, "p7")
        return [find(context), find(context, plan_id="p6"), by_plan, count_restorable(context.state, STORAGE)]

    expected = find_all()
    assert str(expected[2]).startswith("25 files")
    assert expected[3] == {"p1": 1, "p6": 15}
    monkeypatch.setattr(ledger, "SHARE_ROWS", rows)
    assert find_all() == expected
