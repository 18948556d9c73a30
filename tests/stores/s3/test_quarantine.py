"""Quarantine in buckets: versions and delete markers, lost and late requests, and killed processes."""

from __future__ import annotations

import json
import pickle
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.connections import Connections
from gc_assets.core.clock import Clock
from gc_assets.core.phases import Action
from gc_assets.s3.bucket import S3Bucket
from gc_assets.state.files import Files
from gc_assets.stores.execution import execute
from gc_assets.stores.protocol import Lease, PlannedAction, QuarantineMode, Store
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.depth import example_count, in_turn, select_cases
from tests.process_kills import PROCESSES
from tests.s3.proxy import (
    Exchange,
    Request,
    Rule,
    answer_error_in_200,
    answer_slow_down,
    call_after,
    call_before,
    call_instead,
    cut_body,
    drop_answer,
    error_answer,
    nth,
    run_proxy,
)
from tests.s3.servers import OWNER, STRANGER, shared_server
from tests.stores.builders import CLOCK, NOW, PLAN, memory_directory
from tests.stores.contract import inventory
from tests.stores.s3.bucket_actions import (
    MODES,
    act,
    every_mode,
    is_copy_to_trash,
    kill_first,
    open_through_proxy,
    plan_rows,
    set_versioning,
    with_action,
)
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn


@pytest.fixture
def plain() -> Iterator[S3Bench]:
    with open_s3_bench("ceph") as bench:
        yield bench


@pytest.fixture
def versions() -> Iterator[S3Bench]:
    with open_s3_bench("ceph", versioned=True) as bench:
        yield bench


def is_batch_delete(request: Request) -> bool:
    return request.method == "POST" and "delete" in request.query


def is_single_delete(request: Request) -> bool:
    return request.method == "DELETE"


def write_before(write: Callable[[], object], fault: Callable[[Exchange], None]) -> Callable[[Exchange], None]:
    def write_and_fault(exchange: Exchange) -> None:
        write()
        fault(exchange)

    return write_and_fault


def history(bench: S3Bench, key: str) -> list[str]:
    """Return versions and markers of a key in the order of the server, the newest first: `marker`, or the bytes."""
    versions = S3Bucket(bench.bucket, bench.prefix, bench.server.settings).newest_versions(key, 100)
    return ["marker" if version.is_marker else _version(bench, key, version.version_id) for version in versions]


def _version(bench: S3Bench, key: str, version_id: str) -> str:
    return bench.client.get_object(Bucket=bench.bucket, Key=bench.prefix + key, VersionId=version_id)["Body"].read().decode()


def hide(bench: S3Bench, key: str) -> None:
    bench.client.delete_object(Bucket=bench.bucket, Key=bench.prefix + key)


# The same object


@every_mode
def test_rewritten_object_with_equal_bytes_counts_as_changed(mode: QuarantineMode, versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned) as bench:
        bench.put("a", b"same")
        rows = plan_rows(bench, "a")
        if not versioned:
            time.sleep(1.1)  # without versions only the time differs, in whole seconds
        bench.put("a", b"same")
        assert act(bench.store, mode, rows) == ["changed"]
        if mode == "deferred" and not versioned:
            assert act(bench.store, mode, rows, "purge") == ["changed"]
        assert bench.get("a") == b"same"


def test_delete_marker_never_hides_a_new_object(versions: S3Bench) -> None:
    versions.put("a", b"old")
    rows = plan_rows(versions, "a")
    with open_through_proxy(versions, Rule(is_batch_delete, call_before(partial(versions.put, "a", b"new")))) as (store, _):
        assert act(store, "versioned", rows) == ["changed"]
    assert versions.get("a") == b"new"
    assert history(versions, "a") == ["new", "old"]


def test_delete_marker_with_lost_response_never_hides_a_new_object(versions: S3Bench) -> None:
    versions.put("a", b"old")
    rows = plan_rows(versions, "a")
    fault = write_before(partial(versions.put, "a", b"new"), drop_answer)
    with open_through_proxy(versions, Rule(is_batch_delete, fault)) as (store, _):
        assert act(store, "versioned", rows) == ["changed"]
    assert versions.get("a") == b"new"


def test_delete_marker_of_a_killed_run_never_hides_a_new_object(versions: S3Bench) -> None:
    versions.put("a", b"old")
    rows = plan_rows(versions, "a")
    versions.put("a", b"new")
    hide(versions, "a")  # by the run that was killed, or by the object's writer: it is shown rather than hidden
    assert act(versions.store, "versioned", rows, resumed=True) == ["changed"]
    assert versions.get("a") == b"new"


def test_foreign_delete_marker_is_left_alone(versions: S3Bench) -> None:
    versions.put("a", b"old")
    rows = plan_rows(versions, "a")
    versions.put("a", b"new")
    hide(versions, "a")
    assert act(versions.store, "versioned", rows) == ["absent"]
    assert history(versions, "a") == ["marker", "new", "old"]


@pytest.mark.parametrize("mode, action", [("trash", "quarantine"), ("deferred", "purge")])
def test_object_written_during_a_retry_is_kept(plain: S3Bench, mode: QuarantineMode, action: Action) -> None:
    plain.put("a", b"old")
    rows = plan_rows(plain, "a")
    with open_through_proxy(plain, Rule(is_single_delete, write_before(partial(plain.put, "a", b"new"), answer_slow_down))) as (store, _):
        assert act(store, mode, rows, action) == ["changed"]
    assert plain.get("a") == b"new"


@pytest.mark.parametrize("mode, action", [("trash", "quarantine"), ("deferred", "purge")])
def test_unconditional_delete_immediately_follows_the_comparison(plain: S3Bench, mode: QuarantineMode, action: Action) -> None:
    plain.put("a", b"old")
    rows = plan_rows(plain, "a")
    with open_through_proxy(plain) as (store, proxy):
        plain.put("b", b"old")
        assert act(store, mode, plan_rows(plain, "b"), action) == ["done"]
        last_look = max(request.number for request in proxy.requests if request.method == "HEAD")
        assert proxy.requests[last_look].method == "DELETE"  # the next one after the look
    with open_through_proxy(plain, Rule(nth(last_look), call_before(partial(plain.put, "a", b"new")))) as (store, _):
        assert act(store, mode, rows, action) == ["changed"]
    assert plain.get("a") == b"new"


@pytest.mark.parametrize("mode, action", [("trash", "quarantine"), ("deferred", "purge")])
def test_conditional_delete_keeps_an_object_written_just_before(mode: QuarantineMode, action: Action) -> None:
    with open_s3_bench("versity", prefix="lake/") as bench:
        bench.put("a", b"old")
        rows = plan_rows(bench, "a")
        with open_through_proxy(bench, Rule(is_single_delete, call_before(partial(bench.put, "a", b"new"))), kind="versity") as (store, _):
            assert act(store, mode, rows, action) == ["changed"]
        assert bench.get("a") == b"new"


@pytest.mark.parametrize("mode, action", [("trash", "quarantine"), ("deferred", "purge")])
def test_delete_with_lost_response_is_done(mode: QuarantineMode, action: Action) -> None:
    for kind in ("ceph", "versity"):
        with open_s3_bench(kind, prefix="lake/") as bench:
            bench.put("a", b"old")
            rows = plan_rows(bench, "a")
            with open_through_proxy(bench, Rule(is_single_delete, drop_answer), kind=kind) as (store, _):
                assert act(store, mode, rows, action) == ["done"]
            assert bench.get("a") is None


# Versions


def test_suspended_versioning_denies_deletes() -> None:
    with open_s3_bench("ceph", versioned=True, own=True) as bench:
        bench.put("a", b"kept")
        rows = plan_rows(bench, "a")
        set_versioning(bench, "Suspended")
        assert act(bench.store, "versioned", rows) == ["denied"]
        assert history(bench, "a") == ["kept"]


def test_versioning_is_checked_immediately_before_the_delete() -> None:
    with open_s3_bench("ceph", own=True) as bench:
        bench.put("a", b"from before versioning")
        set_versioning(bench, "Enabled")
        rows = plan_rows(bench, "a")
        assert rows[0].version_id == "null"
        heads = Rule(lambda request: request.method == "HEAD", call_after(partial(set_versioning, bench, "Suspended")))
        with open_through_proxy(bench, heads) as (store, _):
            assert act(store, "versioned", rows) == ["denied"]
        assert bench.get("a") == b"from before versioning"


def test_object_from_before_versioning_is_quarantined_and_purged() -> None:
    with open_s3_bench("ceph", own=True) as bench:
        bench.put("a", b"from before")
        set_versioning(bench, "Enabled")
        rows = plan_rows(bench, "a")
        assert act(bench.store, "versioned", rows) == ["done"]
        assert act(bench.store, "versioned", rows, "restore") == ["done"]
        assert bench.get("a") == b"from before"
        assert act(bench.store, "versioned", rows) == ["done"]
        assert act(bench.store, "versioned", rows, "purge") == ["done"]
        assert history(bench, "a") == []


def test_restore_does_not_count_another_null_version_as_the_planned_one() -> None:
    with open_s3_bench("ceph", own=True) as bench:
        bench.put("a", b"planned")
        set_versioning(bench, "Enabled")
        rows = plan_rows(bench, "a")
        assert act(bench.store, "versioned", rows) == ["done"]
        set_versioning(bench, "Suspended")
        bench.put("a", b"another")
        for _ in range(2):
            assert act(bench.store, "versioned", rows, "restore") == ["changed"]
        assert bench.get("a") == b"another"


def test_key_too_long_for_the_trash_is_denied(plain: S3Bench) -> None:
    """The key of its copy exceeds 1,024 bytes, which the server refuses in every attempt."""
    plan_id, limits = "0" * 64, plain.store.key_limits("trash")
    assert limits is not None
    limit = limits.max_bytes
    assert [plain.store.key_limits(mode) for mode in ("versioned", "deferred")] == [None, None]
    fits, too_long = "ü" * (limit // 2) + "k" * (limit % 2), "k" * (limit + 1)
    for key in (fits, too_long):
        plain.put(key, b"x")
    rows = plan_rows(plain, fits, too_long)
    for action, verdicts in (("quarantine", ["done", "denied"]), ("restore", ["done", "absent"]), ("purge", ["absent", "absent"])):
        batch = [replace(row, action=action, source_plan_id=None if action == "quarantine" else plan_id) for row in rows]
        assert [result.verdict for result in plain.store.quarantine("trash", plan_id).act(batch)] == verdicts
    assert (plain.get(fits), plain.get(too_long)) == (b"x", b"x")


def test_trash_mode_in_a_versioned_bucket_only_restores_and_purges() -> None:
    with open_s3_bench("ceph", own=True) as bench:
        for key in ("back", "gone", "still"):
            bench.put(key, key.encode())
        rows = plan_rows(bench, "back", "gone", "still")
        assert act(bench.store, "trash", rows[:2]) == ["done", "done"]
        set_versioning(bench, "Enabled")
        assert act(bench.store, "trash", rows[2:]) == ["denied"]
        assert act(bench.store, "trash", rows[:1], "restore") == ["done"]
        assert act(bench.store, "trash", rows[1:2], "purge") == ["done"]
        assert (bench.get("back"), bench.get("gone"), bench.get("still")) == (b"back", None, b"still")
        assert history(bench, f".gc-assets/trash/{PLAN}/gone") == []


def test_deferred_purge_in_a_versioned_bucket_removes_one_version() -> None:
    with open_s3_bench("ceph", own=True) as bench:
        for key in ("a", "b"):
            bench.put(key, b"planned")
        rows = plan_rows(bench, "a", "b")
        set_versioning(bench, "Enabled")
        bench.put("b", b"newer")
        assert act(bench.store, "deferred", rows, "purge") == ["done", "changed"]
        assert (history(bench, "a"), history(bench, "b")) == ([], ["newer", "planned"])


@pytest.mark.parametrize("markers", [1, 2])
def test_restore_removes_foreign_delete_markers(versions: S3Bench, markers: int) -> None:
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    for _ in range(markers):
        hide(versions, "a")
    assert act(versions.store, "versioned", rows) == ["done"]
    assert act(versions.store, "versioned", rows, "restore") == ["done"]
    assert history(versions, "a") == ["planned"]


def test_restore_keeps_a_newer_version_and_the_planned_version(versions: S3Bench) -> None:
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    assert act(versions.store, "versioned", rows) == ["done"]
    versions.put("a", b"newer")
    assert act(versions.store, "versioned", rows, "restore") == ["changed"]
    assert history(versions, "a") == ["newer", "marker", "planned"]


def test_manually_restored_version_is_not_purged(versions: S3Bench) -> None:
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    assert act(versions.store, "versioned", rows) == ["done"]
    marker = versions.client.list_object_versions(Bucket=versions.bucket, Prefix=versions.prefix + "a")["DeleteMarkers"][0]
    versions.client.delete_object(Bucket=versions.bucket, Key=marker["Key"], VersionId=marker["VersionId"])
    assert act(versions.store, "versioned", rows, "purge") == ["changed"]
    assert versions.get("a") == b"planned"


@pytest.mark.parametrize("mode, left", [("versioned", []), ("deferred", ["marker", "older"])])
def test_purge_never_exposes_an_older_version(versions: S3Bench, mode: QuarantineMode, left: list[str]) -> None:
    versions.put("a", b"older")
    time.sleep(0.02)
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    for action in ("quarantine", "purge"):
        assert act(versions.store, mode, rows, action) == ["done"]
    assert versions.get("a") is None
    assert history(versions, "a") == left


def test_purge_deletes_older_but_not_newer_versions(versions: S3Bench) -> None:
    versions.put("a", b"oldest")
    time.sleep(0.02)
    hide(versions, "a")
    time.sleep(0.02)
    versions.put("a", b"older")
    time.sleep(0.02)
    below = versions.client.list_object_versions(Bucket=versions.bucket, Prefix=versions.prefix + "a")
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    assert act(versions.store, "versioned", rows) == ["done"]
    versions.put("a", b"newer")
    (result,) = versions.store.quarantine("versioned", PLAN).act([replace(row, action="purge") for row in rows])
    assert result.verdict == "done"
    named = [item["VersionId"] for kind in ("Versions", "DeleteMarkers") for item in below[kind]]
    assert len(named) == 3
    assert [version for version in named if f"version {version}" not in (result.error or "")] == []
    assert history(versions, "a") == ["newer", "marker"]
    assert versions.get("a") == b"newer"


def test_protected_older_version_stays_hidden_and_is_reported() -> None:
    with open_s3_bench("ceph", versioned=True, own=True, prefix="lake/") as bench:
        bench.put("a", b"older")
        older = plan_rows(bench, "a")[0].version_id or ""
        time.sleep(0.02)
        bench.put("a", b"planned")
        rows = plan_rows(bench, "a")
        assert act(bench.store, "versioned", rows) == ["done"]

        def answer_locked(exchange: Exchange) -> None:
            """Answer that the older version is locked: a fake of Object Lock on one version."""
            answer = exchange.forward()
            gone = next(item for item in re.findall(b"<Deleted>.*?</Deleted>", answer.body) if older.encode() in item)
            held = gone.replace(b"Deleted>", b"Error>").replace(b"</Error>", b"<Code>AccessDenied</Code><Message>held</Message></Error>")
            exchange.reply(replace(answer, body=answer.body.replace(gone, held)))

        with open_through_proxy(bench, Rule(is_batch_delete, answer_locked)) as (store, _):
            (result,) = store.quarantine("versioned", PLAN).act([replace(row, action="purge") for row in rows])
        assert result.verdict == "done"
        assert f"older versions kept under a delete marker: version {older} (AccessDenied" in (result.error or "")


def test_many_delete_markers_hide_an_older_version_after_a_purge(versions: S3Bench) -> None:
    versions.put("a", b"older")
    versions.put("a", b"planned")
    rows = plan_rows(versions, "a")
    for _ in range(100):
        hide(versions, "a")
    assert act(versions.store, "versioned", rows, "purge") == ["done"]
    assert versions.get("a") is None


# Requests that fail


@pytest.mark.parametrize(
    "fault, first",
    [
        (lambda exchange: exchange.reply(error_answer(400, "InvalidRequest")), "denied"),
        (answer_error_in_200, "done"),
        (cut_body, "done"),
        (drop_answer, "done"),
    ],
    ids=["error", "error_in_200", "truncated_response", "dropped_response"],
)
def test_failed_copy_does_not_delete_the_object_and_is_retried(plain: S3Bench, fault: Any, first: str) -> None:
    plain.put("a", b"bytes")
    rows = plan_rows(plain, "a")
    with open_through_proxy(plain, Rule(is_copy_to_trash, fault)) as (store, proxy):
        assert act(store, "trash", rows) == [first]
        assert plain.get("a") == (b"bytes" if first == "denied" else None)
        assert act(store, "trash", rows, resumed=True) == ["done"]
        assert not any(is_single_delete(request) for request in proxy.requests[: 3 if first == "denied" else 0])
    assert plain.get(f".gc-assets/trash/{PLAN}/a") == b"bytes"


def test_wrong_copy_in_the_trash_is_replaced_before_the_delete(plain: S3Bench) -> None:
    plain.put("a", b"bytes")
    rows = plan_rows(plain, "a")
    held = f"{plain.prefix}.gc-assets/trash/{PLAN}/a"
    plain.client.put_object(Bucket=plain.bucket, Key=held, Body=b"other", Metadata={"gc-assets-quarantined": rows[0].etag})
    assert act(plain.store, "trash", rows) == ["done"]
    assert plain.get(f".gc-assets/trash/{PLAN}/a") == b"bytes"


@pytest.mark.parametrize("action", ["purge", "restore"])
def test_damaged_copy_in_the_trash_counts_as_lost_and_is_left_alone(plain: S3Bench, action: Action) -> None:
    plain.put("a", b"bytes")
    rows = plan_rows(plain, "a")
    held = f".gc-assets/trash/{PLAN}/a"
    assert act(plain.store, "trash", rows) == ["done"]
    plain.client.put_object(Bucket=plain.bucket, Key=plain.prefix + held, Body=b"other", Metadata={"gc-assets-quarantined": rows[0].etag})
    assert act(plain.store, "trash", rows, action) == ["absent"]
    assert (plain.get("a"), plain.get(held)) == (None, b"other")
    plain.client.put_object(Bucket=plain.bucket, Key=plain.prefix + held, Body=b"bytes")  # without metadata
    assert act(plain.store, "trash", rows, action) == ["changed"]
    assert plain.get(held) == b"bytes"


def test_restore_of_an_object_still_in_place_is_done(plain: S3Bench) -> None:
    """Otherwise an interrupted apply would remove an object that a lake needs again."""
    plain.put("a", b"bytes")
    rows = plan_rows(plain, "a")
    plain.put(f".gc-assets/trash/{PLAN}/a", b"other")
    assert act(plain.store, "trash", rows, "restore") == ["done"]
    assert plain.get("a") == b"bytes"


def test_batch_with_lost_response_leaves_one_delete_marker(versions: S3Bench) -> None:
    for key in ("a", "b"):
        versions.put(key, b"bytes")
    rows = plan_rows(versions, "a", "b")
    for action, left in (("quarantine", ["marker", "bytes"]), ("restore", ["bytes"]), ("quarantine", ["marker", "bytes"]), ("purge", [])):
        with open_through_proxy(versions, Rule(is_batch_delete, drop_answer)) as (store, _):
            assert act(store, "versioned", rows, action) == ["done", "done"]
        assert [history(versions, key) for key in ("a", "b")] == [left, left]


def test_key_missing_from_the_batch_response_fails(versions: S3Bench) -> None:
    for key in ("a", "b"):
        versions.put(key, b"bytes")
    rows = plan_rows(versions, "a", "b")

    def forget(exchange: Exchange) -> None:
        answer = exchange.forward()
        first, _, rest = answer.body.partition(b"<Deleted>")
        exchange.reply(replace(answer, body=first + rest.partition(b"</Deleted>")[2]))

    with open_through_proxy(versions, Rule(is_batch_delete, forget)) as (store, _):
        assert sorted(act(store, "versioned", rows)) == ["done", "failed"]
        assert act(store, "versioned", rows, resumed=True) == ["done", "done"]
    assert history(versions, "a") == ["marker", "bytes"]


def allow(bench: S3Bench, *denied: str, actions: Sequence[str] = ("s3:*",)) -> Store:
    """The storage as the stranger sees it, who may do these actions, but nothing that deletes these keys."""
    everything = [f"arn:aws:s3:::{bench.bucket}", f"arn:aws:s3:::{bench.bucket}/*"]
    who: dict[str, Any] = {"Principal": {"AWS": ["arn:aws:iam:::user/stranger"]}}
    statements = [{"Effect": "Allow", **who, "Action": list(actions), "Resource": everything}]
    if denied:
        keys = [f"arn:aws:s3:::{bench.bucket}/{bench.prefix}{key}" for key in denied]
        statements.append({"Effect": "Deny", **who, "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"], "Resource": keys})
    bench.client.put_bucket_policy(Bucket=bench.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    return open_store(bench.store.location, Connections.of(shared_server("ceph").as_stranger().settings))


@pytest.mark.parametrize("mode, versioned", [("trash", False), ("versioned", True)])
def test_protected_key_is_denied_and_other_keys_are_done(mode: QuarantineMode, versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned, own=True, prefix="lake/") as bench:
        for key in ("a", "b", "c"):
            bench.put(key, key.encode())
        rows = plan_rows(bench, "a", "b", "c")
        assert act(allow(bench, "b"), mode, rows) == ["done", "denied", "done"]
        assert [bench.get(key) for key in ("a", "b", "c")] == [None, b"b", None]


@pytest.mark.parametrize(
    "lock",
    [
        {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": datetime.now(UTC) + timedelta(days=1)},
        {"ObjectLockLegalHoldStatus": "ON"},
    ],
    ids=["retention", "legal_hold"],
)
def test_purge_of_a_locked_version_is_denied(lock: dict[str, Any]) -> None:
    server, name = shared_server("ceph"), f"locked-{secrets.token_hex(4)}"
    client, connections = server.client(), Connections.of(server.settings)
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    bench = S3Bench(server, client, name, "lake/", open_store(f"s3://{name}/lake/", connections), connections, "versioned")
    client.put_object(Bucket=name, Key="lake/a", Body=b"locked", **lock)
    bench.put("b", b"free")
    rows = plan_rows(bench, "a", "b")
    assert act(bench.store, "versioned", rows) == ["done", "done"]
    assert act(bench.store, "versioned", rows, "purge") == ["denied", "done"]
    assert act(bench.store, "versioned", rows[:1], "restore") == ["done"]
    assert (bench.get("a"), bench.get("b")) == (b"locked", None)


def test_own_delete_marker_that_cannot_be_removed_is_reported() -> None:
    with open_s3_bench("ceph", versioned=True, own=True, prefix="lake/") as bench:
        bench.put("a", b"old")
        rows = plan_rows(bench, "a")
        allow(bench, actions=["s3:Get*", "s3:List*", "s3:PutObject", "s3:DeleteObject"])
        with run_proxy(shared_server("ceph").as_stranger(), Rule(is_batch_delete, call_before(partial(bench.put, "a", b"new")))) as proxy:
            store = open_store(bench.store.location, Connections.of(proxy.server.settings))
            (result,) = store.quarantine("versioned", PLAN).act(rows)
        assert result.verdict == "failed"
        assert "is hidden by our delete marker" in (result.error or "")


@every_mode
def test_head_request_without_permission_is_denied(mode: QuarantineMode, versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned, own=True, prefix="lake/") as bench:
        bench.put("a", b"x")
        rows = plan_rows(bench, "a")
        rows += [replace(rows[0], key="missing")]
        stranger = open_store(bench.store.location, Connections.of(shared_server("ceph").as_stranger().settings))
        for action in ("quarantine", "restore", "purge"):
            assert act(stranger, mode, rows, action, resumed=True) == ["denied", "denied"]
        assert bench.get("a") == b"x"


# Keys

CONTROL = ["t/cr\rx", "t/one\x01", "t/\x7f", "t/esc\x1b[0m", "t/\ufffe", "//", "/./a", "t//x", "t/./x", "t/../x", "t/x/", "t/x", "t/ ", " "]


@every_mode
def test_keys_invalid_in_xml_are_deleted(mode: QuarantineMode, versioned: bool) -> None:
    others = ["t/cr\nx", "t/crx", "t/one", "t/esc", "/a", "a", "t/", "x", "t/\ufffd"]
    with open_s3_bench("ceph", versioned=versioned) as bench:
        for key in [*CONTROL, *others]:
            bench.put(key, key.encode())
        rows, done = plan_rows(bench, *CONTROL), ["done"] * len(CONTROL)
        for action in ("quarantine", "restore", "quarantine", "purge"):
            assert (
                act(bench.store, mode, rows if mode == "deferred" or action != "quarantine" else plan_rows(bench, *CONTROL), action) == done
            )
            if mode == "trash" and action == "restore":
                rows = plan_rows(bench, *CONTROL)
            hidden = action == "purge" or (action == "quarantine" and mode != "deferred")
            assert [bench.get(key) for key in CONTROL] == [None if hidden else key.encode() for key in CONTROL]
        assert {key: bench.get(key) for key in inventory(bench.store)} == {key: key.encode() for key in others}


# Killed

STEP_SIZE = example_count(10, 1)
KEYS = ("a", "t/b", "u/c")
LIVE = ("live", "t/live")


def apply(store: Store, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode, lease: Lease) -> list[str]:
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    return [outcome.verdict for outcome in execute(rows, store.quarantine(mode, PLAN), log, lease, CLOCK)]


def kill_and_complete(bench: S3Bench, step: int, at: Any, mode: QuarantineMode, action: Action) -> bool:
    """Return False if the run ended before that request."""
    for key in (*KEYS, *LIVE):
        bench.put(key, key.encode())
    rows = plan_rows(bench, *KEYS)
    if action != "quarantine":
        assert act(bench.store, mode, rows) == ["done"] * 3
    rows = with_action(action, rows)
    lease = bench.store.acquire(PLAN, "test", CLOCK)
    children: list[Any] = []
    with memory_directory() as state, open_through_proxy(bench, Rule(nth(step), at(lambda: kill_first(children)))) as (store, _):
        children.append(PROCESSES.Process(target=apply, args=(store, state, rows, mode, lease)))
        children[0].start()
        children[0].join(300)
        assert children[0].exitcode in {0, -signal.SIGKILL}
        assert apply(bench.store, state, rows, mode, lease) == ["done"] * 3
    stays = action == "restore" or (action == "quarantine" and mode == "deferred")
    assert [bench.get(key) for key in KEYS] == [key.encode() if stays else None for key in KEYS]
    assert [bench.get(key) for key in LIVE] == [key.encode() for key in LIVE]
    if action == "quarantine":  # no object is lost
        assert act(bench.store, mode, rows, "restore") == ["done"] * 3
        assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
    return children[0].exitcode != 0


ACTIONS: tuple[Action, ...] = ("quarantine", "restore", "purge")
# Deferred quarantine and restore make the same requests with and without versions.
EQUIVALENT = [("quarantine", "deferred", True), ("restore", "deferred", True)]
KILLED = [(action, *mode) for action in ACTIONS for mode in MODES]


@pytest.mark.parametrize("action, mode, versioned", select_cases([case for case in KILLED if case not in EQUIVALENT], EQUIVALENT))
def test_next_run_completes_a_run_killed_at_any_request(action: Action, mode: QuarantineMode, versioned: bool) -> None:
    """The process is killed after the server has executed a request, or before the first one.

    At every tenth request by default, at every request with `make test DEPTH=all`.
    """
    for step in count(0, STEP_SIZE):
        with open_s3_bench("ceph", versioned=versioned) as bench:
            if not kill_and_complete(bench, max(step, 1), call_after if step else call_instead, mode, action):
                break
    assert step > 3


# Secrets


@pytest.mark.parametrize("versioned", [False, True])
def test_pickled_stores_contain_no_secrets(versioned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
    with open_s3_bench("ceph", versioned=versioned) as bench:
        bench.put("a", b"x")
        store = bench.store
        values = [
            store,
            store.objects,
            store.acquire(PLAN, "test", Clock(NOW + timedelta(hours=1))),
            *store.plan_listing(2),
        ]
        values += [store.quarantine(mode, PLAN) for mode in ("trash", "versioned", "deferred")]
        inventory(store)
        for value in values:
            content = pickle.dumps(value)
            assert not [secret for secret in (OWNER[1], STRANGER[1], "a-session-token") if secret.encode() in content]


def test_partial_restore_does_not_count_as_restored_object(plain: S3Bench) -> None:
    plain.put("a", b"bytes")
    rows = plan_rows(plain, "a")
    assert act(plain.store, "trash", rows) == ["done"]
    plain.client.put_object(Bucket=plain.bucket, Key=plain.prefix + "a", Body=b"", Metadata={"gc-assets-restored": rows[0].etag})
    assert act(plain.store, "trash", rows, "restore", resumed=True) == ["changed"]
    assert plain.get(f".gc-assets/trash/{PLAN}/a") == b"bytes"
