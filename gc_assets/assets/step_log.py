"""Puts the log lines of a stage into the log of its Dagster step.

It works in every instance. The instance need not manage the logger `gc_assets`
(`python_logs.managed_python_loggers`), and one that does gets each line once.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import dagster as dg

LOGGER: Final = "gc_assets"
# A mark on a record that was passed on, so that a reader of both logs shows it once.
FORWARDED: Final = "gc_assets_passed_on"


@contextmanager
def forward_logs(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Generator[None]:
    """Puts into the step's log what `gc_assets` logs meanwhile, from level INFO on."""
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
