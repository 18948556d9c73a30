"""`gc-assets forget`: record that a lake was removed on purpose."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("forget", short_help="Record that a lake is removed on purpose.")
@click.argument("lake")
@by_option
@format_option()
@common_options
def forget_command(settings: Settings, lake: str, by: str, format_: str) -> None:
    """Record that a lake was emptied, removed from lakes.yaml or deleted on its server on purpose.

    Otherwise the gate lakes_present refuses every plan of the storages in which the lake had live
    files, because the lake no longer protects files that it shared. A lakeFS repository that was
    deleted on its server stays unreadable without a record. Deletes nothing.

    \b
    Example:
      gc-assets forget sales --by ada
    """
    from gc_assets.stages.records.accepted_runs import forget_lake

    platform = settings.platform()
    record = forget_lake(platform.config, platform.clock, lake, by)
    if format_ == "json":
        write_json([{"lake": lake, **record.model_dump(mode="json")}])
    else:
        click.echo(f"lake {lake} was removed on purpose (recorded by {record.by})")
    print_message("Next: gc-assets run   (earlier plans remain refused)")
