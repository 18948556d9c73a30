"""Objects are created at deleted keys in a bucket with suspended versioning.

A delete leaves a delete marker there, which Ceph 20 counts as an object (If-None-Match).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from gc_assets.s3 import copying
from gc_assets.s3.bucket import S3Bucket
from tests.s3.proxy import Exchange, Request, Rule, call_before, error_answer
from tests.s3.servers import is_ceph_conditional
from tests.stores.builders import PLAN
from tests.stores.s3.bucket_actions import act, open_through_proxy, plan_rows, set_versioning, with_action
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = pytest.mark.skipif(not is_ceph_conditional(), reason="Ceph 16 ignores the condition that a marker violates")
HELD = f".gc-assets/trash/{PLAN}/a"


@pytest.fixture
def bench() -> Iterator[S3Bench]:
    """A bucket with suspended versioning, in which `a` has a real version."""
    with open_s3_bench("ceph", versioned=True, own=True) as opened:
        opened.put("a", b"old")
        set_versioning(opened, "Suspended")
        yield opened


def history(bench: S3Bench, key: str) -> list[bool]:
    """Return True for each delete marker of a key and False for each version, the newest first."""
    return [version.is_marker for version in S3Bucket(bench.bucket, bench.prefix, bench.server.settings).newest_versions(key, 9)]


def looks_for_marker(request: Request) -> bool:
    return request.method == "GET" and "versions" in request.query


def removes_marker(request: Request) -> bool:
    return bool(request.keys) and not any(".gc-assets" in key for key in request.keys)


def refuse(exchange: Exchange) -> None:
    exchange.reply(error_answer(403, "AccessDenied"))


@pytest.mark.parametrize("parts", [False, True])
def test_restore_creates_the_object_over_a_delete_marker(bench: S3Bench, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if parts:
        monkeypatch.setattr(copying, "MAX_PUT_BYTES", 1)
    bench.put("t/a", b"planned")
    rows = plan_rows(bench, "t/a")
    assert act(bench.store, "trash", rows) == ["done"]
    assert history(bench, "t/a") == [True]
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert (bench.get("t/a"), history(bench, "t/a")) == (b"planned", [False])


def test_restore_uncovers_the_version_that_was_quarantined(bench: S3Bench) -> None:
    rows = plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    assert (bench.get("a"), history(bench, "a")) == (None, [True, False])
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert (bench.get("a"), history(bench, "a"), bench.get(HELD)) == (b"old", [False], None)


def test_restore_never_exposes_another_version(bench: S3Bench) -> None:
    bench.put("a", b"planned")
    rows = plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    (refused,) = bench.store.quarantine("trash", PLAN).act(with_action("restore", rows))
    assert refused.verdict == "denied"
    assert f"enable versioning for bucket {bench.bucket}" in (refused.error or "")
    assert (bench.get("a"), bench.get(HELD)) == (None, b"planned")
    set_versioning(bench, "Enabled")
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert bench.get("a") == b"planned"


def test_object_written_before_the_marker_is_found_is_kept(bench: S3Bench) -> None:
    bench.put("t/a", b"planned")
    rows = plan_rows(bench, "t/a")
    assert act(bench.store, "trash", rows) == ["done"]
    with open_through_proxy(bench, Rule(looks_for_marker, call_before(partial(bench.put, "t/a", b"new")))) as (store, _):
        assert act(store, "trash", rows, "restore") == ["changed"]
    assert bench.get("t/a") == b"new"


def test_marker_that_cannot_be_removed_denies_the_restore(bench: S3Bench) -> None:
    bench.put("t/a", b"planned")
    rows = plan_rows(bench, "t/a")
    assert act(bench.store, "trash", rows) == ["done"]
    with open_through_proxy(bench, Rule(removes_marker, refuse, times=9)) as (store, _):
        assert act(store, "trash", rows, "restore") == ["denied"]
    assert act(bench.store, "trash", rows, "restore") == ["done"]


def test_removed_object_is_created_again(bench: S3Bench) -> None:
    editable, name = bench.store.objects, f"{bench.store.location}t/ref"
    for content in (b"one", b"two", b"three"):
        editable.create(name, content)
        with pytest.raises(FileExistsError):
            editable.create(name, b"other")
        editable.remove(name, editable.read_with_etag(name)[1])
        assert bench.get("t/ref") is None
