"""The lease of a storage in a bucket: at most one plan changes it at a time.

Every lease is an object of its own, `.gc-assets/lease/<token>.json`, which its holder creates only
where there is none. The one with the highest token counts. So a server needs no conditional
replace: of two that want the same token one creates it, and only its holder writes it again. A
lease that was given back stays, marked as released, until others were taken after it: tokens never
repeat.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from botocore.exceptions import ClientError

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.s3 import pages
from gc_assets.s3.client import PRECONDITION, Role, error_code, translate_errors
from gc_assets.stores.protocol import LEASE_DURATION, RESERVED_PREFIX, Holder
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import S3Objects

_LEASES: Final = f"{RESERVED_PREFIX}lease/"
_DIGITS: Final = 12
# How often a process tries again that met others who tried at the same time.
_RACES: Final = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class S3Lease:
    """A lease that was acquired, by its fencing token."""

    bucket: Bucket
    token: int
    nonce: str
    duration: timedelta
    clock: Clock

    def check(self) -> None:
        """Checks as `Lease.check` says. An expired lease that nobody took over is still ours."""
        record = self._ours()
        if datetime.fromisoformat(record["expires_at"]) - _now(self.bucket, self.clock) < self.duration / 2:
            self._renew(record)

    def renew(self) -> None:
        """Extends the lease to its whole duration from now. Raises `GateRefused` as `check` does."""
        self._renew(self._ours())

    def release(self) -> None:
        """Frees the storage, unless somebody took it over from us."""
        latest = _latest(self.bucket, "change")
        if latest is not None and latest[0] == self.token and latest[1]["nonce"] == self.nonce:
            _write(self.bucket, self.token, latest[1] | {"released": True})

    def _renew(self, record: dict[str, Any]) -> None:
        _write(self.bucket, self.token, record | {"expires_at": (_now(self.bucket, self.clock) + self.duration).isoformat()})

    def _ours(self) -> dict[str, Any]:
        latest = _latest(self.bucket, "change")
        if latest is not None and latest[0] == self.token and latest[1]["nonce"] == self.nonce and not latest[1]["released"]:
            return latest[1]
        free = latest is None or latest[1]["released"]
        found = "no lease" if free or latest is None else f"token {latest[0]} of {_holder(*latest)}"
        raise GateRefused(
            f"lease of {self.bucket.location} lost: expected token {self.token}, found {found}. "
            "Nothing more is changed by this run; apply the plan again and it resumes from its log."
        )


def acquire(bucket: Bucket, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> S3Lease:
    """Takes the storage's lease, with a token higher than `after`. It is ours until it is released,
    lost, or expired and taken over.

    Raises `GateRefused` naming the holder while another lease is live, and `StoreError` where the
    storage or a lease cannot be read or written.
    """
    try:
        for _ in range(_RACES):
            lease = _won(bucket, plan_id, owner, clock, duration, after)
            if lease is not None:
                _clear_away(bucket, lease.token)
                return lease
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311  (parts those who race, no secret)
    except OSError as error:
        where = error.filename or bucket.address(_LEASES)
        raise StoreError(f"storage {bucket.location}: its lease cannot be taken: {where}: {error.strerror or error}") from error
    raise GateRefused(
        f"storage {bucket.location}: other processes took its lease at the same time; apply again when their plan is finished"
    )


def _won(bucket: Bucket, plan_id: str, owner: str, clock: Clock, duration: timedelta, after: int) -> S3Lease | None:
    """Returns the lease, or null where another process tried for it at the same time."""
    latest = _latest(bucket, "change")
    now = _now(bucket, clock)
    if latest is not None and not latest[1]["released"] and _holder(*latest).is_live(now):
        raise GateRefused(
            f"storage {bucket.location} is being changed by {_holder(*latest)}. Wait for it to finish, or until "
            f"{latest[1]['expires_at']}; if that process is surely gone, this is also the time from which the next apply takes it over."
        )
    token, nonce = max(latest[0] if latest is not None else 0, after) + 1, uuid.uuid4().hex
    holder = Holder(owner, socket.gethostname(), os.getpid(), plan_id, token, now.isoformat(), (now + duration).isoformat())
    content = json.dumps(asdict(holder) | {"nonce": nonce, "released": False}, indent=1).encode()
    if not _create(bucket, _key(token), content):
        return None
    # Who looked long ago may have created a token that was taken and cleared away meanwhile.
    latest = _latest(bucket, "change")
    if latest is None or (latest[0], latest[1]["nonce"]) != (token, nonce):
        _withdraw(bucket, _key(token), content)
        return None
    return S3Lease(bucket, token, nonce, duration, clock)


def read_holder(bucket: Bucket) -> Holder | None:
    """Returns who holds the lease, live or expired, or null where nobody does. Raises `StoreError`
    where what stands there is no lease.
    """
    try:
        latest = _latest(bucket, "read")
    except OSError as error:
        where = error.filename or bucket.address(_LEASES)
        raise StoreError(f"storage {bucket.location}: its lease cannot be read: {where}: {error.strerror or error}") from error
    return None if latest is None or latest[1]["released"] else _holder(*latest)


def _now(bucket: Bucket, clock: Clock) -> datetime:
    """Returns the server's time. The clocks of two machines differ, and the one that is ahead would
    take over a lease that is live.
    """
    return clock.now() if clock.is_rehearsal else bucket.now()


def _key(token: int) -> str:
    return f"{_LEASES}{token:0{_DIGITS}d}.json"


def _tokens(bucket: Bucket, role: Role) -> list[int]:
    found: list[int] = []
    prefix = f"{bucket.prefix}{_LEASES}"
    for page in pages.list_objects(bucket.settings, bucket.name, prefix, role=role):
        for key in page.keys:
            name = key.decode("utf-8", "backslashreplace").removeprefix(prefix)
            token = name.removesuffix(".json")
            if not (token.isascii() and token.isdecimal()) or f"{_LEASES}{name}" != _key(int(token)):
                raise StoreError(f"{bucket.address(_LEASES)}{name}: expected leases named by their tokens; move it away")
            found.append(int(token))
    return sorted(found)


def _latest(bucket: Bucket, role: Role) -> tuple[int, dict[str, Any]] | None:
    """Returns token and record of the lease that counts."""
    objects, tokens = S3Objects.of(bucket.settings), list[int]()
    for _ in range(_RACES):
        tokens = _tokens(bucket, role)
        if not tokens:
            return None
        with suppress(FileNotFoundError):  # cleared away by the holder of a newer one
            content, _ = objects.read_with_etag(bucket.address(_key(tokens[-1])), role)
            return tokens[-1], _record(bucket, tokens[-1], content)
    found = bucket.address(_key(tokens[-1]))
    raise StoreError(f"{found} is listed and cannot be read: nothing is there; repeat this when less runs")


def _record(bucket: Bucket, token: int, content: bytes) -> dict[str, Any]:
    try:
        return _parsed(token, content)
    except (ValueError, TypeError, AttributeError) as error:
        found = bucket.address(_key(token))
        raise StoreError(f"{found} is no lease ({error}); make sure that nothing changes this storage, then remove it") from error


def _parsed(token: int, content: bytes) -> dict[str, Any]:
    record: dict[str, Any] = parse_json(content)
    missing = sorted({"nonce", "released"} - record.keys())
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    if datetime.fromisoformat(_holder(token, record).expires_at).tzinfo is None:
        raise ValueError("its time has no zone")
    return record


def _holder(token: int, record: dict[str, Any]) -> Holder:
    fields = {name: value for name, value in record.items() if name not in {"nonce", "released", "token"}}
    return Holder(token=token, **fields)


def _create(bucket: Bucket, key: str, content: bytes) -> bool:
    """Creates a lease. Returns false where another process was first, or came at the same time.

    Raises `StoreError` where the server does not keep two processes from creating the same object.
    """
    with translate_errors(bucket.address(key)):
        try:
            made = bucket.client("change").put_object(**bucket.target(key), Body=content, IfNoneMatch="*").get("VersionId")
        except ClientError as error:
            if error_code(error) not in PRECONDITION:
                raise
            # Ours stands there where the answer to our own request was lost.
            return _content(bucket, key) == content
    if made is None or made == "null":
        _require_create_if_absent(bucket, key)
        return True
    return _is_only_version(bucket, key, content)


def _is_only_version(bucket: Bucket, key: str, content: bytes) -> bool:
    """Says whether no other process created the same lease in a bucket that keeps versions. Where
    one did, ours is withdrawn.

    Some servers heed no condition there (Ceph 16). But no version is lost, and of two processes at
    least the one that wrote last meets the version of the other. So at most one finds its own only.
    A process may meet several of its own, where an answer was lost and it asked again. What lies
    below a delete marker was removed by hand.
    """
    versions = takewhile(lambda version: not version.is_marker, bucket.newest_versions(key, pages.PAGE_KEYS))
    if all(_content(bucket, key, version.version_id) == content for version in versions):
        return True
    _withdraw(bucket, key, content)
    return False


def _withdraw(bucket: Bucket, key: str, content: bytes) -> None:
    """Removes what we created, in a bucket that keeps versions. In others only we have that key."""
    versions = [version.version_id for version in bucket.newest_versions(key, pages.PAGE_KEYS) if not version.is_marker]
    bucket.delete([(key, version_id) for version_id in versions if _content(bucket, key, version_id) == content])


def _content(bucket: Bucket, key: str, version_id: str | None = None) -> bytes | None:
    """Returns the bytes of a version, or null where its writer has removed it by now."""
    try:
        with translate_errors(bucket.address(key)):
            return bucket.client("change").get_object(**bucket.target(key, version_id))["Body"].read()
    except FileNotFoundError:
        return None


def _require_create_if_absent(bucket: Bucket, key: str) -> None:
    """Raises `StoreError` where the server would let another process create the same lease."""
    try:
        S3Objects.of(bucket.settings).create(bucket.address(key), b"{}")
    except FileExistsError:
        return
    bucket.remove(key)
    raise StoreError(
        f"storage {bucket.location}: the server created {bucket.address(key)} although it was there (it ignores If-None-Match), so two "
        "plans could change the storage at once. Nothing can be applied here; `gc-assets doctor` shows what the server can do"
    )


def _write(bucket: Bucket, token: int, record: dict[str, Any]) -> None:
    with translate_errors(bucket.address(_key(token))):
        bucket.client("change").put_object(**bucket.target(_key(token)), Body=json.dumps(record, indent=1).encode())


def _clear_away(bucket: Bucket, token: int) -> None:
    """Removes the leases before the one before this one, with all their versions. What cannot be
    removed is in nobody's way, and the log says so.
    """
    for old in _tokens(bucket, "change"):
        if old < token - 1:
            try:
                versions = bucket.newest_versions(_key(old), pages.PAGE_KEYS)
                answers = bucket.delete([(_key(old), version.version_id) for version in versions])
                refusal = next((answer.error for answer in answers if answer.error is not None), None)
            except OSError as error:
                refusal = error.strerror or str(error)
            if refusal is not None:
                _log.warning("%s: an old lease stays: %s", bucket.address(_key(old)), refusal)
                return
