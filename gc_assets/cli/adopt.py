"""`gc-assets adopt`: record quarantined files that are missing from the state."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, by_option, common_options, format_option
from gc_assets.cli.output import print_message, write_json
from gc_assets.core.commands import command


@click.command("adopt", short_help="Record quarantined files that the state does not know.")
@click.argument("storage")
@by_option
@click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")
@format_option()
@common_options
def adopt_command(settings: Settings, storage: str, by: str, comment: str, format_: str) -> None:
    """Record the files in the trash of STORAGE that are in no log of the state, for example after
    the state was restored from an older backup. Partly applied plans that the backup lacks end.
    Files that differ from the log, because the storage was copied to another disk, are recorded
    again. `gc-assets doctor` counts them.

    The files can then be restored. Later plans may purge them, at the earliest quarantine_days from
    now. Moves no file.

    \b
    Example:
      gc-assets adopt warehouse --by ada
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.core.units import count_of, format_bytes
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
        click.echo(
            f"storage {storage}: {count_of(amount.files, 'file')} ({format_bytes(amount.bytes)}) are in the ledger "
            f"now (recorded by {by.strip()})"
        )
    if result.skipped:
        first = result.skipped[0]
        print_message(
            f"Skipped {count_of(len(result.skipped), 'object')} in the trash that another program put there, "
            f"such as {first.plan_id}/{first.key}"
        )
    for plan_id in result.ended:
        print_message(f"Plan {plan_id[:12]}, which is not in the state, has ended.")
    if not amount.files and not result.ended:
        print_message("Nothing to do: all files in the trash are recorded in the state.")
        return
    for plan_id in result.adopted.plan_ids:
        print_message(f"To move them back: {command('restore', storage=storage, plan=plan_id[:12])}")
