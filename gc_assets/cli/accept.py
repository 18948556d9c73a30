"""`gc-assets accept`: says that a table which no catalog knows is dead."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, common_options, format_option
from gc_assets.cli.output import print_message, write_json


@click.command("accept", short_help="Say that a table which no catalog knows is dead.")
@click.argument("table_uuid")
@click.argument("location")
@click.option("--by", required=True, metavar="WHO", help="Your name; it goes on record.")
@click.option("--comment", default="", metavar="TEXT", help="Why; it goes on record.")
@click.option("--withdraw", is_flag=True, help="Take the word back.")
@format_option()
@common_options
def accept_command(settings: Settings, table_uuid: str, location: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Records that the table TABLE_UUID is dead below LOCATION (file:///data/warehouse/db/orders/).

    For a table that was dropped and made again at the same place: its old metadata refuses every
    plan (foreign_metadata) until then. Its files below LOCATION then count as garbage of the table
    or lake that claims the place, once they are old enough. A table that still lives in a catalog
    which lakes.yaml does not name would lose them: add that catalog instead. The word ends by
    itself where the table is written to later. Deletes nothing.

    \b
    Example:
      gc-assets accept 9c12d441-03fe-4693-9a96-a0705ddf69c1 file:///data/warehouse/db/orders/ --by ada
    """
    from gc_assets.stages.records.dead_tables import accept_dead_table

    platform = settings.platform()
    storage, record = accept_dead_table(platform.config, platform.clock, table_uuid, location, by, comment, withdraw=withdraw)
    if format_ == "json":
        write_json([{"storage": storage, **record.model_dump(mode="json")}])
    else:
        click.echo(f"storage {storage}: {record}")
    print_message("Next: gc-assets run   (plans made before stay as they are)")
