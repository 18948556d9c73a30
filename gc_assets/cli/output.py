"""Output of commands: tables and JSON on standard output, messages on standard error."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import UnionType
from typing import Any, Final, TextIO

import click

from gc_assets.core.printable import escape

# Matches a command in backticks at the end of a sentence.
_COMMAND: Final = re.compile(r"`(gc-assets [^`]+)`(?=[.;](?: |$)|$)")
# Values in these columns are coloured, if `_COLOURS` has a colour for them.
_OF_VERDICTS: Final = frozenset({"verdict", "status", "outcome"})
_COLOURS: Final = {
    **dict.fromkeys(("ok", "done", "approved", "passed", "live"), "green"),
    **dict.fromkeys(("warn", "ready", "changed", "planned"), "yellow"),
    **dict.fromkeys(("fail", "failed", "refused", "rejected", "denied"), "red"),
}


def print_message(message: str = "", verdict: str | None = None, stream: TextIO | None = None) -> None:
    """Print a message or progress line, by default to standard error.

    Args:
        message: The text.
        verdict: A value such as `failed` that determines the colour.
        stream: Write to this stream instead.
    """
    _echo(message, stream or sys.stderr, verdict)


def print_command(intention: str, command_line: str) -> None:
    """Suggest a command to the user.

    The command is printed under the intention, for example `Next`. It is never wrapped, so that
    it can be copied from the terminal.
    """
    print_message(f"{intention}:")
    print_message(f"  {command_line}")


def with_commands(text: str) -> list[str]:
    """Split a message into lines, moving commands in backticks to lines of their own.

    Only a command at the end of a sentence is moved.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        for number, part in enumerate(_COMMAND.split(line)):
            if number % 2:
                lines.append(f"{indent}  {part}")
            elif shown := part.strip().lstrip(".,; "):
                lines.append(indent + shown)
    return [line for line in lines if line.strip()]


def print_data(text: str, verdict: str | None = None) -> None:
    """Print a line of the command's result to standard output, in the colour of `verdict`."""
    _echo(text, sys.stdout, verdict)


def _echo(text: str, stream: Any, verdict: str | None = None) -> None:
    """Print a text that is wrapped to the terminal's width."""
    shown = wrap_text(text, stream)
    in_colour = verdict is not None and has_colour(stream)
    click.echo(colour_verdict(shown, verdict) if in_colour else shown, file=stream)


def wrap_text(text: str, stream: Any) -> str:
    """Wrap a text to the terminal's width and escape control characters, except line breaks."""
    from gc_assets.cli.tables import wrap

    width, shown = stream_width(stream), escape(text, keep="\n")
    return shown if width is None else "\n".join(part for line in shown.split("\n") for part in wrap(line, width))


def json_default(value: Any) -> Any:
    """Convert values that JSON cannot represent. Times become ISO 8601 in UTC, bytes base64."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def write_json(rows: Iterable[Mapping[str, Any]], out: Any = None) -> None:
    """Stream rows to a JSON array with one object per line."""
    target = out or sys.stdout
    first = True
    for row in rows:
        target.write(("[\n" if first else ",\n") + json.dumps(row, default=json_default, ensure_ascii=False))
        first = False
    target.write("[]\n" if first else "\n]\n")


def with_old_keys(row: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
    """Add the deprecated keys of a JSON row, which release 0.5.0 removes.

    Args:
        row: A row with the current keys.
        renamed: Maps each deprecated key to the current key with the same value.
    """
    return {**row, **{old: row[new] for old, new in renamed.items()}}


def write_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: Any = None, *, wide: bool = False) -> None:
    """Print rows as aligned columns. Numbers are right-aligned, and verdicts are coloured.

    The table is fitted to the width of the terminal (see `gc_assets.cli.tables`). If the width is
    unknown, or if `wide` is set, every row is printed on a single line.
    """
    from gc_assets.cli.tables import TextColumn, lines

    target = out or sys.stdout
    width = None if wide else stream_width(target)
    shown = [
        TextColumn(
            name,
            [format_cell(row.get(name)) for row in rows],
            rigid=_has_values(rows, name, int | float | date),
            right=_has_values(rows, name, int | float),
        )
        for name in columns
    ]
    in_colour = has_colour(target)

    def paint(name: str, text: str) -> str:
        return colour_verdict(text) if in_colour and name in _OF_VERDICTS else text

    target.write("".join(f"{line}\n" for line in lines(shown, width, paint)))


def stream_width(stream: Any) -> int | None:
    """Return the number of columns to use, or None if the output should not be wrapped.

    The environment variable `COLUMNS` takes precedence over the width of the terminal.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None
    except OSError:
        return None


def is_interactive() -> bool:
    """Return True if standard input is a terminal, so that the user can be asked."""
    return sys.stdin.isatty()


def has_colour(stream: Any) -> bool:
    """Check if colours can be used: on a capable terminal, unless `NO_COLOR` is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colour_verdict(text: str, verdict: str | None = None) -> str:
    """Colour a text by a verdict such as `failed`, or by the text itself if it is the verdict."""
    colour = _COLOURS.get((verdict or text).strip())
    return click.style(text, fg=colour) if colour is not None else text


def _has_values(rows: Sequence[Mapping[str, Any]], name: str, kind: UnionType) -> bool:
    return any(isinstance(row.get(name), kind) and not isinstance(row.get(name), bool) for row in rows)


def format_cell(value: Any) -> str:
    """Format a value for a table cell."""
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
        return escape(value)
    if isinstance(value, list | tuple | dict):
        return escape(json.dumps(value, default=json_default, ensure_ascii=False))
    return escape(str(value))
