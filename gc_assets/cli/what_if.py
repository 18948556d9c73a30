"""`gc-assets what-if`: show how another retention or a deleted ref would change a completed run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option, start_spark
from gc_assets.cli.output import print_message, write_json, write_table
from gc_assets.core.units import count_of, format_bytes, format_usd

if TYPE_CHECKING:
    from gc_assets.config.models import Config
    from gc_assets.core.plan import Amount
    from gc_assets.engine.run_context import RunContext
    from gc_assets.stages.read.what_if import Effect


@click.command("what-if", short_help="Show what another retention or a deleted ref would free.")
@run_date_option
@click.option(
    "--retention", metavar="T", help="Another default cut-off: 14d, a number of commits, or for most kinds a timestamp or forever."
)
@click.option("--drop-ref", "dropped", multiple=True, metavar="R", help="Evaluate as if this branch or tag were deleted. Can be repeated.")
@click.option("--lake", "lakes", multiple=True, metavar="N", help="Only this lake. Can be repeated.")
@format_option()
@common_options
def what_if_command(
    settings: Settings, run_date: date | None, retention: str | None, dropped: tuple[str, ...], lakes: tuple[str, ...], format_: str
) -> None:
    """Show for each table which live files would become garbage, and which garbage would become
    live, under another policy. Only the tables of a completed run are read. Nothing is changed.

    Retention in Iceberg has two limits, an age and a number of snapshots. A snapshot within either
    limit is kept. --retention replaces one of them. A note shows both.

    Without --retention and --drop-ref, the current configuration is evaluated. Rules for refs and
    settings of a ref still override --retention. A grace period after the deletion of a ref counts
    as over.

    \b
    Examples:
      gc-assets what-if --retention 14d
      gc-assets what-if --drop-ref audit --lake sales
      gc-assets what-if --retention 7d --drop-ref audit --format json
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.stages.read.scenarios import Scenario, lakes_with_refs
    from gc_assets.stages.read.what_if import what_if

    platform = settings.platform()
    run_context = platform.run_context(run_date or platform.clock.today())
    names = [platform.config.lake_of_user(name).name for name in lakes] or [lake.name for lake in platform.config.lakes]
    if retention is not None:
        try:
            for name in names:
                platform.config.lake(name).with_retention(retention)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--retention") from None
    changes = [f"retention {retention}"] if retention is not None else []
    changes += [f"without {', '.join(dropped)}"] if dropped else []
    concerned = names if retention is not None or not dropped else lakes_with_refs(run_context, names, dropped)
    scenario = Scenario(" and ".join(changes) or "the current configuration", tuple(concerned), retention, frozenset(dropped))
    with show_work("what-if", verbose=settings.verbose):
        (effect,) = what_if(start_spark(settings, platform), run_context, [scenario])
    write_amounts(effect_rows(platform.config, effect), format_)
    print_message(describe_effect(effect, run_context))
    for note in effect.notes:
        print_message(f"Note: {note}.")


def effect_rows(config: Config, effect: Effect) -> list[dict[str, Any]]:
    """Convert the effect of another policy to rows, one for each table that would change."""
    return [
        {
            **{"storage": item.storage, "lake": item.lake, "table": item.table},
            **amount_columns(config, item.storage, "freed", item.freed),
            **amount_columns(config, item.storage, "kept", item.kept),
        }
        for item in effect.differences
    ]


def amount_columns(config: Config, storage: str, name: str, amount: Amount) -> dict[str, Any]:
    """Return an amount as columns, including its monthly price if the storage has one."""
    usd = config.storage(storage).usd_per_month(amount.bytes)
    columns: dict[str, Any] = {f"{name}_files": amount.files, f"{name}_bytes": amount.bytes}
    return columns if usd is None else {**columns, f"{name}_usd_per_month": usd}


def write_amounts(rows: Sequence[Mapping[str, Any]], format_: str) -> None:
    """Print rows as JSON, or as a table with units that omits empty columns."""
    if format_ == "json":
        write_json(rows)
        return
    if not rows:
        return

    def format_value(name: str, value: Any) -> Any:
        if value is None:
            return None
        return format_bytes(value) if name.endswith("_bytes") else format_usd(value) if name.endswith("_usd_per_month") else value

    names = list(dict.fromkeys(name for row in rows for name in row if row[name] not in {None, 0}))
    heads = {name: name.replace("_usd_per_month", " a month").replace("_", " ") for name in names}
    write_table([{heads[name]: format_value(name, row.get(name)) for name in names} for row in rows], list(heads.values()))


def describe_effect(effect: Effect, run_context: RunContext) -> str:
    """Summarize the changes under the other policy in one sentence."""
    freed, kept, commits = effect.freed, effect.kept, effect.expired
    more = f"{count_of(freed.files, 'more file')} ({format_bytes(freed.bytes)})"
    retained = f"{count_of(abs(commits), 'commit')} {'fewer' if commits > 0 else 'more'}" if commits else "the same commits"
    return (
        f"{run_context.run_date}, {effect.scenario.label}: {more} would be garbage, {kept} of its garbage would be live, "
        f"{retained} would be retained. Nothing was changed."
    )
