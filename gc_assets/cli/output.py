"""Writes rows to standard output, as a table for people or as one JSON array, and messages to
standard error. Knows no asset.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import click

# Keys are other people's text: nothing in them may steer a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")


def say(message: str = "") -> None:
    """Writes a message or progress line to standard error."""
    click.echo(printable(message, keep="\n"), err=True)


def printable(text: str, keep: str = "") -> str:
    """Returns the text with control characters, line breaks and direction marks as escapes."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def as_json(value: Any) -> Any:
    """Returns as text what JSON has no type for: times in ISO 8601 (UTC), bytes in base64."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def write_json(rows: Iterable[Mapping[str, Any]], out: Any = None) -> None:
    """Writes one array with one object a line, as the rows come."""
    target = out or sys.stdout
    first = True
    for row in rows:
        target.write(("[\n" if first else ",\n") + json.dumps(row, default=as_json, ensure_ascii=False))
        first = False
    target.write("[]\n" if first else "\n]\n")


def write_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: Any = None) -> None:
    """Writes aligned columns, numbers to the right with separators. On a terminal long texts wrap;
    elsewhere lines stay whole.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    target = out or sys.stdout
    console = Console(file=target, highlight=False, width=None if target.isatty() else 100_000, color_system=None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell(row.get(name))) for name in columns])
    with console.capture() as captured:
        console.print(table)
    target.write("".join(line.rstrip() + "\n" for line in captured.get().rstrip("\n").split("\n")))


def cell(value: Any) -> str:
    """Returns a value as a reader expects it in a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{moment.microsecond:06d}" if moment.microsecond else "") + "Z"
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple | dict):
        return printable(json.dumps(value, default=as_json, ensure_ascii=False))
    return printable(str(value))
