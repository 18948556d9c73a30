"""`gc-assets accept-prefix`: accept that foreign files under a prefix are garbage."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("accept-prefix", short_help="Accept that foreign files under a prefix are garbage.")
@click.argument("location")
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier acceptance.")
@format_option()
@common_options
def accept_prefix_command(settings: Settings, location: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Accept that the foreign files under LOCATION (file:///data/warehouse/db/old/) are garbage.

    Foreign files are in a claim, but no commit ever named them, and they may belong to others. They
    are listed and never planned. After this record, later runs plan those that exist now and that no
    lake needs. Deletes nothing.

    Warning: check who uses the files. No lake knows them, so no gate protects them after this.

    \b
    Example:
      gc-assets accept-prefix file:///data/warehouse/db/old/ --by ada
    """
    from gc_assets.stages.read.acceptances import describe_accepted_prefix
    from gc_assets.stages.records.accepted_prefixes import accept_prefix

    platform = settings.platform()
    storage, record = accept_prefix(platform.config, platform.clock, location, by, comment, withdraw=withdraw)
    if format_ == "json":
        write_json([{"storage": storage, **record.model_dump(mode="json")}])
    else:
        click.echo(f"storage {storage}: {record}")
    if not withdraw:
        print_message(describe_accepted_prefix(platform.config, storage, record.prefix))
    print_message("Next: gc-assets run   (earlier plans do not change)")
