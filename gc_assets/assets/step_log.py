"""Forward log lines of a stage to the log of its Dagster step.

No instance setting is needed. If `python_logs.managed_python_loggers` manages the logger
`gc_assets`, Dagster already captures its lines, and they are not forwarded.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import dagster as dg

LOGGER: Final = "gc_assets"
# Marks forwarded records, so that a reader of both logs can skip them.
FORWARDED: Final = "gc_assets_forwarded"


@contextmanager
def forward_logs(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Generator[None]:
    """Forward log records of `gc_assets` from level INFO to the log of the step."""
    logger = logging.getLogger(LOGGER)
    if {"root", LOGGER} & set(context.instance.managed_python_loggers):
        yield
        return
    handler, level = _ForwardingHandler(context.log), logger.level
    logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _ForwardingHandler(logging.Handler):
    def __init__(self, log: dg.DagsterLogManager) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, record.getMessage(), extra={FORWARDED: True})
