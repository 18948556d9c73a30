"""Markdown for Dagster's page that compares commit histories before and after expiry."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.assets.markdown import escape_markdown
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.report.drawing import history_svg, standalone_svg
from gc_assets.report.lakes import histories
from gc_assets.report.storage_breakdown import data_uri
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, REACHABLE_SNAPSHOTS
from gc_assets.state.summaries import ReachableSnapshotsSummary

# More rows would slow down Dagster's page. Tables with the most expiring commits come first.
MAX_TABLES: Final = 20
MAX_REASONS: Final = 10
MAX_DRAWINGS: Final = 3


def history_markdown(context: RunContext, published: PublishedTable) -> str:
    """Summarize how many commits of each table the policy keeps, and which rules keep them."""
    columns = ["table_name", "state", "reason"]
    rows = read_parts(context.state.files, published.paths(), REACHABLE_SNAPSHOTS.schema, columns)
    counts: dict[str, Counter[str]] = {}
    for row in rows.group_by(["table_name", "state"]).aggregate([([], "count_all")]).to_pylist():
        counts.setdefault(row["table_name"] or published.receipt.group, Counter())[row["state"]] += row["count_all"]
    shown = sorted(counts.items(), key=lambda item: (-item[1][EXPIRED], item[0]))[:MAX_TABLES]
    lines = [
        f"| {escape_markdown(name)} | {count.total():,} | {count[RETAINED]:,} | {count[EXPIRED]:,} | {count[DANGLING]:,} |"
        for name, count in shown
    ]
    omitted = [f"\nand {count_of(len(counts) - len(shown), 'more table')}"] if len(counts) > len(shown) else []
    table = ["| history | commits before | retained after | expired | dangling |", "|---|--:|--:|--:|--:|", *lines, *omitted]
    return "\n".join([*table, "", *_notes(published), "", *_reasons(rows)])


def drawings_markdown(context: RunContext, expiry: PublishedTable) -> str:
    """Draw the newest commits of the histories that the policy changes, before and after expiry."""
    lake = expiry.receipt.owner
    refs, reachable = (context.table(table, lake) for table in (LAKE_REFS, REACHABLE_SNAPSHOTS))
    changed = [history for history in histories(context, lake, refs, reachable, expiry) if history.changes]
    drawn = [
        f"**{name}** {when}\n\n![{name} {when}]({data_uri(standalone_svg(history_svg(history, after=after)))})"
        for name, history in ((escape_markdown(history.name), history) for history in changed[:MAX_DRAWINGS])
        for when, after in (("now", False), ("after expiry", True))
    ]
    more = [f"and {count_of(len(changed) - MAX_DRAWINGS, 'more history')}"] if len(changed) > MAX_DRAWINGS else []
    return "\n\n".join([*drawn, *more])


def expiry_markdown(context: RunContext, published: PublishedTable) -> str:
    """Summarize the planned history edits by table and type."""
    columns = ["table_name", "action", "reason"]
    rows = read_parts(context.state.files, published.paths(), EXPIRY_PLAN.schema, columns)
    if rows.num_rows == 0:
        return "The policy changes no history."
    counted = rows.group_by(["table_name", "action"]).aggregate([([], "count_all")]).to_pylist()
    shown = sorted(counted, key=lambda row: (-row["count_all"], row["table_name"] or ""))[:MAX_TABLES]
    lines = [
        f"| {escape_markdown(row['table_name'] or published.receipt.group)} | {row['action']} | {row['count_all']:,} |" for row in shown
    ]
    return "\n".join(
        ["| history | action | count |", "|---|---|--:|", *lines, "", *_reasons(rows), "", drawings_markdown(context, published)]
    )


def _notes(published: PublishedTable) -> list[str]:
    notes = published.summary(ReachableSnapshotsSummary).notes
    return [f"- {escape_markdown(note)}" for note in notes[:MAX_TABLES]]


def _reasons(rows: pa.Table) -> list[str]:
    counts: list[dict[str, Any]] = pc.value_counts(rows.column("reason")).to_pylist()
    frequent = sorted(counts, key=lambda item: (-item["counts"], item["values"]))[:MAX_REASONS]
    return (
        [
            "Why:",
            "",
            "| reason | commits |",
            "|---|--:|",
            *(f"| {escape_markdown(item['values'])} | {item['counts']:,} |" for item in frequent),
        ]
        if frequent
        else []
    )
