"""The commands that record decisions of users, except those about single plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gc_assets.cli.context import Settings, by_option, comment_option, common_options, format_option
from gc_assets.cli.output import print_command, print_data, print_message, with_old_keys, write_json
from gc_assets.core.commands import command
from gc_assets.core.units import count_of


@click.command("accept", short_help="Accept that a table that no catalog lists is dead.")
@click.argument("table")
@click.argument("location", required=False)
@by_option
@comment_option
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier acceptance.")
@format_option()
@common_options
def accept_command(settings: Settings, table: str, location: str | None, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Accept that the table TABLE under LOCATION is dead. Deletes nothing.

    \b
    TABLE      the uuid of the table, or its name if `gc-assets show
               dropped_tables` lists it
    LOCATION   its directory, as an address or a path. Not needed for a dropped
               table in that list.

    Use it for a dropped table that waits, or for one whose old metadata makes the gate
    foreign_metadata refuse every plan. Its files under LOCATION then become garbage of the table or
    lake that claims the location, after the grace period.

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


@click.command("accept-prefix", short_help="Accept that files under a prefix are garbage.")
@click.argument("location")
@by_option
@comment_option
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier acceptance.")
@format_option()
@common_options
def accept_prefix_command(settings: Settings, location: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Accept that the foreign files under LOCATION (file:///data/warehouse/db/old/) are garbage.

    Foreign files are under a prefix that a lake claims, but no commit ever referenced them, so they
    may belong to others. They are listed, but not planned. After this record, later runs plan those
    that exist now and that no lake needs. Deletes nothing.

    Warning: check who uses the files. No lake references them, so no gate protects them after this.

    \b
    Example:
      gc-assets accept-prefix file:///data/warehouse/db/old/ --by ada
    """
    from gc_assets.stages.read.acceptances import describe_accepted_prefix
    from gc_assets.stages.records.accepted_prefixes import accept_prefix

    platform = settings.platform()
    storage, record = accept_prefix(platform.config, platform.clock, location, by, comment, withdraw=withdraw)
    _print_record(format_, f"storage {storage}: {record}", {"storage": storage, **record.model_dump(mode="json")})
    if not withdraw:
        print_message(describe_accepted_prefix(platform.config, storage, record.prefix))
    print_message("Next: gc-assets run   (earlier plans do not change)")


@click.command("set-aside", short_help="Record that purges do not wait for an unreadable table.")
@click.argument("table")
@by_option
@comment_option
@click.option("--withdraw", is_flag=True, help="Withdraw an earlier record.")
@format_option()
@common_options
def set_aside_command(settings: Settings, table: str, by: str, comment: str, withdraw: bool, format_: str) -> None:
    """Record that purges do not wait for the unreadable table TABLE, or for the unreadable lake TABLE.

    Files under its claims and locations are kept, but purges of other files continue. The record
    ends with the first run that reads the table, or finds another table of this name. If several
    lakes have such a table, write LAKE/TABLE.

    Warning: if the table uses quarantined files of other tables, a purge deletes them. Its metadata
    cannot be read, so this is not detected.

    \b
    Example:
      gc-assets set-aside db.orders --by ada --comment "uses only its own files"
    """
    from gc_assets.stages.records.set_aside import set_table_aside

    platform = settings.platform()
    lake, record = set_table_aside(platform.config, platform.clock, table, by, comment, withdraw=withdraw)
    _print_record(format_, f"{table} of lake {lake}: {record}", {"lake": lake, **record.model_dump(mode="json")})
    print_message("Next: gc-assets run   (earlier plans do not change)")


@click.command("retry", short_help="Plan actions again that a store or catalog denied.")
@click.argument("name")
@by_option
@comment_option
@format_option()
@common_options
def retry_command(settings: Settings, name: str, by: str, comment: str, format_: str) -> None:
    """Include actions that were denied in the storage or lake NAME in the next plan again.

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
    text = f"{name}: the next plan includes the actions that were denied (recorded by {record.by})"
    _print_record(format_, text, {"name": name, **record.model_dump(mode="json")})
    print_message("Next: gc-assets run   (earlier plans do not change)")


@click.command("forget", short_help="Record that a lake is removed on purpose.")
@click.argument("lake")
@by_option
@format_option()
@common_options
def forget_command(settings: Settings, lake: str, by: str, format_: str) -> None:
    """Record that a lake was emptied, removed from lakes.yaml or deleted on its server on purpose.

    Without this record, the gate lakes_present refuses every plan of the storages in which the lake
    had live files, because the lake no longer protects files that it shared. A lakeFS repository
    that was deleted on its server also stays unreadable without it. Deletes nothing.

    \b
    Example:
      gc-assets forget sales --by ada
    """
    from gc_assets.stages.records.accepted_runs import forget_lake

    platform = settings.platform()
    record = forget_lake(platform.config, platform.clock, lake, by)
    text = f"lake {lake} was removed on purpose (recorded by {record.by})"
    _print_record(format_, text, {"lake": lake, **record.model_dump(mode="json")})
    print_message("Next: gc-assets run   (earlier plans remain refused)")


@click.command("rename", short_help="Continue the records of another name.")
@click.argument("old")
@click.argument("new")
@by_option
@comment_option
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
    location = entry.locations[0] if entry.locations else None
    row = {"scope": entry.scope, "name": new, "recorded_name": entry.recorded_name, "location": location}
    _print_record(format_, f"{entry.scope} {new} continues the records of {entry.recorded_name} (recorded by {by.strip()})", row)
    print_message("Next: gc-assets plans")


@click.command("adopt", short_help="Record quarantined files that are missing from the state.")
@click.argument("storage")
@by_option
@comment_option
@format_option()
@common_options
def adopt_command(settings: Settings, storage: str, by: str, comment: str, format_: str) -> None:
    """Record the files in the trash of STORAGE that no log in the state contains, for example after
    the state was restored from an older backup. Partly applied plans that the backup lacks are
    ended. Files that differ from the log, because the storage was copied to another disk, are
    recorded again. `gc-assets doctor` counts them.

    The files can then be restored. Later plans may purge them, at the earliest quarantine_days from
    now. Moves no file.

    \b
    Example:
      gc-assets adopt warehouse --by ada
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.stages.records.adoption import adopt_files

    platform = settings.platform()
    name = platform.config.storage_of_user(storage).name
    with show_work("adopt", verbose=settings.verbose):
        result = adopt_files(platform.run_context(platform.clock.today()), name, by, comment)
    amount = result.adopted.amount
    if format_ == "json":
        found = {"files": amount.files, "bytes": amount.bytes, "plans": result.adopted.plan_ids, "ended": list(result.ended)}
        write_json([{"storage": storage, **found}])
    elif amount.files:
        click.echo(f"storage {storage}: {amount} are now recorded as quarantined (by {by.strip()})")
    if result.skipped:
        first = result.skipped[0]
        print_message(
            f"Skipped {count_of(len(result.skipped), 'object')} in the trash that another program wrote, "
            f"such as {first.plan_id}/{first.key}"
        )
    for plan_id in result.ended:
        print_message(f"Plan {plan_id[:12]}, which is not in the state, has ended.")
    if not amount.files and not result.ended:
        print_message("Nothing to do: all files in the trash are recorded in the state.")
        return
    for plan_id in result.adopted.plan_ids:
        print_message(f"To move them back: {command('restore', storage=storage, plan=plan_id[:12])}")


def _print_record(format_: str, text: str, row: Mapping[str, Any]) -> None:
    if format_ == "json":
        write_json([row])
    else:
        click.echo(text)
