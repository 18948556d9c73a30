"""`gc-assets run`: execute a run through Dagster, with progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import TIMESTAMP, Settings, common_options, fast_imports, format_option, run_date_option, with_listing
from gc_assets.cli.dagster_events import has_instance
from gc_assets.cli.decision import print_next_step
from gc_assets.cli.interrupt import ignore_interrupts
from gc_assets.cli.output import print_data, print_message, with_commands, with_old_keys, write_json
from gc_assets.core.deprecation import REMOVED_IN
from gc_assets.core.errors import GcError
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from gc_assets.config.models import Config
    from gc_assets.core.plan import PlanHeader
    from gc_assets.engine.run_context import RunContext
    from gc_assets.resources.platform import Platform


@click.command("run", short_help="Find garbage and create the plans.")
@run_date_option
@click.option("--as-of", type=TIMESTAMP, metavar="T", help="Measure the ages of the policy from T instead of the start of the run date.")
@click.option("--lake", "lakes", multiple=True, metavar="N", help="Only this lake. Can be repeated.")
@click.option(
    "--storage", "storages", multiple=True, metavar="N", help="Only this storage, with all lakes that can refer to it. Can be repeated."
)
@click.option("--through", metavar="ASSET", help="Stop after this asset.")
@click.option("--mode", type=click.Choice(["plan", "apply"]), help="Replaces the mode of the storages for this run.")
@click.option("--full", is_flag=True, hidden=True, help="Deprecated, without effect.")
@click.option(
    "--listing/--no-listing", default=None, help="List the storages, or use their last listings. Default: `listing` in lakes.yaml."
)
@format_option()
@common_options
def run_command(
    settings: Settings,
    run_date: date | None,
    as_of: datetime | None,
    lakes: tuple[str, ...],
    storages: tuple[str, ...],
    through: str | None,
    mode: Any,
    full: bool,
    listing: bool | None,
    format_: str,
) -> None:
    """Find live files and garbage of one run date through Dagster, and create a plan for each
    storage.

    Nothing is deleted. In `apply` mode, quarantined files that are live again are restored. All
    other actions wait for an approval.

    \b
    Examples:
      gc-assets run
      gc-assets run --run-date 2026-11-21 --format json
      gc-assets run --lake sales --through reachable_snapshots
      gc-assets run --no-listing

    If gates refuse a plan, they are printed, and the exit code is 3.
    """
    platform = with_listing(settings.platform(), listing)
    day = run_date or platform.clock.today()
    platform.run_context(day, as_of)
    if full:
        reason = "every run computes all live files"
        print_message(f"Warning: --full has no effect any more, because {reason}. gc-assets {REMOVED_IN} rejects it.", "warn")
    from gc_assets.cli.progress import CommandProgress, show_progress

    with show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        progress.set_activity("loading Dagster")
        with fast_imports():
            from gc_assets.cli.dagster_run import RunSelection, run_partition, select_lakes_and_storages

        selection = RunSelection(lakes, storages, through)
        owners = select_lakes_and_storages(platform, selection)  # fails on a wrong selection before anything is printed
        progress.print_line(f"run date {day}")
        progress.set_activity("checking the access to lakes and storages")
        if not platform.config.spark.runs_in_jobs:  # otherwise another machine reads the lakes
            _require_access(platform.run_context(day, as_of), *owners)
        plans = run_partition(platform, day, selection, as_of=as_of, mode=mode, observer=progress, verbose=settings.verbose)
    ignore_interrupts()
    context = platform.run_context(day, as_of)
    _print_run_notes(context)
    if not plans:  # plans report them themselves
        _print_unreadable(context)
    if format_ == "table" and plans:
        from gc_assets.cli.run_tables import print_run

        print_run(context, [header.storage for header in plans])
    _print_plans(platform, plans, format_)


def _print_run_notes(context: RunContext) -> None:
    _print_unused_rules(context)
    _print_empty_lakes(context)
    _print_listings(context)
    if context.config.notify and not has_instance():
        from gc_assets.core.notifications import NOTIFIED_BY

        print_message(f"Note: `notify` has {count_of(len(context.config.notify), 'target')}; {NOTIFIED_BY}.")


def _require_access(context: RunContext, lakes: Sequence[str], storages: Sequence[str]) -> None:
    """Check that the lakes and storages of the run can be reached, and print those that cannot.

    Raises:
        GcError: If so much cannot be reached that the run could not publish anything.
    """
    from gc_assets.stages.read.access import find_access_errors

    found = find_access_errors(context, lakes, storages)
    for error in found:
        print_message(f"{error}.", "failed")
    if any(error.stops_run for error in found):
        raise GcError("the run was not started. Fix this, then check with gc-assets doctor.")


def _print_unused_rules(context: RunContext) -> None:
    """Print retention rules that matched nothing.

    The name in such a rule may be misspelled. The history that the rule should keep may then expire
    too early.
    """
    from gc_assets.stages.mark.released_files import find_last_rule_notes
    from gc_assets.state.schemas import REACHABLE_SNAPSHOTS
    from gc_assets.state.summaries import ReachableSnapshotsSummary

    for lake in context.config.lakes:
        table, last = context.find(REACHABLE_SNAPSHOTS, lake.name), find_last_rule_notes(context, lake.name)
        notes = table.summary(ReachableSnapshotsSummary).unused_rules if table is not None else ()
        if last is not None and last[0] == context.run_date:
            notes += last[1]
        for note in notes:
            print_message(f"Note: {note}.")


def _print_empty_lakes(context: RunContext) -> None:
    """Warn about lakes without any ref, which often means that a name is misspelled."""
    from gc_assets.state.schemas import LAKE_REFS
    from gc_assets.state.summaries import LakeRefsSummary

    for lake in context.config.lakes:
        table = context.find(LAKE_REFS, lake.name)
        for note in table.summary(LakeRefsSummary).notes if table is not None and not table.receipt.rows else ():
            print_message(f"Note: {note}.", "warn")


def _print_unreadable(context: RunContext) -> None:
    """Print the reasons why tables are unreadable in this run."""
    from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES
    from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary

    for lake in context.config.lakes:
        refs, live = context.find(LAKE_REFS, lake.name), context.find(LIVE_FILES, lake.name)
        reasons = [item.why for item in refs.summary(LakeRefsSummary).unread] if refs is not None else []
        if refs is not None and live is not None and live.receipt.run_id > refs.receipt.run_id:
            reasons += [item.why for item in live.summary(LiveFilesSummary).unreadable]
        for reason in dict.fromkeys(reasons):
            print_message(f"Unreadable: {reason}.", "failed")


def _print_listings(context: RunContext) -> None:
    """Print for each storage whether the run reused an earlier listing, and why if it did not."""
    from gc_assets.stages.sweep.listings import describe_listing

    for storage in context.config.storages:
        if text := describe_listing(context, storage.name):
            print_message(f"{storage.label}: {text}")


def _print_plans(platform: Platform, plans: Sequence[PlanHeader], format_: str) -> None:
    from gc_assets.stages.read.reversibility import reversibility_json

    active_plans = [header for header in plans if header.has_work or header.failed_gates]
    if format_ == "json":
        write_json(
            {**plan_summary(header), "storage": platform.config.label_of(header.storage), **reversibility_json(header, platform.config)}
            for header in active_plans
        )
    elif not active_plans:
        print_message("Nothing to do: no plan contains a file." if plans else "The selection includes no storage, so there is no plan.")
    if not active_plans:
        _print_quarantines(platform, plans)
    for header in plans:
        _print_notes(platform.config.label_of(header.storage), header)
    for text in sorted({text for header in plans for text in header.unsafe}):
        print_message(f"Warning: {text}.", "warn")
    for header in active_plans:
        _print_plan(platform.config, header, format_)
    if any(header.failed_gates for header in active_plans):
        raise click.exceptions.Exit(3)


def _print_quarantines(platform: Platform, plans: Sequence[PlanHeader]) -> None:
    from gc_assets.stages.records.purged_files import describe_quarantine

    for header in plans:
        if text := describe_quarantine(platform.run_context(header.run_date), header.storage):
            print_message(f"{platform.config.label_of(header.storage)}: {text}")


def _print_notes(label: str, header: PlanHeader) -> None:
    """Print the warnings of a plan, and the files that it deliberately does not contain."""
    if text := _foreign_files(header):
        print_message(f"{label}: {text}")
    for item in header.left_out:
        print_message(f"{label}: {item}.")
    for text in header.warnings:
        print_message(f"{label}: {text}", "warn")


def _foreign_files(header: PlanHeader) -> str | None:
    """Describe the storage's foreign files, if it has any."""
    numbers = next((gate.numbers for gate in header.gates if gate.name == "new_claims"), {})
    if not numbers.get("foreign_files"):
        return None
    files, size = int(numbers["foreign_files"]), format_bytes(int(numbers["foreign_bytes"]))
    return f"foreign: {count_of(files, 'file')}, {size}, not planned, because they may belong to others. See gc-assets report."


def _print_plan(config: Config, header: PlanHeader, format_: str) -> None:
    """Print a plan's failed gates, effects and totals, followed by the next command."""
    from gc_assets.core.gates import message_of
    from gc_assets.stages.read.plan_text import summarize_plans
    from gc_assets.stages.read.reversibility import describe_reversibility
    from gc_assets.stages.records.plans import approved_plans

    is_text = format_ != "json"
    if is_text:
        print_data(plan_line(header, config.label_of(header.storage)), "refused" if header.failed_gates else "passed")
    for gate in header.failed_gates:
        for line in with_commands(f"Refused by gate {gate.name}: {message_of(gate, header.failed_gates)}"):
            print_message(line, "refused")
    if header.historical:
        print_message(f"{header.storage}: this run of {header.run_date} began on a later date, so its plan cannot be applied.")
        return
    for line in describe_reversibility(header, config).lines if header.has_work else ():
        print_message(line)
    if is_text:
        print_data(f"{summarize_plans([header])}.")
    print_next_step(config, header)
    for other in approved_plans(config, header, header.created_at):
        name, before = f"Plan {other.header.plan_id[:12]} of {other.header.run_date}", f"{other.header.apply_before:%Y-%m-%d %H:%M}Z"
        print_message(f"{name} is approved too, and can be applied before {before}.", "warn")


def plan_line(header: PlanHeader, label: str | None = None) -> str:
    """Format a plan as one line.

    Args:
        header: The header of the plan.
        label: The name of the storage in `lakes.yaml`, if it differs from the recorded name.
    """
    gates = "gates passed" if not header.failed_gates else "refused by " + ", ".join(gate.name for gate in header.failed_gates)
    after, held = header.after_expiry, header.held_for_expiry
    frees = f"; {after} wait for its history edits" if after.files else ""
    waits = f"; {held} wait for history edits that this plan does not make" if held.files else ""
    aborts = f"; aborts {header.uploads}" if header.uploads.count else ""
    unreadable = (
        f"; unreadable: {', '.join(item.name for item in header.unreadable[:5])}, so nothing is purged" if header.unreadable else ""
    )
    line = f"{label or header.storage}: plan {header.plan_id[:12]}, {gates}{frees}{waits}{aborts}{unreadable}"
    return mark_rehearsal(line, header.rehearsal)


def plan_summary(header: PlanHeader) -> dict[str, Any]:
    """Convert a plan to a JSON object with its header and totals."""
    fields = with_old_keys(header.model_dump(mode="json", exclude={"storage", "plan_id", "run_date"}), sick="unreadable")
    return {
        "storage": header.storage,
        "plan_id": header.plan_id,
        "run_date": header.run_date,
        "files": sum(total.files for total in header.totals.values()),
        "bytes": sum(total.bytes for total in header.totals.values()),
        "passed": not header.failed_gates,
        **fields,
    }
