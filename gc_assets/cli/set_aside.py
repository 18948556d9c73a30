"""`gc-assets set-aside`: record that purges need not wait for an unreadable table."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("set-aside", short_help="Record that purges do not wait for an unreadable table.")
@click.argument("table")
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier record.")
@format_option()
@common_options
def set_aside_command(settings: Settings, table: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Record that purges do not wait for the unreadable table TABLE, or for the unreadable lake TABLE.

    Files under its claims and locations are kept, but purges of other files continue. The record
    ends with the first run that reads the table, or finds another table of this name. If several
    lakes have such a table, name it LAKE/TABLE.

    Warning: if the table uses quarantined files of other tables, a purge deletes them. Its metadata
    cannot be read, so this is not detected.

    \b
    Example:
      gc-assets set-aside db.orders --by ada --comment "uses only its own files"
    """
    from gc_assets.stages.records.set_aside import set_table_aside

    platform = settings.platform()
    lake, record = set_table_aside(platform.config, platform.clock, table, by, comment, withdraw=withdraw)
    if format_ == "json":
        write_json([{"lake": lake, **record.model_dump(mode="json")}])
    else:
        click.echo(f"{table} of lake {lake}: {record}")
    print_message("Next: gc-assets run   (earlier plans do not change)")
