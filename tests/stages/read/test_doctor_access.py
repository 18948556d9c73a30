"""Servers that do not answer are found once, in a bounded time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gc_assets.engine.run_context import RunContext
from gc_assets.resources.platform import load_platform
from gc_assets.stages.read.doctor_access import find_unreachable
from tests.ports import free_port


def context_with_server(root: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> RunContext:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    document = {
        "state": str(root / "state"),
        "s3": {"endpoint": server, "region": "us-east-1"},
        "storages": [{"name": "disk", "location": f"file://{root}/"}, {"name": "bucket", "location": "s3://nowhere/lake/"}],
        "lakes": [
            {"name": "rest", "kind": "iceberg", "catalog": {"type": "rest", "uri": server}},
            {"name": "branches", "kind": "nessie", "uri": f"{server}/api/v2"},
            {"name": "versions", "kind": "lakefs", "endpoint": server, "repository": "r", **keys},
            {"name": "weather", "kind": "icechunk", "location": f"file://{root}/weather/"},
        ],
    }
    (root / "lakes.yaml").write_text(json.dumps(document))
    platform = load_platform({}, str(root / "lakes.yaml"))
    return platform.run_context(platform.clock.today())


def test_refused_connections_of_all_lakes_are_reported_as_one_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    found = find_unreachable(context_with_server(tmp_path, monkeypatch, f"http://127.0.0.1:{port}"))
    assert found.keys() == {"rest", "branches", "versions", "bucket"}
    assert {finding.cause.partition(";")[0] for finding in found.values()} == {f"cannot connect to 127.0.0.1:{port}"}
    assert "urllib3" not in found["versions"].found


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accept connections and never answer."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_hanging_server_does_not_block_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: str) -> None:
    context, started = context_with_server(tmp_path, monkeypatch, silent_server), time.monotonic()
    found = find_unreachable(context, 1.0)
    assert time.monotonic() - started < 30  # the libraries of the servers wait for a minute, and import slowly on a busy machine
    assert found["branches"].found == "no answer within 1 s"
    assert "this machine is not overloaded" in found["branches"].todo
    assert found.keys() == {"rest", "branches", "versions", "bucket"}
