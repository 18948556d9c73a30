"""The summary that `gc-assets run` prints at the end, with one row per table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gc_assets.cli.output import print_command, print_message, write_table
from gc_assets.core.commands import command
from gc_assets.core.plan import Amount
from gc_assets.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from gc_assets.engine.run_context import RunContext
    from gc_assets.stages.read.run_tables import RunTable

# Only the tables with the most garbage are shown. `gc-assets blame` lists all of them.
MAX_TABLES: Final = 20
_PURGED: Final = "to purge"
_COLUMNS: Final = ("lake", "table", "kept", "expiring", "files now", "after expiry", "other garbage", _PURGED, "policy keeps")
_MAX_NAMES: Final = 5
_MAX_EXAMPLES: Final = 3


def print_run(context: RunContext, storages: Sequence[str]) -> None:
    """Print the results of a run. Tables go to standard output, notes to standard error.

    Args:
        context: The run context.
        storages: The storages with a plan of this run.
    """
    from gc_assets.stages.read.plan_tables import purges_by_table
    from gc_assets.stages.read.run_tables import UNOWNED_NOTES, protected_files, summarize_tables, unowned_files

    lakes = [lake.name for lake in context.config.lakes]
    tables = summarize_tables(context, lakes, storages, with_dropped=True)
    purges = purges_by_table(context, storages)
    rows = [_row(context, item, purges.get((item.lake, item.table))) for item in tables[:MAX_TABLES]]
    rows += purge_rows(context, purges, {(item.lake, item.table) for item in tables[:MAX_TABLES]})
    if rows:
        write_table(rows, [name for name in _COLUMNS if name != _PURGED or purges])
        print_message("kept and expiring count snapshots or commits. files now includes the files of expiring ones.")
    if purges:
        print_message(f"{_PURGED} counts files in quarantine that the plan deletes permanently. files now does not include them.")
    if len(tables) > MAX_TABLES:
        print_message(f"{count_of(len(tables) - MAX_TABLES, 'more table')} with less garbage: gc-assets blame")
    if unsized := sum(item.unsized for item in tables):
        print_message(f"Sizes with `over` do not include {count_of(unsized, 'file')}, because no lake records their size.")
    for lake in lakes:
        print_claims_outside(context, lake)
    for storage in storages:
        _print_dropped(context, storage, set(lakes))
        if context.storage(storage).protect:
            label, found = context.config.label_of(storage), protected_files(context, storage)
            print_message(f"Protected in storage {label}: {found} not needed by any lake, but kept by `protect` in lakes.yaml.")
        if (amount := unowned_files(context, storage)).files:
            not_planned, dropped = UNOWNED_NOTES
            print_message(f"Unowned in storage {context.config.label_of(storage)}: {amount}. {not_planned}")
            print_message(dropped)


def print_claims_outside(context: RunContext, lake: str) -> None:
    """Warn if a lake has tables with locations outside of all configured storages."""
    from gc_assets.stages.read.run_tables import claims_outside

    if found := claims_outside(context, lake):
        more = f" and {len(found) - _MAX_EXAMPLES:,} more" if len(found) > _MAX_EXAMPLES else ""
        where = f"{count_of(len(found), 'claimed prefix', 'are')} in no storage: {', '.join(found[:_MAX_EXAMPLES])}{more}"
        print_message(
            f"Lake {context.config.label_of(lake)}: {where}. Files there are neither counted nor collected."
            " Add a storage for it, or correct `location`."
        )


def _print_dropped(context: RunContext, storage: str, lakes: Collection[str]) -> None:
    """Print the dropped tables with files in a storage, and the conditions for their removal."""
    from gc_assets.stages.read.dropped_tables import accept_command, describe_dropped
    from gc_assets.stages.records.accepted_runs import newest_accepted_run
    from gc_assets.state.schemas import DELETION_PLAN, ORPHAN_FILES
    from gc_assets.state.summaries import OrphanFilesSummary

    summary = context.table(ORPHAN_FILES, storage).summary(OrphanFilesSummary)
    shown = [item for item in summary.dropped if item.lake in lakes][:_MAX_NAMES]
    accepted = newest_accepted_run(context, storage) if shown else None
    is_accepted = accepted is not None and accepted.path == context.table(DELETION_PLAN, storage).path
    for item in shown:
        print_message(describe_dropped(context, item, summary.grace_cutoff, is_accepted=is_accepted))
        if (accept := accept_command(item.table_uuid, item.waits_for)) is not None:
            print_command("  If the table is not in use, accept it", accept)
    if summary.dropped_tables > len(shown):
        show = command("show", "dropped_tables", storage=context.config.label_of(storage))
        print_command(f"{count_of(summary.dropped_tables, 'dropped table')} in all", show)


def purge_rows(
    context: RunContext, purges: Mapping[tuple[str, str | None], Amount], shown: Collection[tuple[str, str | None]]
) -> list[dict[str, Any]]:
    """Build rows for tables with quarantined files to purge, except for tables in `shown`.

    Tables with the most bytes come first. If there are more than `MAX_TABLES`, a last row contains
    the sum of the others.
    """
    others = sorted((item for item in purges.items() if item[0] not in shown), key=lambda item: -item[1].bytes)
    listed, rest = others[:MAX_TABLES], others[MAX_TABLES:]
    rows = [
        {"lake": context.config.label_of(lake), "table": table or ("" if lake else "-"), _PURGED: _amount(amount)}
        for (lake, table), amount in listed
    ]
    if rest:
        further = Amount.total(amount for _, amount in rest)
        rows.append({"lake": "", "table": count_of(len(rest), "more table"), _PURGED: _amount(further)})
    return rows


def _row(context: RunContext, item: RunTable, purged: Amount | None) -> dict[str, Any]:
    return {
        "lake": context.config.label_of(item.lake),
        "table": item.table,
        "kept": item.kept,
        "expiring": item.expiring,
        "files now": _amount(item.present, item.unsized),
        "after expiry": _amount(item.live, item.unsized),
        "other garbage": _amount(item.garbage),
        _PURGED: _amount(purged),
        "policy keeps": item.policy,
    }


def _amount(amount: Amount | None, unsized: int = 0) -> str:
    return "" if amount is None else f"{amount.files:,} ({'over ' if unsized else ''}{format_bytes(amount.bytes)})"
