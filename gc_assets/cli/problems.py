"""Text output of `gc-assets doctor`, which groups problems by their cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gc_assets.cli.output import print_data, with_commands
from gc_assets.core.causes import CANNOT_CONNECT

_INDENT: Final = "  "


def write_problems(rows: Iterable[Mapping[str, Any]], *, wide: bool = False) -> None:
    """Print each problem with the affected lakes and storages and the advice for the user.

    Args:
        rows: Findings of `gc-assets doctor` as JSON objects.
        wide: Print every finding with its full text, even if several have the same cause.
    """
    for number, group in enumerate(_groups(rows, wide=wide)):
        if number:
            print_data("")
        first = group[0]
        print_data(f"{first['verdict']}  {'; '.join(_locations(group))}", first["verdict"])
        text, advice = first["found"], first["todo"]
        if len(group) > 1 or (first["cause"].startswith(CANNOT_CONNECT) and not wide):
            text, advice = f"{first['cause'][:1].upper()}{first['cause'][1:]}.", "Fix this, then check again with `gc-assets doctor`."
        for part in (text, advice):
            for line in with_commands(part):
                print_data(f"{_INDENT}{line}")


def _groups(rows: Iterable[Mapping[str, Any]], *, wide: bool) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Group findings with the same cause, in the order of each group's first finding."""
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows):
        key = (row["verdict"], row["cause"]) if row["cause"] and not wide else number
        groups.setdefault(key, []).append(row)
    yield from groups.values()


def _locations(group: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    checks: dict[str, list[str]] = {}
    for row in group:
        checks.setdefault(row["check"], []).append(row["subject"])
    yield from (f"{', '.join(dict.fromkeys(subjects))}: {check}" for check, subjects in checks.items())
