"""Publish tables into a state like the stages do, without Spark or a lake, for the tests of their readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_LOG, LAKE_REFS, LIVE_FILES, Table
from gc_assets.state.side_tables import CLAIMS

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
STORAGE = "warehouse"
LAKE = "weather"

_COUNTS = ("live_keys", "false_negatives", "near_misses")
_SAMPLES = ("missing_metadata", "live_unlisted", "foreign_metadata", "behind_links")
# The summary of an empty `orphan_files`.
EMPTY_SWEEP: dict[str, Any] = {
    **{"grace_cutoff": NOW.isoformat(), "historical": False, "storage_breakdown": {}, "by_reason": {}, "problems": {}},
    **dict.fromkeys([*_COUNTS, *(f"{name}_count" for name in _SAMPLES)], 0),
    **{name: [] for name in (*_SAMPLES, "stopped_samples")},
}
# The summary of an empty `live_files`.
EMPTY_LIVE_SET: dict[str, Any] = {
    **dict.fromkeys(("files", "live_bytes", "expired_files", "dangling_files", "external_files"), 0),
    **{name: {} for name in ("by_kind", "by_storage", "metadata_by_storage")},
}


def run_context_at(root: Path, now: datetime = NOW, **storages: str) -> RunContext:
    """Return a run context with one Icechunk lake. `storages` are locations of further storages. None of them must exist."""
    locations = {STORAGE: f"file://{root}/warehouse/", **storages}
    config = Config(
        state=str(root / "state"),
        storages=tuple(StorageConfig(name=name, location=location) for name, location in locations.items()),
        lakes=(IcechunkLakeConfig(name=LAKE, kind="icechunk", location=f"file://{root}/warehouse/weather/"),),
    )
    return RunContext.of(config, Clock(now), now.date())


def publish_table(
    context: RunContext,
    group: str,
    table: Table,
    rows: Sequence[dict[str, Any]] = (),
    side: dict[str, pa.Table] | None = None,
    **summary: Any,
) -> PublishedTable:
    """Publish a table of the run with this summary."""
    run = context.state.start(group, table.name, context.run_date, context.clock)
    written = write_rows(pa.Table.from_pylist(list(rows), table.schema), table, run, context.state.files, side)
    return publish(context.state, run, written, context.clock, summary=summary)


def publish_mark(context: RunContext, claims: Sequence[dict[str, Any]] = ()) -> None:
    """Publish the mark of a lake without live files. `claims` are rows of `CLAIMS`."""
    rows = [{"address": f"file:///{row['key']}", "collect": True, "storage": STORAGE, **row} for row in claims]
    summary = {"frozen_at": NOW.isoformat(), "min_age_seconds": 0, "kind": "icechunk"}
    publish_table(context, LAKE, LAKE_REFS, side={"_claims": pa.Table.from_pylist(rows, CLAIMS)}, **summary)
    publish_table(context, LAKE, LIVE_FILES, **EMPTY_LIVE_SET)


def log_row(
    key: str, phase: str, plan: str, *, outcome: str = "done", minutes: float = 0, source: str | None = None, **columns: Any
) -> dict[str, Any]:
    """Return a row of `deletion_log`, dated `minutes` after `NOW`."""
    row = {"key": key, "phase": phase, "plan_id": plan, "outcome": outcome, "source_plan_id": source}
    return {"size_bytes": 10, "etag": f"etag of {plan}", "quarantine": "trash", **row, "at": NOW + timedelta(minutes=minutes), **columns}


def publish_log(context: RunContext, *rows: dict[str, Any]) -> PublishedTable:
    """Publish the log of an apply or restore."""
    return publish_table(context, STORAGE, DELETION_LOG, rows)
