"""Build snapshot histories as refs and a commit table, with ages in days before `AS_OF`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.retention import retain
from gc_assets.lakes.protocol import CommitSource, FrozenRefs, Ref, Retention
from gc_assets.state.schemas import COMMIT_GRAPH

AS_OF = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
DAY_MS = 24 * 3600 * 1000
UUID = "11111111-0000-0000-0000-000000000000"


def commit(commit_id: str, parent: str | None, days: float, uuid: str = UUID, table_name: str = "db.t") -> dict[str, Any]:
    """Return a snapshot that was committed `days` before `AS_OF`."""
    return {
        "table_uuid": uuid,
        "commit_id": commit_id,
        "parents": [] if parent is None else [parent],
        "committed_at": AS_OF - days * DAY,
        "table_name": table_name,
    }


def chain(*days: float) -> list[dict[str, Any]]:
    """Return snapshots `s0`, `s1`, …, each with the previous one as parent."""
    return [commit(f"s{index}", f"s{index - 1}" if index else None, age) for index, age in enumerate(days)]


def branch(name: str, head: str | None, table_name: str = "db.t", uuid: str = UUID, **settings: int) -> Ref:
    return Ref(name, "branch", head, uuid, table_name, _hyphenate(settings))


def tag(name: str, head: str, table_name: str = "db.t", uuid: str = UUID, **settings: int) -> Ref:
    return Ref(name, "tag", head, uuid, table_name, _hyphenate(settings))


def source(table_name: str = "db.t", uuid: str = UUID, collect: bool = True, **properties: int | str) -> CommitSource:
    """`properties` are `history.expire.*` settings by their last part, or `gc_enabled`."""
    settings = {f"history.expire.{key}": value for key, value in _hyphenate(properties).items() if key != "gc-enabled"}
    if "gc_enabled" in properties:
        settings["gc.enabled"] = str(properties["gc_enabled"])
    return CommitSource(f"file:///{table_name}.json", uuid, table_name, properties={**settings, "collect": str(collect).lower()})


def build_refs(refs: Sequence[Ref], sources: Sequence[CommitSource]) -> FrozenRefs:
    return FrozenRefs("sales", "iceberg", tuple(refs), tuple(sources), (), ())


def graph(commits: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(commits), schema=COMMIT_GRAPH.schema)


def run_retention(
    commits: Sequence[Mapping[str, Any]],
    refs: Sequence[Ref],
    *sources: CommitSource,
    policy: Mapping[str, Any] | None = None,
    grace_days: float | None = None,
) -> Retention:
    """Apply the retention at `AS_OF`. Without `grace_days`, no snapshot is in the grace period."""
    overrides = IcebergRetention.model_validate(policy or {})
    grace_cutoff = AS_OF + 1000 * DAY if grace_days is None else AS_OF - grace_days * DAY
    return retain(build_refs(refs, sources or (source(),)), graph(commits), AS_OF, grace_cutoff, overrides)


def states(retention: Retention) -> dict[str, str]:
    return {row["commit_id"]: row["state"] for row in retention.reachable.to_pylist()}


def retained_ids(retention: Retention) -> set[str]:
    return {commit_id for commit_id, state in states(retention).items() if state == "retained"}


def row(retention: Retention, commit_id: str) -> dict[str, Any]:
    return next(item for item in retention.reachable.to_pylist() if item["commit_id"] == commit_id)


def actions(retention: Retention, action: str) -> list[tuple[str, str | None]]:
    return [(item["snapshot_id"], item["ref_name"]) for item in retention.expiry.to_pylist() if item["action"] == action]


def _hyphenate(settings: Mapping[str, int | str]) -> dict[str, str]:
    return {key.replace("_", "-"): str(value) for key, value in settings.items()}
