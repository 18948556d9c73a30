"""Helpers of the tests of Icechunk lakes: a lake, its commit graph as a table, and states by snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import Commit, Container, ContentRoot, ExpiryAction, ExpiryOutcome, FrozenRefs, Retention
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.stores.local.editing import EditableLocalObjects

FAR_FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def lake_at(path: Path, retention: dict[str, Any] | None = None, **expiry: Any) -> IcechunkLake:
    settings = {"name": "weather", "kind": "icechunk", "location": f"file://{path}", "retention": retention or {}, "expiry": expiry}
    return IcechunkLake(IcechunkLakeConfig.model_validate(settings), EditableLocalObjects())


def commits_of(lake: IcechunkLake, refs: FrozenRefs) -> list[Commit]:
    return [commit for source in refs.sources for commit in lake.commits(source)]


def graph_of(commits: Iterable[Commit]) -> pa.Table:
    """Return rows of `commit_graph` without generation."""
    rows = [
        {
            "commit_id": commit.commit_id,
            "parents": list(commit.parents),
            "committed_at": commit.committed_at,
            "content_roots": [],
            "message": commit.message,
            "summary": list(commit.summary.items()),
        }
        for commit in commits
    ]
    return pa.Table.from_pylist(rows, schema=COMMIT_GRAPH.schema)


def retention_of(lake: IcechunkLake, as_of: datetime, grace_cutoff: datetime = FAR_FUTURE) -> Retention:
    refs = lake.freeze(as_of)
    return lake.retain(refs, graph_of(commits_of(lake, refs)), as_of, grace_cutoff)


def states(retention: Retention) -> dict[str, str]:
    return dict(zip(*(retention.reachable[name].to_pylist() for name in ("commit_id", "state")), strict=True))


def in_state(retention: Retention, state: str) -> set[str]:
    return {commit for commit, found in states(retention).items() if found == state}


def edits(retention: Retention) -> dict[str, str]:
    rows = retention.expiry.to_pylist()
    return {row["snapshot_id"]: row["new_parent_id"] for row in rows if row["action"] == "edit_parent"}


def deleted_refs(retention: Retention) -> set[str]:
    return {row["ref_name"] for row in retention.expiry.to_pylist() if row["action"] == "delete_ref"}


def plan_actions(lake: IcechunkLake, as_of: datetime, grace_cutoff: datetime = FAR_FUTURE) -> list[ExpiryAction]:
    """Return the actions of a plan of the current state."""
    return [ExpiryAction(**row) for row in retention_of(lake, as_of, grace_cutoff).expiry.to_pylist()]


def expire(lake: IcechunkLake, as_of: datetime, actions: Sequence[ExpiryAction] | None = None) -> list[ExpiryOutcome]:
    """Execute the actions, or those of a new plan."""
    return list(lake.expire(plan_actions(lake, as_of) if actions is None else actions, as_of, FAR_FUTURE))


def undo(lake: IcechunkLake, actions: Sequence[ExpiryAction]) -> None:
    for _ in lake.undo(actions):
        pass


def wait_and_expire(start, lake: IcechunkLake, as_of: datetime, actions: Sequence[ExpiryAction]) -> None:
    start.wait()
    expire(lake, as_of, actions)


def wait_and_report(start, queue, lake: IcechunkLake, as_of: datetime, actions: Sequence[ExpiryAction]) -> None:
    """Put the verdicts into the queue, in the order of the actions."""
    start.wait()
    verdict_by_action = {outcome.action: outcome.verdict for outcome in lake.expire(actions, as_of, FAR_FUTURE)}
    queue.put([verdict_by_action[action] for action in actions])


def verdicts(outcomes: Iterable[ExpiryOutcome]) -> set[str]:
    return {outcome.verdict for outcome in outcomes}


def parents_now(lake: IcechunkLake, as_of: datetime) -> dict[str, str | None]:
    return {commit.commit_id: next(iter(commit.parents), None) for commit in commits_of(lake, lake.freeze(as_of))}


def files_of(path: Path, *folders: str) -> dict[str, bytes]:
    """Return the content by name of every file in the folders of a repository."""
    files = (file for folder in folders for file in (path / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def container(root: ContentRoot) -> Container:
    return Container(root.address, root.kind, root.size_bytes)


def move_ref(path: Path, ref: str, snapshot: str) -> None:
    """Point `branch.x` or `tag.x` to a snapshot that may not exist."""
    folder = path / "refs" / ref
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ref.json").write_text(json.dumps({"snapshot": snapshot}))
