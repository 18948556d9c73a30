"""`gc-assets plans`, `approve`, `reject`, `apply`, `restore`: the deletion protocol, in the order
in which a person meets it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from gc_assets.cli.context import Settings, common_options, fast_imports, format_option, open_spark, wide_option, with_mode
from gc_assets.cli.dagster_events import report_apply, report_decision, report_history_undo, report_restore
from gc_assets.cli.output import print_data, print_message, write_json, write_table
from gc_assets.core.phases import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from gc_assets.cli.progress import Progress
    from gc_assets.core.approvals import ApprovalEvent
    from gc_assets.engine.tables import Totals
    from gc_assets.resources.platform import Platform
    from gc_assets.stages.records.plans import ListedPlan, StoredPlan

STATUSES: Final = ("ready", "refused", "approved", "rejected", "applied", "restored", "expired", "historical")
PLAN_COLUMNS: Final = (
    "plan_id",
    "storage",
    "run_date",
    "status",
    "files",
    "bytes",
    "actions",
    "edits",
    "refused_by",
    "said",
    "until",
)


@click.command("plans", short_help="List the plans.")
@click.option("--storage", metavar="N", help="Only of this storage.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), metavar="S", help="Only with this status; may be repeated."
)
@format_option()
@wide_option
@common_options
def plans_command(settings: Settings, storage: str | None, statuses: tuple[str, ...], format_: str, wide: bool) -> None:
    """Lists the plans, newest first, with what may be done with each.

    \b
    Status: ready (may be approved), refused (by a gate), approved, rejected, applied,
    restored, expired (too old), historical (an analysis of a past date, never applied).

    \b
    Examples:
      gc-assets plans
      gc-assets plans --storage warehouse --format json
      gc-assets plans --status ready --status refused
    """
    with fast_imports():
        from gc_assets.stages.records.plans import list_plans

        platform = settings.platform()
    if storage is not None:
        platform.config.storage(storage)
    now = platform.clock.now()
    found = [_plan_row(plan, now) for plan in list_plans(platform.config, storage) if not statuses or plan.status_at(now) in statuses]
    if format_ == "json":
        write_json(found)
    elif found:
        from gc_assets.core.units import format_bytes

        short = [
            {
                **row,
                "plan_id": row["plan_id"][:12],
                "bytes": format_bytes(row["bytes"]),
                "actions": ", ".join(_actions(row)),
                "edits": ", ".join(f"{name} {count:,}" for name, count in row["expiry_actions"].items()),
                "refused_by": ", ".join(row["refused_by"]),
                "said": "; ".join(row["said"]),
                "until": row["until"] and row["until"].replace(microsecond=0),
            }
            for row in found
        ]
        write_table(short, PLAN_COLUMNS, wide=wide)
    if not found:
        print_message(f"There is no plan {'of this status' if statuses else 'with anything to do'}. `gc-assets run` makes one.")


_BY: Final = click.option("--by", required=True, metavar="WHO", help="Your name; it goes on record. It is a name and no login.")
_COMMENT: Final = click.option("--comment", default="", metavar="TEXT", help="Why; it goes on record.")


@click.command("approve", short_help="Approve a plan by name.")
@click.argument("plan_id")
@_BY
@click.option("--override", "overrides", multiple=True, metavar="GATE", help="Pass over this failed gate; recorded. May be repeated.")
@_COMMENT
@format_option()
@common_options
def approve_command(settings: Settings, plan_id: str, by: str, overrides: tuple[str, ...], comment: str, format_: str) -> None:
    """Records your yes to exactly this plan: its id is the digest of everything in it. Changes no
    lake.

    What others said of the plan stays. Where the storage asks for two approvals, two names have to
    give them. The first characters of the id are enough (8 at least).

    \b
    Examples:
      gc-assets approve 3f9c2a71d004 --by ada --comment "as agreed with the owners"
      gc-assets approve 3f9c2a71d004 --by ada --override live_drop
    """
    from gc_assets.stages.read.reversibility import apply_command
    from gc_assets.stages.records.plans import approve, find_plan

    platform = settings.platform()
    word = approve(platform.config, platform.clock, plan_id, by, overrides, comment)
    plan = find_plan(platform.config, word.plan_id)
    report_decision(plan, word.at)
    _print_decision(plan, word, format_)
    _print_reversibility(platform, plan)
    if plan.verdict.missing is None:
        print_message(f"Next: {apply_command(plan.header, platform.config)}   (until {plan.header.apply_before:%Y-%m-%d %H:%M}Z)")
    elif plan.verdict.rejections:
        print_message(f"It stays {plan.verdict.missing}. It can be applied once the same name approves it.")
    else:
        until = f"(until {plan.header.approve_before:%Y-%m-%d %H:%M}Z)"
        print_message(f"It is {plan.verdict.missing}. Next: gc-assets approve {word.plan_id[:12]} --by ANOTHER_NAME   {until}")


@click.command("reject", short_help="Say no to a plan, by name.")
@click.argument("plan_id")
@_BY
@_COMMENT
@format_option()
@common_options
def reject_command(settings: Settings, plan_id: str, by: str, comment: str, format_: str) -> None:
    """Records your no to a plan. It cannot be applied, whoever approves it, until the same name
    does.

    \b
    Examples:
      gc-assets reject 3f9c2a71d004 --by ada --comment "orders is being migrated"
    """
    from gc_assets.stages.records.plans import find_plan, reject

    platform = settings.platform()
    word = reject(platform.config, platform.clock, plan_id, by, comment)
    plan = find_plan(platform.config, word.plan_id)
    report_decision(plan, word.at)
    _print_decision(plan, word, format_)


def _print_reversibility(platform: Platform, plan: StoredPlan, *, restored: bool = False) -> None:
    from gc_assets.stages.read.reversibility import describe_reversibility

    for line in describe_reversibility(plan.header, platform.config, restored=restored).lines:
        print_message(line)


def _print_decision(plan: StoredPlan, word: ApprovalEvent, format_: str) -> None:
    if format_ == "json":
        row = {**word.model_dump(mode="json"), "storage": plan.header.storage, "apply_before": plan.header.apply_before}
        write_json([{**row, "status": plan.status_at(word.at), "approvals_needed": plan.verdict.needed}])
    else:
        print_data(f"{plan.header.storage}: plan {word.plan_id} {word}")


@click.command("apply", short_help="Execute an approved plan.")
@click.argument("plan_id")
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), help="Only this phase; may be repeated. Default: all.")
@click.option("--mode", type=click.Choice(["plan", "apply"]), help="Instead of the storage's own mode, for this once.")
@format_option()
@common_options
def apply_command(settings: Settings, plan_id: str, phases: tuple[str, ...], mode: Any, format_: str) -> None:
    """Executes an approved plan, and nothing but its rows: restore, then expire (edits of history),
    then quarantine, then purge, then abort (uploads in parts that nobody finished).

    Marks the lakes afresh before it touches a file, and again after it edited a history; what a
    lake needs is left alone. Stopped in the middle, the same command goes on from its log.

    \b
    Examples:
      gc-assets apply 3f9c2a71d004
      gc-assets apply 3f9c2a71d004 --mode apply
      gc-assets apply 3f9c2a71d004 --phase restore
    """
    from gc_assets.cli.progress import Progress, show_progress
    from gc_assets.stages.delete.apply import apply_plan, nothing_to_do, phases_of, refuse_apply
    from gc_assets.stages.records.plans import find_plan

    platform = with_mode(settings.platform(), mode)
    plan = find_plan(platform.config, plan_id)
    run_context = platform.run_context(platform.clock.today())
    chosen = tuple(phases_of(plan.header, phases or PHASES))
    already = nothing_to_do(plan) or (None if chosen else f"the plan asks for {', '.join(phases_of(plan.header, PHASES))} only")
    if already is not None:
        _print_outcomes({}, None, format_)
        print_message(f"Nothing to do: {already}.")
        return
    refuse_apply(run_context, plan, chosen)  # before Spark starts; apply_plan asks again
    print_message(f"applying plan {plan.header.plan_id} of storage {plan.header.storage}: fresh mark first, then {', '.join(chosen)}")
    with show_progress(Progress(), verbose=settings.verbose) as progress:
        applied = apply_plan(_start_spark(progress, platform, settings), run_context, plan, chosen)
    report_apply(run_context, plan.header, applied)
    books = {f"{phase}/{outcome}": total for (phase, outcome), total in applied.by_outcome.items()}
    _print_outcomes(books, plan.header.plan_id, format_)
    if any(outcome == "failed" for _, outcome in applied.by_outcome):
        where = "`gc-assets show deletion_log` and `show expiry_log`"
        print_message(f"Not everything was done; see {where} with --run-date {plan.header.run_date}, then apply again: it resumes.")
        raise click.exceptions.Exit(1)
    if ("expire", "done") in applied.by_outcome:
        print_message("History was edited: `gc-assets show expiry_log` lists the edits.")
    _print_reversibility(platform, plan)


@click.command("restore", short_help="Put quarantined files back.")
@click.option("--plan", "plan_id", metavar="P", help="Everything that this plan quarantined.")
@click.option("--prefix", metavar="X", help="Everything below this canonical prefix.")
@click.option("--key", metavar="K", help="This file, by canonical key or address.")
@click.option("--storage", metavar="N", help="The storage; needed where there are several and no plan or address says it.")
@click.option("--history", is_flag=True, help="Then undo the plan's edits of history too (with --plan).")
@format_option()
@common_options
def restore_command(
    settings: Settings, plan_id: str | None, prefix: str | None, key: str | None, storage: str | None, history: bool, format_: str
) -> None:
    """Puts quarantined files back where they were. Needs no approval, and never replaces a file
    that stands there now.

    History stays edited unless --history asks for the old one: Icechunk's comes back, an Iceberg
    snapshot that expired does not.

    \b
    Examples:
      gc-assets restore --plan 3f9c2a71d004
      gc-assets restore --plan 3f9c2a71d004 --history
      gc-assets restore --storage warehouse --prefix sales/orders/
      gc-assets restore --key file:///data/warehouse/sales/orders/data/00000-0.parquet
    """
    from gc_assets.cli.progress import Progress, show_progress
    from gc_assets.stages.delete.restore_request import resolve_request, restore_files, undo_history

    platform = settings.platform()
    run_context = platform.run_context(platform.clock.today())
    asked = resolve_request(run_context, plan_id=plan_id, prefix=prefix, key=key, storage=storage, history=history)
    with show_progress(Progress(), verbose=settings.verbose) as progress:
        back = restore_files(lambda: _start_spark(progress, platform, settings), run_context, asked)
    report_restore(run_context, asked.storage, back.log)
    plan = asked.plan
    with show_progress(Progress(), verbose=settings.verbose):
        undone = undo_history(run_context, back)
    if plan is not None and undone is not None:
        back = undone
        report_history_undo(run_context, plan.header)
    _print_outcomes(back.by_outcome, asked.plan_id, format_)
    if not back.by_outcome:
        print_message(
            f"Nothing to do: storage {asked.storage} has nothing of that in quarantine. `gc-assets explain KEY` says where a file is."
        )
    elif plan is not None and plan.header.expiry_actions and not history:
        from gc_assets.lakes.kinds import reversible_titles

        undone_by = f"--history undoes those of {reversible_titles()}"
        print_message(f"The plan's edits of history stay. {undone_by}; relax the retention first, or they come again.")
    if plan is not None and back.by_outcome:
        _print_reversibility(platform, plan, restored=back.missing is None)
    elif back.files.rows:
        from gc_assets.stages.read.reversibility import restore_reversibility

        for line in restore_reversibility(back.files.amount).lines:
            print_message(line)
    if back.missing is not None:
        print_message(back.missing)
        raise click.exceptions.Exit(1)


def _start_spark(progress: Progress, platform: Platform, settings: Settings) -> SparkSession:
    progress.set_activity("starting Spark")
    spark = open_spark(platform, verbose=settings.verbose)
    progress.set_activity("")
    return spark


def _plan_row(plan: ListedPlan, now: datetime) -> dict[str, Any]:
    header = plan.header
    status = plan.status_at(now)
    until = {"ready": header.approve_before, "refused": header.approve_before, "approved": header.apply_before}.get(status)
    return {
        "plan_id": header.plan_id,
        "storage": header.storage,
        "run_date": header.run_date,
        "status": status,
        "files": sum(total.files for total in header.totals.values()),
        "bytes": sum(total.bytes for total in header.totals.values()),
        "actions": {name: total.files for name, total in header.totals.items()},
        "expiry_actions": header.expiry_actions,
        "uploads": header.uploads.count,
        "upload_bytes": header.uploads.bytes,
        "refused_by": list(header.refused_by),
        "approved_by": plan.verdict.approved_by,
        "approvals_needed": plan.verdict.needed,
        "overrides": list(plan.verdict.overrides),
        "said": [str(word) for word in plan.verdict.events],
        "words": [word.model_dump(mode="json", exclude={"plan_id"}) for word in plan.verdict.events],
        "created_at": header.created_at,
        "until": until,
        "applied_at": plan.record.finished_at,
        "restored_at": plan.record.restored_at,
        "rehearsal": header.rehearsal,
        "unsafe": list(header.unsafe),
    }


def _actions(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} {files:,}" for name, files in row["actions"].items())
    if row["uploads"]:
        yield f"abort {row['uploads']:,} uploads"


def _print_outcomes(books: Mapping[str, Totals], plan_id: str | None, format_: str) -> None:
    rows: list[dict[str, Any]] = []
    for name, total in sorted(books.items()):
        phase, _, outcome = name.partition("/")
        rows.append({"plan_id": plan_id, "phase": phase, "outcome": outcome, "files": total.rows, "bytes": total.size_bytes})
    if format_ == "json":
        write_json(rows)
    elif rows:
        from gc_assets.core.units import format_bytes

        write_table([{**row, "bytes": format_bytes(row["bytes"])} for row in rows], ("phase", "outcome", "files", "bytes"))
