"""Helpers of the tests of lakeFS lakes: a lake of a fake or recorded repository, its commit graph, and states by commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.lakes.protocol import Commit, FrozenRefs, Retention
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, FakeRepository, FakeServer
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording

FAR_FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def config_of(url: str, repository: str, retention: dict[str, Any] | None = None, **settings: Any) -> LakeFsLakeConfig:
    return LakeFsLakeConfig.model_validate(
        {
            "name": "ml",
            "kind": "lakefs",
            "endpoint": url,
            "repository": repository,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "retention": retention or {},
            **settings,
        }
    )


@contextmanager
def serve(repository: FakeRepository, retention: dict[str, Any] | None = None, **settings: Any) -> Iterator[tuple[LakeFsLake, FakeServer]]:
    """Yield a lake of a repository, and its server."""
    server = FakeServer(repository)
    with server.running() as url:
        yield (
            LakeFsLake(config_of(url, repository.name, retention, **settings), LocalObjects(), [f"file://{repository.namespace}/"]),
            server,
        )


@contextmanager
def open_recording(name: str, folder: Path, retention: dict[str, Any] | None = None) -> Iterator[tuple[Recording, LakeFsLake, FakeServer]]:
    """Yield a lake of a recorded repository with a copy of its namespace."""
    recording = Recording(name)
    repository = recorded_repository(recording, recording.unpack(folder))
    with serve(repository, retention) as (lake, server):
        yield recording, lake, server


def commits_of(lake: LakeFsLake, refs: FrozenRefs) -> list[Commit]:
    return [commit for source in refs.sources for commit in lake.commits(source)]


def graph_of(commits: Iterable[Commit]) -> pa.Table:
    """Return rows of `commit_graph` without generation."""
    rows = [
        {"commit_id": c.commit_id, "parents": list(c.parents), "committed_at": c.committed_at, "content_roots": [], "message": c.message}
        for c in commits
    ]
    return pa.Table.from_pylist([{**row, "summary": []} for row in rows], schema=COMMIT_GRAPH.schema)


def states(retention: Retention) -> dict[str, str]:
    return dict(zip(*(retention.reachable[name].to_pylist() for name in ("commit_id", "state")), strict=True))


def retained_ids(retention: Retention) -> set[str]:
    return {commit for commit, state in states(retention).items() if state == "retained"}


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
