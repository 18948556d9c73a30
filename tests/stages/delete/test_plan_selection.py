"""Without a plan id only what is needed again is put back; with one exactly that plan is executed."""

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


def test_a_plan_id_chooses_that_plan_with_all_its_phases(tmp_path: Path) -> None:
    at = platform(tmp_path)
    header = header_of(stored_plan(at))
    choice = select_plan(at.run_context(NOW.date()), "warehouse", header.plan_id)
    assert choice.plan is not None
    assert (choice.plan.header, choice.phases) == (header, PHASES)


def test_without_a_plan_id_what_is_needed_again_is_put_back_and_nothing_else_is_done(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, action=RESTORE))
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is not None
    assert (choice.plan.header, choice.phases) == (header, (RESTORE,))


@pytest.mark.parametrize("action", [QUARANTINE, PURGE])
def test_without_a_plan_id_a_plan_that_puts_nothing_back_waits_for_its_approval(tmp_path: Path, action: str) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at, action=action)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "no quarantined file is needed again" in choice.reason


def test_without_a_plan_id_nothing_is_put_back_in_mode_plan(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at, action=RESTORE)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "mode plan" in choice.reason


def test_without_a_plan_id_nothing_is_put_back_of_a_past_run_date(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at, run_date=YESTERDAY, action=RESTORE)
    choice = select_plan(at.run_context(date.fromisoformat(YESTERDAY)), "warehouse")
    assert choice.plan is None
    assert "is past" in choice.reason


def test_nothing_is_put_back_by_a_rehearsals_clock_where_rehearsals_may_change_nothing(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply", rehearsals="refused")
    stored_plan(at, action=RESTORE)
    choice = select_plan(at.run_context(NOW.date()), "warehouse")
    assert choice.plan is None
    assert "the clock is a rehearsal's" in choice.reason


@pytest.mark.parametrize("phases", [PHASES, (RESTORE,)])
def test_an_approved_plan_of_a_rehearsal_is_applied_only_where_rehearsals_are_allowed(tmp_path: Path, phases: tuple[str, ...]) -> None:
    allowed, refused = (platform(tmp_path, mode="apply", rehearsals=word) for word in ("allowed", "refused"))
    header = header_of(stored_plan(allowed))
    approve(allowed.config, allowed.clock, header.plan_id, "ada")
    plan = find_plan(allowed.config, header.plan_id)
    refuse_apply(allowed.run_context(NOW.date()), plan, phases)
    with pytest.raises(GateRefused, match="by which no age is true"):
        refuse_apply(refused.run_context(NOW.date()), plan, phases)


def test_a_plan_of_another_run_date_is_wrong_usage(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, run_date=YESTERDAY))
    with pytest.raises(UsageError, match=f"this is warehouse of {TODAY}"):
        select_plan(at.run_context(NOW.date()), "warehouse", header.plan_id)


def test_another_mode_is_that_storages_alone_and_leaves_the_policy_as_it_is(tmp_path: Path) -> None:
    night = platform(tmp_path).run_context(NOW.date())
    other = in_mode(night, "warehouse", "apply")
    assert (night.storage("warehouse").mode, other.storage("warehouse").mode) == ("plan", "apply")
    assert other.config.policy_digest() == night.config.policy_digest()
