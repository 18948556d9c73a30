"""`gc-assets scan`: estimate the live and unused files at a location, without configuration."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gc_assets.cli.context import Settings, common_options, fast_imports
from gc_assets.cli.output import print_command, print_data, print_message, write_table
from gc_assets.core.commands import command
from gc_assets.core.errors import UsageError
from gc_assets.core.printable import escape
from gc_assets.core.units import count_of, format_bytes, format_duration

if TYPE_CHECKING:
    from gc_assets.core.paths import Location
    from gc_assets.core.plan import Amount, PlanHeader
    from gc_assets.engine.run_context import RunContext
    from gc_assets.report.run_report import ScanTerms
    from gc_assets.resources.platform import Platform
    from gc_assets.stages.read.run_tables import RunTable

# The location of the state in the printed lakes.yaml. `gc-assets init` uses the same default.
_STATE: Final = "./state"
_MAX_TABLES: Final = 20
_TABLE_COLUMNS: Final = ("lake", "table", "needed", "expired history", "garbage", "snapshots kept", "expiring")


@click.command("scan", short_help="Estimate the live and unused files in a location.")
@click.argument("locations", nargs=-1, required=True, metavar="LOCATION...")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="F", help="Also write the scan as one HTML page.")
@common_options
def scan_command(settings: Settings, locations: tuple[str, ...], output: str | None) -> None:
    """Find the lakes of each LOCATION, estimate which files they need and which look unused. Needs
    no configuration, changes nothing and keeps nothing.

    \b
    A LOCATION is the same as for `gc-assets init`:
      a folder with Icechunk repositories or SQLite catalogs, up to three levels
        deep (and a SQLite catalog next to the folder, if it has tables in it)
      s3://bucket/prefix/ with Icechunk repositories, up to three levels deep
      a SQLite file that is an Iceberg catalog
      http://host of a Nessie, lakeFS or Iceberg REST server
      catalog:NAME, an Iceberg catalog in pyiceberg's configuration

    The estimate uses the retention that `gc-assets init` writes, and a grace period of three days.
    It assumes that only the lakes of these locations use the files. The output ends with the
    lakes.yaml to start from.

    \b
    Examples:
      gc-assets scan /data/warehouse
      gc-assets scan http://localhost:19120/api/v2 -o scan.html
    """
    from gc_assets.cli.new_config import (
        build_document,
        require_locations,
        require_storages,
        search_locations,
        to_text,
        warn_missing_libraries,
    )
    from gc_assets.cli.progress import CommandProgress, show_progress

    require_locations(locations)
    warn_missing_libraries()
    with show_progress(CommandProgress(), verbose=settings.verbose) as progress:
        progress.set_activity("looking for lakes")
        folders, found = search_locations(locations)
        storages = require_storages(found, folders)
        with _temporary_platform(storages, lambda state: to_text(build_document(state, storages, found))) as platform:
            progress.set_activity("loading Dagster")
            with fast_imports():
                from gc_assets.cli.dagster_run import run_partition
            day = platform.clock.today()
            headers = run_partition(platform, day, mode="plan", observer=progress, verbose=settings.verbose, recorded=False)
            lakes_yaml = to_text(build_document(_STATE, storages, found))
            notes = [f"Lake {lake.name}: {lake.note}." for lake in found if lake.note]
            context = platform.run_context(day)
            terms = _terms(context, locations, headers, notes, lakes_yaml)
            _print_scan(context, terms)
            if output is not None:
                _write_page(context, terms, output)
    print_command("Write this lakes.yaml", command("init", *locations))


@contextmanager
def _temporary_platform(storages: Sequence[Location], write: Callable[[str], str]) -> Generator[Platform]:
    """Yield a platform that keeps its state in a temporary directory until the block ends.

    Args:
        storages: The storages to scan.
        write: Renders `lakes.yaml` for a given location of the state.

    Raises:
        UsageError: If the temporary directory is inside a storage. The scan would then write to the
            storage.
    """
    from gc_assets.cli.new_config import require_separate_state
    from gc_assets.resources.platform import load_platform

    with tempfile.TemporaryDirectory(prefix="gc-assets-scan-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        try:
            require_separate_state(str(folder), storages)
        except UsageError:
            raise UsageError(f"the temporary directory {folder.parent} is in a scanned storage. Set TMPDIR to another directory.") from None
        path = folder / "lakes.yaml"
        path.write_text(write(str(folder / "state")), encoding="utf-8")
        yield load_platform(os.environ, str(path))


def _terms(
    context: RunContext, locations: Sequence[str], headers: Sequence[PlanHeader], notes: Sequence[str], lakes_yaml: str
) -> ScanTerms:
    from gc_assets.lakes.kinds import KINDS
    from gc_assets.report.run_report import ScanTerms

    config = context.config
    assumptions = [
        "Only the lakes found here use these files. If another catalog uses some of them, they look unused although they are needed.",
        *(f"Lake {lake.name} ({lake.kind}) keeps {KINDS[lake.kind].describe_retention(lake, {})}." for lake in config.lakes),
        f"Files younger than the grace period of {format_duration(context.longest_grace())} are needed.",
    ]
    doubts = [f"{header.storage}: {gate.message}" for header in headers for gate in header.failed_gates]
    doubts += _foreign_files(context)
    return ScanTerms(tuple(locations), tuple(assumptions), (*notes, *doubts), lakes_yaml, command("init", *locations))


def _foreign_files(context: RunContext) -> Iterator[str]:
    """Describe the foreign files of each storage, which must not be counted as garbage."""
    from gc_assets.state.schemas import ORPHAN_FILES
    from gc_assets.state.summaries import OrphanFilesSummary

    for storage in context.config.storages:
        found = context.table(ORPHAN_FILES, storage.name).summary(OrphanFilesSummary).foreign_amount
        if found.files:
            yield f"{storage.name}: {found} may belong to others and are not planned. See Foreign files in docs/safety.md."


def _print_scan(context: RunContext, terms: ScanTerms) -> None:
    from gc_assets.report.shares import breakdown_steps
    from gc_assets.stages.read.run_tables import summarize_tables
    from gc_assets.state.schemas import ORPHAN_FILES
    from gc_assets.state.summaries import OrphanFilesSummary

    storages = [storage.name for storage in context.config.storages]
    rows: list[dict[str, Any]] = []
    for name in storages:
        steps = breakdown_steps(context.table(ORPHAN_FILES, name).summary(OrphanFilesSummary))
        rows += [{"storage": name, "share": step.label, "files": step.files, "size": format_bytes(step.size_bytes)} for step in steps]
    print_data("STORAGES")
    write_table(rows, ("storage", "share", "files", "size"))
    tables = summarize_tables(context, [lake.name for lake in context.config.lakes], storages)
    print_data("\nTABLES")
    write_table([_table_row(item) for item in tables[:_MAX_TABLES]], _TABLE_COLUMNS)
    if len(tables) > _MAX_TABLES:
        print_data(f"{count_of(len(tables) - _MAX_TABLES, 'more table')} with less garbage")
    print_data("\nThis is an estimate under these assumptions:")
    for line in terms.assumptions:
        print_data(f"- {line}")
    for doubt in terms.doubts:
        print_data(f"Doubt: {doubt}", "warn")
    click.echo("\n" + escape(terms.lakes_yaml, keep="\n"))  # not wrapped, so that it can be copied


def _table_row(item: RunTable) -> dict[str, Any]:
    return {
        **{"lake": item.lake, "table": item.table, "snapshots kept": item.kept, "expiring": item.expiring},
        **{"needed": _amount(item.live), "expired history": _amount(item.expired), "garbage": _amount(item.garbage)},
    }


def _amount(amount: Amount | None) -> str:
    return "" if amount is None else f"{amount.files:,} ({format_bytes(amount.bytes)})"


def _write_page(context: RunContext, terms: ScanTerms, output: str) -> None:
    from gc_assets.report.load import load_report
    from gc_assets.report.page import render

    report = load_report(context)
    # The plan is deleted together with the temporary state, so it cannot be approved or applied.
    pages = [replace(page, header=None, status=None, stored=(), plans=(), uploads=()) for page in report.storages]
    page = render(replace(report, storages=pages, scan=terms))
    try:
        Path(output).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write -o {output}: {error.strerror}") from None
    print_message(f"{output}: {len(page.encode()):,} bytes")
