"""At most one plan changes a storage at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.stores.local.lease import acquire
from gc_assets.stores.protocol import LEASE_DURATION
from tests.stores.builders import CLOCK, NOW

TICK = timedelta(microseconds=1)


def at(moment: timedelta) -> Clock:
    return Clock(NOW + moment)


def take(root: Path, clock: Clock = CLOCK, owner: str = "nightly run"):
    return acquire(f"file://{root}/", "plan-a", owner, clock)


def read_lease_file(root: Path) -> dict:
    return json.loads((root / ".gc-assets/lease.json").read_text())


def test_lease_file_contains_holder_and_times(tmp_path):
    lease = take(tmp_path)
    assert read_lease_file(tmp_path) == {
        "owner": "nightly run",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "plan_id": "plan-a",
        "token": 1,
        "acquired_at": "2026-11-21T12:00:00+00:00",
        "expires_at": "2026-11-21T12:10:00+00:00",
    }
    assert lease.token == 1


def test_error_for_a_held_lease_contains_owner_times_and_next_step(tmp_path):
    take(tmp_path)
    with pytest.raises(GateRefused) as refusal:
        take(tmp_path, at(LEASE_DURATION - TICK), "another user")
    for text in ("nightly run", "plan-a", "2026-11-21 12:00:00Z", "2026-11-21 12:10:00Z", "lease.json"):
        assert text in str(refusal.value)
    assert read_lease_file(tmp_path)["owner"] == "nightly run"


class SkewedClock(Clock):
    """The clock of a host that is eleven minutes ahead or behind."""

    def __init__(self, skew: timedelta) -> None:
        super().__init__()
        object.__setattr__(self, "skew", skew)

    def now(self) -> datetime:
        return super().now() + self.skew


AHEAD, BEHIND = SkewedClock(timedelta(minutes=11)), SkewedClock(timedelta(minutes=-11))


@pytest.mark.parametrize("holder", [Clock(), BEHIND])
@pytest.mark.parametrize("other", [Clock(), AHEAD])
def test_host_with_a_wrong_clock_does_not_take_over_a_live_lease(tmp_path, holder, other):
    """The times of the lease come from the file server, which all hosts of the disk share."""
    lease = take(tmp_path, holder)
    with pytest.raises(GateRefused, match="is being changed by nightly run"):
        take(tmp_path, other)
    lease.check()


@pytest.mark.parametrize("other", [Clock(), BEHIND])
def test_host_with_a_wrong_clock_takes_over_an_expired_lease(tmp_path, other):
    acquire(f"file://{tmp_path}/", "plan-a", "nightly run", AHEAD, timedelta(0))
    assert take(tmp_path, other).token == 2


def test_other_users_cannot_read_or_lock_the_lease(tmp_path):
    (tmp_path / ".gc-assets").mkdir()
    (tmp_path / ".gc-assets/lease.lock").touch(0o644)  # as an older release made it
    take(tmp_path).renew()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / ".gc-assets").iterdir()}
    assert modes == dict.fromkeys(("lease.json", "lease.lock", "fencing_token"), 0o600)


def test_hanging_lock_raises_after_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("gc_assets.core.file_locks.LOCK_SECONDS", 0.2)
    take(tmp_path).release()
    with (tmp_path / ".gc-assets/lease.lock").open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(GateRefused, match=r"lease\.lock: it has been locked by another process.*fuser"):
            take(tmp_path)
    assert take(tmp_path).token == 2


def test_fencing_token_is_higher_than_the_recorded_token(tmp_path):
    assert acquire(f"file://{tmp_path}/", "plan-a", "nightly run", CLOCK, after=41).token == 42


def test_fencing_token_grows_without_the_counter_file(tmp_path):
    take(tmp_path).release()
    take(tmp_path)
    (tmp_path / ".gc-assets/fencing_token").unlink()
    assert take(tmp_path, at(LEASE_DURATION)).token == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"owner": "x"}', "null"])
def test_unreadable_lease_is_never_taken_over(tmp_path, content):
    take(tmp_path)
    (tmp_path / ".gc-assets/lease.json").write_text(content)
    with pytest.raises(StoreError, match=r"cannot parse the lease .*lease\.json"):
        take(tmp_path, at(LEASE_DURATION * 100))


def test_unreadable_counter_file_raises_store_error(tmp_path):
    take(tmp_path).release()
    (tmp_path / ".gc-assets/fencing_token").write_text("x")
    with pytest.raises(StoreError, match="fencing_token"):
        take(tmp_path)


def test_lease_on_a_missing_storage_is_refused(tmp_path):
    with pytest.raises(StoreError, match="mount it"):
        take(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_reserved_prefix_must_not_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".gc-assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        take(tmp_path)


def test_lease_file_is_created_exclusively_without_working_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("gc_assets.stores.local.lease.read_lease", lambda control: None)
    take(tmp_path)
    with pytest.raises(GateRefused, match="another host"):
        take(tmp_path)
