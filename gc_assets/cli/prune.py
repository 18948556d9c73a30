"""`gc-assets prune`: remove old runs from the state."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, WholeNumber, common_options, format_option
from gc_assets.cli.output import print_message, write_json
from gc_assets.core.errors import GateRefused
from gc_assets.core.units import LONGEST, count_of


@click.command("prune", short_help="Remove old run directories from the state.")
@click.option(
    "--keep-days",
    type=WholeNumber(LONGEST.days),
    default=30,
    show_default=True,
    metavar="N",
    help="Keep the runs of the last N days.",
)
@format_option()
@common_options
def prune_command(settings: Settings, keep_days: int, format_: str) -> None:
    """Remove run directories that a later run of the same date replaced, and compacted segments
    that larger ones replaced. Current tables and files of lakes are never removed.

    The cache of decoded metadata, plans, logs and policies are kept at any age. The tables of the
    last accepted run, the last accepted list of missing files, and the last commit graph of each
    lake are kept too, because later runs need them.

    \b
    Example:
      gc-assets prune --keep-days 90
    """
    from gc_assets.lakes.kind import TableRole
    from gc_assets.lakes.kinds import table_with
    from gc_assets.stages.records.accepted_runs import find_baseline_tables
    from gc_assets.stages.records.newest_graphs import find_newest_graphs
    from gc_assets.state.journal import State
    from gc_assets.state.schemas import DELETION_PLAN, POLICY_TABLE

    platform = settings.platform()
    if platform.clock.is_rehearsal:
        raise GateRefused(
            f"cannot determine the ages of runs in a rehearsal (GC_ASSETS_UNSAFE_NOW={platform.clock.now().isoformat()}), so nothing "
            "is removed. Unset the variable, and run the command again."
        )
    protected = [table.name for table in (DELETION_PLAN, POLICY_TABLE, table_with(TableRole.PATH_EDITS))]
    used = find_baseline_tables(platform.config) | find_newest_graphs(platform.config)
    removed = State.of(platform.config).prune(keep_days, platform.clock, protected, used)
    if format_ == "json":
        write_json({"removed": path} for path in removed)
    else:
        for path in removed:
            click.echo(path)
    print_message(f"Removed {count_of(len(removed), 'directory')} from {platform.config.state}.")
