"""`gc-assets plans`, `apply` and `restore`: list plans, execute them, and restore files."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from gc_assets.cli.context import Settings, common_options, fast_imports, format_option, open_spark, wide_option, with_mode
from gc_assets.cli.dagster_events import report_apply, report_history_undo, report_restore
from gc_assets.cli.decision import EFFECT_COLUMNS, effect_columns
from gc_assets.cli.interrupt import ignore_interrupts, interrupt_code, restore_interrupts
from gc_assets.cli.output import print_command, print_message, with_old_keys, write_json, write_table
from gc_assets.core.commands import command
from gc_assets.core.errors import GcError
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.phases import PHASES
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from gc_assets.cli.progress import CommandProgress
    from gc_assets.config.models import Config
    from gc_assets.core.plan import PlanHeader
    from gc_assets.engine.run_context import RunContext
    from gc_assets.engine.tables import Totals
    from gc_assets.resources.platform import Platform
    from gc_assets.stages.delete.execution import ApplyResult
    from gc_assets.stages.delete.restore_request import RestoreResult
    from gc_assets.stages.records.plans import ListedPlan, StoredPlan

# In these phases, a row is a history edit and not a file.
_EDITS: Final = frozenset({"expire", "history"})
# The maximum number of plans listed in a message.
_MAX_RESTORABLE: Final = 5
_PLAN_AGAIN: Final = "To plan again what is still garbage"
STATUSES: Final = (
    "ready",
    "refused",
    "approved",
    "rejected",
    "unfinished",
    "partially applied",
    "applied",
    "restored",
    "expired",
    "historical",
)
PLAN_COLUMNS: Final = ("plan_id", "storage", "run_date", "status", *EFFECT_COLUMNS, "decision", "approve by", "apply by")
WIDE_COLUMNS: Final = (*PLAN_COLUMNS, "actions", "edits", "refused_by", "decisions", "created_at", "applied_at", "restored_at")


@click.command("plans", short_help="List the plans.")
@click.option("--storage", metavar="N", help="Only plans of this storage.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), metavar="S", help="Only plans with this status. Can be repeated."
)
@format_option()
@wide_option
@common_options
def plans_command(settings: Settings, storage: str | None, statuses: tuple[str, ...], format_: str, wide: bool) -> None:
    """List the plans, newest first, with their status.

    \b
    Status:
      ready              can be approved
      refused            by a gate
      approved           can be applied
      rejected           by a user
      unfinished         its apply began and can continue
      applied            completely
      partially applied  ended, but not everything was changed
      restored           its files were moved back
      expired            too old
      historical         analysis of a past date, cannot be applied

    --wide adds columns such as the edits: history edits by lake, which are also deletions of idle
    branches and, for lakeFS, commits that delete paths, with the number of paths.

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
        storage = platform.config.storage_of_user(storage).name
    now = platform.clock.now()
    every = list(list_plans(platform.config, storage, empty=True))
    chosen = [plan for plan in every if plan.is_listed and (not statuses or plan.status_at(now) in statuses)]
    found = [plan_row(plan, now, platform.config) for plan in chosen]
    if format_ == "json":
        write_json(found)
    elif found:
        rows = [_table_row(plan, row, platform.config, wide=wide) for plan, row in zip(chosen, found, strict=True)]
        empty = {*EFFECT_COLUMNS} - {*effect_columns(rows)}
        write_table(rows, [name for name in (WIDE_COLUMNS if wide else PLAN_COLUMNS) if name not in empty], wide=wide)
    if not found:
        reason = "has this status" if statuses else "contains files or edits"
        print_message(f"No plan {reason}." if every else "No run has made a plan yet.")
        print_command("To create one", command("run"))


@click.command("apply", short_help="Execute an approved plan.")
@click.argument("plan_id")
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), help="Only this phase. Can be repeated. Default: all.")
@click.option("--mode", type=click.Choice(["plan", "apply"]), help="Replaces the mode of the storage for this command.")
@click.option("--end", is_flag=True, help="End an unfinished plan: record its outcomes and start nothing further.")
@format_option()
@common_options
def apply_command(settings: Settings, plan_id: str, phases: tuple[str, ...], mode: Any, end: bool, format_: str) -> None:
    """Execute the rows of an approved plan in these phases: restore, expire (history edits),
    quarantine, purge, abort (unfinished multipart uploads).

    The live files are computed again before the first change, and after history edits. Files that
    a lake needs are kept. If the command is interrupted, run it again to continue from its log.
    The exit code is 1 if anything in the plan was not changed.

    \b
    Examples:
      gc-assets apply 3f9c2a71d004
      gc-assets apply 3f9c2a71d004 --mode apply
      gc-assets apply 3f9c2a71d004 --phase restore
      gc-assets apply 3f9c2a71d004 --end
    """
    with _explain_early_interruption():
        from gc_assets.cli.progress import CommandProgress, show_progress
        from gc_assets.stages.delete.apply import apply_plan, nothing_to_do, phases_of, refuse_apply
        from gc_assets.stages.records.leases import refuse_holder
        from gc_assets.stages.records.plans import describe_other_plans, find_plan

        platform = with_mode(settings.platform(), mode)
        plan = find_plan(platform.config, plan_id)
        run_context = platform.run_context(platform.clock.today())
    if end:
        _end_plan(settings, platform, run_context, plan, format_)
        return
    selected = tuple(phases_of(plan.header, phases or PHASES))
    contents = f"only {', '.join(phases_of(plan.header, PHASES))}" if plan.header.has_work else "no actions"
    already = nothing_to_do(plan) or (None if selected else f"the plan contains {contents}")
    if already is not None:
        _print_outcomes({}, None, format_)
        if plan.not_done and plan.restored_at is None:
            print_message(f"Not applied again: {already}.")
            print_command(_PLAN_AGAIN, command("run"))
            raise click.exceptions.Exit(1)
        print_message(f"Nothing to do: {already}.")
        return
    refuse_apply(run_context, plan, selected)  # before Spark starts; apply_plan checks again
    refuse_holder(run_context, plan.header.storage)
    label = platform.config.label_of(plan.header.storage)
    print_message(f"applying plan {plan.header.plan_id[:12]} of storage {label}: check for live files, then {', '.join(selected)}")
    for other in describe_other_plans(platform.config, plan.header, platform.clock.now()):
        print_message(other, "warn")
    again = command("apply", plan.header.plan_id[:12], mode=mode or False) + "".join(f" --phase {phase}" for phase in phases)
    with _explain_interruption(run_context, plan, selected, again), show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        applied = apply_plan(_start_spark(progress, platform, settings), run_context, plan, selected)
    report_apply(run_context, plan.header, applied)
    ignore_interrupts()
    _print_apply_result(run_context, plan, applied, format_)
    _print_what_is_left(run_context, plan.header, applied)


def _print_what_is_left(context: RunContext, header: PlanHeader, applied: ApplyResult) -> None:
    """Print the actions that the apply did not execute, and how to continue.

    Raises:
        click.exceptions.Exit: If the apply did not execute all actions. The exit code is 1.
    """
    if not applied.not_done:
        return
    status = "unfinished" if applied.has_failed else "partially applied"
    print_message(f"The plan is {status}. Not changed: {describe_not_done(applied.not_done)}.", "failed")
    phases = {name.partition("/")[0] for name in applied.not_done}
    if phases - {"expire"}:
        storage = context.config.label_of(header.storage)
        print_command("All reasons for files", command("show", "deletion_log", storage=storage, run_date=str(header.run_date)))
    if "expire" in phases:
        _print_edit_commands("All reasons for history edits", header)
    if applied.has_failed:
        print_command("To try the failed ones again", command("apply", header.plan_id[:12]))
    else:
        print_command(f"This plan has ended. {_PLAN_AGAIN}", command("run"))
    raise click.exceptions.Exit(1)


def _print_edit_commands(text: str, header: PlanHeader) -> None:
    """Print commands that show the history edits of a plan, one for each lake."""
    for lake in sorted(header.expiry_actions):
        print_command(text, command("show", "expiry_log", lake=lake, run_date=str(header.run_date)))


@contextmanager
def _explain_early_interruption() -> Generator[None]:
    try:
        with restore_interrupts():
            yield
    except KeyboardInterrupt:
        print_message("gc-assets: interrupted before this command changed anything. Run the same command again.")
        raise click.exceptions.Exit(interrupt_code()) from None


@contextmanager
def _explain_interruption(context: RunContext, plan: StoredPlan, phases: Sequence[str], again: str) -> Generator[None]:
    """If the apply in the block is interrupted or fails, print what it has already changed.

    Args:
        context: The run context.
        plan: The plan that is applied.
        phases: The phases that the user selected.
        again: The command to continue.
    """
    try:
        with restore_interrupts():
            yield
    except KeyboardInterrupt:
        from gc_assets.stages.records.plans import has_started

        print_message("gc-assets: interrupted.")
        _print_recorded(context, plan, phases, is_empty_shown=True)
        print_command("To continue", again)
        if has_started(context.state, plan.header):
            print_command("To end the plan without the remaining actions", command("apply", plan.header.plan_id[:12], end=True))
        raise click.exceptions.Exit(interrupt_code()) from None
    except (GcError, OSError):
        _print_recorded(context, plan, phases, is_empty_shown=False)
        raise


def _print_recorded(context: RunContext, plan: StoredPlan, phases: Sequence[str], *, is_empty_shown: bool) -> None:
    from gc_assets.stages.read.apply_outcomes import read_recorded_actions
    from gc_assets.stages.read.reversibility import NOTHING_CHANGED, describe_recorded

    try:
        recorded = read_recorded_actions(context, plan.header, phases)
    except (GcError, OSError) as error:
        print_message(f"Cannot read what was changed: {error}")
        return
    if recorded is not None and not recorded.is_empty:
        print_message("Changed so far by this plan:")
        for line in describe_recorded(plan.header, recorded, context.config):
            print_message(f"- {line}")
    elif is_empty_shown:
        print_message(NOTHING_CHANGED)


def _end_plan(settings: Settings, platform: Platform, run_context: RunContext, plan: StoredPlan, format_: str) -> None:
    """Execute `gc-assets apply --end`, which closes an unfinished plan."""
    from gc_assets.cli.progress import CommandProgress, show_progress
    from gc_assets.stages.delete.close import close_plan

    with show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        applied = close_plan(_start_spark(progress, platform, settings), run_context, plan)
    report_apply(run_context, plan.header, applied)
    _print_apply_result(run_context, plan, applied, format_)
    if applied.has_failed:
        print_message("The plan stays open, because some files could not be checked. See `gc-assets show deletion_log`, then try again.")
        raise click.exceptions.Exit(1)
    if applied.not_done:
        print_message(f"The plan has ended, but is only partially applied. Not changed: {describe_not_done(applied.not_done)}.")
        print_command(_PLAN_AGAIN, command("run"))


def _print_apply_result(context: RunContext, plan: StoredPlan, applied: ApplyResult, format_: str) -> None:
    from gc_assets.stages.delete.execution import header_of_result
    from gc_assets.stages.read.apply_outcomes import count_reasons
    from gc_assets.stages.read.reversibility import describe_outcomes, describe_reversibility

    header, by_outcome = plan.header, {f"{phase}/{outcome}": total for (phase, outcome), total in applied.by_outcome.items()}
    _print_outcomes(by_outcome, header.plan_id, format_)
    reasons = count_reasons(context, header, applied.published) if applied.not_done else {}
    for line in describe_outcomes(header, {key: total.rows for key, total in applied.by_outcome.items()}, reasons):
        print_message(line)
    if ("expire", "done") in applied.by_outcome:
        _print_edit_commands("To list the history edits", header)
    result = header_of_result(header, applied)
    for line in describe_reversibility(result, context.config, applied_at=context.clock.now()).lines:
        print_message(line)


@click.command("restore", short_help="Restore quarantined files.")
@click.option("--plan", "plan_id", metavar="P", help="Restore all files that this plan quarantined.")
@click.option("--prefix", metavar="X", help="Restore all files under this canonical prefix.")
@click.option("--key", metavar="K", help="Restore this file: a canonical key or an address.")
@click.option("--storage", metavar="N", help="The storage. Required if there are several and no plan or address determines it.")
@click.option("--history", is_flag=True, help="Also undo the edits of histories and branches of the plan (with --plan).")
@format_option()
@common_options
def restore_command(
    settings: Settings, plan_id: str | None, prefix: str | None, key: str | None, storage: str | None, history: bool, format_: str
) -> None:
    """Move quarantined files back to their original keys. Needs no approval, and never replaces an
    existing file.

    --history also undoes the edits of Icechunk histories, creates deleted idle branches again, and
    reverts the commits by which lifecycle rules deleted paths on lakeFS branches. Expired Iceberg
    snapshots cannot be restored.

    \b
    Examples:
      gc-assets restore --plan 3f9c2a71d004
      gc-assets restore --plan 3f9c2a71d004 --history
      gc-assets restore --storage warehouse --prefix sales/orders/
      gc-assets restore --key file:///data/warehouse/sales/data/00000-0.parquet
    """
    from gc_assets.cli.progress import CommandProgress, show_progress
    from gc_assets.stages.delete.restore_request import resolve_request, restore_files, undo_history

    platform = settings.platform()
    run_context = platform.run_context(platform.clock.today())
    request = resolve_request(run_context, plan_id=plan_id, prefix=prefix, key=key, storage=storage, history=history)
    with _explain_interrupted_restore(), show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        result = restore_files(lambda: _start_spark(progress, platform, settings), run_context, request)
    report_restore(run_context, request.storage, result.log)
    plan = request.plan
    with _explain_interrupted_restore(), show_progress(CommandProgress(), verbose=settings.verbose):
        with_undo = undo_history(run_context, result)
    if plan is not None and with_undo is not None:
        result = with_undo
        report_history_undo(run_context, plan.header)
    ignore_interrupts()
    _print_outcomes(result.by_outcome, request.plan_id, format_)
    _print_restore(platform, result)


@contextmanager
def _explain_interrupted_restore() -> Generator[None]:
    try:
        with restore_interrupts():
            yield
    except KeyboardInterrupt:
        print_message("gc-assets: interrupted. Files that were moved back, and edits that were undone, are not changed again.")
        print_message("Run the same command again to restore the remaining files and record the result.")
        raise click.exceptions.Exit(interrupt_code()) from None


def _print_restore(platform: Platform, result: RestoreResult) -> None:
    plan = result.request.plan
    if not result.by_outcome and result.purged is None:
        if plan is not None:
            _explain_purging_plan(platform, plan)
            if plan.restored_at is not None:
                print_message(f"Nothing to do: the files of this plan were restored at {plan.restored_at:%Y-%m-%d %H:%M}Z.")
                return
            if plan.finished is None and not plan.is_started:
                print_message(f"Nothing to do: plan {plan.header.plan_id[:12]} was not applied, so it moved no file.")
                return
        name = platform.config.label_of(result.request.storage)
        print_message(f"Nothing to do: no such file is in quarantine in storage {name}.")
        print_command("To find a file", "gc-assets explain KEY")
    elif plan is not None and _can_undo_history(platform, plan.header) and not result.request.history and result.by_outcome:
        from gc_assets.lakes.kinds import reversible_titles

        print_message(
            f"The history edits of the plan remain. To undo those of {reversible_titles()} and those of branches, relax the retention or "
            "the lifecycle rules first (otherwise the next plan repeats them), and then use --history."
        )
    if plan is not None and result.by_outcome and (result.purged is None or result.files.rows):
        from gc_assets.stages.read.reversibility import describe_reversibility

        is_complete, is_undone = result.missing is None, result.is_history_undone
        for line in describe_reversibility(plan.effective_header, platform.config, restored=is_complete, undone=is_undone).lines:
            print_message(line)
    elif result.files.rows:
        from gc_assets.stages.read.reversibility import restore_reversibility

        for line in restore_reversibility(result.files.amount).lines:
            print_message(line)
    if result.missing is not None:
        print_message(result.missing, "failed")
        raise click.exceptions.Exit(1)
    if result.purged is not None:
        print_message(f"{result.purged}")


def _can_undo_history(platform: Platform, header: PlanHeader) -> bool:
    """Return True if any history edit of the plan can be undone."""
    from gc_assets.lakes.kinds import kind_of

    lakes = [lake for lake in platform.config.lakes if lake.name in header.expiry_actions]
    return any(kind_of(lake).undoes_edits or lake.name in header.branch_edits for lake in lakes)


def _explain_purging_plan(platform: Platform, plan: StoredPlan) -> None:
    """Explain why a plan that purged files cannot be restored, and which plans can.

    Does nothing if the plan did not purge any file.

    Raises:
        click.exceptions.Exit: If the plan purged files. The exit code is 1.
    """
    from gc_assets.stages.records.purged_files import count_restorable, find_purged_by
    from gc_assets.state.journal import State

    state, header = State.of(platform.config), plan.header
    purged = find_purged_by(state, header.storage, header.plan_id)
    if purged is None:
        return
    print_message(f"No file that plan {header.plan_id[:12]} moved is in quarantine. {purged}", "failed")
    name = platform.config.label_of(header.storage)
    restorable = sorted(count_restorable(state, header.storage).items())
    if not restorable:
        print_message(f"No file is in quarantine in storage {name}.")
    for plan_id, files in restorable[:_MAX_RESTORABLE]:
        print_command(f"{count_of(files, 'file')} in quarantine can be restored", command("restore", plan=plan_id[:12]))
    if len(restorable) > _MAX_RESTORABLE:
        print_message(f"{count_of(len(restorable) - _MAX_RESTORABLE, 'more plan')} can be restored: gc-assets plans")
    raise click.exceptions.Exit(1)


def _start_spark(progress: CommandProgress, platform: Platform, settings: Settings) -> SparkSession:
    progress.set_activity("starting Spark")
    spark = open_spark(platform, verbose=settings.verbose)
    progress.set_activity("")
    return spark


def _table_row(plan: ListedPlan, row: Mapping[str, Any], config: Config, *, wide: bool) -> dict[str, Any]:
    """Build a table row from the JSON object of a plan."""
    from gc_assets.stages.read.reversibility import describe_plan_effects

    return {
        **row,
        **dict(zip(EFFECT_COLUMNS, describe_plan_effects(plan.header, config), strict=True)),
        "plan_id": row["plan_id"] if wide else row["plan_id"][:12],
        "status": mark_rehearsal(row["status"], row["rehearsal"]),
        "decision": _decision(row),
        "approve by": _deadline(row["approve_by"]),
        "apply by": _deadline(row["apply_by"]),
        "actions": ", ".join(_actions(row)),
        "edits": ", ".join(_describe_edits(row)),
        "refused_by": ", ".join(row["refused_by"]),
        "decisions": "; ".join(row["decisions"]),
    }


def _describe_edits(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the number of history edits of each lake, for example `sales 12 (3 paths)`."""
    for name, count in row["expiry_actions"].items():
        paths = row["deleted_paths"].get(name)
        yield f"{name} {count:,}" + (f" ({count_of(paths, 'path')})" if paths else "")


def _decision(row: Mapping[str, Any]) -> str:
    if row["status"] == "refused":
        return f"gates: {', '.join(row['refused_by'])}"
    rejected = [event["by"] for event in row["approval_events"] if event["decision"] == "rejected"]
    if row["status"] == "rejected":
        return f"rejected by {rejected[-1]}"
    if row["approved_by"] is None:
        return "none"
    given, needed = row["approvals"], row["approvals_needed"]
    return f"approved by {row['approved_by']}" + (f" ({given} of {needed})" if given < needed else "")


def _deadline(moment: datetime | None) -> str:
    return f"{moment:%m-%d %H:%M}Z" if moment is not None else ""


def plan_row(plan: ListedPlan, now: datetime, config: Config) -> dict[str, Any]:
    """Convert a plan to a JSON object with its status, totals and decisions."""
    header = plan.header
    status = plan.status_at(now)
    decisions = [str(event) for event in plan.verdict.events]
    events = [event.model_dump(mode="json", exclude={"plan_id"}) for event in plan.verdict.events]
    approve_by = header.approve_before if status in {"ready", "refused"} else None
    can_apply = status in {"ready", "refused", "approved", "unfinished"} and header.has_work
    apply_by = header.apply_before if can_apply else None
    return {
        "plan_id": header.plan_id,
        "storage": config.label_of(header.storage),
        "run_date": header.run_date,
        "status": status,
        "files": sum(total.files for total in header.totals.values()),
        "bytes": sum(total.bytes for total in header.totals.values()),
        "actions": {name: total.files for name, total in header.totals.items()},
        "expiry_actions": header.expiry_actions,
        "deleted_paths": header.deleted_paths,
        "uploads": header.uploads.count,
        "upload_bytes": header.uploads.bytes,
        "refused_by": list(header.refused_by),
        "approved_by": plan.verdict.approved_by,
        "approvals": len(plan.verdict.approvals),
        "approvals_needed": plan.verdict.needed,
        "overrides": list(plan.verdict.overrides),
        "decisions": decisions,
        "approval_events": events,
        "said": decisions,  # deprecated: use decisions
        "words": [with_old_keys(event, said="decision") for event in events],  # deprecated: use approval_events
        "created_at": header.created_at,
        "approve_by": approve_by,
        "apply_by": apply_by,
        "until": approve_by or apply_by,
        "applied_at": plan.record.finished_at,
        "restored_at": plan.record.restored_at,
        "not_done": plan.record.not_done or {},
        "rehearsal": header.rehearsal,
        "unsafe": list(header.unsafe),
        "listed_at": header.listed_at,
    }


def _actions(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} {files:,}" for name, files in row["actions"].items())
    if row["uploads"]:
        yield f"abort {count_of(row['uploads'], 'upload')}"


def _print_outcomes(by_outcome: Mapping[str, Totals], plan_id: str | None, format_: str) -> None:
    rows: list[dict[str, Any]] = []
    for name, total in sorted(by_outcome.items()):
        phase, _, outcome = name.partition("/")
        rows.append({"plan_id": plan_id, "phase": phase, "outcome": outcome, "files": total.rows, "bytes": total.size_bytes})
    if format_ == "json":
        write_json(rows)
    elif rows:
        table = [{**row, "count": row["files"], "size": "" if row["phase"] in _EDITS else format_bytes(row["bytes"])} for row in rows]
        write_table(table, ("phase", "outcome", "count", "size"))
