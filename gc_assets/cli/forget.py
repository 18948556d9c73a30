"""`gc-assets forget`: says that a lake is to go."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("forget", short_help="Say that a lake is to go.")
@click.argument("lake")
@click.option("--by", required=True, metavar="WHO", help="Your name; it goes on record.")
@format_option()
@common_options
def forget_command(settings: Settings, lake: str, by: str, format_: str) -> None:
    """Records that a lake is to go: it was emptied, or taken out of lakes.yaml, on purpose.

    Until then the gate lakes_present refuses every plan of a storage in which the lake needed
    files, because what it shared with other lakes is no longer protected by it. Deletes nothing.

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
        click.echo(f"lake {lake} is to go, says {record.by}")
    print_message("Next: gc-assets run   (plans made before stay refused)")
