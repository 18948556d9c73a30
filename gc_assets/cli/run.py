"""`gc-assets run`: execute a run through Dagster, with progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import TIMESTAMP, Settings, common_options, fast_imports, format_option, run_date_option
from gc_assets.cli.output import print_data, print_message, with_old_keys, write_json
from gc_assets.core.commands import command

if TYPE_CHECKING:
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
@click.option("--full", is_flag=True, help="Compute all live files, and compare them with those of an incremental run.")
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
    format_: str,
) -> None:
    """Find live files and garbage of one run date through Dagster, and create a plan for each
    storage.

    Nothing is deleted. In mode `apply`, quarantined files that are live again are restored. All
    other actions wait for an approval.

    \b
    Examples:
      gc-assets run
      gc-assets run --run-date 2026-11-21 --format json
      gc-assets run --lake sales --through reachable_snapshots

    If gates refuse a plan, they are printed, and the exit code is 3.
    """
    platform = settings.platform()
    day = run_date or platform.clock.today()
    platform.run_context(day, as_of)
    print_message(f"run date {day}")
    from gc_assets.cli.progress import CommandProgress, show_progress

    with show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        progress.set_activity("loading Dagster")
        with fast_imports():
            from gc_assets.cli.dagster_run import Selection, run_partition

        selection = Selection(lakes, storages, through)
        plans = run_partition(platform, day, selection, as_of=as_of, mode=mode, full=full, observer=progress, verbose=settings.verbose)
    _print_unused_rules(platform.run_context(day, as_of))
    _print_plans(platform, plans, format_)


def _print_unused_rules(context: RunContext) -> None:
    """Print notes on rules that apply to no ref, because a wrong name can shorten retention."""
    from gc_assets.state.schemas import REACHABLE_SNAPSHOTS
    from gc_assets.state.summaries import ReachableSnapshotsSummary

    for lake in context.config.lakes:
        table = context.find(REACHABLE_SNAPSHOTS, lake.name)
        for note in table.summary(ReachableSnapshotsSummary).unused_rules if table is not None else ():
            print_message(f"Note: {note}.")


def _print_plans(platform: Platform, plans: Sequence[PlanHeader], format_: str) -> None:
    from gc_assets.stages.read.reversibility import describe_reversibility, reversibility_json

    active_plans = [header for header in plans if header.has_work or header.failed_gates]
    if format_ == "json":
        write_json(
            {**plan_summary(header), "storage": platform.config.label_of(header.storage), **reversibility_json(header, platform.config)}
            for header in active_plans
        )
    else:
        for header in active_plans:
            print_data(plan_line(header, platform.config.label_of(header.storage)), "refused" if header.failed_gates else "passed")
        if not active_plans:
            print_message("Nothing to do: no plan contains a file." if plans else "The selection includes no storage, so there is no plan.")
    for header in plans:
        if text := _foreign_files(header):
            print_message(f"{header.storage}: {text}")
        for item in header.left_out:
            print_message(f"{platform.config.label_of(header.storage)}: {item}.")
    for text in sorted({text for header in plans for text in header.unsafe}):
        print_message(f"Lowered safety: {text}.")
    for header in active_plans:
        _print_next_step(header, describe_reversibility(header, platform.config).lines)
    if any(header.failed_gates for header in active_plans):
        raise click.exceptions.Exit(3)


def _foreign_files(header: PlanHeader) -> str | None:
    """Return a sentence on the files that may belong to others, or None."""
    from gc_assets.core.units import format_bytes

    numbers = next((gate.numbers for gate in header.gates if gate.name == "new_claims"), {})
    if not numbers.get("foreign_files"):
        return None
    files, size = int(numbers["foreign_files"]), format_bytes(int(numbers["foreign_bytes"]))
    return f"foreign: {files:,} files, {size}, not planned, because they may belong to others. See gc-assets report."


def _print_next_step(header: PlanHeader, reversibility: Iterable[str]) -> None:
    for gate in header.failed_gates:
        print_message(f"refused by gate {gate.name}: {gate.message}", "refused")
    if header.historical:
        print_message(f"{header.storage}: {header.run_date} was not frozen on its own date, so this plan cannot be applied.")
        return
    for line in reversibility:
        print_message(line)
    if not header.failed_gates:
        print_message(f"Next: {command('approve', header.plan_id[:12], by='YOUR_NAME')}   (until {header.approve_before:%Y-%m-%d %H:%M}Z)")


def plan_line(header: PlanHeader, label: str | None = None) -> str:
    """Return a plan on one line, with the name of its storage in `lakes.yaml`."""
    from gc_assets.core.units import format_bytes

    files = sum(total.files for total in header.totals.values())
    size = sum(total.bytes for total in header.totals.values())
    gates = "gates passed" if not header.failed_gates else "refused by " + ", ".join(gate.name for gate in header.failed_gates)
    actions = ", ".join(f"{name} {total.files:,}" for name, total in header.totals.items())
    actions = f" ({actions})" if actions else ""
    edits = sum(header.expiry_actions.values())
    frees = f"; {edits:,} history edits free {header.after_expiry.files:,} of them" if edits else ""
    held = header.held_for_expiry
    waits = f"; {held.files:,} files ({format_bytes(held.bytes)}) wait for history edits that this plan does not make" if held.files else ""
    aborts = f"; aborts {header.uploads}" if header.uploads.count else ""
    unreadable = (
        f"; unreadable: {', '.join(item.name for item in header.unreadable[:5])}, so nothing is purged" if header.unreadable else ""
    )
    plan = f"plan {header.plan_id}, {files:,} files, {format_bytes(size)}{actions}, {gates}"
    return f"{label or header.storage}: {plan}{frees}{waits}{aborts}{unreadable}"


def plan_summary(header: PlanHeader) -> dict[str, Any]:
    """Return a plan as one JSON object: its header and the sums of its totals."""
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
