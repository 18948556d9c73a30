"""`gc-assets retry`: plan actions again that were denied in an apply."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("retry", short_help="Plan actions again that an apply was denied.")
@click.argument("name")
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@format_option()
@common_options
def retry_command(settings: Settings, name: str, by: str, comment: str, format_: str) -> None:
    """Record that the next plan contains again what was denied in the storage or lake NAME.

    A store may deny a file, and a catalog may deny history edits. Plans leave both out for seven
    days, because the next attempt would be denied too. Use this after you granted the right or
    removed the lock. Deletes nothing.

    \b
    Examples:
      gc-assets retry warehouse --by ada
      gc-assets retry sales --by ada --comment "the role may commit now"
    """
    from gc_assets.stages.records.denials import request_retry

    platform = settings.platform()
    record = request_retry(platform.config, platform.clock, name, by, comment)
    if format_ == "json":
        write_json([{"name": name, **record.model_dump(mode="json")}])
    else:
        click.echo(f"{name}: the next plan includes the actions that were denied (recorded by {record.by})")
    print_message("Next: gc-assets run   (earlier plans do not change)")
