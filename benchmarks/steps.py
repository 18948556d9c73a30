"""Seconds of the steps of a command, from the log lines of its stages."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final

# A line of `gc_assets.engine.progress`: `lake/commit_graph of 2026-11-23: ended after 1,002.3 s:
# …`.
_ENDED: Final = re.compile(r"(?:\S*/)?(?P<step>\w+) of \d{4}-\d\d-\d\d: ended after (?P<seconds>[\d,.]+) s")


def steps_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds by table, in the order in which the steps ended.

    Steps of several lakes and marks are added up. A step inside another one counts in both.
    """
    found: dict[str, float] = {}
    for line in lines:
        if (match := _ENDED.search(line)) is not None:
            found[match["step"]] = found.get(match["step"], 0.0) + float(match["seconds"].replace(",", ""))
    return found


@contextmanager
def logged_steps() -> Generator[dict[str, float]]:
    """Collect the steps of this process in the block. Complete when the block ends."""
    found: dict[str, float] = {}
    lines: list[str] = []
    logger, handler = logging.getLogger("gc_assets"), _LineHandler(lines)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        found.update(steps_of(lines))


class _LineHandler(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
