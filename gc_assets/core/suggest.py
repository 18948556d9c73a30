"""What somebody may have meant who wrote a name that does not exist. Pure text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

# A message that named a thousand lakes would hide what it says.
_MOST_NAMED: Final = 20


def nearest(given: str, names: Iterable[str]) -> str | None:
    """Returns the name that is most like the given one, whatever its case; null where none is."""
    spelt = {name.lower(): name for name in names}
    close = get_close_matches(given.lower(), spelt, n=1)
    return spelt[close[0]] if close else None


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """Returns `; did you mean sales?` for the end of a message, or nothing where no name is like
    the given one.
    """
    found = nearest(given, names)
    return f"; did you mean {found}?" if found is not None else ""


def named(names: Collection[str]) -> str:
    """Returns the names in their order, the first twenty where there are more."""
    shown = ", ".join(list(names)[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED:,} others"
