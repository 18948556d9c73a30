"""`gc-assets blame`: break down what a run keeps by table, ref or age."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option, start_spark
from gc_assets.cli.output import print_message
from gc_assets.cli.what_if import amount_columns, effect_rows, write_amounts
from gc_assets.core.units import count_of

if TYPE_CHECKING:
    from gc_assets.engine.run_context import RunContext
    from gc_assets.resources.platform import Platform


@click.command("blame", short_help="Show what each table, ref or age keeps.")
@click.option("--by", type=click.Choice(["ref", "table", "age"]), default="table", show_default=True)
@run_date_option
@click.option("--lake", "lakes", multiple=True, metavar="N", help="Only this lake. Can be repeated.")
@format_option()
@common_options
def blame_command(settings: Settings, by: str, run_date: date | None, lakes: tuple[str, ...], format_: str) -> None:
    """Show which tables, refs or ages keep the bytes of a completed run. Changes nothing.

    \b
    --by table   live bytes and garbage of each table
    --by ref     bytes that only this branch or tag keeps: its deletion frees them
    --by age     changes with a shorter or longer default retention

    \b
    Examples:
      gc-assets blame
      gc-assets blame --by ref --lake sales
      gc-assets blame --by age --run-date 2026-11-21 --format json
    """
    platform = settings.platform()
    run_context = platform.run_context(run_date or platform.clock.today())
    names = [platform.config.lake_of_user(name).name for name in lakes] or [lake.name for lake in platform.config.lakes]
    if by == "table":
        _print_tables(settings, run_context, names, format_)
    else:
        _print_effects(settings, platform, run_context, by, names, format_)


def _print_tables(settings: Settings, context: RunContext, lakes: Sequence[str], format_: str) -> None:
    from gc_assets.cli.progress import show_work
    from gc_assets.stages.read.run_tables import CURRENT_STATE
    from gc_assets.stages.read.usage import usage_by_table

    config = context.config
    with show_work("blame", verbose=settings.verbose):
        shares = [item for item in usage_by_table(context, [item.name for item in config.storages]) if item.lake in lakes]
    with_tables = {share.lake for share in shares if share.table is not None}
    rows: list[dict[str, Any]] = []
    for share in shares:
        live = amount_columns(config, share.storage, "live", share.live)
        garbage = amount_columns(config, share.storage, "garbage", share.all_garbage)
        table = share.table or (CURRENT_STATE if share.lake in with_tables and format_ != "json" else None)
        rows.append({"storage": share.storage, "lake": share.lake, "table": table, **live, **garbage})
    write_amounts(rows, format_)
    if unsized := sum(share.unsized for share in shares):
        print_message(f"The bytes do not include {count_of(unsized, 'live file')} of unknown size.")
    print_message("Each live file is counted once, at one commit that needs it.")


def _print_effects(settings: Settings, platform: Platform, context: RunContext, by: str, lakes: Sequence[str], format_: str) -> None:
    from gc_assets.cli.progress import show_work
    from gc_assets.stages.read.blame import blame_by_age, blame_by_ref

    with show_work("blame", verbose=settings.verbose):
        spark = start_spark(settings, platform)
        effects = blame_by_ref(spark, context, lakes) if by == "ref" else blame_by_age(spark, context, lakes)
    write_amounts([{by: effect.scenario.label, **row} for effect in effects for row in effect_rows(context.config, effect)], format_)
    noted = [(effect.scenario.label if by == "age" else None, effect.notes) for effect in effects]
    for note in merge_notes(noted):
        print_message(f"Note: {note}.")
    without = [effect.scenario.label for effect in effects if not effect.differences]
    if without:
        print_message(f"{'No file is kept only by these refs' if by == 'ref' else 'These ages change nothing'}: {', '.join(without)}.")


def merge_notes(noted: Iterable[tuple[str | None, Sequence[str]]]) -> Iterator[str]:
    """Remove duplicate notes.

    Notes that differ only in the age of their scenario are merged into one note with `AGE` in place
    of the age.

    Args:
        noted: The age and the notes of each scenario. The age is None if scenarios have no age.
    """
    merged: dict[str, list[str]] = {}
    for age, notes in noted:
        for note in notes:
            general = note if age is None else re.sub(rf"\b{re.escape(age)}\b", "AGE", note)
            merged.setdefault(general, []).append(note)
    for general, notes in merged.items():
        yield notes[0] if len({*notes}) == 1 else general
