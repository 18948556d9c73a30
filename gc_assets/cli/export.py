"""`gc-assets export`: write results of runs for other programs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING

import click

from gc_assets.cli.context import RUN_DATE, Settings, common_options, run_date_option
from gc_assets.cli.output import print_message
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.units import count_of

if TYPE_CHECKING:
    from gc_assets.engine.run_context import RunContext
    from gc_assets.resources.platform import Platform


@click.group("export", short_help="Write results of runs for other programs.")
def export_command() -> None:
    """Write results of runs for other programs.

    \b
    Example:
      gc-assets export focus -o focus.csv
    """


@export_command.command("focus", short_help="Write the cost of each table as FOCUS CSV.")
@run_date_option
@click.option("--since", type=RUN_DATE, metavar="D", help="Also all run dates from D on. Default: only one run date.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="F", help="The file to write. Default: standard output.")
@common_options
def focus_command(settings: Settings, run_date: date | None, since: date | None, output: str | None) -> None:
    """Write the cost of storage for each table and owner as CSV, in the columns of FOCUS 1.2
    (FinOps Open Cost and Usage Specification). Only the state is read.

    Each run date is one day of usage, with the price of `money` in lakes.yaml. The files
    that were purged on that day are a credit of their monthly price. Sum either usage or credits.

    \b
    Examples:
      gc-assets export focus -o focus.csv
      gc-assets export focus --since 2026-11-01 -o november.csv
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.report.focus import credit_rows, usage_rows, write_csv

    platform = settings.platform()
    unpriced = [storage.label for storage in platform.config.storages if storage.money is None]
    if len(unpriced) == len(platform.config.storages):
        raise UsageError("no storage has a price. Add `money: {usd_per_gb_month: 0.023}` to a storage in lakes.yaml.")
    if unpriced:
        print_message(f"Storages without a price (`money` in lakes.yaml) are not exported: {', '.join(unpriced)}.")
    contexts = list(_contexts(platform, run_date or platform.clock.today(), since))
    rows = itertools.chain.from_iterable((*usage_rows(context), *credit_rows(context)) for context in contexts)
    if output is None:
        write_csv(rows, sys.stdout)
        return
    try:
        with show_work("export focus", verbose=settings.verbose), click.open_file(output, "w", encoding="utf-8", atomic=True) as file:
            count = write_csv(rows, file)
    except OSError as error:
        raise UsageError(f"Cannot write -o {output}: {error.strerror}") from None
    print_message(f"{output}: {count_of(count, 'row')} of {count_of(len(contexts), 'run date')}")


def _contexts(platform: Platform, last: date, since: date | None) -> Iterator[RunContext]:
    """Yield the runs that searched every storage with a price for garbage. Skip historical runs.

    Raises:
        StateError: If there is no such run in the requested period.
    """
    from gc_assets.state.journal import State
    from gc_assets.state.schemas import ORPHAN_FILES
    from gc_assets.state.summaries import OrphanFilesSummary

    state = State.of(platform.config)
    priced = [storage.name for storage in platform.config.storages if storage.money is not None]
    dates = set.intersection(*(set(state.dates(name, ORPHAN_FILES.name)) for name in priced))
    wanted = sorted(day for day in dates if (since or last) <= day <= last)
    contexts = [platform.run_context(day) for day in wanted]
    found = [
        context
        for context in contexts
        if not any(context.table(ORPHAN_FILES, name).summary(OrphanFilesSummary).historical for name in priced)
    ]
    if not found:
        raise StateError(f"no run of {last} has swept all storages with a price. Choose another --run-date, or run gc-assets run.")
    yield from found
