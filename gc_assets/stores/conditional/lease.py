"""The lease of a storage in a bucket, which ensures that at most one plan changes it at a time.

Every lease is a separate object, `.gc-assets/lease/<token>.json`, named after its fencing token. It
is created on the condition that it does not exist, so that only one of several competing processes
succeeds. The lease with the highest token is current. Only the holder of a lease writes its object
again, without a condition.

When a lease is released, its object is marked as released and kept until later leases have been
acquired. Otherwise a token could be reused.
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
from typing import Any, Final

from gc_assets.buckets.protocol import ConditionalBucket, Deletion, Role
from gc_assets.core.clock import Clock
from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import GateRefused, LeaseLost, StoreError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.stores.conditional.own_versions import MAX_VERSIONS, is_only_version, read_content, withdraw
from gc_assets.stores.protocol import LEASE_DURATION, RESERVED_PREFIX, Holder

_LEASE_PREFIX: Final = f"{RESERVED_PREFIX}lease/"
_DIGITS: Final = 12
# How often a process tries to acquire the lease while others compete for it.
_MAX_ATTEMPTS: Final = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketLease:
    """A lease that was acquired by this process.

    Its random nonce distinguishes it from a lease with the same token that another process created.
    """

    bucket: ConditionalBucket
    token: int
    nonce: str
    duration: timedelta
    clock: Clock

    def check(self) -> None:
        """Check the lease (see `Lease.check`)."""
        record = self.require_own()
        if datetime.fromisoformat(record["expires_at"]) - _read_time(self.bucket, self.clock) < self.duration / 2:
            self.write_renewal(record)

    def renew(self) -> None:
        """Extend the lease (see `Lease.renew`)."""
        self.write_renewal(self.require_own())

    def release(self) -> None:
        """Give up the lease (see `Lease.release`)."""
        latest = read_latest(self.bucket, "change")
        if latest is not None and latest[0] == self.token and latest[1]["nonce"] == self.nonce:
            _write_record(self.bucket, self.token, latest[1] | {"released": True})

    def write_renewal(self, record: dict[str, Any]) -> None:
        """Write the lease record again, with a later time of expiry."""
        _write_record(self.bucket, self.token, record | {"expires_at": (_read_time(self.bucket, self.clock) + self.duration).isoformat()})

    def require_own(self) -> dict[str, Any]:
        """Read the lease record, and check that it still belongs to this process.

        Raises:
            LeaseLost: If this lease is no longer the current one.
        """
        latest = read_latest(self.bucket, "change")
        if latest is not None and latest[0] == self.token and latest[1]["nonce"] == self.nonce and not latest[1]["released"]:
            return latest[1]
        free = latest is None or latest[1]["released"]
        found = "no lease" if free or latest is None else f"token {latest[0]} of {_to_holder(*latest)}"
        raise LeaseLost(
            f"lease of {self.bucket.location} lost: expected token {self.token}, found {found}. "
            "No further changes are made. Apply the plan again to resume from its log."
        )


def acquire(
    bucket: ConditionalBucket, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0
) -> BucketLease:
    """Acquire the lease of a storage (see `Store.acquire`)."""
    try:
        for _ in range(_MAX_ATTEMPTS):
            lease = _try_acquire(bucket, plan_id, owner, clock, duration, after)
            if lease is not None:
                _remove_old_leases(bucket, lease.token)
                return lease
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311  (only keeps processes from colliding again)
    except OSError as error:
        location = error.filename or bucket.address(_LEASE_PREFIX)
        raise StoreError(f"storage {bucket.location}: cannot acquire its lease: {location}: {error.strerror or error}") from error
    raise GateRefused(
        f"storage {bucket.location}: other processes acquired its lease at the same time; apply again when their plan is finished"
    )


def _try_acquire(bucket: ConditionalBucket, plan_id: str, owner: str, clock: Clock, duration: timedelta, after: int) -> BucketLease | None:
    """Try once to acquire the lease. Returns None if another process tried at the same time.

    Raises:
        GateRefused: If another plan holds the lease.
    """
    latest = read_latest(bucket, "change")
    now = _read_time(bucket, clock)
    if latest is not None and not latest[1]["released"] and _to_holder(*latest).is_live(now):
        raise GateRefused(
            f"storage {bucket.location} is being changed by {_to_holder(*latest)}. Wait for it to finish, or until that time: the next "
            "apply takes over the lease of a process that has ended."
        )
    token, nonce = max(latest[0] if latest is not None else 0, after) + 1, uuid.uuid4().hex
    holder = Holder(owner, socket.gethostname(), os.getpid(), plan_id, token, now.isoformat(), (now + duration).isoformat())
    content = json.dumps(asdict(holder) | {"nonce": nonce, "released": False}, indent=1).encode()
    if not _create(bucket, _lease_key(token), content):
        return None
    # If this process was suspended after it had read the tokens, its new token may have been used
    # and removed by others since then.
    latest = read_latest(bucket, "change")
    if latest is None or (latest[0], latest[1]["nonce"]) != (token, nonce):
        withdraw(bucket, _lease_key(token), content)
        return None
    return BucketLease(bucket, token, nonce, duration, clock)


def read_holder(bucket: ConditionalBucket) -> Holder | None:
    """Return who holds the lease of a storage (see `Store.holder`).

    Raises:
        StoreError: If the lease cannot be read.
    """
    try:
        latest = read_latest(bucket, "read")
    except OSError as error:
        raise _unreadable_lease(bucket, error) from error
    return None if latest is None or latest[1]["released"] else _to_holder(*latest)


def read_last_token(bucket: ConditionalBucket) -> int:
    """Return the highest fencing token of a storage (see `Store.last_token`).

    Raises:
        StoreError: If the leases cannot be listed.
    """
    try:
        return max(_list_tokens(bucket, "read"), default=0)
    except OSError as error:
        raise _unreadable_lease(bucket, error) from error


def _unreadable_lease(bucket: ConditionalBucket, error: OSError) -> StoreError:
    location = error.filename or bucket.address(_LEASE_PREFIX)
    return StoreError(f"storage {bucket.location}: cannot read its lease: {location}: {error.strerror or error}")


def _read_time(bucket: ConditionalBucket, clock: Clock) -> datetime:
    """Return the current time according to the server, except in a rehearsal.

    This machine's clock is not used, because a lease could seem to have expired just because that
    clock is ahead.
    """
    return clock.now() if clock.is_rehearsal else bucket.now()


def _lease_key(token: int) -> str:
    return f"{_LEASE_PREFIX}{token:0{_DIGITS}d}.json"


def _list_tokens(bucket: ConditionalBucket, role: Role) -> list[int]:
    found: list[int] = []
    prefix = f"{bucket.prefix}{_LEASE_PREFIX}"
    for page in bucket.list_pages(_LEASE_PREFIX, role=role):
        for key in page.keys:
            name = key.decode("utf-8", "backslashreplace").removeprefix(prefix)
            token = name.removesuffix(".json")
            if not (token.isascii() and token.isdecimal()) or f"{_LEASE_PREFIX}{name}" != _lease_key(int(token)):
                raise StoreError(f"{bucket.address(_LEASE_PREFIX)}{name}: expected a lease, whose name is its token; remove this object")
            found.append(int(token))
    return sorted(found)


def read_latest(bucket: ConditionalBucket, role: Role) -> tuple[int, dict[str, Any]] | None:
    """Find the current lease, if there is one, and return its token and record."""
    tokens = list[int]()
    for _ in range(_MAX_ATTEMPTS):
        tokens = _list_tokens(bucket, role)
        if not tokens:
            return None
        key = _lease_key(tokens[-1])
        with suppress(FileNotFoundError):  # removed by the holder of a newer lease
            content, _ = run_with_deadline(READ_SECONDS, bucket.address(key), lambda key=key: bucket.read(key, role))
            return tokens[-1], _read_record(bucket, tokens[-1], content)
    found = bucket.address(_lease_key(tokens[-1]))
    raise StoreError(f"{found} is listed but does not exist; retry when fewer processes use the storage")


def _read_record(bucket: ConditionalBucket, token: int, content: bytes) -> dict[str, Any]:
    try:
        return _parse_record(token, content)
    except (ValueError, TypeError, AttributeError) as error:
        found = bucket.address(_lease_key(token))
        raise StoreError(
            f"cannot parse the lease {found} ({error}); make sure that no `apply` is running on this storage, then delete the file"
        ) from error


def _parse_record(token: int, content: bytes) -> dict[str, Any]:
    record: dict[str, Any] = parse_json(content)
    missing = sorted({"nonce", "released"} - record.keys())
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    if datetime.fromisoformat(_to_holder(token, record).expires_at).tzinfo is None:
        raise ValueError("expires_at has no time zone")
    return record


def _to_holder(token: int, record: dict[str, Any]) -> Holder:
    fields = {name: value for name, value in record.items() if name not in {"nonce", "released", "token"}}
    return Holder(token=token, **fields)


def _create(bucket: ConditionalBucket, key: str, content: bytes) -> bool:
    """Create the object of a lease.

    Returns:
        False if another process created it first or at the same time.

    Raises:
        StoreError: If the server allows two processes to create the same object.
    """
    created = bucket.put_if_absent(key, content)
    if created.verdict == "changed":
        # The existing lease may be ours, if the response to an earlier attempt was lost.
        return read_content(bucket, key) == content
    if created.verdict == "absent":
        # If two writes are concurrent, Ceph 20 may deny one of them and still create its version.
        withdraw(bucket, key, content)
        return False
    version_id = created.require().version_id
    if version_id is None or version_id == "null":
        _require_create_if_absent(bucket, key)
        return True
    return is_only_version(bucket, key, content)


def _require_create_if_absent(bucket: ConditionalBucket, key: str) -> None:
    """Check that the server does not allow another process to create the same lease.

    Raises:
        StoreError: If the server allows it, because it ignores the condition.
    """
    second = bucket.put_if_absent(key, b"{}")
    if second.verdict == "changed":
        return
    second.require()
    bucket.delete_if_match(key, None).require()
    raise StoreError(
        f"storage {bucket.location}: the server created {bucket.address(key)} although it existed (it ignores If-None-Match), so two "
        "plans could change the storage concurrently. Plans cannot be applied; run gc-assets doctor to see what the server supports"
    )


def _write_record(bucket: ConditionalBucket, token: int, record: dict[str, Any]) -> None:
    bucket.put(_lease_key(token), json.dumps(record, indent=1).encode()).require()


def _remove_old_leases(bucket: ConditionalBucket, current: int) -> None:
    """Remove outdated leases with all their versions. The current and the previous one are kept.

    Outdated leases do no harm, so a failure is only logged.
    """
    for token in _list_tokens(bucket, "change"):
        if token < current - 1:
            try:
                versions = bucket.newest_versions(_lease_key(token), MAX_VERSIONS)
                changes = bucket.delete([Deletion(_lease_key(token), version.version_id) for version in versions])
                refusal = next((change.reason for change in changes if not change.is_done), None)
            except OSError as error:
                refusal = error.strerror or str(error)
            if refusal is not None:
                _log.warning("%s: cannot remove an old lease: %s", bucket.address(_lease_key(token)), refusal)
                return
