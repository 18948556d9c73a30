"""The Markdown of a night's amounts: where the bytes of a storage go, and small tables of files and
bytes.
"""

from __future__ import annotations

from gc_assets.assets.markdown import escape_markdown
from gc_assets.core.units import format_bytes
from gc_assets.report.shares import Amounts, breakdown_steps
from gc_assets.report.storage_breakdown import data_uri, storage_breakdown_svg
from gc_assets.state.summaries import OrphanFilesSummary


def storage_breakdown_markdown(orphans: OrphanFilesSummary) -> str:
    """Returns the drawing, and the same figures as a table for readers who cannot see it."""
    steps = breakdown_steps(orphans)
    rows = [f"| {step.label} | {step.files:,} | {format_bytes(step.size_bytes)} |" for step in steps]
    return "\n".join(
        [f"![byte waterfall]({data_uri(storage_breakdown_svg(steps))})", "", "| share | files | bytes |", "|---|--:|--:|", *rows]
    )


def amounts_table(title: str, amounts: Amounts) -> str:
    rows = [f"| {escape_markdown(name)} | {amount.files:,} | {format_bytes(amount.bytes)} |" for name, amount in amounts.items()]
    return "\n".join([f"| {title} | files | bytes |", "|---|--:|--:|", *rows])
