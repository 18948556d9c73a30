"""Markdown building blocks for Dagster's page, such as escaped names and tables of amounts."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from gc_assets.core.printable import to_message
from gc_assets.core.units import format_bytes
from gc_assets.report.shares import Amounts, breakdown_steps
from gc_assets.report.storage_breakdown import data_uri, storage_breakdown_svg
from gc_assets.state.summaries import OrphanFilesSummary

# Characters that are special in Markdown, HTML or table cells.
_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#|~&]")
# In a window of 1,280 pixels, this many characters fit next to the names of metadata.
_WIDTH: Final = 50
_CODE: Final = re.compile(r"`[^`]*`")
_BLANK: Final = "\0"
# Dagster's Markdown turns these into links.
_ADDRESS: Final = re.compile(r"(?i)\b(https?|ftp|mailto|javascript|data|www)([:.])")


def escape_markdown(text: str) -> str:
    """Escape a string so that Markdown shows it literally and on one line, even in a table."""
    shown = to_message(text).replace("\n", "\\n")
    escaped = _MARKUP.sub(lambda match: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(match[0], f"\\{match[0]}"), shown)
    return _ADDRESS.sub(lambda match: f"{match[1]}&#{ord(match[2])};", escaped)


def wrap_markdown(text: str, indent: str = "") -> str:
    """Wrap Markdown with hard line breaks. All lines but the first begin with `indent`.

    Dagster's page does not wrap metadata by itself. A cell is as wide as the widest table of the
    partition, so unwrapped text would need scrolling.
    """
    unbroken = _CODE.sub(lambda code: code[0].replace(" ", _BLANK), text)
    parts = textwrap.wrap(unbroken, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"\\\n{indent}".join(part.replace(_BLANK, " ") for part in parts)


def storage_breakdown_markdown(orphans: OrphanFilesSummary) -> str:
    """Format the storage breakdown (bytes by state of the files) as a drawing and a table."""
    steps = breakdown_steps(orphans)
    rows = [f"| {step.label} | {step.files:,} | {format_bytes(step.size_bytes)} |" for step in steps]
    return "\n".join(
        [f"![storage breakdown]({data_uri(storage_breakdown_svg(steps))})", "", "| share | files | bytes |", "|---|--:|--:|", *rows]
    )


def amounts_table(title: str, amounts: Amounts) -> str:
    rows = [f"| {escape_markdown(name)} | {amount.files:,} | {format_bytes(amount.bytes)} |" for name, amount in amounts.items()]
    return "\n".join([f"| {title} | files | bytes |", "|---|--:|--:|", *rows])


def dropped_tables_markdown(orphans: OrphanFilesSummary) -> str:
    """List the dropped tables that still have files."""
    rows = [
        f"| {escape_markdown(f'{item.lake}: {item.table_name or item.table_uuid}')} | {item.last_seen:%Y-%m-%d %H:%M} | {item.files:,} "
        f"| {format_bytes(item.bytes)} | {escape_markdown(f'waits: {item.waits_for}' if item.waits_for else 'planned')} |"
        for item in orphans.dropped
    ]
    return "\n".join(["| dropped table | last read | files | bytes | state |", "|---|---|--:|--:|---|", *rows])
