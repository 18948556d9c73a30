"""`gc-assets approve` shows a plan and asks before it records an approval."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli import output
from gc_assets.cli.decision import print_next_step
from gc_assets.cli.main import cli
from gc_assets.cli.plans import plan_row
from gc_assets.core.gates import lakes_present, live_drop
from gc_assets.core.plan import Amount, LiveCount
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import PlanRecord, find_plan, list_plans, record_finished
from gc_assets.state.journal import State
from tests.assets.platforms import NOW, stored_plan

CLOCK = {"GC_ASSETS_UNSAFE_NOW": NOW.isoformat(), "COLUMNS": "100"}


class Plans:
    """A state with plans, and the commands on it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "lakes.yaml"
        storage = {"name": "warehouse", "location": "file:///nowhere/warehouse/", "rehearsals": "allowed"}
        lake = {"name": "sales", "kind": "iceberg", "catalog": {"type": "sql", "uri": "sqlite:////nowhere/catalog.db"}}
        self.path.write_text(json.dumps({"state": str(root / "state"), "storages": [storage], "lakes": [lake]}))

    def add(self, **header: Any) -> str:
        return header_of(stored_plan(load_platform(CLOCK, str(self.path)), **header)).plan_id[:12]

    def call(self, *command: str, answer: str = "") -> Result:
        return CliRunner(env=CLOCK).invoke(cli, [*command, "--config", str(self.path)], input=answer)

    def status(self) -> str:
        return json.loads(self.call("plans", "--format", "json").stdout)[0]["status"]


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(tmp_path)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_interactive", lambda: True)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer, status", [("y\n", "approved"), ("n\n", "ready"), ("\n", "ready"), ("", "ready")])
def test_approve_asks_for_confirmation_on_a_terminal(plans: Plans, answer: str, status: str) -> None:
    plan = plans.add(edits_by_action={"remove_snapshot": 12}, expiry_actions={"sales": 12}, after_expiry=Amount(files=1, bytes=100))
    result = plans.call("approve", plan, "--by", "ada", answer=answer)
    assert "Approve this plan as ada? [y/N]" in result.stderr
    for text in ("Can be undone: 2 files", "Cannot be undone: 12 edits", "Plan: quarantine 2 files (200 B), expire 12 snapshots, purge 0"):
        assert result.stderr.index(text) < result.stderr.index("Approve this plan")
    assert (plans.status(), result.exit_code == 0) == (status, status == "approved")


@pytest.mark.usefixtures("terminal")
def test_approval_shows_purges_separately_from_quarantine(plans: Plans) -> None:
    totals = {"purge": Amount(files=1, bytes=100), "quarantine": Amount(files=1, bytes=100)}
    plan = plans.add(action="purge", files=1, totals=totals, expiry_actions={"sales": 12})
    result = plans.call("approve", plan, "--by", "ada", answer="n\n")
    assert "sales  purge 1 file (100 B), 12 history edits" in result.stderr
    effects = "Cannot be undone: purge 1 file (100 B), 12 history edits. Can be undone: quarantine 1 file (100 B)."
    assert f"{effects} Approve this plan as ada? [y/N]" in " ".join(result.stderr.split())
    header, _, row, *others = plans.call("plans").stdout.splitlines()
    assert header.endswith("cannot be undone")
    assert row.endswith("purge 1 file (100 B), 12 history edits")
    assert others[0].startswith("    can be undone: quarantine 1 file (100 B)  decision: none")


@pytest.mark.usefixtures("terminal")
def test_yes_option_skips_the_confirmation(plans: Plans) -> None:
    result = plans.call("approve", plans.add(), "--by", "ada", "--yes")
    assert (result.exit_code, plans.status()) == (0, "approved")
    assert "Approve this plan" not in result.output


def test_approve_in_a_script_needs_no_confirmation(plans: Plans) -> None:
    result = plans.call("approve", plans.add(), "--by", "ada", "--format", "json")
    assert (result.exit_code, plans.status()) == (0, "approved")
    assert json.loads(result.stdout)[0]["decision"] == "approved"


def test_apply_in_plan_mode_reports_mode_and_missing_approval(plans: Plans) -> None:
    plan = plans.add()
    refused = " ".join(plans.call("apply", plan).stderr.split())
    assert "storage warehouse is in plan mode" in refused
    assert refused.endswith(f"Also, plan {plan} is not approved. Approve it with gc-assets approve {plan} --by WHO")
    plans.call("approve", plan, "--by", "ada")
    assert "not approved" not in plans.call("apply", plan).stderr


def test_apply_interrupted_before_any_change_reports_no_change(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    plan = plans.add()
    monkeypatch.setattr("gc_assets.stages.records.plans.find_plan", interrupt)
    result = plans.call("apply", plan)
    assert (result.exit_code, "interrupted before this command changed anything" in result.stderr) == (130, True)


@pytest.mark.usefixtures("terminal")
def test_refusal_ends_with_one_command(plans: Plans) -> None:
    plan = plans.add(max_delete_bytes=100)
    result = plans.call("approve", plan, "--by", "ada", answer="y\n")
    assert (result.exit_code, plans.status()) == (3, "refused")
    assert "Approve this plan" not in result.output
    assert result.stderr.splitlines()[-1] == f"  gc-assets approve {plan} --by WHO --override delete_bytes"


def test_next_step_after_a_run_depends_on_decisions(
    plans: Plans, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    platform = load_platform(CLOCK, str(plans.path))
    header = header_of(stored_plan(platform))
    plan = header.plan_id[:12]

    def read_next() -> list[str]:
        print_next_step(platform.config, header)
        return capsys.readouterr().err.splitlines()

    assert read_next() == ["Approve before 2026-03-15 09:30Z:", f"  gc-assets approve {plan} --by YOUR_NAME"]
    plans.call("reject", plan, "--by", "ada", "--comment", "orders is being migrated")
    assert read_next() == [
        "This plan was rejected by ada at 2026-03-14 09:30:00Z: orders is being migrated.",
        "The next run makes the same plan, which stays rejected, unless its content or the policy in",
        "lakes.yaml changes.",
        "To approve it after all, before 2026-03-15 09:30Z:",
        f"  gc-assets approve {plan} --by ada",
    ]
    plans.call("approve", plan, "--by", "ada")
    assert read_next() == ["Approved by ada. Apply before 2026-03-17 09:30Z:", f"  gc-assets apply {plan} --mode apply"]


def test_next_step_of_a_refused_plan_contains_the_overrides(plans: Plans, capsys: pytest.CaptureFixture[str]) -> None:
    platform = load_platform(CLOCK, str(plans.path))
    header = header_of(stored_plan(platform, max_delete_bytes=100))
    print_next_step(platform.config, header)
    assert capsys.readouterr().err.splitlines() == [
        "To approve it in spite of its gates:",
        f"  gc-assets approve {header.plan_id[:12]} --by YOUR_NAME --override delete_bytes",
    ]


def test_refused_plan_without_actions_is_listed_and_can_be_overridden(plans: Plans) -> None:
    gate = live_drop(LiveCount(1), LiveCount(100), 0.2)
    plan = plans.add(files=0, gates=(gate,))
    assert (plans.status(), plan in plans.call("plans").stdout) == ("refused", True)
    refused = plans.call("approve", plan, "--by", "ada")
    assert (refused.exit_code, "live_drop: " in refused.stderr) == (3, True)
    assert refused.stderr.splitlines()[-1] == f"  gc-assets approve {plan} --by WHO --override live_drop"
    mistyped = plans.call("approve", plan, "--by", "ada", "--override", "live_dorp")
    assert (mistyped.exit_code, "--override live_dorp: no such gate" in mistyped.stderr) == (2, True)
    approved = plans.call("approve", plan, "--by", "ada", "--override", "live_drop")
    assert approved.stderr.splitlines()[-1] == "The next run counts from this one; there is nothing to apply."
    assert "Nothing to do: the plan contains no actions." in plans.call("apply", plan).stderr
    assert plans.status() == "approved"


def test_plan_without_actions_or_failed_gates_is_not_listed(plans: Plans) -> None:
    plan = plans.add(files=0)
    assert json.loads(plans.call("plans", "--format", "json").stdout) == []
    assert "has no work" in plans.call("approve", plan, "--by", "ada").stderr


def test_no_override_is_suggested_if_one_failed_gate_cannot_be_overridden(plans: Plans) -> None:
    gates = (live_drop(LiveCount(1), LiveCount(100), 0.2), lakes_present(["sales (no live files now)"]))
    refused = plans.call("approve", plans.add(gates=gates), "--by", "ada")
    assert "live_drop: " in refused.stderr
    assert "--override" not in refused.stderr


def test_decision_on_an_older_plan_mentions_the_newer_plan(plans: Plans) -> None:
    refused, older = plans.add(max_delete_bytes=100), plans.add(files=3)
    newest = plans.add(files=4, created_at=NOW + timedelta(minutes=1))
    plans.call("reject", newest, "--by", "lee")
    newer = f"Plan {newest} of 2026-03-14 (rejected) is newer."
    for command in (["approve", refused, "--by", "ada"], ["approve", older, "--by", "ada"], ["apply", older, "--mode", "apply"]):
        assert newer in plans.call(*command).stderr
    assert "is newer" not in plans.call("approve", newest, "--by", "lee").stderr


def test_approval_warns_if_policy_has_changed_since_the_plan(plans: Plans) -> None:
    """Another machine may apply it, with the lakes.yaml that made it."""
    same, other = plans.add(), plans.add(files=3, policy_digest="0" * 16)
    shown = plans.call("approve", other, "--by", "ada")
    assert f"Plan {other} cannot be applied, because the policy in lakes.yaml has changed" in " ".join(shown.stderr.split())
    assert shown.exit_code == 0
    assert "another policy" not in plans.call("approve", same, "--by", "ada").stderr


def test_rejection_lists_plans_that_stay_approved(plans: Plans) -> None:
    older, newer = plans.add(), plans.add(files=3, created_at=NOW + timedelta(minutes=1))
    plans.call("approve", older, "--by", "ada")
    assert plans.call("reject", newer, "--by", "lee").stderr.splitlines()[-3:] == [
        f"Plan {older} of 2026-03-14 is still approved, and may contain the same files and edits.",
        "To reject it too:",
        f"  gc-assets reject {older} --by lee",
    ]
    assert "still approved" not in plans.call("reject", older, "--by", "lee").stderr


def test_approval_warns_if_an_older_plan_was_applied_in_the_meantime(plans: Plans) -> None:
    older, newer = plans.add(), plans.add(files=3, created_at=NOW + timedelta(minutes=1))
    platform = load_platform(CLOCK, str(plans.path))
    applied = find_plan(platform.config, older).header
    record_finished(State.of(platform.config), applied, {"at": (NOW + timedelta(minutes=2)).isoformat()})
    shown = " ".join(plans.call("approve", newer, "--by", "lee").stderr.split())
    assert f"Plan {older} was applied at 2026-03-14 09:32Z, after this plan was made, so parts of this plan may be done" in shown


def test_second_approval_by_one_user_shows_the_first(plans: Plans) -> None:
    plan = plans.add()
    plans.call("approve", plan, "--by", "ada", "--comment", "as agreed")
    again = plans.call("approve", plan, "--by", "ada")
    assert "Already approved by ada at 2026-03-14 09:30:00Z: as agreed." in again.stderr
    assert "This approval was already recorded. Nothing was changed." in again.stderr
    (row,) = json.loads(plans.call("plans", "--format", "json").stdout)
    assert len(row["approval_events"]) == 1


def test_restore_of_an_unapplied_plan_moves_no_files(plans: Plans, tmp_path: Path) -> None:
    plans.path.write_text(plans.path.read_text().replace("/nowhere", str(tmp_path)))
    (tmp_path / "warehouse").mkdir()
    plan = plans.add()
    assert f"Nothing to do: plan {plan} was not applied, so it moved no file." in plans.call("restore", "--plan", plan).stderr


def test_plan_of_an_interrupted_apply_has_a_deadline(plans: Plans) -> None:
    plans.add()
    platform = load_platform(CLOCK, str(plans.path))
    (listed,) = list_plans(platform.config)
    begun = replace(listed, record=PlanRecord(is_started=True))
    row = plan_row(begun, NOW, platform.config)
    assert (row["status"], row["apply_by"]) == ("unfinished", listed.header.apply_before)
    ended = replace(listed, record=PlanRecord(finished_at=NOW, not_done={"quarantine/changed": 1}))
    row = plan_row(ended, NOW, platform.config)
    assert (row["status"], row["apply_by"]) == ("partially applied", None)


def test_plans_show_decisions_and_deadlines(plans: Plans) -> None:
    plan = plans.add()
    listed = plans.call("plans").stdout
    assert "approve by: 03-15 09:30Z  apply by: 03-17 09:30Z" in listed
    plans.call("approve", plan, "--by", "Lovelace, Ada")
    (row,) = json.loads(plans.call("plans", "--format", "json").stdout)
    assert (row["approvals"], row["approve_by"], row["apply_by"]) == (1, None, "2026-03-17T09:30:00+00:00")
    assert "approved by Lovelace, Ada" in plans.call("plans").stdout
    wide = plans.call("plans", "--wide").stdout
    assert row["plan_id"] in wide
    assert "quarantine 2" in wide
