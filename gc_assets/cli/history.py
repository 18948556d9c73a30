"""`gc-assets history`: commit histories before and after the expiry actions of the policy."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option
from gc_assets.cli.output import print_data, print_message, stream_width, write_json
from gc_assets.core.errors import UsageError
from gc_assets.core.suggest import did_you_mean, join_names

if TYPE_CHECKING:
    from gc_assets.report.text_graph import GraphLine

_INDENT: Final = "  "
# If many lanes leave less room than this, the text is not wrapped, because narrower lines would be
# hard to read.
_MIN_TEXT: Final = 30


@click.command("history", short_help="Show commit histories now and after expiry.")
@run_date_option
@click.option("--lake", metavar="N", help="Only this lake.")
@click.option("--table", metavar="T", help="Only this table: `namespace.table`.")
@click.option("--all", "everything", is_flag=True, help="Include histories that do not change.")
@format_option()
@common_options
def history_command(settings: Settings, run_date: date | None, lake: str | None, table: str | None, everything: bool, format_: str) -> None:
    """Draw the newest commits of each history that the policy of the run changes, now and after
    expiry. Changes nothing.

    \b
    Examples:
      gc-assets history
      gc-assets history --lake sales --table shop.orders
      gc-assets history --lake weather --run-date 2026-11-21 --format json
    """
    from gc_assets.report.lakes import histories
    from gc_assets.report.text_graph import text_graph
    from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, REACHABLE_SNAPSHOTS

    platform = settings.platform()
    run_context = platform.run_context(run_date or platform.clock.today())
    names = [item.name for item in platform.config.lakes] if lake is None else [platform.config.lake_of_user(lake).name]
    found: list[tuple[str, str, dict[str, tuple[GraphLine, ...]]]] = []
    tables: set[str] = set()
    for name in names:
        refs, reachable, expiry = (run_context.table(asset, name) for asset in (LAKE_REFS, REACHABLE_SNAPSHOTS, EXPIRY_PLAN))
        for history in histories(run_context, name, refs, reachable, expiry):
            tables.add(history.name)
            if table in {None, history.name} and (history.changes or everything or table is not None):
                drawn = {"now": tuple(text_graph(history, after=False)), "after_expiry": tuple(text_graph(history, after=True))}
                found.append((name, history.name, drawn))
    if table is not None and table not in tables:
        raise UsageError(f"--table {table}: unknown table; available: {join_names(sorted(tables))}{did_you_mean(table, tables)}")
    if format_ == "json":
        write_json(_json_row(*item) for item in found)
        return
    width = stream_width(sys.stdout)
    for name, shown, drawn in found:
        for when, lines in drawn.items():
            print_data(f"{name}: {shown}, {when.replace('_', ' ')}")
            for line in fit_graph(lines, width):
                click.echo(line)
        click.echo()
    if not found:
        print_message("The policy changes no history. Use --all to show unchanged histories.")


def _json_row(lake: str, name: str, drawn: Mapping[str, Iterable[GraphLine]]) -> dict[str, Any]:
    return {"lake": lake, "history": name, **{when: [str(line) for line in lines] for when, lines in drawn.items()}}


def fit_graph(lines: Iterable[GraphLine], width: int | None) -> Iterator[str]:
    """Indent a commit graph and wrap long commit messages, so that it fits the terminal.

    The vertical lines of the graph are continued to the left of wrapped text.

    Args:
        lines: The graph.
        width: The maximum width of a line, or None for no limit.
    """
    from gc_assets.cli.tables import wrap

    for line in lines:
        room = None if width is None else width - len(_INDENT) - len(line.lanes) - 1
        if room is None or room < _MIN_TEXT or not line.text:
            yield f"{_INDENT}{line}"
            continue
        first, *others = wrap(line.text, room, _INDENT)
        yield f"{_INDENT}{replace(line, text=first)}"
        yield from (f"{_INDENT}{line.lanes_below:{len(line.lanes)}} {_INDENT}{part.strip()}".rstrip() for part in others)
