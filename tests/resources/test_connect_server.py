"""Local Spark Connect servers of other environments and releases are not used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import gc_assets
from gc_assets.core.errors import UsageError
from gc_assets.resources.connect_server import DISCOVERY, identity, use_own_server

pytest.importorskip("pyspark.sql.connect.local_server", reason="pyspark 4.3 has the first reusable local server")


def discovery(root: Path) -> str:
    environment = {DISCOVERY: str(root / "connect-local.json")}
    use_own_server(environment)
    return environment[DISCOVERY]


def test_each_environment_and_release_has_its_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = discovery(tmp_path)
    assert discovery(tmp_path) == ours
    seen = {ours}
    for place, name, value in (
        (gc_assets, "__version__", "0.0.1"),
        (gc_assets, "__file__", "/elsewhere/gc_assets/__init__.py"),
        (sys, "prefix", "/another/environment"),
        (sys, "version", "3.99"),
    ):
        with monkeypatch.context() as other:
            other.setattr(place, name, value)
            seen.add(discovery(tmp_path))
    assert len(seen) == 5


def test_server_of_another_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a live server with the same Spark, which is all that pyspark compares."""
    monkeypatch.setenv(DISCOVERY, str(tmp_path / "connect-local.json"))
    from pyspark.sql.connect.local_server import Discovery, LocalConnectServer

    with Discovery() as theirs:
        theirs.save({"host": "localhost", "port": 1, "token": "t", "pid": os.getpid(), "spark_version": "4"})
        assert LocalConnectServer(theirs).pid == os.getpid()
    use_own_server(os.environ)
    with Discovery() as ours:
        assert LocalConnectServer(ours).pid is None


def test_child_process_uses_the_same_directory(tmp_path: Path) -> None:
    environment = {DISCOVERY: str(tmp_path / "connect-local.json")}
    first = use_own_server(environment)
    assert use_own_server(environment) == first
    assert first.name.endswith(identity())
    assert first.stat().st_mode & 0o777 == 0o700


def test_directory_with_open_permissions_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"gc-assets-{identity()}").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="must be a directory that only you can access"):
        discovery(tmp_path)
