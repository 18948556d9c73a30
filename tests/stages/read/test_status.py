"""The status of a storage: its last run, pending approvals and unfinished applies."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.notifications import FailedApply, StorageSummary
from gc_assets.core.phases import QUARANTINE
from gc_assets.core.plan import Amount
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.read.status import storage_status
from gc_assets.stages.records.leases import take_lease
from gc_assets.stages.records.plans import approve, record_finished, record_restored, reject
from gc_assets.state.journal import State
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    (tmp_path / "warehouse").mkdir()
    return platform(tmp_path)


def read_status(at: Platform, *failed: FailedApply) -> StorageSummary:
    return storage_status(at.config, at.clock, at.config.storage("warehouse"), failed)


def approve_plan(at: Platform) -> str:
    plan_id = header_of(stored_plan(at)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    return plan_id


def begin_apply(at: Platform, plan_id: str, token: int = 1) -> None:
    """Leave the files of an apply that was killed after it had begun."""
    log = Path(at.config.state) / "warehouse" / "apply" / plan_id
    (log / "share-00000").mkdir(parents=True, exist_ok=True)
    (log / "log.json").write_text("{}")
    (log / "share-00000" / f"{token:06d}-{'0' * 32}-1.intent.jsonl").write_text("")


def test_status_is_empty_before_the_first_run(at: Platform) -> None:
    assert read_status(at) == StorageSummary("warehouse", None)


def test_last_run_is_reported_with_plan(at: Platform) -> None:
    header = header_of(stored_plan(at))
    last = read_status(at).last
    assert last is not None
    assert (last.header, last.status, last.missing) == (header, "ready", "not approved")
    assert last.reversibility == describe_reversibility(header, at.config).lines


def test_empty_plan_counts_as_run_but_historical_plan_does_not(at: Platform) -> None:
    header = header_of(stored_plan(at, files=0, run_date="2026-03-12"))
    stored_plan(at, run_date="2026-03-13", historical=True)
    last = read_status(at).last
    assert last is not None
    assert last.header == header


def test_rehearsal_does_not_count_as_real_run(at: Platform) -> None:
    stored_plan(at)
    assert read_status(replace(at, clock=Clock())).last is None


def test_approved_plan_is_pending_until_its_apply_begins(at: Platform) -> None:
    plan_id = approve_plan(at)
    assert [plan.plan_id for plan in read_status(at).approved] == [plan_id]
    begin_apply(at, plan_id)
    assert read_status(at).approved == ()


def test_rejected_plan_is_not_pending(at: Platform) -> None:
    plan_id = approve_plan(at)
    reject(at.config, at.clock, plan_id, "ada")
    assert read_status(at).approved == ()


def test_unfinished_plan_is_failed_unless_it_is_in_progress(at: Platform) -> None:
    plan_id = approve_plan(at)
    begin_apply(at, plan_id)
    run_context = at.run_context(NOW.date())
    lease = take_lease(run_context, "warehouse", run_context.store("warehouse"), plan_id, "kim")
    assert read_status(at).failed == ()
    lease.release()
    (failed,) = read_status(at).failed
    assert (failed.plan_id, failed.attempt) == (plan_id, "lease 1")
    begin_apply(at, plan_id, token=2)
    assert [item.attempt for item in read_status(at).failed] == ["lease 2"]


def test_restore_of_another_plan_does_not_count_as_apply_attempt(at: Platform) -> None:
    plan_id = approve_plan(at)
    begin_apply(at, plan_id)
    run_context = at.run_context(NOW.date())
    take_lease(run_context, "warehouse", run_context.store("warehouse"), "restore-1", "kim").release()
    take_lease(run_context, "warehouse", run_context.store("warehouse"), "restore-2", "kim").release()
    assert [item.attempt for item in read_status(at).failed] == ["lease 1"]


def test_unfinished_plan_is_shown_if_lease_is_unreadable(at: Platform) -> None:
    plan_id = approve_plan(at)
    begin_apply(at, plan_id)
    lease = Path(at.config.storage("warehouse").location.removeprefix("file://")) / ".gc-assets" / "lease.json"
    lease.parent.mkdir()
    lease.write_text("no lease")
    summary = read_status(at)
    assert summary.last is not None
    assert [item.plan_id for item in summary.failed] == [plan_id]
    assert "is unknown" in summary.failed[0].reason


def test_failed_run_is_matched_to_plan_by_id_prefix(at: Platform) -> None:
    plan_id = approve_plan(at)
    assert read_status(at, FailedApply(plan_id[:10], "run 7", "refused")).failed == (FailedApply(plan_id, "run 7", "refused"),)


def test_newest_failed_run_is_shown(at: Platform) -> None:
    plan_id = approve_plan(at)
    begin_apply(at, plan_id)
    runs = [FailedApply(plan_id, f"run {number}", "") for number in (9, 8)]
    assert [item.attempt for item in read_status(at, *runs).failed] == ["run 9"]


def test_failed_run_is_not_shown_for_unapproved_or_expired_plans(at: Platform) -> None:
    plan_id = header_of(stored_plan(at)).plan_id
    failed = FailedApply(plan_id, "run 7", "not approved")
    assert read_status(at, failed, FailedApply("", "run 8", "")).failed == ()
    approve(at.config, at.clock, plan_id, "kim")
    assert read_status(replace(at, clock=Clock(NOW + timedelta(days=4))), failed).failed == ()


def finish(at: Platform, hours_ago: float = 0, **by_outcome: dict[str, int]) -> str:
    """Record that an approved plan was applied."""
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    record = {"at": (at.clock.now() - timedelta(hours=hours_ago)).isoformat(), "by_outcome": by_outcome}
    record_finished(State.of(at.config), header, record)
    return header.plan_id


def test_applied_plan_is_reported_with_its_outcome_counts(at: Platform) -> None:
    outcomes = {"quarantine/done": {"files": 1, "bytes": 100}, "quarantine/denied": {"files": 1, "bytes": 100}}
    plan_id = finish(at, **outcomes)
    (applied,) = read_status(at).applied
    assert (applied.header.plan_id, applied.status, applied.approved_by) == (plan_id, "partially applied", "kim")
    assert applied.header.totals[QUARANTINE] == Amount(files=1, bytes=100)
    assert applied.not_done == "1 file of phase quarantine (denied)"


def test_earlier_applied_plan_is_reported_for_three_days(at: Platform) -> None:
    finish(at, hours_ago=71)
    assert len(read_status(at).applied) == 1
    assert read_status(replace(at, clock=Clock(NOW + timedelta(hours=2)))).applied == ()


def test_restored_plan_is_reported_as_applied_and_restored(at: Platform) -> None:
    plan_id = finish(at)
    record_restored(State.of(at.config), "warehouse", plan_id, NOW, "restore-1")
    assert [item.status for item in read_status(at).applied] == ["applied and restored"]
