"""A FIFO in place of a lease or state file made every command wait forever.

Any user who may write into a storage can create one, and opening a FIFO waits for its other end. Only regular files are read.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.lakes.discovery import DiscoveryTarget
from gc_assets.lakes.iceberg.discovery import discover
from gc_assets.lakes.lakefs.lifecycle_rules import read_rules
from gc_assets.state.local_files import LocalFiles
from gc_assets.stores.local.lease import acquire, read_holder
from gc_assets.stores.local.objects import LocalObjects

CLOCK = Clock(datetime(2026, 1, 1, tzinfo=UTC))


def run_limited(call: Callable[[], Any]) -> Any:
    """Return the result or the error of a call. Fail if it takes longer than a minute."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "the call waits"
    return found[0]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as found:
            found.bind(path.name)
    finally:
        os.chdir(before)


SPECIAL = [make_fifo, Path.mkdir]


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["lease.json", "fencing_token", "lease.lock"])
def test_acquiring_a_lease_reports_a_special_file(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    location = f"file://{tmp_path}/"
    (tmp_path / ".gc-assets").mkdir()
    make(tmp_path / ".gc-assets" / name)
    error = run_limited(lambda: acquire(location, "plan", "ada", CLOCK))
    assert isinstance(error, StoreError)
    assert f"the lease file {tmp_path}/.gc-assets/{name} cannot be read" in str(error)


@pytest.mark.parametrize("make, found", [(make_fifo, "FIFO"), (make_socket, "No such device or address")])
def test_doctor_reports_a_special_file_as_lease(tmp_path: Path, make: Callable[[Path], None], found: str) -> None:
    (tmp_path / ".gc-assets").mkdir()
    make(tmp_path / ".gc-assets" / "lease.json")
    error = run_limited(lambda: read_holder(f"file://{tmp_path}/"))
    assert isinstance(error, StoreError)
    assert found in str(error)


def test_lease_linked_to_an_endless_device_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".gc-assets").mkdir()
    (tmp_path / ".gc-assets" / "lease.json").symlink_to("/dev/zero")
    error = run_limited(lambda: read_holder(f"file://{tmp_path}/"))
    assert "found a device; make sure" in str(error)


@pytest.mark.parametrize("call", [lambda files: files.read("x"), lambda files: files.read_version("x"), lambda files: files.size("x")])
def test_state_does_not_read_a_fifo(tmp_path: Path, call: Callable[[LocalFiles], Any]) -> None:
    make_fifo(tmp_path / "x")
    assert isinstance(run_limited(lambda: call(LocalFiles(str(tmp_path)))), OSError)


def test_state_does_not_lock_a_fifo(tmp_path: Path) -> None:
    make_fifo(tmp_path / ".x.lock")
    error = run_limited(lambda: LocalFiles(str(tmp_path)).replace_if("x", b"1", None))
    assert isinstance(error, OSError)
    assert "expected a regular file, found a FIFO" in str(error)


def test_lifecycle_rules_in_a_fifo_are_refused(tmp_path: Path) -> None:
    make_fifo(tmp_path / "rules.json")
    error = run_limited(lambda: read_rules(str(tmp_path / "rules.json")))
    assert isinstance(error, UsageError)
    assert "found a FIFO" in str(error)


def test_discovery_skips_a_fifo_named_like_a_catalog(tmp_path: Path) -> None:
    make_fifo(tmp_path / "catalog.db")
    target = DiscoveryTarget(str(tmp_path), LocalObjects(), {})
    assert run_limited(lambda: list(discover(target))) == []
