"""`gc-assets approve` and `gc-assets reject`.

Approving shows the plan first, and asks for confirmation on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gc_assets.cli import output
from gc_assets.cli.context import Settings, by_option, comment_option, common_options, format_option
from gc_assets.cli.dagster_events import report_decision
from gc_assets.cli.output import print_command, print_data, print_message, with_commands, with_old_keys, write_json, write_table
from gc_assets.core.commands import command
from gc_assets.core.rehearsals import mark_rehearsal

if TYPE_CHECKING:
    from gc_assets.config.models import Config
    from gc_assets.core.approvals import ApprovalEvent
    from gc_assets.core.plan import PlanHeader
    from gc_assets.resources.platform import Platform
    from gc_assets.stages.records.plans import StoredPlan

# Tables beyond the largest ones are summed in one row.
MAX_TABLES: Final = 15
# Columns with the effects of an apply. Irreversible effects come first.
EFFECT_COLUMNS: Final = ("cannot be undone", "can be undone")


@click.command("approve", short_help="Approve one plan.")
@click.argument("plan_id")
@by_option
@click.option("--override", "overrides", multiple=True, metavar="GATE", help="Override this failed gate. Recorded. Can be repeated.")
@comment_option
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@format_option()
@common_options
def approve_command(settings: Settings, plan_id: str, by: str, overrides: tuple[str, ...], comment: str, yes: bool, format_: str) -> None:
    """Show a plan, ask on a terminal, and approve exactly this plan, whose id is the digest of its
    content. Changes no lake.

    Decisions of other people remain. If the storage needs two approvals, two people must approve.
    At least the first 8 characters of the plan id are required.

    \b
    Examples:
      gc-assets approve 3f9c2a71d004 --by ada --comment "the owners agree"
      gc-assets approve 3f9c2a71d004 --by ada --override live_drop --yes
    """
    from gc_assets.stages.read.plan_text import nothing_to_apply
    from gc_assets.stages.read.reversibility import apply_command, confirm_question
    from gc_assets.stages.records.plans import approve, find_approvable_plan, load_plan

    platform = settings.platform()
    plan = find_approvable_plan(platform.config, platform.clock, plan_id, by, overrides)
    show_plan(platform, plan)
    for earlier in plan.verdict.approvals:
        print_message(f"Already {earlier}.")
    question = output.wrap_text(confirm_question(plan.header, platform.config, by.strip()), sys.stderr)
    if output.is_interactive() and not yes and not click.confirm(question, err=True):
        print_message("Not approved. Nothing was recorded.")
        raise click.exceptions.Exit(1)
    event = approve(platform.config, platform.clock, plan.header.plan_id, by, overrides, comment)
    is_repeated, plan = event in plan.verdict.events, load_plan(platform.config, plan.published)
    if is_repeated:
        print_message("This approval was already recorded. Nothing was changed.")
    else:
        report_decision(platform.run_context(platform.clock.today()), plan)
    _print_decision(platform.config, plan, event, format_)
    if plan.verdict.missing is None and not plan.header.has_work:
        print_message(f"{nothing_to_apply(plan.header)}.")
    elif plan.verdict.missing is None:
        print_command(f"Apply before {plan.header.apply_before:%Y-%m-%d %H:%M}Z", apply_command(plan.header, platform.config))
    elif plan.verdict.rejections:
        print_message(f"The plan remains {plan.verdict.missing}. It can be applied after the same person approves it.")
    else:
        print_message(f"The plan is {plan.verdict.missing}.")
        next_command = command("approve", event.plan_id[:12], by="ANOTHER_NAME")
        print_command(f"Approve before {plan.header.approve_before:%Y-%m-%d %H:%M}Z", next_command)


@click.command("reject", short_help="Reject one plan.")
@click.argument("plan_id")
@by_option
@comment_option
@format_option()
@common_options
def reject_command(settings: Settings, plan_id: str, by: str, comment: str, format_: str) -> None:
    """Reject a plan. It cannot be applied until the same person approves it, even if others do.

    \b
    Examples:
      gc-assets reject 3f9c2a71d004 --by ada --comment "orders is being migrated"
    """
    from gc_assets.stages.records.plans import find_plan, reject

    platform = settings.platform()
    event = reject(platform.config, platform.clock, plan_id, by, comment)
    plan = find_plan(platform.config, event.plan_id)
    report_decision(platform.run_context(platform.clock.today()), plan)
    _print_decision(platform.config, plan, event, format_)
    _print_approved(platform, plan.header, event.by)


def _print_approved(platform: Platform, header: PlanHeader, by: str) -> None:
    """Warn about other approved plans of the storage, which may contain the same actions."""
    from gc_assets.stages.records.plans import approved_plans

    for plan in approved_plans(platform.config, header, platform.clock.now()):
        name = f"Plan {plan.header.plan_id[:12]} of {plan.header.run_date}"
        print_message(f"{name} is still approved, and may contain the same files and edits.", "warn")
        print_command("To reject it too", command("reject", plan.header.plan_id[:12], by=by))


def print_next_step(config: Config, header: PlanHeader) -> None:
    """Suggest the next step for a plan, depending on who has approved or rejected it."""
    from gc_assets.core.approvals import Verdict
    from gc_assets.stages.read.plan_text import nothing_to_apply
    from gc_assets.stages.read.reversibility import apply_command
    from gc_assets.stages.records.plans import list_plans, override_command

    known = (plan.verdict for plan in list_plans(config, header.storage, empty=True) if plan.header.plan_id == header.plan_id)
    verdict = next(known, Verdict())
    until = f"{header.approve_before:%Y-%m-%d %H:%M}Z"
    for event in verdict.rejections:
        print_message(f"This plan was {event}.", "rejected")
    if verdict.rejections:
        print_message("The next run makes the same plan, which stays rejected, unless its content or the policy in lakes.yaml changes.")
        if (way_out := override_command(header, by=verdict.rejections[0].by)) is not None:
            print_command(f"To approve it after all, before {until}", way_out)
    elif verdict.is_approved and not header.has_work:
        print_message(f"Approved by {verdict.approved_by}. {nothing_to_apply(header)}.")
    elif verdict.is_approved:
        print_command(
            f"Approved by {verdict.approved_by}. Apply before {header.apply_before:%Y-%m-%d %H:%M}Z", apply_command(header, config)
        )
    elif (way_out := override_command(header, by="ANOTHER_NAME" if verdict.approvals else "YOUR_NAME")) is not None:
        if verdict.approvals:
            print_message(f"The plan is {verdict.missing}.")
        print_command("To approve it in spite of its gates" if header.failed_gates else f"Approve before {until}", way_out)


def show_plan(platform: Platform, plan: StoredPlan) -> None:
    """Print the effects of an apply, by table and in total, so that the user can decide."""
    from gc_assets.core.gates import without_override
    from gc_assets.stages.read.plan_tables import amounts_by_table, list_largest
    from gc_assets.stages.read.plan_text import summarize_plans
    from gc_assets.stages.read.reversibility import describe_reversibility
    from gc_assets.stages.records.plans import describe_other_plans, describe_other_policy

    header, config = plan.header, platform.config
    name = f"Plan {header.plan_id[:12]} of storage {config.label_of(header.storage)}, made at {header.created_at:%Y-%m-%d %H:%M}Z"
    print_message(mark_rehearsal(name, header.rehearsal))
    for other in describe_other_plans(config, header, platform.clock.now()):
        print_message(other, "warn")
    if (policy := describe_other_policy(config, header)) is not None:
        print_message(policy, "warn")
    for note in header.notes:
        print_message(note)
    found = amounts_by_table(platform.run_context(platform.clock.today()), header, plan.published)
    rows = [{"table": item.name, **dict(zip(EFFECT_COLUMNS, item.effects, strict=True))} for item in list_largest(found, MAX_TABLES)]
    if rows:
        write_table(rows, ("table", *effect_columns(rows)), sys.stderr)
    for gate in header.failed_gates:
        for line in with_commands(f"Failed gate {gate.name}, which this approval overrides: {without_override(gate)}"):
            print_message(line, "refused")
    for line in describe_reversibility(header, config).lines:
        print_message(line)
    print_message(f"{summarize_plans([header])}.")


def effect_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names in `EFFECT_COLUMNS` for which at least one row has a value."""
    return [name for name in EFFECT_COLUMNS if any(row[name] for row in rows)]


def _print_decision(config: Config, plan: StoredPlan, event: ApprovalEvent, format_: str) -> None:
    if format_ == "json":
        decision = with_old_keys(event.model_dump(mode="json"), said="decision")
        row = {**decision, "storage": config.label_of(plan.header.storage), "apply_before": plan.header.apply_before}
        write_json([{**row, "status": plan.status_at(event.at), "approvals_needed": plan.verdict.needed}])
    else:
        decided = f"{config.label_of(plan.header.storage)}: plan {event.plan_id[:12]} {event}"
        print_data(mark_rehearsal(decided, plan.header.rehearsal))
