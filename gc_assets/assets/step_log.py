"""Show the log of a stage in the log of its Dagster step.

Users do not have to configure anything. If they have added the logger `gc_assets` to
`python_logs.managed_python_loggers`, Dagster captures the log itself, so nothing is forwarded.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import dagster as dg

LOGGER: Final = "gc_assets"
# An attribute of forwarded records, so that a program that prints both logs can skip them.
FORWARDED: Final = "gc_assets_forwarded"


@contextmanager
def forward_logs(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Generator[None]:
    """Forward what gc-assets logs at level INFO or above to the step's log."""
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
