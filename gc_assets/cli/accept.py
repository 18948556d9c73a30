"""`gc-assets accept`: accept that a table in no catalog is dead."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, common_options, format_option
from gc_assets.cli.output import print_message, with_old_keys, write_json


@click.command("accept", short_help="Accept that a table in no catalog is dead.")
@click.argument("table_uuid")
@click.argument("location")
@click.option("--by", required=True, metavar="WHO", help="Your name, which is recorded.")
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier acceptance.")
@format_option()
@common_options
def accept_command(settings: Settings, table_uuid: str, location: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Accept that the table TABLE_UUID under LOCATION (file:///data/warehouse/db/orders/) is dead.

    Use it for a table that was dropped and created again at the same location: its old metadata
    refuses every plan (gate foreign_metadata). Its files under LOCATION then become garbage of the
    table or lake that claims the location, after the grace period. Deletes nothing.

    Warning: accepting a table that is still used through an unconfigured catalog deletes its files.
    Add that catalog to lakes.yaml instead. The acceptance ends if the table is written to later.

    \b
    Example:
      gc-assets accept 9c12d441-03fe-4693-9a96-a0705ddf69c1 file:///data/warehouse/db/orders/ --by ada
    """
    from gc_assets.stages.read.acceptances import describe_dead_table
    from gc_assets.stages.records.dead_tables import accept_dead_table

    platform = settings.platform()
    storage, record = accept_dead_table(platform.config, platform.clock, table_uuid, location, by, comment, withdraw=withdraw)
    if format_ == "json":
        write_json([{"storage": storage, **with_old_keys(record.model_dump(mode="json"), said="decision")}])
    else:
        click.echo(f"storage {storage}: {record}")
    if not withdraw and (effect := describe_dead_table(platform.config, storage, record)) is not None:
        print_message(effect)
    print_message("Next: gc-assets run   (earlier plans do not change)")
