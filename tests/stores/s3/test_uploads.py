"""Unfinished multipart uploads on a real server."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.config.connections import Connections
from gc_assets.s3.bucket import S3Bucket
from gc_assets.s3.client import get_client
from gc_assets.state.files import Files
from gc_assets.state.summaries import UnfinishedUploads
from gc_assets.stores.execution import execute
from gc_assets.stores.protocol import Lease, PlannedAction, Result, Store, Upload
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.depth import in_turn
from tests.process_kills import PROCESSES
from tests.s3.proxy import (
    Exchange,
    Request,
    Rule,
    answer_slow_down,
    call_after,
    call_before,
    call_instead,
    drop_answer,
    drop_request,
    error_answer,
    nth,
)
from tests.s3.servers import shared_server
from tests.stores.builders import CLOCK, PLAN, memory_directory
from tests.stores.s3.bucket_actions import kill_first, open_through_proxy
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn

MINUTE = timedelta(minutes=1)
KEYS = ("a", "t/b")


@pytest.fixture
def bench() -> Iterator[S3Bench]:
    with open_s3_bench("ceph") as bench:
        yield bench


def begin(bench: S3Bench, key: str, *parts: bytes) -> dict[str, str]:
    target = {"Bucket": bench.bucket, "Key": bench.prefix + key}
    upload = {**target, "UploadId": bench.client.create_multipart_upload(**target)["UploadId"]}
    for number, part in enumerate(parts, 1):
        bench.client.upload_part(**upload, PartNumber=number, Body=part)
    return upload


def complete(bench: S3Bench, upload: dict[str, str]) -> None:
    parts = bench.client.list_parts(**upload)["Parts"]
    listed_parts = {"Parts": [{name: part[name] for name in ("PartNumber", "ETag")} for part in parts]}
    bench.client.complete_multipart_upload(**upload, MultipartUpload=listed_parts)


def find_old(bench: S3Bench, before: datetime | None = None) -> list[Upload]:
    return list(bench.store.find_old_uploads(before or datetime.now(UTC) + MINUTE, lambda _: True, 100).uploads)


def plan_rows(bench: S3Bench) -> list[PlannedAction]:
    return [PlannedAction(item.key, "abort", item.size_bytes, item.etag, item.upload_id) for item in find_old(bench)]


def list_uploads(bench: S3Bench) -> list[tuple[str, str]]:
    """Return key and id of each upload on the server."""
    listed = bench.client.list_multipart_uploads(Bucket=bench.bucket, Prefix=bench.prefix)
    return sorted((item["Key"].removeprefix(bench.prefix), item["UploadId"]) for item in listed.get("Uploads", []))


def abort_uploads(store: Store, rows: Sequence[PlannedAction], *, resumed: bool = False) -> list[Result]:
    results = store.upload_aborter().act(rows, rows if resumed else ())
    assert all((result.error is None) == (result.verdict == "done") for result in results)
    return results


def verdicts(results: Sequence[Result]) -> list[str]:
    return [result.verdict for result in results]


def is_abort(request: Request) -> bool:
    return request.method == "DELETE" and "uploadId" in request.query


# Counted


def test_unfinished_uploads_are_counted_per_storage() -> None:
    with open_s3_bench("ceph") as other, open_s3_bench("ceph") as bench:
        begin(other, "beside", b"x" * 100)
        begin(bench, "one", b"x" * 7, b"y" * 5)
        begin(bench, "one", b"z")
        begin(bench, "empty")
        now = datetime.now(UTC)
        assert bench.store.count_unfinished_uploads(now - MINUTE) == UnfinishedUploads(uploads=3, old=0, bytes=13, sized=3)
        assert bench.store.count_unfinished_uploads(now + MINUTE) == UnfinishedUploads(uploads=3, old=3, bytes=13, sized=3)


@pytest.fixture
def one_per_page() -> Iterator[None]:
    """Servers return one upload per page."""
    settings, name = shared_server("ceph").settings, "provide-client-params.s3.ListMultipartUploads"

    def limit(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, "MaxUploads": 1}

    clients = [get_client(settings, role) for role in ("read", "change")]
    for client in clients:
        client.meta.events.register(name, limit)
    yield
    for client in clients:
        client.meta.events.unregister(name, limit)


@pytest.mark.usefixtures("one_per_page")
def test_uploads_to_keys_invalid_in_xml_are_counted_and_aborted(bench: S3Bench) -> None:
    keys = ["t/a+b c%2F", "t/esc\x1b", "t/one\x01", "t/\u00fc", "t/\ufffd", "t/\ufffe"]
    bucket = S3Bucket(bench.bucket, bench.prefix, bench.server.settings)
    for key in keys:
        bucket.client("change").create_multipart_upload(**bucket.target(key))
    assert bench.store.count_unfinished_uploads(datetime.now(UTC) + MINUTE) == UnfinishedUploads(uploads=6, old=6, bytes=0, sized=6)
    rows = plan_rows(bench)
    assert sorted(row.key for row in rows) == sorted(keys)
    assert verdicts(abort_uploads(bench.store, rows)) == ["done"] * len(keys)
    assert find_old(bench) == []


def test_ended_upload_is_not_counted() -> None:
    with open_s3_bench("ceph") as bench:
        bench.client.abort_multipart_upload(**begin(bench, "one", b"x"))
        complete(bench, begin(bench, "two", b"x"))
        assert bench.store.count_unfinished_uploads(datetime.now(UTC)) == UnfinishedUploads(uploads=0, old=0, bytes=0, sized=0)


def test_denied_listing_of_uploads_is_reported() -> None:
    with open_s3_bench("ceph") as bench:
        begin(bench, "one", b"x")
        denied = Rule(lambda request: "uploads" in request.query, lambda exchange: exchange.reply(error_answer(403, "AccessDenied")))
        with open_through_proxy(bench, denied) as (store, _):
            found = store.count_unfinished_uploads(datetime.now(UTC))
        assert found is not None
        assert (found.uploads, found.sized) == (0, 0)
        assert found.unknown is not None
        assert "AccessDenied" in found.unknown


# Found and aborted


@pytest.mark.parametrize("kind", ["ceph", "versity"])
def test_only_the_oldest_uploads_to_included_keys_are_aborted(kind: str) -> None:
    with open_s3_bench(kind, prefix="lake/") as bench:
        bench.put("a", b"an object of that name")
        time.sleep(1.1)  # what is written after an upload may be that upload
        begin(bench, "a", b"x" * 7, b"y")
        for key in ("t/b", "not wanted", ".gc-assets/trash/plan/x"):
            begin(bench, key, b"x")
        begin(bench, "empty")
        found = bench.store.find_old_uploads(datetime.now(UTC) + MINUTE, lambda key: key != "not wanted", 2)
        assert (len(found.uploads), found.unexamined) == (2, 1)
        first, second = (item.initiated for item in found.uploads)
        assert first <= second
        rows = [row for row in plan_rows(bench) if row.key != "not wanted"]
        assert sorted((row.key, row.size_bytes) for row in rows) == [("a", 8), ("empty", 0), ("t/b", 1)]
        assert verdicts(abort_uploads(bench.store, rows)) == ["done"] * 3
        assert [key for key, _ in list_uploads(bench)] == [".gc-assets/trash/plan/x", "not wanted"]
        assert verdicts(abort_uploads(bench.store, rows)) == ["absent"] * 3
        assert verdicts(abort_uploads(bench.store, rows, resumed=True)) == ["done"] * 3
        assert bench.get("a") == b"an object of that name"


def test_upload_age_counts_from_the_last_part(bench: S3Bench) -> None:
    upload = begin(bench, "a", b"x")
    (before,) = find_old(bench)
    assert find_old(bench, before.initiated) == []
    assert find_old(bench, before.initiated + MINUTE) == [before]
    time.sleep(1.1)
    bench.client.upload_part(**upload, PartNumber=2, Body=b"y")
    # Some servers date parts in whole seconds (Ceph 20).
    assert find_old(bench, before.initiated.replace(microsecond=0) + timedelta(seconds=1)) == []
    (after,) = find_old(bench)
    assert (after.upload_id, after.initiated) == (before.upload_id, before.initiated)
    assert after.etag != before.etag
    (last,) = bench.store.modification_times(pa.array([after.etag])).to_pylist()
    assert timedelta(seconds=1) <= last - before.initiated.replace(microsecond=0) < MINUTE


def test_continued_upload_is_left_alone(bench: S3Bench) -> None:
    uploads = {key: begin(bench, key, b"x") for key in ("added", "again", "completed", "restarted", "given up")}
    rows = plan_rows(bench)
    time.sleep(1.1)  # the times of parts that are compared are in whole seconds
    bench.client.upload_part(**uploads["added"], PartNumber=2, Body=b"y")
    bench.client.upload_part(**uploads["again"], PartNumber=1, Body=b"x")  # the same bytes
    complete(bench, uploads["completed"])
    for key in ("restarted", "given up"):
        bench.client.abort_multipart_upload(**uploads[key])
    restarted = begin(bench, "restarted", b"x")
    results = {row.key: result for row, result in zip(rows, abort_uploads(bench.store, rows), strict=True)}
    expected = {"added": "changed", "again": "changed", "completed": "absent", "restarted": "absent", "given up": "absent"}
    assert {key: result.verdict for key, result in results.items()} == expected
    assert all(repr(key) in (result.error or "") for key, result in results.items())
    kept = [("added", uploads["added"]), ("again", uploads["again"]), ("restarted", restarted)]
    assert list_uploads(bench) == [(key, upload["UploadId"]) for key, upload in kept]
    assert bench.get("completed") == b"x"


@pytest.mark.parametrize("fault", [drop_answer, drop_request, answer_slow_down])
def test_lost_abort_request_is_retried(fault: Callable[[Exchange], None], bench: S3Bench) -> None:
    begin(bench, "a", b"x")
    with open_through_proxy(bench, Rule(is_abort, fault)) as (store, _):
        assert verdicts(abort_uploads(store, plan_rows(bench))) == ["done"]
    assert list_uploads(bench) == []


def test_upload_continued_after_a_lost_abort_request_is_kept(bench: S3Bench) -> None:
    upload = begin(bench, "a", b"x")
    rows = plan_rows(bench)

    def fault(exchange: Exchange) -> None:
        bench.client.upload_part(**upload, PartNumber=2, Body=b"y")
        drop_request(exchange)

    with open_through_proxy(bench, Rule(is_abort, fault)) as (store, _):
        assert verdicts(abort_uploads(store, rows)) == ["changed"]
    assert list_uploads(bench) == [("a", upload["UploadId"])]


def test_upload_completed_before_the_abort_is_kept(bench: S3Bench) -> None:
    upload = begin(bench, "a", b"x")
    rows = plan_rows(bench)
    with open_through_proxy(bench, Rule(is_abort, call_before(partial(complete, bench, upload)))) as (store, _):
        assert verdicts(abort_uploads(store, rows)) == ["absent"]
    assert verdicts(abort_uploads(bench.store, rows, resumed=True)) == ["absent"]
    assert (list_uploads(bench), bench.get("a")) == ([], b"x")


def test_documented_policies_suffice_for_uploads() -> None:
    def open_with_policy(bench: S3Bench, *on_objects: str) -> Store:
        """Open the storage for a user with the documented permissions only."""
        bucket, objects = f"arn:aws:s3:::{bench.bucket}", f"arn:aws:s3:::{bench.bucket}/{bench.prefix}*"
        actions = [("s3:ListBucketMultipartUploads", bucket), *((f"s3:{action}", objects) for action in on_objects)]
        statements = [{"Effect": "Allow", "Principal": "*", "Action": action, "Resource": resource} for action, resource in actions]
        bench.client.put_bucket_policy(Bucket=bench.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
        return open_store(bench.store.location, Connections.of(shared_server("ceph").as_stranger().settings))

    with open_s3_bench("ceph", prefix="lake/", own=True) as bench:
        begin(bench, "a", b"x")
        reader = open_with_policy(bench, "ListMultipartUploadParts")
        (found,) = reader.find_old_uploads(datetime.now(UTC) + MINUTE, lambda _: True, 1).uploads
        assert found == find_old(bench)[0]
        (refused,) = abort_uploads(reader, plan_rows(bench))
        assert refused.verdict == "denied"
        assert "abort 'a': AccessDenied" in (refused.error or "")
        assert "docs/s3-reference.md lists the permissions of each role" in (refused.error or "")
        assert len(list_uploads(bench)) == 1
        assert verdicts(abort_uploads(open_with_policy(bench, "ListMultipartUploadParts", "AbortMultipartUpload"), plan_rows(bench))) == [
            "done"
        ]
        assert list_uploads(bench) == []


def test_planned_upload_under_reserved_prefix_is_denied(bench: S3Bench) -> None:
    upload = begin(bench, ".gc-assets/trash/plan/x", b"x")
    row = PlannedAction(".gc-assets/trash/plan/x", "abort", 1, "any", upload["UploadId"])
    assert verdicts(abort_uploads(bench.store, [row])) == ["denied"]
    assert len(list_uploads(bench)) == 1


# Killed


def apply(store: Store, state: Path, rows: Sequence[PlannedAction], lease: Lease) -> list[str]:
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    return [outcome.verdict for outcome in execute(rows, store.upload_aborter(), log, lease, CLOCK)]


def kill_and_complete(step: int, at: Any) -> bool:
    """Return False if the run ended before that request."""
    with open_s3_bench("ceph") as bench, memory_directory() as state:
        for key in KEYS:
            begin(bench, key, b"x")
        rows = plan_rows(bench)
        lease = bench.store.acquire(PLAN, "test", CLOCK)
        another = begin(bench, KEYS[0], b"x")
        children: list[Any] = []
        with open_through_proxy(bench, Rule(nth(step), at(lambda: kill_first(children)))) as (store, _):
            children.append(PROCESSES.Process(target=apply, args=(store, state, rows, lease)))
            children[0].start()
            children[0].join(300)
            assert children[0].exitcode in {0, -signal.SIGKILL}
        assert apply(bench.store, state, rows, lease) == ["done"] * len(KEYS)
        assert list_uploads(bench) == [(KEYS[0], another["UploadId"])]
        return children[0].exitcode != 0


def test_next_run_completes_a_run_killed_at_any_request() -> None:
    """The process is killed after the server has executed a request, or before the first one."""
    for step in count(0):
        if not kill_and_complete(max(step, 1), call_after if step else call_instead):
            break
    assert step > 3 * len(KEYS)
