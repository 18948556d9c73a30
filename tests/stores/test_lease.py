"""One plan at a time changes a storage."""

from __future__ import annotations

import json
import os
import pickle
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.stores.lease import DURATION, acquire
from tests.stores.builders import CLOCK, NOW
from tests.stores.killed import PROCESSES

TICK = timedelta(microseconds=1)


def at(moment: timedelta) -> Clock:
    return Clock(NOW + moment)


def take(root: Path, clock: Clock = CLOCK, owner: str = "night run"):
    return acquire(f"file://{root}/", "plan-a", owner, clock)


def on_disk(root: Path) -> dict:
    return json.loads((root / ".gc-assets/lease.json").read_text())


def test_the_file_says_who_holds_the_storage_since_and_until_when(tmp_path):
    lease = take(tmp_path)
    assert on_disk(tmp_path) == {
        "owner": "night run",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "plan_id": "plan-a",
        "token": 1,
        "acquired_at": "2026-11-21T12:00:00+00:00",
        "expires_at": "2026-11-21T12:10:00+00:00",
    }
    assert lease.token == 1


def test_a_live_lease_refuses_and_names_its_owner_its_times_and_the_way_out(tmp_path):
    take(tmp_path)
    with pytest.raises(GateRefused) as refusal:
        take(tmp_path, at(DURATION - TICK), "somebody else")
    for words in ("night run", "plan-a", "2026-11-21T12:00:00+00:00", "2026-11-21T12:10:00+00:00", "lease.json"):
        assert words in str(refusal.value)
    assert on_disk(tmp_path)["owner"] == "night run"


def test_an_expired_lease_is_taken_over_with_a_larger_token(tmp_path):
    first = take(tmp_path)
    second = take(tmp_path, at(DURATION), "somebody else")
    assert (first.token, second.token) == (1, 2)
    with pytest.raises(GateRefused, match=r"expected token 1, found token 2 of somebody else"):
        first.check()
    with pytest.raises(GateRefused):
        first.renew()
    second.check()


def test_the_token_grows_over_releases(tmp_path):
    tokens = []
    for _ in range(3):
        lease = take(tmp_path)
        tokens.append(lease.token)
        lease.release()
    assert tokens == [1, 2, 3]


def test_the_token_grows_though_the_counter_was_lost(tmp_path):
    take(tmp_path).release()
    take(tmp_path)
    (tmp_path / ".gc-assets/fencing_token").unlink()
    assert take(tmp_path, at(DURATION)).token == 3


def test_a_released_lease_is_no_longer_ours_and_free_for_others(tmp_path):
    lease = take(tmp_path)
    lease.release()
    with pytest.raises(GateRefused, match="found no lease"):
        lease.check()
    take(tmp_path)


def test_releasing_a_lease_that_was_taken_over_leaves_the_new_one(tmp_path):
    first = take(tmp_path)
    second = take(tmp_path, at(DURATION))
    first.release()
    second.check()
    first_again = pickle.loads(pickle.dumps(second))  # noqa: S301  (bytes made on this line)
    first_again.check()


@pytest.mark.parametrize("passed, expires", [(DURATION / 2, DURATION), (DURATION / 2 + TICK, DURATION * 1.5 + TICK)])
def test_a_check_extends_the_lease_when_half_its_time_is_over(tmp_path, passed, expires):
    lease = take(tmp_path)
    later = type(lease)(lease.control, lease.token, lease.duration, at(passed))
    later.check()
    assert on_disk(tmp_path)["expires_at"] == (NOW + expires).isoformat()


def test_an_expired_lease_that_nobody_took_is_still_ours(tmp_path):
    lease = take(tmp_path)
    later = type(lease)(lease.control, lease.token, lease.duration, at(DURATION * 3))
    later.check()
    with pytest.raises(GateRefused):
        take(tmp_path, at(DURATION * 3))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"owner": "x"}', "null"])
def test_a_lease_that_cannot_be_read_is_never_taken_over(tmp_path, content):
    take(tmp_path)
    (tmp_path / ".gc-assets/lease.json").write_text(content)
    with pytest.raises(StoreError, match=r"lease\.json is no lease"):
        take(tmp_path, at(DURATION * 100))


def test_a_counter_that_cannot_be_read_stops(tmp_path):
    take(tmp_path).release()
    (tmp_path / ".gc-assets/fencing_token").write_text("x")
    with pytest.raises(StoreError, match="fencing_token"):
        take(tmp_path)


def test_a_storage_that_is_not_there_has_no_lease(tmp_path):
    with pytest.raises(StoreError, match="mount it"):
        take(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_the_collectors_prefix_may_not_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".gc-assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        take(tmp_path)


def test_where_locks_do_not_work_creating_the_file_is_for_one_only(tmp_path, monkeypatch):
    monkeypatch.setattr("gc_assets.stores.lease._read", lambda control: None)
    take(tmp_path)
    with pytest.raises(GateRefused, match="another host"):
        take(tmp_path)


def _race(root: Path, clock: Clock, start, results) -> None:
    start.wait()
    try:
        results.put(acquire(str(root), "plan-a", str(os.getpid()), clock).token)
    except GateRefused:
        results.put(None)


@pytest.mark.parametrize("before", ["free", "expired"])
def test_of_processes_that_race_one_wins(tmp_path, before):
    if before == "expired":
        take(tmp_path)
    start, results = PROCESSES.Barrier(4), PROCESSES.Queue()
    racers = [PROCESSES.Process(target=_race, args=(tmp_path, at(DURATION), start, results)) for _ in range(4)]
    for racer in racers:
        racer.start()
    tokens = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    winner = 1 if before == "free" else 2
    assert sorted(tokens, key=str) == [winner, None, None, None]
    assert on_disk(tmp_path)["token"] == winner
