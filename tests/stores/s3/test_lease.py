"""Leases in buckets: races, lost answers, and foreign objects under the prefix of leases."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.stores.conditional import lease as leases
from gc_assets.stores.protocol import LEASE_DURATION, Store
from gc_assets.stores.s3.store import S3Store
from tests.depth import example_count, in_turn
from tests.process_kills import PROCESSES
from tests.s3.proxy import Exchange, Fault, Request, Rule, drop_answer, error_answer
from tests.stores.builders import CLOCK, NOW, PLAN
from tests.stores.s3.bucket_actions import open_through_proxy
from tests.stores.s3.careless_store import CarelessStore
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn

FIRST_LEASE = ".gc-assets/lease/000000000001.json"
RACES = example_count(7, 12)


@pytest.fixture(params=[False, True], ids=["unversioned", "versioned"])
def bench(request: pytest.FixtureRequest) -> Iterator[S3Bench]:
    with open_s3_bench("ceph", versioned=request.param) as opened:
        yield opened


def creates_lease(request: Request) -> bool:
    return request.method == "PUT" and "/.gc-assets/lease/" in request.target


def write_and_answer_not_found(exchange: Exchange) -> None:
    """Store the object and deny it, as Ceph 20 may do when two requests create a version of one key."""
    exchange.forward()
    exchange.reply(error_answer(404, "NoSuchKey"))


def answer_not_found(exchange: Exchange) -> None:
    exchange.reply(error_answer(404, "NoSuchKey"))


def race(store: Store, start: Any, results: Any, name: str) -> None:
    """Acquire leases in two threads. Report each token, and whether its lease is valid in the end.

    A thread that fails ends the race of all.
    """

    def racer(number: int) -> None:
        try:
            take_turns(number)
        except BaseException:
            start.abort()
            results.put(traceback.format_exc())
            raise

    def take_turns(number: int) -> None:
        for turn in range(RACES):
            start.wait(60)
            try:
                won = store.acquire(f"plan-{turn}", f"{name}-{number}", Clock(NOW + turn * 3 * LEASE_DURATION))
            except GateRefused:
                won = None
            start.wait(60)
            holds = won is not None
            if won is not None:
                try:
                    won.check()
                except GateRefused:
                    holds = False
            results.put((turn, won.token if won is not None else None, holds))

    threads = [Thread(target=racer, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("kind", [S3Store, CarelessStore])
def test_competing_processes_never_both_acquire_the_lease(kind: type[S3Store]) -> None:
    with open_s3_bench("ceph", versioned=True) as bench:
        store = kind(bench.store.location, bench.connections)
        start, results = PROCESSES.Barrier(4), PROCESSES.Queue()
        racers = [PROCESSES.Process(target=race, args=(store, start, results, name)) for name in "ab"]
        for racer in racers:
            racer.start()
        answers = list[tuple[int, int | None, bool]]()
        while len(answers) < 4 * RACES:
            answer = results.get(timeout=120)
            assert isinstance(answer, tuple), answer
            answers.append(answer)
        for racer in racers:
            racer.join()
    winners = [[token for turn, token, _ in answers if turn == number and token is not None] for number in range(RACES)]
    assert all(len(tokens) <= 1 for tokens in winners)
    assert sum(map(len, winners)) > RACES / 2
    tokens = [token for of_turn in winners for token in of_turn]
    assert tokens == sorted(set(tokens))
    assert all(holds == (token is not None) for _, token, holds in answers)


def test_own_lease_is_recognized_after_a_lost_response(bench: S3Bench) -> None:
    with open_through_proxy(bench, Rule(creates_lease, drop_answer)) as (store, _):
        lease = store.acquire(PLAN, "we", CLOCK)
    lease.check()
    holder = bench.store.holder()
    assert holder is not None
    assert (holder.owner, holder.token) == ("we", lease.token)
    lease.release()
    assert bench.store.holder() is None


@pytest.mark.parametrize("fault", [answer_not_found, write_and_answer_not_found])
def test_lease_is_acquired_if_error_response_follows_a_created_object(bench: S3Bench, fault: Fault) -> None:
    with open_through_proxy(bench, Rule(creates_lease, fault)) as (store, _):
        lease = store.acquire(PLAN, "we", CLOCK)
    lease.check()
    with pytest.raises(GateRefused, match="is being changed by we"):
        bench.store.acquire(PLAN, "they", CLOCK)


def test_lease_is_refused_if_server_ignores_conditional_create() -> None:
    with open_s3_bench("ceph") as bench:
        store = CarelessStore(bench.store.location, bench.connections)
        with pytest.raises(StoreError, match="ignores If-None-Match"):
            store.acquire(PLAN, "we", CLOCK)


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b"null", b'"x"', b"{}", b"\xff", b'{"expires_at": "2026-01-01T00:00:00"}'])
def test_invalid_lease_is_reported_and_not_changed(bench: S3Bench, content: bytes) -> None:
    bench.put(FIRST_LEASE, content)
    for call in (bench.store.holder, lambda: bench.store.acquire(PLAN, "we", CLOCK)):
        with pytest.raises(StoreError, match=FIRST_LEASE):
            call()
    assert bench.get(FIRST_LEASE) == content


@pytest.mark.parametrize("name", ["7.json", "000000000007", "x", "000000000001.json.bak", "-1.json"])
def test_unexpected_object_next_to_leases_is_reported(bench: S3Bench, name: str) -> None:
    bench.put(f".gc-assets/lease/{name}", b"{}")
    with pytest.raises(StoreError, match=name):
        bench.store.acquire(PLAN, "we", CLOCK)


def test_manually_removed_lease_does_not_lock_the_storage(bench: S3Bench) -> None:
    bench.store.acquire(PLAN, "they", CLOCK)
    bench.client.delete_object(Bucket=bench.bucket, Key=bench.prefix + FIRST_LEASE)  # leaves a delete marker in a bucket with versions
    lease = bench.store.acquire(PLAN, "we", CLOCK)
    lease.check()


def test_lease_without_a_time_zone_is_invalid(bench: S3Bench) -> None:
    bench.store.acquire(PLAN, "we", CLOCK)
    content = bench.get(FIRST_LEASE) or b""
    bench.put(FIRST_LEASE, content.replace(b"+00:00", b""))
    with pytest.raises(StoreError, match=FIRST_LEASE):
        bench.store.acquire(PLAN, "others", CLOCK)


def test_fast_clock_does_not_take_over_a_live_lease(bench: S3Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.store.acquire(PLAN, "we", Clock())
    monkeypatch.setattr(Clock, "now", lambda _: bench.store.now() + timedelta(days=1))
    with pytest.raises(GateRefused, match="is being changed by we"):
        bench.store.acquire(PLAN, "ahead", Clock())
    first.check()


def test_slow_process_does_not_reuse_a_deleted_fencing_token(bench: S3Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    latest = leases.read_latest
    for turn in range(3):
        bench.store.acquire(PLAN, str(turn), Clock(NOW + turn * LEASE_DURATION))
    answers = [None]
    monkeypatch.setattr(leases, "read_latest", lambda bucket, role: answers.pop() if answers else latest(bucket, role))
    with pytest.raises(GateRefused, match="is being changed by 2"):
        bench.store.acquire(PLAN, "late", Clock(NOW + 2 * LEASE_DURATION))
    assert FIRST_LEASE not in bench.everything()


def test_late_renewal_does_not_regain_the_lease(bench: S3Bench) -> None:
    first: Any = bench.store.acquire(PLAN, "first", CLOCK)
    record = first.require_own()
    second = bench.store.acquire(PLAN, "second", Clock(NOW + LEASE_DURATION))
    first.write_renewal(record)
    with pytest.raises(GateRefused, match="second"):
        replace(first, clock=Clock(NOW + LEASE_DURATION)).check()
    second.check()
