"""Build platforms for the tests of the Dagster assets: configurations of lakes that need not exist,
and stored plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.core.clock import Clock, start_of_day
from gc_assets.core.gates import delete_bytes
from gc_assets.core.phases import QUARANTINE
from gc_assets.core.plan import Amount, Uploads, seal
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.kinds import config_of
from gc_assets.resources.platform import Platform
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)
TODAY = "2026-03-14"


def platform(root: Path, *, mode: str = "plan", now: datetime | None = NOW, **storage: Any) -> Platform:
    """Return a platform with the lakes `sales` (Iceberg) and `weather` (Icechunk) in the storage
    `warehouse`. No file exists yet.
    """
    document = {
        "state": f"{root}/state",
        "storages": [{"name": "warehouse", "location": f"file://{root}/warehouse/", "mode": mode, "rehearsals": "allowed", **storage}],
        "lakes": [
            {"name": "sales", "kind": "iceberg", "catalog": {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}},
            {"name": "weather", "kind": "icechunk", "location": f"file://{root}/warehouse/weather/"},
        ],
    }
    return Platform(config_of(document), Clock(now), (), root / "lakes.yaml")


def stored_plan(
    at: Platform,
    *,
    storage: str = "warehouse",
    files: int = 2,
    run_date: str = TODAY,
    historical: bool = False,
    action: str = QUARANTINE,
    source_plan_id: str | None = None,
    max_delete_bytes: int = 10**12,
    inputs: Sequence[PublishedTable] = (),
    **of_header: Any,
) -> PublishedTable:
    """Publish a plan of `files` rows of 100 bytes. `header_fields` replaces fields of its header."""
    state, run_context = State.at(at.config.state), at.run_context(datetime.fromisoformat(run_date).date())
    run = state.start(storage, DELETION_PLAN.name, run_context.run_date, at.clock)
    fixed = {"action": action, "size_bytes": 100, "reason": "unreferenced", "lake": "sales", "after_expiry": False}
    rows = [{"key": f"data/{index}.parquet", **fixed, "source_plan_id": source_plan_id} for index in range(files)]
    written = write_rows(pa.Table.from_pylist(rows, schema=DELETION_PLAN.schema), DELETION_PLAN, run, state.files)
    amount = Amount(files=files, bytes=100 * files)
    substance: dict[str, Any] = {
        "storage": storage,
        "location": at.config.storage(storage).location,
        "quarantine": "trash",
        "run_date": run_context.run_date,
        "as_of": start_of_day(run_context.run_date),
        "frozen_at": at.clock.now(),
        "grace_cutoff": at.clock.now() - timedelta(days=3),
        "created_at": at.clock.now(),
        "historical": historical,
        "rehearsal": at.clock.is_rehearsal,
        "unsafe": (),
        "refs_digests": {},
        "policy_digest": at.config.policy_digest(),
        "live_files": 7,
        "live_by_lake": {},
        "unreadable": (),
        "live_bytes": 700,
        "totals": {action: amount} if files else {},
        "by_reason": {},
        "by_kind": {action: {"unnamed": amount}} if files else {},
        "after_expiry": Amount(),
        "held_for_expiry": Amount(),
        "quarantined": Amount(),
        "expiry_actions": {},
        "expiry_digest": "0" * 16,
        "gates": (delete_bytes(amount, max_delete_bytes),),
        "rows": written.rows,
        "rows_digest": f"{written.digest:016x}",
        "uploads": Uploads(),
    }
    header = seal(at.config.plan_secret(), **{**substance, **of_header})
    summary = {"plan_id": header.plan_id, "header": header.model_dump(mode="json")}
    return publish(state, run, written, at.clock, inputs=inputs, summary=summary)
