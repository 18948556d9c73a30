"""Suggest existing names for misspelled ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

# Messages stay readable even if there are a thousand names.
_MAX_NAMES: Final = 20


def find_nearest(given: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, ignoring case, or None if no name is similar."""
    spelt = {name.lower(): name for name in names}
    close = get_close_matches(given.lower(), spelt, n=1)
    return spelt[close[0]] if close else None


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """Return a message suffix, such as `; did you mean sales?`, or "" if no name is similar."""
    found = find_nearest(given, names)
    return f"; did you mean {found}?" if found is not None else ""


def join_names(names: Collection[str]) -> str:
    """Join up to twenty names with commas, and mention the number of others."""
    shown = ", ".join(list(names)[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES:,} others"
