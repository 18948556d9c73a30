"""How a storage stands: which plan is that of its last night, which approvals wait, which executions nobody goes on with."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.notifications import FailedApply, StorageSummary
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.read.status import storage_status
from gc_assets.stages.records.leases import take_lease
from gc_assets.stages.records.plans import approve, reject
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    (tmp_path / "warehouse").mkdir()
    return platform(tmp_path)


def found(at: Platform, *failed: FailedApply) -> StorageSummary:
    return storage_status(at.config, at.clock, at.config.storage("warehouse"), failed)


def approved(at: Platform) -> str:
    plan_id = header_of(stored_plan(at)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    return plan_id


def begun(at: Platform, plan_id: str, token: int = 1) -> None:
    """As an apply leaves it that was killed once it had begun."""
    log = Path(at.config.state) / "warehouse" / "apply" / plan_id
    (log / "share-00000").mkdir(parents=True, exist_ok=True)
    (log / "log.json").write_text("{}")
    (log / "share-00000" / f"{token:06d}-{'0' * 32}-1.intent.jsonl").write_text("")


def test_before_the_first_night_there_is_nothing_to_tell(at: Platform) -> None:
    assert found(at) == StorageSummary("warehouse", None)


def test_the_last_night_is_told_with_its_plan_and_what_that_lacks(at: Platform) -> None:
    header = header_of(stored_plan(at))
    last = found(at).last
    assert last is not None
    assert (last.header, last.status, last.missing) == (header, "ready", "not approved")
    assert last.reversibility == describe_reversibility(header, at.config).lines


def test_an_empty_plan_is_a_night_and_an_analysis_is_none(at: Platform) -> None:
    header = header_of(stored_plan(at, files=0, run_date="2026-03-12"))
    stored_plan(at, run_date="2026-03-13", historical=True)
    last = found(at).last
    assert last is not None
    assert last.header == header


def test_a_rehearsal_is_no_night_of_the_real_clock(at: Platform) -> None:
    stored_plan(at)
    assert found(replace(at, clock=Clock())).last is None


def test_an_approved_plan_waits_until_it_is_begun(at: Platform) -> None:
    plan_id = approved(at)
    assert [plan.plan_id for plan in found(at).approved] == [plan_id]
    begun(at, plan_id)
    assert found(at).approved == ()


def test_a_rejected_plan_waits_for_nothing(at: Platform) -> None:
    plan_id = approved(at)
    reject(at.config, at.clock, plan_id, "ada")
    assert found(at).approved == ()


def test_a_plan_that_began_and_did_not_end_failed_unless_somebody_is_at_work_on_it(at: Platform) -> None:
    plan_id = approved(at)
    begun(at, plan_id)
    night = at.run_context(NOW.date())
    lease = take_lease(night, "warehouse", night.store("warehouse"), plan_id, "kim")
    assert found(at).failed == ()
    lease.release()
    (failed,) = found(at).failed
    assert (failed.plan_id, failed.attempt) == (plan_id, "lease 1")
    begun(at, plan_id, token=2)
    assert [item.attempt for item in found(at).failed] == ["lease 2"]


def test_a_restore_of_something_else_is_no_new_attempt_at_a_half_applied_plan(at: Platform) -> None:
    plan_id = approved(at)
    begun(at, plan_id)
    night = at.run_context(NOW.date())
    take_lease(night, "warehouse", night.store("warehouse"), "restore-1", "kim").release()
    take_lease(night, "warehouse", night.store("warehouse"), "restore-2", "kim").release()
    assert [item.attempt for item in found(at).failed] == ["lease 1"]


def test_a_lease_that_cannot_be_read_hides_nothing_of_its_storage(at: Platform) -> None:
    plan_id = approved(at)
    begun(at, plan_id)
    lease = Path(at.config.storage("warehouse").location.removeprefix("file://")) / ".gc-assets" / "lease.json"
    lease.parent.mkdir()
    lease.write_text("no lease")
    summary = found(at)
    assert summary.last is not None
    assert [item.plan_id for item in summary.failed] == [plan_id]
    assert "not known" in summary.failed[0].reason


def test_a_run_that_failed_counts_for_the_plan_whose_first_characters_it_was_given(at: Platform) -> None:
    plan_id = approved(at)
    assert found(at, FailedApply(plan_id[:10], "run 7", "refused")).failed == (FailedApply(plan_id, "run 7", "refused"),)


def test_of_several_runs_that_failed_the_newest_counts_also_where_the_plan_is_half_applied(at: Platform) -> None:
    plan_id = approved(at)
    begun(at, plan_id)
    runs = [FailedApply(plan_id, f"run {number}", "") for number in (9, 8)]
    assert [item.attempt for item in found(at, *runs).failed] == ["run 9"]


def test_a_run_that_failed_counts_for_no_plan_that_nobody_approved_or_that_ran_out(at: Platform) -> None:
    plan_id = header_of(stored_plan(at)).plan_id
    failed = FailedApply(plan_id, "run 7", "not approved")
    assert found(at, failed, FailedApply("", "run 8", "")).failed == ()
    approve(at.config, at.clock, plan_id, "kim")
    assert found(replace(at, clock=Clock(NOW + timedelta(days=4))), failed).failed == ()
