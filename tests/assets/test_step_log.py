"""Log lines of a stage are in the log of its Dagster step exactly once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gc_assets.definitions import build_definitions
from tests.assets.platforms import TODAY, platform

KEYS = [dg.AssetKey(["sales", "policy_table"]), dg.AssetKey(["sales", "current_rules"])]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the log levels that an instance changes permanently."""
    loggers = [logging.getLogger(name) for name in ("gc_assets", "root", "dagster.builtin")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def lines(root: Path, settings: dict[str, Any] | None = None) -> list[str]:
    """Return the begin and end lines of runs in the log of two steps without Spark."""
    job = build_definitions(platform(root)).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral(settings=settings) as instance:
        result = job.execute_in_process(instance=instance, partition_key=TODAY, asset_selection=KEYS)
        entries = [entry for entry in instance.all_logs(result.run_id) if not entry.is_dagster_event]
    assert {entry.step_key for entry in entries} <= {"sales__policy_table", "sales__current_rules"}
    return [entry.user_message for entry in entries if entry.level >= logging.INFO]


def test_step_log_contains_log_lines_of_the_stage(tmp_path: Path) -> None:
    messages = lines(tmp_path)
    for table in ("policy_table", "current_rules"):
        mine = [line for line in messages if line.startswith(f"sales/{table} of {TODAY}: ")]
        assert "begins run " in mine[0]
        assert f"{table} " in mine[-1]
        assert mine[-1].endswith((" row", " rows"))


@pytest.mark.parametrize("logger", ["gc_assets", "root"])
def test_managed_logger_does_not_duplicate_lines(logger: str, tmp_path: Path) -> None:
    managed = lines(tmp_path / "managed", {"python_logs": {"managed_python_loggers": [logger], "python_log_level": "INFO"}})
    begun = [line for line in managed if "begins run " in line]
    assert len(begun) == len(set(begun)) == len(KEYS)


def test_logger_is_reset_after_the_step(tmp_path: Path) -> None:
    logger = logging.getLogger("gc_assets")
    before = logger.level, list(logger.handlers)
    lines(tmp_path)
    assert (logger.level, list(logger.handlers)) == before
