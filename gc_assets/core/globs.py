"""Translate glob patterns, such as `protect` in lakes.yaml, to regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_WILDCARD: Final = re.compile(r"\*\*/|\*\*|\*|\?")
# Keys may contain newlines, which `.` matches only with the flag `s`.
_MEANINGS: Final = {"**/": "(?s:.*/)?", "**": "(?s:.*)", "*": "[^/]*", "?": "[^/]"}


def glob_regex(patterns: Sequence[str]) -> str | None:
    """Compile the patterns to one regular expression that matches keys. Returns None without
    patterns.

    `*` and `?` match characters other than `/`, and `**` matches all. A pattern that matches a
    directory matches everything in it.
    """
    return "|".join(f"^(?:{_translate(pattern.rstrip('/'))})(?s:/.*)?$" for pattern in patterns) or None


def _translate(pattern: str) -> str:
    literals = [re.escape(text) for text in _WILDCARD.split(pattern)]
    wildcards = [_MEANINGS[found.group()] for found in _WILDCARD.finditer(pattern)]
    return "".join(part for pair in zip(literals, [*wildcards, ""], strict=True) for part in pair)
