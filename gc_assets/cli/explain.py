"""`gc-assets explain`: explain why a file is kept, planned or deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import Settings, common_options, format_option, run_date_option
from gc_assets.cli.output import print_data, with_old_keys, write_json
from gc_assets.core.moments import to_utc
from gc_assets.core.phases import RESTORE_PREFIX
from gc_assets.core.printable import escape

if TYPE_CHECKING:
    from gc_assets.stages.read.explain import Explanation


@click.command("explain", short_help="Explain why a file is kept, planned or deleted.")
@click.argument("key")
@run_date_option
@click.option("--storage", metavar="N", help="The storage of a canonical key, if several contain it.")
@format_option()
@common_options
def explain_command(settings: Settings, key: str, run_date: date | None, storage: str | None, format_: str) -> None:
    """Explain why the file KEY is kept, planned or deleted, from the tables of a run date. KEY is a
    canonical key or an address in any spelling. The beginning or end of a key is enough if it is
    unique, and so is a shortened key from a table.

    For a live file, the chain from a ref through a commit and its metadata to the file is printed.
    For any other file, the reason is printed.

    \b
    Examples:
      gc-assets explain sales/orders/data/00000-0.parquet
      gc-assets explain 00000-0.parquet
      gc-assets explain file:///data/weather/chunks/ABC --run-date 2026-11-21
    """
    from gc_assets.cli.progress import show_work
    from gc_assets.stages.read.explain import explain

    platform = settings.platform()
    run_context = platform.run_context(run_date or platform.clock.today())
    with show_work("explain", verbose=settings.verbose):
        found = explain(run_context, key, storage and platform.config.storage_of_user(storage).name)
    if format_ == "json":
        write_json(map(explanation_row, found))
    else:
        for item in found:
            for number, line in enumerate(explanation_lines(item)):
                print_data(line, item.verdict if number == 1 else None)


def explanation_row(item: Explanation) -> dict[str, Any]:
    """Convert an explanation to a JSON object."""
    row = with_old_keys(asdict(item), facts="summary")
    return {**row, "words": [with_old_keys(event, said="decision") for event in item.approval_events]}  # deprecated: use approval_events


def explanation_lines(item: Explanation) -> list[str]:
    """Format an explanation as text.

    For a live file, the references that lead from a branch or tag to the file are indented like a
    tree.
    """
    where = f"{item.storage}: " if item.storage else ""
    text = [f"{where}{escape(item.key)}", f"  {item.verdict}: {escape(item.sentence)}"]
    for depth, link in enumerate(item.chain):
        detail = f"  ({escape(link.detail)})" if link.detail else ""
        text.append(f"  {'  ' * depth}{'└ ' if depth else ''}{link.what} {escape(link.name)}{detail}")
    return text + [f"  {moment:%Y-%m-%d %H:%M:%S}Z {line}" for moment, line in sorted(_list_records(item), key=itemgetter(0))]


def _list_records(item: Explanation) -> Iterator[tuple[datetime, str]]:
    """Yield approvals and rejections of the plans that contain a file, and actions executed on it."""
    from gc_assets.core.approvals import ApprovalEvent

    for word in item.approval_events:
        event = ApprovalEvent.model_validate({name: word[name] for name in ApprovalEvent.model_fields})
        yield to_utc(event.at), escape(f"plan {event.plan_id[:12]} {event.describe()}")
    for row in item.history:
        error = f": {escape(row['error'])}" if row["error"] else ""
        yield to_utc(row["at"]), f"{row['phase']} {row['outcome']} {_describe_cause(row)}{error}"


def _describe_cause(row: Mapping[str, Any]) -> str:
    """Describe whether a plan or the command `gc-assets restore` caused an action."""
    if not row["plan_id"].startswith(RESTORE_PREFIX):
        return f"by plan {row['plan_id'][:12]}"
    source = row.get("source_plan_id")
    return f"by gc-assets restore, of plan {source[:12]}" if source else "by gc-assets restore"
