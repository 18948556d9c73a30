"""`gc-assets report`: write the HTML report of a run date."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gc_assets.cli.context import Settings, common_options, run_date_option
from gc_assets.cli.output import print_message
from gc_assets.core.commands import command
from gc_assets.core.errors import StateError, UsageError

if TYPE_CHECKING:
    from gc_assets.engine.run_context import RunContext


@click.command("report", short_help="Write the report of a run date as one HTML page.")
@run_date_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="report.html",
    show_default=True,
    metavar="F",
    help="The file to write. `-`: standard output.",
)
@click.option("--lake", "lakes", multiple=True, metavar="N", help="Only this lake; can be repeated.")
@click.option("--storage", "storages", multiple=True, metavar="N", help="Only this storage; can be repeated.")
@common_options
def report_command(settings: Settings, run_date: date | None, output: str, lakes: tuple[str, ...], storages: tuple[str, ...]) -> None:
    """Write one HTML page about a run date: the storage breakdown, the plan with its gates, the
    quarantine, the histories before and after expiry, and what keeps the bytes. The page needs no
    network and no other file.

    \b
    Examples:
      gc-assets report -o report.html
      gc-assets report --run-date 2026-11-21 --storage warehouse -o warehouse.html
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.report.load import load_report
    from gc_assets.report.page import render

    platform = settings.platform()
    names = [platform.config.lake_of_user(name).name for name in lakes], [platform.config.storage_of_user(name).name for name in storages]
    run_context = platform.run_context(run_date or platform.clock.today())
    _require_run(run_context)
    with show_work("report", verbose=settings.verbose):
        page = render(load_report(run_context, lakes=names[0], storages=names[1]))
    if output == "-":
        click.echo(page)
        return
    try:
        Path(output).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write -o {output}: {error.strerror}") from None
    print_message(f"{output}: {len(page.encode()):,} bytes")


def _require_run(context: RunContext) -> None:
    """Check that there is something to report.

    Raises:
        StateError: If the run date has no run. The message suggests the newest run date instead.
    """
    from gc_assets.state.schemas import LAKE_REFS

    lakes = [lake.name for lake in context.config.lakes]
    if any(context.find(LAKE_REFS, lake) is not None for lake in lakes):
        return
    dates = [run.run_date for lake in lakes for run in context.state.history(lake, LAKE_REFS.name)]
    if not dates:
        raise StateError("there is no run yet. Start one with `gc-assets run`.")
    last = command("report", run_date=str(max(dates)))
    raise StateError(f"run {context.run_date} does not exist. To see the newest run, use `{last}`.")
