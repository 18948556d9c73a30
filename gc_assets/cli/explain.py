"""`gc-assets explain`: why a file is kept, planned or gone."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option
from gc_assets.cli.output import format_cell, print_data, printable, write_json

if TYPE_CHECKING:
    from gc_assets.stages.read.explain import Explanation


@click.command("explain", short_help="Say why a file is kept, planned or gone.")
@click.argument("key")
@run_date_option
@click.option("--storage", metavar="N", help="The storage of a canonical key, where several have one of that name.")
@format_option()
@common_options
def explain_command(settings: Settings, key: str, run_date: date | None, storage: str | None, format_: str) -> None:
    """Says what the tables of a run date know of KEY: a canonical key, or an address in any
    spelling.

    A live file is traced from the ref through the commit and its metadata down to the file; any
    other file to the reason it was planned, quarantined or never looked at.

    \b
    Examples:
      gc-assets explain sales/orders/data/00000-0.parquet
      gc-assets explain file:///data/warehouse/weather/chunks/ABC --run-date 2026-11-21
    """
    from gc_assets.stages.read.explain import explain

    platform = settings.platform()
    run_context = platform.run_context(run_date or platform.clock.today())
    found = explain(run_context, key, storage)
    if format_ == "json":
        write_json(asdict(item) for item in found)
    else:
        for item in found:
            for number, line in enumerate(explanation_lines(item)):
                print_data(line, item.verdict if number == 1 else None)


def explanation_lines(item: Explanation) -> list[str]:
    """Returns the explanation as text, with the chain indented link by link."""
    where = f"{item.storage}: " if item.storage else ""
    text = [f"{where}{printable(item.key)}", f"  {item.verdict}: {printable(item.sentence)}"]
    for depth, link in enumerate(item.chain):
        detail = f"  ({printable(link.detail)})" if link.detail else ""
        text.append(f"  {'  ' * depth}{'└ ' if depth else ''}{link.what} {printable(link.name)}{detail}")
    text += [f"  plan {word['plan_id'][:12]} {printable(word['text'])}" for word in item.approval_events]
    for row in item.history:
        error = f": {printable(row['error'])}" if row["error"] else ""
        text.append(f"  {format_cell(row['at'])} {row['phase']} {row['outcome']} by plan {row['plan_id'][:12]}{error}")
    return text
