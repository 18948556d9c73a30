"""Translate glob patterns to regular expressions, for example for `protect` in lakes.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_WILDCARD: Final = re.compile(r"\*\*/|\*\*|\*|\?")
# Keys may contain newlines, which `.` matches only with the `s` flag.
_MEANINGS: Final = {"**/": "(?s:.*/)?", "**": "(?s:.*)", "*": "[^/]*", "?": "[^/]"}


def glob_regex(patterns: Sequence[str]) -> str | None:
    """Build a regular expression that matches a key if any of the patterns does.

    `*` and `?` do not match `/`, but `**` does. If a pattern matches a directory, it also matches
    everything in it.

    Returns:
        The regular expression, or None if there are no patterns.
    """
    return "|".join(f"^(?:{_translate(pattern.rstrip('/'))})(?s:/.*)?$" for pattern in patterns) or None


def _translate(pattern: str) -> str:
    literals = [re.escape(text) for text in _WILDCARD.split(pattern)]
    wildcards = [_MEANINGS[found.group()] for found in _WILDCARD.finditer(pattern)]
    return "".join(part for pair in zip(literals, [*wildcards, ""], strict=True) for part in pair)
