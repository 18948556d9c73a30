"""Seconds of the steps of a piece of work, from the stages' own log lines: the profile of a command."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final

# `lake/commit_graph of 2026-11-23: ended after 1,002.3 s: …`, as `gc_assets.engine.progress` says it.
_ENDED: Final = re.compile(r"(?:\S*/)?(?P<step>\w+) of \d{4}-\d\d-\d\d: ended after (?P<seconds>[\d,.]+) s")


def steps_of(lines: Iterable[str]) -> dict[str, float]:
    """Seconds by table, in the order in which they ended; those of several lakes and marks together.
    A step within another one counts in both.
    """
    found: dict[str, float] = {}
    for line in lines:
        if (said := _ENDED.search(line)) is not None:
            found[said["step"]] = found.get(said["step"], 0.0) + float(said["seconds"].replace(",", ""))
    return found


@contextmanager
def logged_steps() -> Generator[dict[str, float]]:
    """The steps of what this process does in the block; complete when the block ends."""
    found: dict[str, float] = {}
    lines: list[str] = []
    logger, handler = logging.getLogger("gc_assets"), _Kept(lines)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        found.update(steps_of(lines))


class _Kept(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
