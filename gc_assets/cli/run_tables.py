"""The tables with which `gc-assets run` ends: policy, snapshots and files of each table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gc_assets.cli.output import print_message, write_table
from gc_assets.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from gc_assets.core.plan import Amount
    from gc_assets.engine.run_context import RunContext
    from gc_assets.stages.read.run_tables import RunTable

# Tables with the most garbage. `gc-assets blame` lists all.
MAX_TABLES: Final = 20
_COLUMNS: Final = ("lake", "table", "kept", "expiring", "files now", "after expiry", "other garbage", "policy keeps")
_MAX_NAMES: Final = 5


def print_run(context: RunContext, storages: Sequence[str]) -> None:
    """Write what the run found: the tables to standard output, notes to standard error.

    Args:
        context: The run context.
        storages: The storages with a plan.
    """
    from gc_assets.stages.read.run_tables import find_dropped_tables, summarize_tables, unowned_files

    lakes = [lake.name for lake in context.config.lakes]
    tables = summarize_tables(context, lakes, storages)
    if tables:
        write_table([_row(context, item) for item in tables[:MAX_TABLES]], _COLUMNS)
    if len(tables) > MAX_TABLES:
        print_message(f"{count_of(len(tables) - MAX_TABLES, 'more table')} with less garbage: gc-assets blame")
    print_message("kept and expiring count snapshots or commits. files now includes the files of expiring ones.")
    for lake in lakes:
        if dropped := find_dropped_tables(context, lake):
            names = ", ".join(dropped[:_MAX_NAMES]) + (f" and {len(dropped) - _MAX_NAMES:,} more" if len(dropped) > _MAX_NAMES else "")
            print_message(
                f"Dropped from lake {context.config.label_of(lake)} since the last run date: {names}. See `gc-assets show dropped_tables`."
            )
    for storage in storages:
        if (amount := unowned_files(context, storage)).files:
            label = context.config.label_of(storage)
            print_message(f"Unowned in storage {label}: {_amount(amount)}. No lake claims them, so they are not planned.")


def _row(context: RunContext, item: RunTable) -> dict[str, Any]:
    return {
        "lake": context.config.label_of(item.lake),
        "table": item.table,
        "kept": item.kept,
        "expiring": item.expiring,
        "files now": _amount(item.present),
        "after expiry": _amount(item.live),
        "other garbage": _amount(item.garbage),
        "policy keeps": item.policy,
    }


def _amount(amount: Amount | None) -> str:
    return "" if amount is None else f"{amount.files:,} ({format_bytes(amount.bytes)})"
