"""A held lease is renewed while its block runs, released afterwards, and never taken back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.local import lease as local_lease
from gc_assets.stores.local.lease import LocalLease, acquire, read_holder
from gc_assets.stores.protocol import LEASE_DURATION, Lease
from tests.stores.builders import CLOCK, NOW, PLAN

# So short that the thread renews the lease many times during a test.
SHORT = timedelta(milliseconds=3)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the thread did not renew the lease in time"
        time.sleep(0.001)


@dataclass
class ScriptedLease:
    """A lease that records its calls and calls `on_renewal` in each renewal."""

    on_renewal: Callable[[], None] = lambda: None
    token: int = 1
    duration: timedelta = SHORT
    calls: list[str] = field(default_factory=list[str])

    def check(self) -> timedelta:
        raise AssertionError("only the block checks its lease")

    def renew(self) -> None:
        self.on_renewal()
        self.calls.append("renew")

    def release(self) -> None:
        self.calls.append("release")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def lease(root: Path) -> LocalLease:
    return acquire(str(root), PLAN, "test", CLOCK)


def expires_at(root: Path) -> str | None:
    holder = read_holder(str(root))
    return None if holder is None else holder.expires_at


def test_working_holder_keeps_the_lease(root: Path) -> None:
    """Its block takes ten times as long as a lease lasts."""
    times = [NOW]

    class Passing(Clock):
        def now(self) -> datetime:
            return times[0]

    clock = Passing(NOW)
    with hold_lease(acquire(str(root), PLAN, "slow", clock, SHORT)):
        for _ in range(20):
            times[0] += SHORT / 2
            wait_until(lambda: expires_at(root) == (times[0] + SHORT).isoformat())
            with pytest.raises(GateRefused, match="is being changed by slow"):
                acquire(str(root), PLAN, "fast", clock)


def test_lease_is_released_after_success_and_failure(root: Path, lease: LocalLease) -> None:
    with pytest.raises(GateRefused, match="by a gate"), hold_lease(lease):
        raise GateRefused("by a gate")
    with hold_lease(acquire(str(root), "another-plan", "test", CLOCK)):
        pass
    assert acquire(str(root), PLAN, "test", CLOCK).token == 3


def test_failed_release_does_not_hide_the_first_error(root: Path, lease: LocalLease, caplog: pytest.LogCaptureFixture) -> None:
    (root / ".gc-assets" / "lease.json").write_text("no lease")
    with pytest.raises(GateRefused, match="the first failure"), hold_lease(lease):
        raise GateRefused("the first failure")
    assert "lease 1 could not be released" in caplog.text
    with pytest.raises(StoreError, match="cannot parse the lease"), hold_lease(lease):
        pass


@pytest.mark.parametrize("error", [None, GateRefused("by a gate"), KeyboardInterrupt(), SystemExit(1)])
def test_renewal_thread_ends_with_the_block(error: BaseException | None) -> None:
    before, lease = threading.active_count(), ScriptedLease()
    with nullcontext() if error is None else pytest.raises(type(error)) as raised, hold_lease(lease):
        assert threading.active_count() == before + 1
        wait_until(lambda: "renew" in lease.calls)
        if error is not None:
            raise error
    assert raised is None or raised.value is error
    assert threading.active_count() == before
    assert lease.calls[-1] == "release"


def test_renewal_in_progress_ends_before_the_release() -> None:
    """Otherwise it would write the released lease again."""
    has_started, may_end = threading.Event(), threading.Event()

    def renew_slowly() -> None:
        has_started.set()
        may_end.wait(30)

    lease = ScriptedLease(renew_slowly)
    with hold_lease(lease):
        assert has_started.wait(30)
        threading.Timer(0.05, may_end.set).start()
    assert lease.calls == ["renew", "release"]


def test_interrupted_wait_for_a_renewal_does_not_release_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user presses Ctrl-C while a renewal hangs. The lease then expires."""
    has_started, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        has_started.set()
        may_end.wait(30)

    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    lease, join = ScriptedLease(hang), threading.Thread.join
    with monkeypatch.context() as patched:

        def work() -> None:
            with hold_lease(lease):
                assert has_started.wait(30)
                patched.setattr(threading.Thread, "join", interrupt)

        with pytest.raises(KeyboardInterrupt):
            work()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "renewal of lease 1")
    may_end.set()
    join(thread, 30)
    assert not thread.is_alive()
    assert lease.calls == ["renew"]


def test_interrupted_renewal_leaves_no_temporary_file(root: Path, lease: LocalLease, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user presses Ctrl-C twice, or the disk is full."""
    before, left = sorted((root / ".gc-assets").iterdir()), expires_at(root)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(local_lease.os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.renew()
    assert (sorted((root / ".gc-assets").iterdir()), expires_at(root)) == (before, left)


def test_failed_renewal_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    errors = [StoreError("503 Slow Down"), OSError("read timed out"), GateRefused("the lock file is locked")]

    def fail_first() -> None:
        if errors:
            raise errors.pop()

    lease = ScriptedLease(fail_first)
    with hold_lease(lease):
        wait_until(lambda: "renew" in lease.calls)
    for found in ("503 Slow Down", "read timed out", "the lock file is locked"):
        assert f"lease 1 could not be renewed: {found}" in caplog.text


@pytest.mark.parametrize("released", [False, True])
def test_lost_lease_stays_with_the_next_holder(root: Path, caplog: pytest.LogCaptureFixture, *, released: bool) -> None:
    """The process was suspended, so that its lease expired."""
    first: Lease = acquire(str(root), PLAN, "suspended", CLOCK, SHORT)
    second = acquire(str(root), PLAN, "next", Clock(NOW + LEASE_DURATION))
    if released:
        second.release()
    left = expires_at(root)
    with hold_lease(first):
        wait_until(lambda: "could not be renewed" in caplog.text)
        with pytest.raises(GateRefused, match=r"lost: expected token 1"):
            first.check()
        assert expires_at(root) == left
        wait_until(lambda: not any(thread.name == "renewal of lease 1" for thread in threading.enumerate()))
    assert caplog.text.count("could not be renewed") == 1
    assert expires_at(root) == left


def test_lease_is_released_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lease = ScriptedLease()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"), hold_lease(lease):
            raise AssertionError("the block must not run")
    assert lease.calls == ["release"]


def test_renewal_thread_does_not_keep_an_ending_process_alive(root: Path) -> None:
    """The block belongs to a daemon thread, which the interpreter does not wait for."""
    script = f"""
import threading, time
from datetime import timedelta
from gc_assets.core.clock import Clock
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.local import lease as local_lease
from gc_assets.stores.local.lease import acquire
begun = threading.Event()
def work():
    with hold_lease(acquire({str(root)!r}, "plan", "test", Clock(), timedelta(seconds=1))):
        begun.set()
        time.sleep(600)
threading.Thread(target=work, daemon=True).start()
assert begun.wait(60)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
