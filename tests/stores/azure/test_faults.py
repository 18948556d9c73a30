"""Quarantine on Azurite through a proxy: lost and truncated answers, an overloaded server, other writers.

A normal run tests every fifth request of each action, the full suite each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import cast

import pytest

from gc_assets.azure import bucket as azure_bucket
from gc_assets.buckets.protocol import Deletion
from gc_assets.buckets.rate_limiter import RateLimiter
from gc_assets.core.phases import Action
from gc_assets.stores.azure.store import AzureStore
from gc_assets.stores.protocol import PlannedAction, QuarantineMode, Result
from tests.azure.servers import AzureServer, shared_server
from tests.depth import example_count, in_turn
from tests.s3.proxy import (
    Exchange,
    Fault,
    Proxy,
    Request,
    Rule,
    answer_slow_down,
    call_before,
    cut_body,
    delay,
    drop_answer,
    drop_request,
    nth,
    run_proxy,
)
from tests.stores.azure_bench import AzureBench, open_azure_bench
from tests.stores.builders import PLAN
from tests.stores.contract import QuarantineBench, inventory

pytestmark = in_turn

KEYS = ("a", "t/b")
ACTIONS: tuple[Action, ...] = ("quarantine", "restore", "purge")
MODES: tuple[QuarantineMode, ...] = ("trash", "deferred")
STRIDE = example_count(5, 1)
every_case = pytest.mark.parametrize("action, mode", [(action, mode) for action in ACTIONS for mode in MODES])

Wire = Proxy[AzureServer]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with run_proxy(shared_server()) as proxy:
        yield proxy


def count_from(wire: Wire, *rules: Rule) -> None:
    """Number further requests from 1, with these faults."""
    wire.requests.clear()
    wire.rules[:] = rules


@contextmanager
def open_rows(wire: Wire, action: Action, mode: QuarantineMode) -> Iterator[tuple[AzureBench, list[PlannedAction]]]:
    """Return a storage with the blobs of `KEYS`, and rows that can be acted on."""
    count_from(wire)
    with open_azure_bench(prefix="faults/", server=wire.server) as bench:
        for key in KEYS:
            bench.put(key, key.encode())
        act_on = QuarantineBench(bench, mode)
        rows = [act_on.plan_row(key) for key in KEYS]
        if action != "quarantine":
            assert act_on(*rows) == ["done"] * len(KEYS)
            rows = [act_on.follow_up(row, action) for row in rows]
        yield bench, rows
    count_from(wire)


def act(bench: AzureBench, mode: QuarantineMode, rows: Sequence[PlannedAction]) -> list[Result]:
    return bench.store.quarantine(mode, PLAN).act(rows)


def expected_contents(action: Action, mode: QuarantineMode) -> list[bytes | None]:
    stays = action == "restore" or (action == "quarantine" and mode == "deferred")
    return [key.encode() if stays else None for key in KEYS]


def for_every_request(
    wire: Wire,
    action: Action,
    mode: QuarantineMode,
    fault: Callable[[AzureBench], Fault],
    check: Callable[[AzureBench, list[Result]], None],
) -> None:
    """Act once per request, with a fault at that request."""
    for number in count(1, STRIDE):
        with open_rows(wire, action, mode) as (bench, rows):
            rule = Rule(nth(number), fault(bench))
            count_from(wire, rule)
            found = act(bench, mode, rows)
            count_from(wire)
            if rule.times:  # there were fewer requests
                break
            check(bench, found)
    assert number > 1


@every_case
@pytest.mark.parametrize("fault", [drop_request, drop_answer, cut_body], ids=["lost request", "lost response", "truncated response"])
def test_lost_request_or_response_does_not_change_outcomes(wire: Wire, action: Action, mode: QuarantineMode, fault: Fault) -> None:
    def check(bench: AzureBench, found: list[Result]) -> None:
        assert [result.verdict for result in found] == ["done"] * len(KEYS), found
        assert [bench.get(key) for key in KEYS] == expected_contents(action, mode)

    for_every_request(wire, action, mode, lambda _: fault, check)


@every_case
def test_blob_written_before_any_request_is_never_changed(wire: Wire, action: Action, mode: QuarantineMode) -> None:
    """Another writer replaces the blob between any two requests."""

    def check(bench: AzureBench, found: list[Result]) -> None:
        assert bench.get("a") == b"newer", found
        assert found[0].verdict in {"done", "changed", "failed"}
        assert found[1].verdict == "done"

    for_every_request(wire, action, mode, lambda bench: call_before(lambda: bench.put("a", b"newer")), check)


def every_second() -> Callable[[Request], bool]:
    return lambda request: request.number % 2 == 0


@every_case
@pytest.mark.parametrize("fault", [answer_slow_down, delay(0.02)], ids=["503", "slow"])
def test_requests_to_an_overloaded_server_are_retried(
    wire: Wire, action: Action, mode: QuarantineMode, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = list[object]()
    monkeypatch.setattr(RateLimiter, "slow_down", lambda limiter: slowed.append(limiter))
    with open_rows(wire, action, mode) as (bench, rows):
        count_from(wire, Rule(every_second(), fault, times=10**9))
        found = act(bench, mode, rows)
        count_from(wire)
        assert [result.verdict for result in found] == ["done"] * len(KEYS), found
        assert [bench.get(key) for key in KEYS] == expected_contents(action, mode)
        assert bool(slowed) == (fault is answer_slow_down)


def test_unconditional_delete_is_not_retried(wire: Wire) -> None:
    """A repetition could delete a blob that was written in the meantime."""
    with open_rows(wire, "quarantine", "trash") as (bench, _):
        count_from(wire, Rule(lambda request: request.method in {"DELETE", "POST"}, answer_slow_down, times=2))
        bucket = cast("AzureStore", bench.store).bucket
        assert bucket.delete_if_match("a", None).verdict == "failed"
        assert [change.verdict for change in bucket.delete([Deletion("a")])] == ["failed"]
        assert len(wire.requests) == 2


@pytest.mark.parametrize("fault", [drop_answer, cut_body], ids=["lost response", "truncated response"])
def test_listing_is_complete_after_a_damaged_page(wire: Wire, fault: Fault) -> None:
    with open_rows(wire, "quarantine", "trash") as (bench, _):
        for number in count(1):
            rule = Rule(nth(number), fault)
            count_from(wire, rule)
            assert set(inventory(bench.store)) == set(KEYS)
            if rule.times:
                break
        assert number > 1


def test_truncated_read_is_retried(wire: Wire) -> None:
    with open_rows(wire, "quarantine", "trash") as (bench, _):
        bench.put("large", bytes(range(256)) * 64)
        count_from(wire, Rule(lambda request: request.method == "GET", cut_body, times=2))
        assert bench.store.objects.read(f"{bench.store.location}large") == bytes(range(256)) * 64


def test_copy_that_stays_pending_fails_and_is_completed_later(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers that it copies in the background, and shows the copy as pending."""
    monkeypatch.setattr(azure_bucket, "_COPY_SECONDS", 0.0)

    def show_pending(exchange: Exchange) -> None:
        answer = exchange.forward()
        headers = [(name, "pending" if name.lower() == "x-ms-copy-status" else value) for name, value in answer.headers]
        exchange.reply(type(answer)(answer.status, tuple(headers), answer.body))

    with open_rows(wire, "restore", "trash") as (bench, rows):
        count_from(wire, Rule(lambda _: True, show_pending, times=10**9))
        found = act(bench, "trash", rows)
        assert {result.verdict for result in found} <= {"failed", "changed"}
        count_from(wire)
        assert [result.verdict for result in act(bench, "trash", rows)] == ["done"] * len(KEYS)
        assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
