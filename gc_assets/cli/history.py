"""`gc-assets history`: commit histories before and after the expiry actions of the policy."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option
from gc_assets.cli.output import print_message, write_json
from gc_assets.core.errors import UsageError
from gc_assets.core.suggest import did_you_mean, join_names


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
    found: list[dict[str, Any]] = []
    tables: set[str] = set()
    for name in names:
        refs, reachable, expiry = (run_context.table(asset, name) for asset in (LAKE_REFS, REACHABLE_SNAPSHOTS, EXPIRY_PLAN))
        for history in histories(run_context, name, refs, reachable, expiry):
            tables.add(history.name)
            if table in {None, history.name} and (history.changes or everything or table is not None):
                drawn = {when: list(text_graph(history, after=after)) for when, after in (("now", False), ("after_expiry", True))}
                found.append({"lake": name, "history": history.name, **drawn})
    if table is not None and table not in tables:
        raise UsageError(f"--table {table}: no such table; the tables are {join_names(sorted(tables))}{did_you_mean(table, tables)}")
    if format_ == "json":
        write_json(found)
        return
    for item in found:
        click.echo(f"{item['lake']}: {item['history']}, now")
        click.echo("\n".join(f"  {line}" for line in item["now"]))
        click.echo(f"{item['lake']}: {item['history']}, after expiry")
        click.echo("\n".join(f"  {line}" for line in item["after_expiry"]) + "\n")
    if not found:
        print_message("The policy changes no history. Use --all to show unchanged histories.")
