"""Actions on a storage in a bucket, directly and through a proxy, for the tests of S3 stores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gc_assets.config.connections import Connections
from gc_assets.core.phases import Action
from gc_assets.stores.protocol import PlannedAction, QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.s3.proxy import (
    Proxy,
    Request,
    Rule,
    run_proxy,
)
from tests.s3.servers import shared_server
from tests.stores.builders import PLAN
from tests.stores.contract import inventory, row_of
from tests.stores.s3_bench import S3Bench

MODES: list[tuple[QuarantineMode, bool]] = [("trash", False), ("deferred", False), ("versioned", True), ("deferred", True)]
IDS = ["trash", "deferred", "versioned", "deferred_versioned"]
every_mode = pytest.mark.parametrize("mode, versioned", MODES, ids=IDS)


@contextmanager
def open_through_proxy(bench: S3Bench, *rules: Rule, kind: str = "ceph") -> Iterator[tuple[Store, Proxy]]:
    """Open the same storage through a proxy."""
    with run_proxy(shared_server(kind), *rules) as proxy:
        yield open_store(bench.store.location, Connections.of(proxy.server.settings)), proxy


def plan_rows(bench: S3Bench, *keys: str) -> list[PlannedAction]:
    listed = inventory(bench.store)
    return [row_of(listed[key]) for key in keys]


def with_action(action: Action, rows: Sequence[PlannedAction]) -> list[PlannedAction]:
    return [replace(row, action=action, source_plan_id=None if action == "quarantine" else PLAN) for row in rows]


def act(
    store: Store, mode: QuarantineMode, rows: Sequence[PlannedAction], action: Action = "quarantine", *, resumed: bool = False
) -> list[str]:
    rows = with_action(action, rows)
    results = store.quarantine(mode, PLAN).act(rows, rows if resumed else ())
    assert all(result.verdict == "done" or result.error for result in results)
    assert not any(result.error for result in results if result.verdict == "done" and "older versions" not in (result.error or ""))
    return [result.verdict for result in results]


def is_copy_to_trash(request: Request) -> bool:
    return request.method == "PUT" and "/.gc-assets/trash/" in request.target


def set_versioning(bench: S3Bench, status: str) -> None:
    bench.client.put_bucket_versioning(Bucket=bench.bucket, VersioningConfiguration={"Status": status})


def kill_first(children: Sequence[Any]) -> None:
    os.kill(children[0].pid, signal.SIGKILL)
