"""Quarantine on Google Cloud Storage: kept objects, lost answers, other writers and killed processes.

The server is our own one (`tests/gcs/server.py`). Nothing here was run against Google.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gc_assets.buckets.rate_limiter import RateLimiter
from gc_assets.config.connections import Connections
from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError
from gc_assets.core.phases import Action
from gc_assets.state.files import Files
from gc_assets.stores.conditional import probe
from gc_assets.stores.execution import execute
from gc_assets.stores.protocol import Lease, PlannedAction, QuarantineMode, Result, Store
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.depth import example_count, in_turn
from tests.gcs import server as honest
from tests.gcs.servers import GcsServer, fake_server, own_server
from tests.process_kills import PROCESSES
from tests.stores.builders import CLOCK, PLAN, memory_directory
from tests.stores.contract import inventory, row_of
from tests.stores.gcs_bench import GcsBench, open_gcs_bench

pytestmark = in_turn

MODES: list[tuple[QuarantineMode, bool]] = [("trash", False), ("deferred", False), ("versioned", True), ("deferred", True)]
ACTIONS: tuple[Action, ...] = ("quarantine", "restore", "purge")
every_case = pytest.mark.parametrize("action, mode, versioned", [(action, *mode) for action in ACTIONS for mode in MODES])
every_mode = pytest.mark.parametrize("mode, versioned", MODES)
KEYS = ("a", "t/b")


@dataclass
class Wire:
    """A server of its own, whose requests call `on_request` before and `on_answer` after their execution."""

    server: GcsServer
    cloud: honest.Cloud
    on_request: Callable[[int], None] | None = None
    on_answer: Callable[[int], None] | None = None
    requests: int = 0

    def settle(self) -> None:
        """Wait until a killed process has no more requests on the way. They would meet those of the next run."""
        seen = -1
        while seen != self.requests:
            seen = self.requests
            time.sleep(0.1)

    def count_from(self, on_request: Callable[[int], None] | None = None, on_answer: Callable[[int], None] | None = None) -> None:
        """Number further requests from 1."""
        self.requests, self.on_request, self.on_answer = 0, on_request, on_answer

    def see_request(self, method: str, path: str, query: Mapping[str, str]) -> None:
        del method, path, query
        with self.cloud.lock:
            self.requests += 1
            number = self.requests
        if self.on_request is not None:
            self.on_request(number)

    def see_answer(self, method: str, path: str, query: Mapping[str, str]) -> None:
        del method, path, query
        if self.on_answer is not None:
            self.on_answer(self.requests)


@contextmanager
def open_wire(cloud: honest.Cloud | None = None) -> Iterator[Wire]:
    own_server()  # it answers requests for tokens
    cloud = cloud or honest.Cloud()
    running, handler = honest.start(cloud)
    wire = Wire(GcsServer("own", f"http://127.0.0.1:{running.server_address[1]}"), cloud)
    handler.before, handler.after = wire.see_request, wire.see_answer
    try:
        yield wire
    finally:
        running.shutdown()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with open_wire() as opened:
        yield opened


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gcs.client", "stores.conditional.batches", "stores.conditional.quarantine"):
        monkeypatch.setattr(f"gc_assets.{module}.pause_before_retry", lambda _: None)


def rows_of(bench: GcsBench, action: Action, *keys: str) -> list[PlannedAction]:
    listed = inventory(bench.store)
    rows = [row_of(listed[key]) for key in keys or KEYS]
    return rows if action == "quarantine" else [follow_up(row, action) for row in rows]


def follow_up(row: PlannedAction, action: Action) -> PlannedAction:
    return replace(row, action=action, source_plan_id=PLAN)


def act(bench: GcsBench, mode: QuarantineMode, rows: Sequence[PlannedAction], resumed: Sequence[PlannedAction] = ()) -> list[Result]:
    return bench.store.quarantine(mode, PLAN).act(rows, resumed)


def verdicts(results: Sequence[Result]) -> list[str]:
    return [result.verdict for result in results]


@contextmanager
def open_rows(wire: Wire, action: Action, mode: QuarantineMode, versioned: bool) -> Iterator[tuple[GcsBench, list[PlannedAction]]]:
    """Return a storage with the objects of `KEYS`, and rows that can be acted on."""
    wire.count_from()
    with open_gcs_bench(wire.server, versioned=versioned) as bench:
        for key in KEYS:
            bench.put(key, key.encode())
        rows = rows_of(bench, "quarantine")
        if action != "quarantine":
            assert verdicts(act(bench, mode, rows)) == ["done"] * len(KEYS)
            rows = [follow_up(row, action) for row in rows]
        yield bench, rows
    wire.count_from()


def expected_contents(action: Action, mode: QuarantineMode) -> list[bytes | None]:
    stays = action == "restore" or (action == "quarantine" and mode == "deferred")
    return [key.encode() if stays else None for key in KEYS]


def drop(number: int) -> Callable[[int], None]:
    """Return a hook that closes the connection of a request."""

    def close(found: int) -> None:
        if found == number:
            raise ConnectionResetError

    return close


@every_case
@pytest.mark.parametrize("is_executed", [True, False])
def test_lost_request_or_response_does_not_change_outcomes(
    wire: Wire, action: Action, mode: QuarantineMode, versioned: bool, is_executed: bool
) -> None:
    for number in count(1):
        with open_rows(wire, action, mode, versioned) as (bench, rows):
            wire.count_from(**{"on_answer" if is_executed else "on_request": drop(number)})
            found = act(bench, mode, rows)
            sent = wire.requests
            wire.count_from()
            assert verdicts(found) == ["done"] * len(KEYS), (number, found)
            assert [bench.get(key) for key in KEYS] == expected_contents(action, mode)
        if sent < number:
            break
    assert number > len(KEYS)


@every_case
@pytest.mark.parametrize("status", [429, 503])
def test_requests_to_an_overloaded_server_are_retried(
    wire: Wire, action: Action, mode: QuarantineMode, versioned: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = list[object]()
    monkeypatch.setattr(RateLimiter, "slow_down", lambda limiter: slowed.append(limiter))

    def refuse(number: int) -> None:
        if number % 2 == 0:
            raise honest.RefusalError(status, "rateLimitExceeded", "Slow down.")

    with open_rows(wire, action, mode, versioned) as (bench, rows):
        wire.count_from(on_request=refuse)
        found = act(bench, mode, rows)
        wire.count_from()
        assert verdicts(found) == ["done"] * len(KEYS), found
        assert [bench.get(key) for key in KEYS] == expected_contents(action, mode)
        assert slowed


@every_case
def test_object_written_before_any_request_is_never_changed(wire: Wire, action: Action, mode: QuarantineMode, versioned: bool) -> None:
    """Another writer replaces the object between any two requests."""
    for number in count(1):
        with open_rows(wire, action, mode, versioned) as (bench, rows):

            def write(found: int, number: int = number, bench: GcsBench = bench) -> None:
                if found == number:
                    with wire.cloud.lock:
                        wire.cloud.write(wire.cloud.bucket(bench.bucket), bench.prefix + "a", b"newer", {}, {})

            wire.count_from(on_request=write)
            (found,) = act(bench, mode, rows[:1])
            sent = wire.requests
            wire.count_from()
            if sent < number:
                break
            assert bench.get("a") == b"newer", (number, found)
            assert found.verdict in {"done", "changed", "failed"}
            assert bench.get("t/b") == (b"t/b" if action == "quarantine" or mode == "deferred" else None)
    assert number > 1


@every_mode
def test_object_under_a_hold_is_denied_with_explanation(mode: QuarantineMode, versioned: bool) -> None:
    with open_gcs_bench(versioned=versioned) as bench:
        for key in KEYS:
            bench.put(key, b"x")
        blob = bench.client.bucket(bench.bucket).get_blob(bench.prefix + "a")
        blob.temporary_hold = True
        blob.patch()
        action: Action = "purge" if mode == "deferred" else "quarantine"
        found = act(bench, mode, rows_of(bench, action))
        assert verdicts(found) == ["denied", "done"]
        assert "hold" in str(found[0].error)
        assert "gc-assets retry" in str(found[0].error)
        assert bench.get("a") == b"x"
        assert not [key for key in bench.everything() if key.endswith("/a")]


@every_mode
def test_object_under_a_retention_policy_is_denied_with_explanation(mode: QuarantineMode, versioned: bool) -> None:
    with open_gcs_bench(versioned=versioned, retentionPolicy={"retentionPeriod": "3600"}) as bench:
        bench.put("a", b"x")
        action: Action = "purge" if mode == "deferred" else "quarantine"
        (found,) = act(bench, mode, rows_of(bench, action, "a"))
        assert found.verdict == "denied"
        assert "retention" in str(found.error)


def test_bucket_with_requester_pays_needs_a_project() -> None:
    with open_gcs_bench(billing={"requesterPays": True}) as bench:
        bench.client.bucket(bench.bucket, user_project="payer").blob(bench.prefix + "a").upload_from_string(b"x")
        with pytest.raises(StoreError, match=r"`gcs\.user_project`"):
            bench.store.check_access()
        paid = bench.server.settings.model_copy(update={"user_project": "payer"})
        store = open_store(bench.store.location, Connections.of(paid))
        store.check_access()
        (row,) = inventory(store).values()
        assert verdicts(store.quarantine("trash", PLAN).act([row_of(row)])) == ["done"]
        assert inventory(store) == {}


def test_read_only_role_is_denied_with_link_to_the_docs(wire: Wire) -> None:
    with open_rows(wire, "quarantine", "trash", False) as (bench, rows):
        wire.cloud.readers.add(f"token-of-{'collector@project.iam.gserviceaccount.com'}")
        try:
            found = act(bench, "trash", rows)
            with pytest.raises(StoreError, match=r"docs/gcs\.md"):
                bench.store.acquire(PLAN, "test", CLOCK)
        finally:
            wire.cloud.readers.clear()
        assert verdicts(found) == ["denied"] * len(KEYS)
        assert "docs/gcs.md lists the roles" in str(found[0].error)
        assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]


def test_soft_delete_keeps_purged_objects() -> None:
    with open_gcs_bench(softDeletePolicy={"retentionDurationSeconds": "604800"}) as bench:
        bench.put("a", b"bytes")
        rows = rows_of(bench, "quarantine", "a")
        assert verdicts(act(bench, "deferred", rows)) == ["done"]
        assert verdicts(act(bench, "deferred", [follow_up(row, "purge") for row in rows])) == ["done"]
        (kept,) = bench.client.list_blobs(bench.bucket, prefix=bench.prefix, soft_deleted=True)
        bench.client.bucket(bench.bucket).restore_blob(kept.name, generation=kept.generation)
        assert bench.get("a") == b"bytes"


def test_versioned_quarantine_is_refused_without_versioning() -> None:
    with open_gcs_bench(versioned=True, labels={}) as bench:
        bench.put("a", b"x")
        rows = rows_of(bench, "quarantine", "a")
        bucket = bench.client.get_bucket(bench.bucket)
        bucket.versioning_enabled = False
        bucket.patch()
        (found,) = act(bench, "versioned", rows)
        assert (found.verdict, found.replan) == ("denied", True)
        assert bench.get("a") == b"x"


def test_trash_is_refused_in_a_bucket_with_versions() -> None:
    with open_gcs_bench(versioned=True) as bench:
        bench.put("a", b"x")
        (found,) = act(bench, "trash", rows_of(bench, "quarantine", "a"))
        assert found.verdict == "denied"
        assert "use `quarantine: versioned`" in str(found.error)
        assert bench.everything() == {"a"}


def test_copy_keeps_metadata_and_bytes() -> None:
    with open_gcs_bench() as bench:
        blob = bench.client.bucket(bench.bucket).blob(bench.prefix + "a")
        blob.metadata, blob.cache_control, blob.content_language = {"Owner": "ada"}, "no-store", "en"
        blob.upload_from_string(b"bytes", content_type="text/plain")
        rows = rows_of(bench, "quarantine", "a")
        assert verdicts(act(bench, "trash", rows)) == ["done"]
        assert verdicts(act(bench, "trash", [follow_up(row, "restore") for row in rows])) == ["done"]
        restored = bench.client.bucket(bench.bucket).get_blob(bench.prefix + "a")
        assert (restored.content_type, restored.cache_control, restored.content_language) == ("text/plain", "no-store", "en")
        assert restored.metadata == {"Owner": "ada", "gc-assets-restored": rows[0].etag}
        assert bench.everything() == {"a"}


# A server that lies


class CarelessCloud(honest.Cloud):
    """A server that ignores the conditions of a delete."""

    def delete(self, bucket: honest.Bucket, name: str, query: Mapping[str, str]) -> None:
        super().delete(bucket, name, {key: value for key, value in query.items() if key == "generation"})


def test_apply_is_refused_on_a_server_that_ignores_generations() -> None:
    with open_wire(CarelessCloud()) as wire, open_gcs_bench(wire.server) as bench:
        bench.put("a", b"x")
        with pytest.raises(StoreError, match="Plans cannot be applied on this server"):
            bench.store.acquire(PLAN, "test", CLOCK)
        storage = StorageConfig.model_validate({"name": "s", "location": bench.store.location, "mode": "apply"})
        findings = {finding.check: finding for finding in bench.store.examine(storage, CLOCK.now())}
        assert findings["generations"].verdict == "fail"
        assert "ignores ifGenerationMatch" in findings["generations"].found
        assert bench.everything() == {"a"}


def test_failed_server_probe_raises_an_error_without_a_verdict(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "pause_before_retry", lambda _: None)

    def drop_deletes(number: int) -> None:
        if 1 < number < 7:  # after the canary was created
            raise ConnectionResetError

    with open_gcs_bench(wire.server) as bench:
        bench.store.probe()  # gets the token of the changing role
        wire.count_from(on_request=drop_deletes)
        with pytest.raises(StoreError, match="cannot test the server with a canary object") as refused:
            bench.store.acquire(PLAN, "test", CLOCK)
        assert "ifGenerationMatch" not in str(refused.value)
        wire.count_from()
        bench.store.acquire(PLAN, "test", CLOCK)  # the answers come again


@pytest.mark.parametrize("is_executed", [True, False])
def test_completed_replace_is_recognized_after_a_lost_response(wire: Wire, is_executed: bool) -> None:
    with open_gcs_bench(wire.server) as bench:
        bench.put("a", b"old")
        address, objects = f"{bench.store.location}a", bench.store.objects
        _, etag = objects.read_with_etag(address)
        wire.count_from(**{"on_answer" if is_executed else "on_request": drop(2)})  # after the comparison
        objects.replace(address, b"new", etag)
        wire.count_from()
        assert bench.get("a") == b"new"


def test_fake_gcs_server_allows_plans_but_not_applies() -> None:
    """`fake-gcs-server` deletes an object although its generation is another."""
    with open_gcs_bench(fake_server()) as bench:
        for key in ("plain", "t/a b", "t/ü#?"):
            bench.put(key, key.encode())
        assert {key: row["size_bytes"] for key, row in inventory(bench.store).items()} == {"plain": 5, "t/a b": 5, "t/ü#?": 6}
        assert bench.store.objects.read(f"{bench.store.location}t/a b") == b"t/a b"
        assert bench.store.probe().delete_if_match == "none"
        with pytest.raises(StoreError, match="Plans cannot be applied on this server"):
            bench.store.acquire(PLAN, "test", CLOCK)
        assert bench.everything() == {"plain", "t/a b", "t/ü#?"}


# Killed


def apply(store: Store, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode, lease: Lease) -> list[str]:
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    return [outcome.verdict for outcome in execute(rows, store.quarantine(mode, PLAN), log, lease, CLOCK)]


@every_case
def test_next_run_completes_a_run_killed_at_any_request(wire: Wire, action: Action, mode: QuarantineMode, versioned: bool) -> None:
    """The process is killed after the server has executed a request.

    At every ninth request by default, at every request with `make test DEPTH=all`.
    """
    children: list[Any] = []
    for number in count(1, example_count(9, 1)):
        with open_rows(wire, action, mode, versioned) as (bench, rows), memory_directory() as state:
            lease = bench.store.acquire(PLAN, "test", Clock(CLOCK.now()))

            def kill(found: int, number: int = number) -> None:
                if found == number:
                    os.kill(children[-1].pid, signal.SIGKILL)

            children.append(PROCESSES.Process(target=apply, args=(bench.store, state, rows, mode, lease)))
            wire.count_from(on_answer=kill)
            children[-1].start()
            children[-1].join(60)
            wire.settle()
            wire.count_from()
            assert children[-1].exitcode in {0, -signal.SIGKILL}
            assert apply(bench.store, state, rows, mode, lease) == ["done"] * len(KEYS)
            assert [bench.get(key) for key in KEYS] == expected_contents(action, mode)
        if children[-1].exitcode == 0:
            break
    assert number > 1


# Reads


def test_object_replaced_during_a_read_is_not_reported_as_missing(wire: Wire) -> None:
    """The description and the bytes are two requests, and the bytes of the described generation are gone."""
    with open_gcs_bench(wire.server) as bench:
        bench.put("a", b"old")

        def overwrite(number: int) -> None:
            if number == 2:
                wire.count_from()
                bench.put("a", b"new")

        wire.count_from(on_request=overwrite)
        assert bench.store.objects.read(f"{bench.store.location}a") == b"new"


# Credentials


def test_missing_credentials_are_reported_as_permission_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address in a lake may point to this store although no storage is in it."""
    monkeypatch.setattr("gc_assets.gcs.client._missing_until", [0.0])
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    objects = open_store("gs://bucket/", Connections.of(own_server().settings.model_copy(update={"prices": {}}))).objects
    for _ in range(2):
        with pytest.raises(PermissionError, match="gcloud auth application-default login"):
            objects.read("gs://bucket/a")


def test_pickled_stores_contain_no_secrets() -> None:
    key_file = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text()
    private = key_file.split("-----BEGIN PRIVATE KEY-----")[1][2:42]
    with open_gcs_bench() as bench:
        bench.put("a", b"x")
        store = bench.store
        values = [store, store.objects, store.acquire(PLAN, "test", CLOCK), *store.plan_listing(2)]
        values += [store.quarantine(mode, PLAN) for mode in ("trash", "versioned", "deferred")]
        inventory(store)
        for value in values:
            content = pickle.dumps(value)
            assert private.encode() not in content
            assert b"token-of-" not in content
