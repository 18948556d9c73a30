"""Expired credentials, missing locations and competing machines.

No object is lost, every key has one outcome, and messages name the location and an action.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import botocore.auth
import pytest

from gc_assets.config.connections import Connections
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.state.files import Files
from gc_assets.stores.execution import execute, require_balance
from gc_assets.stores.protocol import LEASE_DURATION, Outcome, PlannedAction, QuarantineMode, Store
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.depth import example_count, in_turn
from tests.process_kills import PROCESSES
from tests.s3.proxy import Exchange, Rule, call_after, drop_answer, error_answer, nth
from tests.s3.servers import shared_server
from tests.state.s3_location import unused_location
from tests.stores.builders import CLOCK, NOW, PLAN, memory_directory
from tests.stores.s3.bucket_actions import is_copy_to_trash, kill_first, open_through_proxy, plan_rows
from tests.stores.s3_bench import open_s3_bench

pytestmark = in_turn

KEYS = ("a", "t/b", "u/c")
LATER = Clock(NOW + LEASE_DURATION)
# The answer to HEAD contains only the status.
LOG_IN = re.compile("the session token (has|may have) expired; log in again")


def apply(
    store: Store, state: Files, rows: Sequence[PlannedAction], mode: QuarantineMode, owner: str, clock: Clock = CLOCK
) -> Iterator[Outcome]:
    """Apply rows with two keys per batch: lease, log, actions, release."""
    lease = store.acquire(PLAN, owner, clock)
    log = open_log(state, "wal", PLAN, len(rows))
    yield from execute(rows, store.quarantine(mode, PLAN), log, lease, clock, batch_size=2)
    lease.release()


def answer_expired_token(exchange: Exchange) -> None:
    """Answer like S3: status 400, without a body for HEAD."""
    exchange.reply(error_answer(400, "ExpiredToken"))


@pytest.mark.parametrize("mode, versioned", [("trash", False), ("versioned", True)])
def test_next_run_completes_a_plan_after_credentials_expired(mode: QuarantineMode, versioned: bool) -> None:
    for step in count(1, example_count(9, 5)):
        with open_s3_bench("ceph", versioned=versioned) as bench, memory_directory() as folder:
            for key in KEYS:
                bench.put(key, key.encode())
            rows, state = plan_rows(bench, *KEYS), Files(str(folder))
            rule = Rule(lambda request, step=step: request.number >= step, answer_expired_token, times=10**9)
            outcomes, messages = list[Outcome](), list[str]()
            with open_through_proxy(bench, rule) as (store, proxy):
                try:
                    outcomes.extend(apply(store, state, rows, mode, "we"))
                    require_balance(len(rows), Counter(outcome.verdict for outcome in outcomes))
                except (OSError, StoreError) as error:
                    messages.append(str(error))
                if len(proxy.requests) < step:
                    break
            assert {outcome.verdict for outcome in outcomes} <= {"done", "failed"}
            messages += [str(outcome.error) for outcome in outcomes if outcome.verdict == "failed"]
            assert messages
            assert [text for text in messages if not LOG_IN.search(text)] == []
            assert [outcome.verdict for outcome in apply(bench.store, state, rows, mode, "we", LATER)] == ["done"] * 3
            back = [replace(row, action="restore", source_plan_id=PLAN) for row in rows]
            assert [result.verdict for result in bench.store.quarantine(mode, PLAN).act(back)] == ["done"] * 3
            assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
    assert step > 10


def machine(start: Any, answers: Any, store: Store, state: Files, rows: Sequence[PlannedAction], owner: str) -> None:
    start.wait(60)
    try:
        answers.put((owner, [outcome.verdict for outcome in apply(store, state, rows, "trash", owner)]))
    except GateRefused as error:
        answers.put((owner, str(error)))


def test_two_machines_copy_each_object_once() -> None:
    keys = [f"t/{number:02}" for number in range(20)]
    with open_s3_bench("ceph") as bench, unused_location() as (root, settings), open_through_proxy(bench) as (store, proxy):
        for key in keys:
            bench.put(key, key.encode())
        rows, state = plan_rows(bench, *keys), Files(root, settings)
        start, answers = PROCESSES.Barrier(2), PROCESSES.Queue()
        machines = [PROCESSES.Process(target=machine, args=(start, answers, store, state, rows, name)) for name in ("ada", "bob")]
        for process in machines:
            process.start()
        results = dict(answers.get(timeout=120) for _ in machines)
        for process in machines:
            process.join(300)
        done = [owner for owner, answer in results.items() if answer == ["done"] * len(keys)]
        assert done
        for owner in results.keys() - set(done):
            assert f"storage {bench.store.location} is being changed by" in results[owner] or "lease at the same time" in results[owner]
        assert sum(is_copy_to_trash(request) for request in proxy.requests) == len(keys)
        assert [bench.get(key) for key in keys] == [None] * len(keys)
        assert [bench.get(f".gc-assets/trash/{PLAN}/{key}") for key in keys] == [key.encode() for key in keys]


def apply_all(store: Store, state: Files, rows: Sequence[PlannedAction]) -> None:
    list(apply(store, state, rows, "versioned", "we"))


def test_next_run_completes_a_killed_run_with_state_on_s3() -> None:
    """At every 20th request by default, at every request with `make test DEPTH=all`."""
    for step in count(1, example_count(20, 1)):
        with open_s3_bench("ceph", versioned=True) as bench, unused_location() as (root, settings):
            for key in KEYS:
                bench.put(key, key.encode())
            rows, children = plan_rows(bench, *KEYS), list[Any]()
            killing = call_after(lambda children=children: kill_first(children))
            with open_through_proxy(bench, Rule(nth(step), killing)) as (store, proxy):
                children.append(PROCESSES.Process(target=apply_all, args=(store, Files(root, proxy.server.settings), rows)))
                children[0].start()
                children[0].join(300)
            assert children[0].exitcode in {0, -signal.SIGKILL}
            assert [outcome.verdict for outcome in apply(bench.store, Files(root, settings), rows, "versioned", "we", LATER)] == [
                "done"
            ] * 3
            assert [bench.get(key) for key in KEYS] == [None] * 3
            back = [replace(row, action="restore", source_plan_id=PLAN) for row in rows]
            assert [result.verdict for result in bench.store.quarantine("versioned", PLAN).act(back)] == ["done"] * 3
            assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
        if children[0].exitcode == 0:
            break
    assert step > 25


def test_missing_location_is_not_treated_as_an_empty_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # the pauses between attempts
    server = shared_server("ceph").settings
    with open_s3_bench("ceph") as bench:
        bench.put("a", b"x")
        nowhere = server.model_copy(update={"endpoint": "http://127.0.0.1:9"})
        wrong = {
            f"s3://{bench.bucket}-gone/": (server, "there is no such bucket; correct the location or `s3.endpoint`"),
            f"s3://{bench.bucket}/": (nowhere, "check the network and `s3.endpoint`"),
            f"s3://{bench.bucket}/lake/": (
                shared_server("ceph").as_stranger().settings,
                "docs/s3-reference.md lists the permissions of each role",
            ),
        }
        for location, (settings, way_out) in wrong.items():
            with pytest.raises(StoreError) as raised:
                open_store(location, Connections.of(settings)).plan_listing(2)
            assert f"storage {location} cannot be listed" in str(raised.value)
            assert way_out in str(raised.value)


def test_wrong_region_is_reported() -> None:
    """versitygw is used, because Ceph 16 ignores the region."""
    with open_s3_bench("versity", prefix="lake/") as bench:
        bench.put("a", b"x")
        other_region = Connections.of(shared_server("versity").settings.model_copy(update={"region": "eu-central-1"}))
        with pytest.raises(StoreError, match=r"cannot be listed: .*the bucket is in another region; set `s3.region`"):
            open_store(bench.store.location, other_region).plan_listing(2)


def test_forbidden_batch_delete_denies_only_keys_of_that_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.s3.bucket.KEYS_PER_DELETE", 2)
    keys = [f"t/{number}" for number in range(5)]
    no = error_answer(403, "AccessDenied")
    forbidden = Rule(lambda request: "/t/3" in str(request.keys), lambda exchange: exchange.reply(no), times=10**9)
    lost = Rule(lambda request: "/t/0" in str(request.keys), drop_answer)
    with open_s3_bench("ceph", versioned=True) as bench:
        for key in keys:
            bench.put(key, key.encode())
        rows = plan_rows(bench, *keys)
        with open_through_proxy(bench, lost, forbidden) as (store, proxy):
            results = store.quarantine("versioned", PLAN).act(rows)
        assert [result.verdict for result in results] == ["done", "done", "denied", "denied", "done"]
        assert "quarantine 't/3': AccessDenied" in str(results[3].error)
        # The rows of the lost answer are checked again and are done. No other row is requested twice.
        assert sorted(len(request.keys) for request in proxy.requests if request.keys) == [1, 2, 2]
        assert [bench.get(key) for key in keys] == [None, None, b"t/2", b"t/3", None]


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_skew_is_reported_and_nothing_is_deleted(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_s3_bench("ceph") as bench:
        bench.put("a", b"x")
        rows, now = plan_rows(bench, "a"), botocore.auth.get_current_datetime
        with monkeypatch.context() as patch:
            patch.setattr(botocore.auth, "get_current_datetime", lambda **how: now(**how) + timedelta(hours=hours))
            with pytest.raises(StoreError, match=r"RequestTimeTooSkewed.*set this machine's clock"):
                bench.store.plan_listing(2)
            (result,) = bench.store.quarantine("trash", PLAN).act(rows)
        assert result.verdict == "failed"
        assert "set this machine's clock" in (result.error or "")
        assert bench.get("a") == b"x"
