"""The card of a plan on Dagster's page."""

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from gc_assets.assets.checks import GATES
from gc_assets.assets.plan_card import MAX_CHARACTERS, page_length, plan_card
from gc_assets.assets.plan_metadata import MAX_TABLES, plan_metadata, status_metadata
from gc_assets.assets.waiting_plans import describe_waiting
from gc_assets.cli.plans import plan_row
from gc_assets.core.clock import Clock
from gc_assets.core.gates import NO_OVERRIDE, OVERRIDE
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.plan import Amount, GateResult, Unreadable, Uploads
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.plan_tables import TableAmounts
from gc_assets.stages.records.plans import StoredPlan, approve, execution_directory, list_plans, load_plan, record_finished, reject
from gc_assets.state.journal import State
from tests.assets.launches import launch, output_metadata
from tests.assets.platforms import NOW, platform, stored_plan


def card(at: Platform, plan: StoredPlan, *tables: TableAmounts) -> str:
    return plan_card(plan, at.config, at.clock.now(), tables)


def plan_of(at: Platform, **header: Any) -> StoredPlan:
    return load_plan(at.config, stored_plan(at, **header))


def on_page(root: Path, *may: str) -> Platform:
    at = platform(root)
    return replace(at, config=at.config.model_copy(update={"page_may": frozenset(may)}))


def test_card_of_a_waiting_plan_shows_actions_tables_and_deadline(tmp_path: Path) -> None:
    at = on_page(tmp_path, "approve")
    totals = {QUARANTINE: Amount(files=50, bytes=46_800), PURGE: Amount(files=3, bytes=900)}
    plan = plan_of(at, totals=totals, expiry_actions={"weather": 4}, uploads=Uploads(count=2, bytes=500))
    name = plan.header.plan_id[:12]
    assert card(at, plan, TableAmounts("sales", "shop.orders"), TableAmounts("weather", None)).splitlines() == [
        f"REHEARSAL Plan `{name}` of 2026-03-14: **ready**\\",
        "as of 2026-03-14 09:30 UTC",
        "",
        "| action | number | size |",
        "|---|--:|--:|",
        "| quarantine | 50 files | 46.8 kB |",
        "| purge | 3 files | 900 B |",
        "| make | 4 history edits | |",
        "| abort | 2 uploads | 500 B |",
        "",
        "- **Tables**: shop.orders, weather",
        "- **Cannot be undone**: 3 files (900 B) purged\\",
        "  permanently; 2 unfinished uploads (500 B) aborted\\",
        "  permanently, with the data that their writers sent",
        "- **Approve before** 2026-03-15 09:30 UTC: in the\\",
        "  launchpad of the `approve` job, choose this plan\\",
        "  as Partition, and enter your name as `by`",
    ]


def test_card_and_launchpad_count_deleted_lakefs_paths(tmp_path: Path) -> None:
    at = platform(tmp_path)
    edits = {"expiry_actions": {"ml": 2}, "edits_by_action": {"delete_paths": 2}, "path_edits": {"ml": 2}, "deleted_paths": {"ml": 1_234}}
    assert "| delete | 1,234 paths on 2 branches | |" in card(at, plan_of(at, totals={}, **edits)).splitlines()
    assert "2 history edits, 1,234 deleted paths" in describe_waiting(at, "approve")


def test_card_shows_the_command_if_the_page_cannot_approve(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path))
    assert f"`gc-assets approve {plan.header.plan_id[:12]} --by WHO`" in card(at, plan)


def refused_plan(at: Platform, message: str, *, overridable: bool = True, name: str = "foreign_metadata") -> StoredPlan:
    advice = OVERRIDE.format(name=name) if overridable else NO_OVERRIDE
    gate = GateResult(name=name, passed=False, message=f"{message} {advice}", overridable=overridable)
    return plan_of(at, gates=(gate,))


def join_lines(text: str) -> str:
    """Return a card without its hard line breaks and escapes."""
    return text.replace("\\\n  ", " ").replace("\\", "")


def run_config(text: str) -> dict[str, Any]:
    """Return the run configuration on a card."""
    return yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])


def test_card_of_a_refused_plan_shows_the_reason_and_the_override(tmp_path: Path) -> None:
    plan = plan_of(at := on_page(tmp_path, "approve"), max_delete_bytes=1)
    text = card(at, plan)
    assert "**refused**" in text
    assert "- **Refused by** delete\\_bytes: 200 B planned,\\\n  max\\_delete\\_bytes allows 1 B." in text
    assert "in spite of the refusal: in the launchpad of the `approve` job, choose this plan as Partition" in join_lines(text)
    config = run_config(text)["ops"]["approve_plan"]["config"]
    assert config == {"plan_id": plan.header.plan_id[:12], "by": "", "comment": "", "override": ["delete_bytes"]}
    result = launch(at, "approve", **{**config, "by": "kim"})
    assert output_metadata(result)["status"] == "approved"


def test_card_shows_the_command_with_overrides_if_the_page_cannot_approve(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path), max_delete_bytes=1)
    assert f"`gc-assets approve {plan.header.plan_id[:12]} --by WHO --override delete_bytes`" in card(at, plan)
    assert "```" not in card(at, plan)


def test_remedy_for_a_refusal_is_never_truncated(tmp_path: Path) -> None:
    remedy = "Add their catalog to lakes.yaml, accept a dead table with `gc-assets accept`, or remove them manually."
    samples = "; ".join(f"shop/orders_{number}/metadata/00001.json: table orders_{number}" for number in range(9))
    plan = refused_plan(at := on_page(tmp_path, "approve"), f"9 metadata objects belong to no configured lake: {samples}. {remedy}")
    text = join_lines(card(at, plan))
    assert "9 metadata objects belong to no configured lake: shop/orders_0" in text
    assert f"… {remedy}" in text
    assert run_config(text)["ops"]["approve_plan"]["config"]["override"] == ["foreign_metadata"]


def test_card_offers_no_approval_if_failed_gate_cannot_be_overridden(tmp_path: Path) -> None:
    message = "1 plan was started and not finished: 3f9c2a71d004. Finish each with `gc-assets apply PLAN_ID`."
    plan = refused_plan(at := on_page(tmp_path, "approve"), message, overridable=False, name="unfinished_apply")
    text = join_lines(card(at, plan))
    assert "not finished: 3f9c2a71d004. Finish each with the `apply` job with `plan_id: PLAN_ID`. This gate cannot be overridden." in text
    assert "- **Cannot be approved**. Fix the causes, then launch the `run` job" in text
    assert "Approve before" not in text


def test_refused_plan_cannot_be_approved_after_the_deadline(tmp_path: Path) -> None:
    plan = plan_of(at := on_page(tmp_path, "approve"), max_delete_bytes=1)
    late = replace(at, clock=Clock(plan.header.approve_before))
    assert "**Cannot be approved** since 2026-03-15 09:30 UTC. Launch the `run` job for a new plan" in join_lines(card(late, plan))


def test_card_shows_override_instead_of_refusal(tmp_path: Path) -> None:
    plan = plan_of(at := on_page(tmp_path, "approve"), max_delete_bytes=1)
    approve(at.config, at.clock, plan.header.plan_id, "kim", ("delete_bytes",))
    text = join_lines(card(at, load_plan(at.config, plan.published)))
    assert "**approved**" in text
    assert "- **Overridden** by kim: delete_bytes" in text
    assert not [word for word in ("Refused by", "Approve before", "override:") if word in text]
    record_finished(State.of(at.config), plan.header, {"at": NOW.isoformat()})
    assert "Refused by" not in card(at, load_plan(at.config, plan.published))


def test_card_reports_unreadable_tables(tmp_path: Path) -> None:
    at = on_page(tmp_path, "approve")
    lost = Unreadable(lake="sales", table_name="shop.orders", why="m.json is missing from the listing", since=NOW)
    text = join_lines(card(at, plan_of(at, files=0, unreadable=(lost, lost))))
    found = "table shop.orders of lake sales and 1 more: m.json is missing from the listing"
    assert f"- **Unreadable**, so its claimed files are not planned: {found}" in text


def test_card_of_an_approved_plan_without_actions_offers_no_apply(tmp_path: Path) -> None:
    at = on_page(tmp_path, "approve")
    gate = GateResult(name="live_drop", passed=False, message=f"30 % fewer. {OVERRIDE.format(name='live_drop')}", overridable=True)
    plan = plan_of(at, files=0, gates=(gate,))
    approve(at.config, at.clock, plan.header.plan_id, "kim", ("live_drop",))
    approved = load_plan(at.config, plan.published)
    text = join_lines(card(at, approved))
    assert "- **Approved by** kim. The next run counts from this one; there is nothing to apply" in text
    assert "Apply before" not in text
    assert "apply_before" not in status_metadata(at.run_context(plan.header.run_date), approved)
    (listed,) = list_plans(at.config, empty=True)
    assert plan_row(listed, at.clock.now(), at.config)["apply_by"] is None


def test_rejected_plan_ignores_earlier_override(tmp_path: Path) -> None:
    plan = plan_of(at := on_page(tmp_path, "approve"), max_delete_bytes=1)
    approve(at.config, at.clock, plan.header.plan_id, "kim", ("delete_bytes",))
    reject(at.config, at.clock, plan.header.plan_id, "lee")
    text = join_lines(card(at, load_plan(at.config, plan.published)))
    assert "- **Refused by** delete_bytes" in text
    assert "- **Rejected by** lee" in text
    assert "Overridden" not in text


def test_card_counts_given_and_required_approvals(tmp_path: Path) -> None:
    at = platform(tmp_path, approvals_needed=2)
    plan = plan_of(at, max_delete_bytes=1)
    approve(at.config, at.clock, plan.header.plan_id, "kim", ("delete_bytes",))
    text = join_lines(card(at, load_plan(at.config, plan.published)))
    assert "- **Approved by** kim: 1 of 2 approvals" in text
    assert "- **Refused by** delete_bytes" in text


@pytest.mark.parametrize(
    "decide, line",
    [(approve, "**Approved by** kim"), (reject, "**Rejected by** kim")],
    ids=["approved", "rejected"],
)
def test_card_shows_the_decision_and_user(tmp_path: Path, decide: Any, line: str) -> None:
    plan = plan_of(at := platform(tmp_path))
    decide(at.config, at.clock, plan.header.plan_id, "kim")
    assert f"- {line}" in card(at, load_plan(at.config, plan.published))


def test_card_of_an_applied_plan_shows_completed_actions(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path))
    done = {"quarantine/done": {"files": 1, "bytes": 100}, "quarantine/denied": {"files": 1, "bytes": 100}}
    record_finished(State.of(at.config), plan.header, {"at": NOW.isoformat(), "by_outcome": done})
    text = card(at, load_plan(at.config, plan.published))
    assert "**partially applied**" in text
    assert "| quarantine | 1 file | 100 B |" in text
    assert "- **Not done**: 1 file of phase quarantine (denied)" in text
    assert "- **Next**: the `run` job plans again what is still garbage" in join_lines(text)
    plan_id = plan.header.plan_id[:12]
    assert f"before a later plan purges them: `gc-assets restore --plan {plan_id}`" in join_lines(text)
    page = on_page(tmp_path, "restore")
    text_on_page = join_lines(card(page, load_plan(at.config, plan.published)))
    assert f"the `restore` job with `plan_id: {plan_id}`" in text_on_page.replace('"', "")  # quoted if all are digits
    assert not [word for word in ("Approve before", "Apply before", "```") if word in text]


@pytest.mark.parametrize("mode, action", [("plan", "launch"), ("apply", "turn on the `approved_plans` sensor, or launch")])
def test_card_of_an_approved_plan_shows_the_apply_configuration(mode: str, action: str, tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path, mode=mode))
    approve(at.config, at.clock, plan.header.plan_id, "kim")
    text = card(at, load_plan(at.config, plan.published))
    assert f"2026-03-17 09:30 UTC: {action} the `apply` job for the partition 2026-03-14 with this configuration" in join_lines(text)
    config = run_config(text)["ops"]["warehouse__deletion_log"]["config"]
    assert config == {"plan_id": plan.header.plan_id[:12], **({"mode": "apply"} if mode == "plan" else {})}
    job = build_definitions(at).resolve_job_def("apply")
    assert dg.validate_run_config(job, run_config(text))


def test_card_of_an_unfinished_apply_shows_how_to_continue(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path))
    State.of(at.config).files.replace(f"{execution_directory(plan.header)}/log.json", b"{}")
    text = join_lines(card(at, load_plan(at.config, plan.published)))
    assert "**unfinished**" in text
    # A plan id with digits only is quoted.
    assert f"- **To continue**: the `apply` job with `plan_id: {plan.header.plan_id[:12]}`" in text.replace('"', "")
    assert "restore" not in text


def test_card_of_an_empty_plan_has_no_items(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path), files=0)
    first, second, *rest = card(at, plan).splitlines()
    assert first.endswith("**nothing to do**\\")
    assert (second, set(rest)) == ("as of 2026-03-14 09:30 UTC", {""})
    assert "Approve" not in card(at, plan)


def test_card_is_short_enough_to_be_shown_without_a_click(tmp_path: Path) -> None:
    """Dagster's page shows only Markdown below 1,000 characters in place."""
    rng, at = random.Random(7), platform(tmp_path)
    plan = plan_of(at)
    for _ in range(300):
        letters = rng.choice(["a", "é", "\U0001f642", "|", "_"])
        tables = [TableAmounts(letters * rng.randint(1, 300), letters * rng.randint(1, 300)) for _ in range(rng.randint(0, 50))]
        gates = [
            GateResult(name=letters * 3 + f"gate{number}", passed=False, message=letters * rng.randint(0, 2_000), overridable=True)
            for number in range(rng.randint(0, 17))
        ]
        edits = {f"{letters * rng.randint(1, 60)}{number}": 10**6 for number in range(rng.randint(0, 40))}
        header = plan.header.model_copy(update={"gates": tuple(gates), "expiry_actions": edits})
        text = card(at, replace(plan, header=header), *tables)
        assert page_length(text) <= MAX_CHARACTERS
        assert header.plan_id[:12] in text
        assert all(gate.name in text for gate in gates[:1] if letters not in "|_")


def test_plan_metadata_begins_with_card_status_and_id(tmp_path: Path) -> None:
    at = platform(tmp_path)
    metadata = plan_metadata(at.run_context(NOW.date()), stored_plan(at))
    assert list(metadata)[:3] == ["plan", "status", "plan_id"]
    assert metadata["plan_id"] == metadata["plan_digest"][:12]
    assert len(metadata["plan_digest"]) == 64


def test_status_of_an_expired_plan_is_shown(tmp_path: Path) -> None:
    plan = plan_of(at := platform(tmp_path))
    late = replace(at, clock=Clock(NOW + timedelta(days=2)))
    assert "**expired**" in card(late, plan)


def test_gates_check_has_one_row_per_gate_and_no_plotted_numbers(tmp_path: Path) -> None:
    at = platform(tmp_path)
    result = GATES.result(at.run_context(NOW.date()), dg.AssetKey("a"), stored_plan(at, max_delete_bytes=1))
    assert not any(isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue) for value in result.metadata.values())
    rows = [record.data for record in result.metadata["gates"].records]
    assert [(row["gate"], row["passed"], row["may_be_overridden"]) for row in rows] == [("delete_bytes", False, True)]
    assert rows[0]["found"].startswith("200 B planned, max_delete_bytes allows 1 B")
    assert "`override: [delete_bytes]`" in rows[0]["found"]


def test_tables_beyond_the_limit_are_summed_in_one_row(tmp_path: Path) -> None:
    at = platform(tmp_path)
    published = stored_plan(at, expiry_actions={f"lake{number:02}": 1 for number in range(MAX_TABLES + 5)}, files=0)
    rows = [record.data for record in plan_metadata(at.run_context(NOW.date()), published)["tables"].records]
    assert len(rows) == MAX_TABLES + 1
    assert rows[-1] == {"table": "5 more tables", "cannot_be_undone": "5 history edits", "can_be_undone": ""}
    assert header_of(published).has_work
