"""`gc-assets prune`: makes room in the state."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, common_options, format_option
from gc_assets.cli.output import print_message, write_json
from gc_assets.core.errors import GateRefused


@click.command("prune", short_help="Remove old run directories from the state.")
@click.option("--keep-days", type=click.IntRange(min=0), default=30, show_default=True, metavar="N", help="Keep runs of the last N days.")
@format_option()
@common_options
def prune_command(settings: Settings, keep_days: int, format_: str) -> None:
    """Removes run directories that a later run of the same date replaced, and copies of old rows
    that were replaced by larger ones (`_folds/`). No current table goes, and no file of a lake.

    The cache of decoded metadata, all plans, logs and policies stay whatever their age.

    \b
    Example:
      gc-assets prune --keep-days 90
    """
    from gc_assets.state.journal import State
    from gc_assets.state.schemas import DELETION_PLAN, POLICY_TABLE

    platform = settings.platform()
    if platform.clock.is_rehearsal:
        raise GateRefused(
            f"the clock is a rehearsal's (GC_ASSETS_UNSAFE_NOW={platform.clock.now().isoformat()}), by which no run has its age, so "
            "nothing is removed. Unset the variable."
        )
    protected = [table.name for table in (DELETION_PLAN, POLICY_TABLE)]
    removed = State.of(platform.config).prune(keep_days, platform.clock, protected)
    if format_ == "json":
        write_json({"removed": path} for path in removed)
    else:
        for path in removed:
            click.echo(path)
    print_message(f"{len(removed):,} directories removed from {platform.config.state}")
