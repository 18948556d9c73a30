"""Delete objects with boto3 and with gc-assets, alternately, in this process.

A policy denies some deletions, and every side must report exactly those. CPU seconds are those of
this process, without the server. Requests come from the log of the server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from benchmarks.s3.requests import AccessLog, count_by_kind
from benchmarks.s3.upload import put_all
from gc_assets.buckets.identity import build_identity
from gc_assets.buckets.protocol import Deletion
from gc_assets.buckets.requests import MAX_CONCURRENT
from gc_assets.config.connections import Connections
from gc_assets.core.phases import DENIED, DONE, PURGE, QUARANTINE
from gc_assets.s3 import pages
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.execution import BATCH_SIZE
from gc_assets.stores.protocol import Action, PlannedAction, QuarantineMode
from gc_assets.stores.store import open_store
from tests.s3.servers import S3Server

BOTO3: Final = "boto3, HEAD of each, delete_objects"
PLAN: Final = "benchmark"
_REFUSED_EVERY: Final = 100
# Part of the names of protected keys. One character, because Ceph 16 finds a longer pattern only if
# its first character does not occur earlier.
_REFUSED: Final = "~"
# Returns the refused keys of a batch. All others are deleted.
_Delete = Callable[[S3Bucket, Any, Sequence[PlannedAction]], Collection[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one side. `requests` are counted by kind."""

    tool: str
    keys: int
    wall: float
    cpu: float
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to delete objects.

    `prepare` runs first and is not measured. `factor` multiplies the keys of a pass that would be
    too short.
    """

    tool: str
    delete: _Delete
    prepare: _Delete | None = None
    factor: int = 1


def delete_with_boto3(bucket: S3Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """Call `delete_objects` of boto3, with version ids if the rows are of a purge."""
    named: list[dict[str, str]] = []
    for row in batch:
        version = {"VersionId": row.version_id} if row.action == PURGE and row.version_id else {}
        named.append({"Key": f"{bucket.prefix}{row.key}", **version})
    answer = client.delete_objects(Bucket=bucket.name, Delete={"Objects": named})
    refused = {item["Key"].removeprefix(bucket.prefix) for item in answer.get("Errors", [])}
    gone = {item["Key"].removeprefix(bucket.prefix) for item in answer.get("Deleted", [])}
    if gone | refused != {row.key for row in batch}:
        raise RuntimeError(f"{bucket.location}: the answer of boto3 omits some keys")
    return refused


def check_and_delete_with_boto3(bucket: S3Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """Send a HEAD for each object, with our concurrency, then call `delete_objects`."""

    def is_same(row: PlannedAction) -> bool:
        answer = client.head_object(Bucket=bucket.name, Key=f"{bucket.prefix}{row.key}")
        return build_identity(answer["ETag"], answer["ContentLength"], answer["LastModified"]) == row.etag

    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        same = list(pool.map(is_same, batch))
    return delete_with_boto3(bucket, client, [row for row, goes in zip(batch, same, strict=True) if goes])


def delete_with_gc_assets(bucket: S3Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """Send only our request, which has an answer for each key."""
    del client
    answers = bucket.delete([Deletion(row.key, row.version_id if row.action == PURGE else None) for row in batch])
    wrong = [answer.error for answer in answers if answer.verdict not in {"done", "denied"}]
    if wrong:
        raise RuntimeError(f"{bucket.location}: {wrong[0]}")
    return {row.key for row, answer in zip(batch, answers, strict=True) if answer.verdict == "denied"}


def build_apply(mode: QuarantineMode, action: Action) -> _Delete:
    """Return a function that acts as an apply does: check, act, check the result."""

    def act(bucket: S3Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
        del client
        rows = [replace(row, action=action, source_plan_id=PLAN if action == PURGE else None) for row in batch]
        results = open_store(bucket.location, Connections.of(bucket.settings)).quarantine(mode, PLAN).act(rows)
        wrong = [result for result in results if result.verdict not in {DONE, DENIED}]
        if wrong:
            raise RuntimeError(f"{bucket.location}: {wrong[0].error}")
        return {row.key for row, result in zip(rows, results, strict=True) if result.verdict == DENIED}

    return act


MOVE_TO_TRASH = build_apply("trash", QUARANTINE)
HIDE_VERSIONS = build_apply("versioned", QUARANTINE)
# The first side is the baseline of the others.
REQUESTS: Final = (
    Side("boto3, delete_objects", delete_with_boto3, factor=5),
    Side("gc-assets, request only", delete_with_gc_assets, factor=5),
)
WITHOUT_VERSIONS: Final = (
    Side(BOTO3, check_and_delete_with_boto3),
    Side("gc-assets, trash: quarantine", MOVE_TO_TRASH),
    Side("gc-assets, trash: purge", build_apply("trash", PURGE), prepare=MOVE_TO_TRASH),
    Side("gc-assets, deferred: purge", build_apply("deferred", PURGE)),
)
WITH_VERSIONS: Final = (
    Side(BOTO3, check_and_delete_with_boto3),
    Side("gc-assets, versioned: quarantine", HIDE_VERSIONS),
    Side("gc-assets, versioned: purge", build_apply("versioned", PURGE), prepare=HIDE_VERSIONS),
)


def measure_deletions(server: S3Server, log: AccessLog, sides: Sequence[Side], keys: int, rounds: int) -> list[Run]:
    """Measure each side once per round, on the same number of objects.

    Args:
        sides: `REQUESTS`, `WITHOUT_VERSIONS` or `WITH_VERSIONS`.

    Raises:
        RuntimeError: If the outcomes of a side differ from the policy.
    """
    name = server.bucket(versioned=sides is WITH_VERSIONS)
    return [
        _run(server, log, side, S3Bucket.of(f"s3://{name}/{turn}-{number}/", server.settings), side.factor * keys)
        for turn in range(rounds)
        # Alternate the order, because a server becomes slower after many deletions.
        for number, side in list(enumerate(sides))[:: -1 if turn % 2 else 1]
    ]


def _run(server: S3Server, log: AccessLog, side: Side, bucket: S3Bucket, keys: int) -> Run:
    client = server.client()
    for ours in (bucket.client("change"), bucket.get_single_attempt_client()):
        ours.head_bucket(Bucket=bucket.name)  # creates and connects the clients, like `client`
    names = [f"data/{number:06}{_REFUSED if number % _REFUSED_EVERY == 0 else ''}.parquet" for number in range(keys)]
    put_all(server, bucket.name, ((f"{bucket.prefix}{name}", b"x") for name in names))
    rows = plan_all(bucket)
    batches = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
    if side.prepare is not None:
        for batch in batches:
            side.prepare(bucket, client, batch)
    with _refuse_deletions(client, bucket.name):
        log.take()
        refused: set[str] = set()
        started, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            refused |= set(side.delete(bucket, client, batch))
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        requests = count_by_kind(log.take())
    expected = {name for name in names if _REFUSED in name}
    if refused != expected:
        raise RuntimeError(f"{side.tool}: expected {len(expected)} keys to be refused, found {len(refused)}")
    return Run(side.tool, keys, wall, cpu, requests)


def plan_all(bucket: S3Bucket) -> list[PlannedAction]:
    """Return a plan row for each object of a storage."""
    rows: list[PlannedAction] = []
    versioned = bucket.versioning("read").has_versions
    for page in (pages.list_versions if versioned else pages.list_objects)(bucket.settings, bucket.name, bucket.prefix):
        for number, key in enumerate(page.keys):
            etag = build_identity(page.etags[number], page.sizes[number], datetime.fromisoformat(page.modified[number]))
            version_id = page.version_ids[number] if versioned else None
            rows.append(PlannedAction(key.decode().removeprefix(bucket.prefix), PURGE, page.sizes[number], etag, version_id))
    return rows


@contextmanager
def _refuse_deletions(client: Any, bucket: str) -> Generator[None]:
    """Deny the deletion of keys with the marker in their name."""
    actions = ["s3:DeleteObject", "s3:DeleteObjectVersion"]
    statement = {"Effect": "Deny", "Principal": "*", "Action": actions, "Resource": f"arn:aws:s3:::{bucket}/*{_REFUSED}*"}
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    yield
    client.delete_bucket_policy(Bucket=bucket)
