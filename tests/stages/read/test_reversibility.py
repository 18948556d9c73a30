"""The sentences on a plan: reversible effects, final effects and freed bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount, PlanHeader, Uploads
from gc_assets.lakes.kinds import KINDS
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.reversibility import (
    RecordedActions,
    apply_command,
    confirm_question,
    describe_outcomes,
    describe_plan_effects,
    describe_recorded,
    describe_reversibility,
    summarize_reversibility,
)
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    return platform(tmp_path)


def plan(at: Platform, **how: Any) -> PlanHeader:
    return header_of(stored_plan(at)).model_copy(update=how)


def lines(at: Platform, *, restored: bool = False, undone: bool = False, **how: Any) -> tuple[str, str, str]:
    return describe_reversibility(plan(at, **how), at.config, restored=restored, undone=undone).lines


AMOUNT = Amount(files=3, bytes=2_000_000)


def test_quarantined_files_can_be_restored_until_a_purge(at: Platform) -> None:
    can, cannot, free = lines(at, totals={QUARANTINE: AMOUNT})
    assert "Can be undone: 3 files (2 MB) to quarantine: `gc-assets restore --plan " in can
    assert "` moves them back, before a later plan with its own approval purges them, at the earliest 7 days after quarantine." in can
    assert cannot == "Cannot be undone: nothing."
    assert free == "Becomes free: 2 MB when a later plan purges them, at the earliest 7 days after this plan is applied."


def test_applied_plan_shows_earliest_purge_date(at: Platform) -> None:
    found = describe_reversibility(plan(at, totals={QUARANTINE: AMOUNT}), at.config, applied_at=NOW)
    assert found.can_be_undone.startswith("3 files (2 MB) in quarantine: `gc-assets restore --plan ")
    assert found.becomes_free == "2 MB when a later plan purges them, at the earliest on 2026-03-21"


def test_space_of_applied_purge_is_reported_as_free(at: Platform) -> None:
    purge = {"totals": {PURGE: AMOUNT}, "uploads": Uploads(count=2, bytes=5)}
    found = describe_reversibility(plan(at, **purge), at.config, applied_at=NOW)
    assert found.becomes_free == "nothing more; 2 MB is free now, by the purge; 5 B is free now, by aborting unfinished uploads"
    purge["totals"] |= {QUARANTINE: Amount(files=1, bytes=7)}
    found = describe_reversibility(plan(at, **purge), at.config, applied_at=NOW)
    assert found.becomes_free.startswith("7 B when a later plan purges them, at the earliest on 2026-03-21; 2 MB is free now, by the purge")


def test_summary_contains_free_bytes_and_final_and_reversible_effects(at: Platform) -> None:
    totals = {QUARANTINE: AMOUNT, PURGE: Amount(files=1, bytes=7)}
    summary = summarize_reversibility(plan(at, totals=totals, expiry_actions={"sales": 9, "weather": 2}), at.config)
    free, final, undone = summary.split("; ")
    assert free == "7 B becomes free immediately and 2 MB when a later plan purges it, at the earliest 7 days after this plan is applied"
    assert final == "final: the purge of 1 file, 9 edits of the history of lake sales"
    assert undone == "can be undone: 3 files before that purge, 2 edits of the history of lake weather before it"


def test_summary_of_applied_plan_shows_freed_and_waiting_space(at: Platform) -> None:
    header = plan(at, totals={QUARANTINE: AMOUNT, PURGE: Amount(files=1, bytes=7)})
    free = summarize_reversibility(header, at.config, applied_at=NOW).partition("; ")[0]
    assert free == "7 B is free now and 2 MB when a later plan purges it, at the earliest on 2026-03-21"


def test_plan_effects_separate_final_from_reversible(at: Platform) -> None:
    totals = {QUARANTINE: AMOUNT, PURGE: Amount(files=1, bytes=7), RESTORE: Amount(files=2, bytes=8)}
    header = plan(
        at, totals=totals, expiry_actions={"sales": 9, "weather": 2}, idle_branches={"sales": 4}, uploads=Uploads(count=2, bytes=5)
    )
    final = "purge 1 file (7 B), 5 history edits, abort 2 uploads (5 B)"
    reversible = "quarantine 3 files (2 MB), restore 2 files (8 B), 6 history edits"
    assert describe_plan_effects(header, at.config) == (final, reversible)
    assert describe_plan_effects(header.summary, at.config) == (final, reversible), "lists have only the summary"
    assert confirm_question(header, at.config, "ada") == (
        f"Cannot be undone: {final}. Can be undone: {reversible}.\nApprove this plan as ada?"
    )


def test_confirmation_question_shows_that_nothing_is_irreversible(at: Platform) -> None:
    assert confirm_question(plan(at), at.config, "ada").startswith("Cannot be undone: nothing. Can be undone: quarantine 2 files")
    assert confirm_question(plan(at, totals={}, rows=0), at.config, "ada") == "Approve this plan as ada?"


def test_summary_of_a_restored_plan_is_empty(at: Platform) -> None:
    summary = summarize_reversibility(plan(at, totals={QUARANTINE: AMOUNT}), at.config, restored=True)
    assert summary == "nothing becomes free immediately; final: nothing; can be undone: nothing"


def test_purge_is_final_and_frees_bytes_immediately(at: Platform) -> None:
    can, cannot, free = lines(at, totals={PURGE: AMOUNT})
    assert can == "Can be undone: nothing."
    assert cannot == "Cannot be undone: 3 files (2 MB) purged permanently."
    assert free == "Becomes free: 2 MB immediately, by the purge."


def test_irreversible_history_edits_are_described_as_final(at: Platform) -> None:
    can, cannot, _ = lines(at, totals={}, expiry_actions={"sales": 9, "weather": 2})
    assert "2 edits of the history of lake weather (Icechunk): `gc-assets restore --plan " in can
    assert "--history`" in can
    assert "9 edits of the history of lake sales (Iceberg): removed snapshots of an Iceberg table" in cannot
    assert "weather" not in cannot


def test_history_edits_of_unconfigured_lake_are_described_as_final(at: Platform) -> None:
    can, cannot, _ = lines(at, totals={}, expiry_actions={"gone": 1})
    assert "gone" not in can
    assert "lake gone: the lake is no longer in lakes.yaml, so this counts as final" in cannot


def test_deferred_quarantine_is_described_as_deletion_in_place(at: Platform) -> None:
    _, cannot, _ = lines(at, totals={QUARANTINE: AMOUNT}, quarantine="deferred")
    assert "files stay in place, and the plan that purges them deletes them there permanently" in cannot


def test_restore_actions_and_restored_plans_are_described(at: Platform) -> None:
    assert "3 files (2 MB) only restored from quarantine" in lines(at, totals={RESTORE: AMOUNT})[0]
    can, cannot, free = lines(at, restored=True, totals={QUARANTINE: AMOUNT}, expiry_actions={"sales": 9})
    assert can == "Can be undone: nothing more of its files, because they were restored."
    assert "9 edits" in cannot
    assert free == "Becomes free: nothing."
    assert "reverts them" in lines(at, restored=True, totals={}, expiry_actions={"weather": 2})[0]
    can, _, _ = lines(at, restored=True, undone=True, totals={QUARANTINE: AMOUNT}, expiry_actions={"weather": 2})
    assert can == "Can be undone: nothing more of its files, because they were restored."


def test_history_edits_are_final_for_iceberg_and_reversible_for_icechunk() -> None:
    assert {kind.name: kind.undoes_edits for kind in KINDS.values() if kind.edits_history} == {"iceberg": False, "icechunk": True}


@pytest.mark.parametrize("mode, more", [("plan", " --mode apply"), ("apply", "")])
def test_apply_command_depends_on_storage_mode(tmp_path: Path, mode: str, more: str) -> None:
    at = platform(tmp_path, mode=mode)
    header = plan(at)
    assert apply_command(header, at.config) == f"gc-assets apply {header.plan_id[:12]}{more}"


def test_outcome_text_lists_most_frequent_reasons_with_counts(at: Platform) -> None:
    counts = {(QUARANTINE, "done"): 1, (QUARANTINE, "denied"): 9, (QUARANTINE, "failed"): 1}
    reasons = {
        (QUARANTINE, "denied"): {"no right": 2, "locked": 3, "read-only": 1, "too long.": 2, "other": 1},
        (QUARANTINE, "failed"): {"EIO": 1},
    }
    assert list(describe_outcomes(plan(at), counts, reasons)) == [
        "Quarantine: 1 file moved to quarantine; 9 were denied, 1 failed.",
        "- 3 denied: locked.",
        "- 2 denied: no right.",
        "- 2 denied: too long.",
        "- 2 denied for 2 other reasons.",
        "- 1 failed: EIO.",
    ]


def test_interrupted_apply_lists_irreversible_actions_first(at: Platform) -> None:
    header = plan(at, totals={QUARANTINE: Amount(files=50), PURGE: Amount(files=7)}, expiry_actions={"sales": 9, "weather": 2})
    counts = {(QUARANTINE, "done"): 20, (QUARANTINE, "unknown"): 5, (PURGE, "done"): 3, (PURGE, "changed"): 1}
    edits = {"sales": {"done": 6, "unknown": 3}, "weather": {"done": 2}}
    tables = {"sales": tuple(f"db.t{number}" for number in range(7)), "weather": ()}
    name = header.plan_id[:12]
    assert list(describe_recorded(header, RecordedActions(counts, edits, tables), at.config)) == [
        "Expire: 6 of 9 edits of the history of lake sales recorded as made (db.t0, db.t1, db.t2, db.t3, db.t4 and 2 more). "
        "They are final. Whether 3 more were made is not recorded: the next apply checks each of them, and continues with the rest.",
        f"Expire: 2 of 2 edits of the history of lake weather made. `gc-assets restore --plan {name} --history` undoes them.",
        "Purge: 3 of 7 files purged. This cannot be undone.",
        f"Quarantine: 20 of 50 files recorded as moved to quarantine. `gc-assets restore --plan {name}` moves them back. "
        "Whether 5 more were moved is not recorded: the next apply checks each of them, and continues with the rest.",
    ]


def test_text_of_killed_apply_explains_what_next_apply_does(at: Platform) -> None:
    header = plan(at, totals={}, expiry_actions={"sales": 11})
    assert list(describe_recorded(header, RecordedActions({}, {"sales": {"unknown": 11}}, {}), at.config)) == [
        "Expire: 0 of 11 edits of the history of lake sales recorded as made. "
        "Whether 11 more were made is not recorded: the next apply checks each of them, and continues with the rest."
    ]
    header = plan(at, totals={PURGE: AMOUNT}, expiry_actions={})
    assert list(describe_recorded(header, RecordedActions({(PURGE, "unknown"): 1}, {}, {}), at.config)) == [
        "Purge: 0 of 3 files recorded as purged. Whether 1 more was purged is not recorded: the next apply checks it, and continues "
        "with the rest."
    ]


def test_recorded_actions_without_effect_are_described_as_no_change(at: Platform) -> None:
    recorded = RecordedActions({(QUARANTINE, "denied"): 4}, {"sales": {"changed": 1}}, {})
    assert list(describe_recorded(plan(at), recorded, at.config)) == ["Nothing was changed."]
    partly = RecordedActions({(PURGE, "done"): 4}, {}, {}, is_complete=False)
    assert next(describe_recorded(plan(at, totals={PURGE: AMOUNT}), partly, at.config)).startswith("Purge: at least 4 of 3 files purged.")
