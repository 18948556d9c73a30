"""A plan is executed only if its id is given; without an id, only needed files are restored."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.phases import PHASES, PURGE, QUARANTINE, RESTORE
from gc_assets.stages.delete.apply import refuse_apply
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.delete.plan_selection import in_mode, select_plan
from gc_assets.stages.records.plans import approve, find_plan
from tests.assets.platforms import NOW, TODAY, platform, stored_plan

YESTERDAY = "2026-03-13"


def test_plan_id_selects_plan_with_all_phases(tmp_path: Path) -> None:
    at = platform(tmp_path)
    header = header_of(stored_plan(at))
    choice = select_plan(at.run_context(NOW.date()), "warehouse", header.plan_id)
    assert choice.plan is not None
    assert (choice.plan.header, choice.phases) == (header, PHASES)


def test_run_without_plan_id_only_restores_needed_files(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, action=RESTORE))
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is not None
    assert (choice.plan.header, choice.phases) == (header, (RESTORE,))


@pytest.mark.parametrize("action", [QUARANTINE, PURGE])
def test_plan_without_restores_is_not_applied_without_approval(tmp_path: Path, action: str) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at, action=action)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "no quarantined file is needed again" in choice.reason


def test_run_without_plan_id_restores_nothing_in_plan_mode(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at, action=RESTORE)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "plan mode" in choice.reason


def test_run_without_plan_id_restores_nothing_for_a_past_date(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at, run_date=YESTERDAY, action=RESTORE)
    choice = select_plan(at.run_context(date.fromisoformat(YESTERDAY)), "warehouse")
    assert choice.plan is None
    assert "is in the past" in choice.reason


def test_rehearsal_restores_nothing_unless_the_storage_allows_it(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply", rehearsals="refused")
    stored_plan(at, action=RESTORE)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "the storage does not allow rehearsals" in choice.reason


@pytest.mark.parametrize("phases", [PHASES, (RESTORE,)])
def test_rehearsal_applies_a_plan_only_if_the_storage_allows_it(tmp_path: Path, phases: tuple[str, ...]) -> None:
    allowed, refused = (platform(tmp_path, mode="apply", rehearsals=word) for word in ("allowed", "refused"))
    header = header_of(stored_plan(allowed))
    approve(allowed.config, allowed.clock, header.plan_id, "ada")
    plan = find_plan(allowed.config, header.plan_id)
    refuse_apply(allowed.run_context(NOW.date()), plan, phases)
    with pytest.raises(GateRefused, match="because the ages of files are not real"):
        refuse_apply(refused.run_context(NOW.date()), plan, phases)


def test_error_for_missing_plan_id_lists_approved_plans_of_run_date(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at)).plan_id
    run_context = at.run_context(NOW.date())
    reason = select_plan(run_context, "warehouse").reason
    assert reason.endswith(f"nothing was changed. No plan of {TODAY} is approved and waiting to be applied.")
    approve(at.config, at.clock, plan_id, "ada")
    approved = f"nothing was changed. Approved plans of {TODAY}: {plan_id[:12]}. Enter one in `plan_id` to apply it."
    assert select_plan(run_context, "warehouse").reason.endswith(approved)


def test_error_for_missing_plan_id_lists_approved_plans_of_past_date(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at, run_date=YESTERDAY)).plan_id
    approve(at.config, at.clock, plan_id, "ada")
    reason = select_plan(at.run_context(date.fromisoformat(YESTERDAY)), "warehouse").reason
    assert "is in the past" in reason
    assert reason.endswith(f"Approved plans of {YESTERDAY}: {plan_id[:12]}. Enter one in `plan_id` to apply it.")


def test_plan_of_another_run_date_is_refused(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, run_date=YESTERDAY))
    with pytest.raises(UsageError, match=f"not to warehouse and {TODAY}"):
        select_plan(at.run_context(NOW.date()), "warehouse", header.plan_id)


def test_in_mode_changes_one_storage_but_not_policy_digest(tmp_path: Path) -> None:
    run_context = platform(tmp_path).run_context(NOW.date())
    other = in_mode(run_context, "warehouse", "apply")
    assert (run_context.storage("warehouse").mode, other.storage("warehouse").mode) == ("plan", "apply")
    assert other.config.policy_digest() == run_context.config.policy_digest()
