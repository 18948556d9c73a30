"""`gc-assets accept`: accept that a table in no catalog is dead."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_command, print_data, print_message, with_old_keys, write_json


@click.command("accept", short_help="Accept that a table in no catalog is dead.")
@click.argument("table")
@click.argument("location", required=False)
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier acceptance.")
@format_option()
@common_options
def accept_command(settings: Settings, table: str, location: str | None, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Accept that the table TABLE under LOCATION is dead. Deletes nothing.

    \b
    TABLE      the uuid of the table, or its name if `gc-assets show
               dropped_tables` lists it
    LOCATION   its directory, as an address or a path. A dropped table in that
               list needs none.

    Use it for a dropped table that waits, or for one whose old metadata refuses every plan (gate
    foreign_metadata). Its files under LOCATION then become garbage of the table or lake that claims
    the location, after the grace period.

    Warning: accepting a table that is still used through an unconfigured catalog deletes its files.
    Add that catalog to lakes.yaml instead. The acceptance ends if the table is written to later.

    \b
    Examples:
      gc-assets accept shop.orders --by ada
      gc-assets accept 9c12d441-03fe-4693-9a96-a0705ddf69c1 /data/orders --by ada
    """
    from gc_assets.stages.read.acceptances import describe_dead_table
    from gc_assets.stages.read.dropped_tables import find_dropped_locations
    from gc_assets.stages.records.dead_tables import accept_dead_table

    platform = settings.platform()
    config = platform.config
    uuid, locations = find_dropped_locations(config, table) if location is None else (table, [location])
    found = [accept_dead_table(config, platform.clock, uuid, at, by, comment, withdraw=withdraw) for at in locations]
    if format_ == "json":
        write_json({"storage": storage, **with_old_keys(record.model_dump(mode="json"), said="decision")} for storage, record in found)
    for storage, record in found:
        if format_ != "json":
            print_data(f"storage {config.label_of(storage)}: {record}")
        if not withdraw and (effect := describe_dead_table(config, storage, record)) is not None:
            print_message(effect)
    if withdraw:
        print_message("Existing plans keep its files. Files already in quarantine are purged later, unless you restore their plan.")
    print_command("Next (existing plans do not change)", "gc-assets run")
