"""`gc-assets rename`: keep using the records of a lake or storage under its new name."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("rename", short_help="Continue the records of another name.")
@click.argument("old")
@click.argument("new")
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@format_option()
@common_options
def rename_command(settings: Settings, old: str, new: str, by: str, comment: str, format_: str) -> None:
    """Record that the storage or lake NEW of lakes.yaml continues the records of OLD: its plans,
    approvals, quarantine and runs.

    If only the name changed in lakes.yaml, this command is not needed: a storage is recognized by
    its location, and a lake by its catalog or repository. Use it if the location or the address of
    the catalog changed too. Changes no storage.

    \b
    Example:
      gc-assets rename warehouse archive --by ada
    """
    from gc_assets.stages.records.renames import rename

    platform = settings.platform()
    entry = rename(platform.config, platform.clock, old, new, by, comment)
    if format_ == "json":
        write_json(
            [
                {
                    "scope": entry.scope,
                    "name": new,
                    "recorded_name": entry.recorded_name,
                    "location": entry.locations[0] if entry.locations else None,
                }
            ]
        )
    else:
        click.echo(f"{entry.scope} {new} continues the records of {entry.recorded_name} (recorded by {by.strip()})")
    print_message("Next: gc-assets plans")
