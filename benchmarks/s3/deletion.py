"""Objects deleted by boto3 and by us, in turns, in this process. A policy refuses some, and every side has to name exactly those.

CPU seconds are this process's own, the server's are not among them. Requests are those of the server's log.
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

from benchmarks.s3.requests import AccessLog, by_kind
from benchmarks.s3.upload import put_all
from gc_assets.core.phases import DENIED, DONE, PURGE, QUARANTINE
from gc_assets.s3 import pages
from gc_assets.stores.execution import BATCH_SIZE
from gc_assets.stores.protocol import Action, PlannedAction, QuarantineMode
from gc_assets.stores.s3.bucket import MAX_CONCURRENT, Bucket
from gc_assets.stores.s3.objects import identity
from gc_assets.stores.s3.quarantine import open_quarantine
from tests.s3.servers import S3Server

BOTO3: Final = "boto3, HEAD of each, delete_objects"
PLAN: Final = "benchmark"
_REFUSED_EVERY: Final = 100
# In the names of the keys that a policy protects. One character, because Ceph 16 finds longer words only where their first letter
# does not come before.
_REFUSED: Final = "~"
# Of the keys of a batch, those that were refused. All others are gone.
_Delete = Callable[[Bucket, Any, Sequence[PlannedAction]], Collection[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one side. `requests` are by kind."""

    who: str
    keys: int
    wall: float
    cpu: float
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class Side:
    """`before` has to have happened to the objects, and is not measured. `times` as many keys are deleted where a pass would be too
    short.
    """

    who: str
    delete: _Delete
    before: _Delete | None = None
    times: int = 1


def bare(bucket: Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """boto3's `delete_objects`, of versions where the rows are of a purge."""
    named: list[dict[str, str]] = []
    for row in batch:
        version = {"VersionId": row.version_id} if row.action == PURGE and row.version_id else {}
        named.append({"Key": f"{bucket.prefix}{row.key}", **version})
    answer = client.delete_objects(Bucket=bucket.name, Delete={"Objects": named})
    refused = {item["Key"].removeprefix(bucket.prefix) for item in answer.get("Errors", [])}
    gone = {item["Key"].removeprefix(bucket.prefix) for item in answer.get("Deleted", [])}
    if gone | refused != {row.key for row in batch}:
        raise RuntimeError(f"{bucket.location}: boto3 says nothing of some keys")
    return refused


def looked_at(bucket: Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """The same after a HEAD for each object, as many at a time as we make."""

    def is_same(row: PlannedAction) -> bool:
        answer = client.head_object(Bucket=bucket.name, Key=f"{bucket.prefix}{row.key}")
        return identity(answer["ETag"], answer["ContentLength"], answer["LastModified"]) == row.etag

    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        same = list(pool.map(is_same, batch))
    return bare(bucket, client, [row for row, goes in zip(batch, same, strict=True) if goes])


def request(bucket: Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
    """Our request alone, with an answer for each key."""
    del client
    answers = bucket.delete([(row.key, row.version_id if row.action == PURGE else None) for row in batch])
    wrong = [answer.error for answer in answers if answer.error is not None and not answer.is_denied]
    if wrong:
        raise RuntimeError(f"{bucket.location}: {wrong[0]}")
    return {row.key for row, answer in zip(batch, answers, strict=True) if answer.is_denied}


def acting(mode: QuarantineMode, action: Action) -> _Delete:
    """What an apply does: look, act, look at what was done."""

    def act(bucket: Bucket, client: Any, batch: Sequence[PlannedAction]) -> Collection[str]:
        del client
        rows = [replace(row, action=action, source_plan_id=PLAN if action == PURGE else None) for row in batch]
        results = open_quarantine(mode, bucket, PLAN).act(rows)
        wrong = [result for result in results if result.verdict not in {DONE, DENIED}]
        if wrong:
            raise RuntimeError(f"{bucket.location}: {wrong[0].error}")
        return {row.key for row, result in zip(rows, results, strict=True) if result.verdict == DENIED}

    return act


IN_TRASH = acting("trash", QUARANTINE)
HIDDEN = acting("versioned", QUARANTINE)
# The first side of each is what the others are compared with.
REQUESTS: Final = (Side("boto3, delete_objects", bare, times=5), Side("gc-assets, the request alone", request, times=5))
WITHOUT_VERSIONS: Final = (
    Side(BOTO3, looked_at),
    Side("gc-assets, trash: quarantine", IN_TRASH),
    Side("gc-assets, trash: purge", acting("trash", PURGE), before=IN_TRASH),
    Side("gc-assets, deferred: purge", acting("deferred", PURGE)),
)
WITH_VERSIONS: Final = (
    Side(BOTO3, looked_at),
    Side("gc-assets, versioned: quarantine", HIDDEN),
    Side("gc-assets, versioned: purge", acting("versioned", PURGE), before=HIDDEN),
)


def deleted(server: S3Server, log: AccessLog, sides: Sequence[Side], keys: int, rounds: int) -> list[Run]:
    """Each side once a round, on as many objects of its own. `sides` are `REQUESTS`, `WITHOUT_VERSIONS` or `WITH_VERSIONS`.

    Raises `RuntimeError` where a side's outcomes are not what the policy says.
    """
    name = server.bucket(versioned=sides is WITH_VERSIONS)
    return [
        _run(server, log, side, Bucket.of(f"s3://{name}/{turn}-{number}/", server.settings), side.times * keys)
        for turn in range(rounds)
        # In turns, because a server that has deleted much is slower.
        for number, side in list(enumerate(sides))[:: -1 if turn % 2 else 1]
    ]


def _run(server: S3Server, log: AccessLog, side: Side, bucket: Bucket, keys: int) -> Run:
    client = server.client()
    for ours in (bucket.client("change"), bucket.get_single_attempt_client()):
        ours.head_bucket(Bucket=bucket.name)  # made and connected, as `client` is below
    names = [f"data/{number:06}{_REFUSED if number % _REFUSED_EVERY == 0 else ''}.parquet" for number in range(keys)]
    put_all(server, bucket.name, ((f"{bucket.prefix}{name}", b"x") for name in names))
    rows = planned(bucket)
    batches = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
    if side.before is not None:
        for batch in batches:
            side.before(bucket, client, batch)
    with _refusing(client, bucket.name):
        log.take()
        refused: set[str] = set()
        started, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            refused |= set(side.delete(bucket, client, batch))
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        requests = by_kind(log.take())
    expected = {name for name in names if _REFUSED in name}
    if refused != expected:
        raise RuntimeError(f"{side.who}: expected {len(expected)} keys to be refused, found {len(refused)}")
    return Run(side.who, keys, wall, cpu, requests)


def planned(bucket: Bucket) -> list[PlannedAction]:
    """A row for each object of a storage, as a plan has it."""
    rows: list[PlannedAction] = []
    versioned = bucket.versioning("read").has_versions
    for page in (pages.list_versions if versioned else pages.list_objects)(bucket.settings, bucket.name, bucket.prefix):
        for number, key in enumerate(page.keys):
            etag = identity(page.etags[number], page.sizes[number], datetime.fromisoformat(page.modified[number]))
            version_id = page.version_ids[number] if versioned else None
            rows.append(PlannedAction(key.decode().removeprefix(bucket.prefix), PURGE, page.sizes[number], etag, version_id))
    return rows


@contextmanager
def _refusing(client: Any, bucket: str) -> Generator[None]:
    """Nobody may delete the keys that are named so."""
    actions = ["s3:DeleteObject", "s3:DeleteObjectVersion"]
    statement = {"Effect": "Deny", "Principal": "*", "Action": actions, "Resource": f"arn:aws:s3:::{bucket}/*{_REFUSED}*"}
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    yield
    client.delete_bucket_policy(Bucket=bucket)
