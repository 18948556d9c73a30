"""Find out how a server behaves, using canary objects (test objects that are removed again).

The tests are necessary because servers with the same API can behave differently.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion
from gc_assets.buckets.requests import pause_before_retry
from gc_assets.core.errors import StoreError
from gc_assets.stores.canaries import find_broken_axioms
from gc_assets.stores.conditional.own_versions import read_content
from gc_assets.stores.protocol import RESERVED_PREFIX, Traits

_MAX_VERSIONS: Final = 100
# How often the delete of a canary is repeated if its response is lost.
_ATTEMPTS: Final = 4


def probe(bucket: ConditionalBucket) -> Traits:
    """Test which optional properties a bucket has.

    All versions of the canaries are removed at the end.
    """
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    try:
        return Traits(
            create_if_absent=(created := _can_create_once(bucket, canary)),
            replace_if_match=created and _can_replace_if_match(bucket, canary),
            rename=False,
            versions=bucket.versioning("change").is_on,
            delete_if_match=_test_conditional_delete(bucket, canary),
            create_after_delete=_can_create_after_delete(bucket, canary),
            broken_axioms=find_broken_axioms(BucketCanaries(bucket, f"{canary}-axiom-"), bucket.now),
        )
    finally:
        for name in (canary, f"{canary}-axiom-1", f"{canary}-axiom-2"):
            _remove_canary(bucket, name)


@dataclass(frozen=True, slots=True)
class BucketCanaries:
    """Canary objects in a bucket, whose keys begin with `prefix`."""

    bucket: ConditionalBucket
    prefix: str

    def write(self, name: str, content: bytes) -> None:
        self.bucket.put(f"{self.prefix}{name}", content).require()

    def read(self, name: str) -> tuple[bytes, str]:
        content, found = self.bucket.read(f"{self.prefix}{name}")
        return content, found.identity

    def list(self) -> Mapping[str, datetime]:
        start = f"{self.bucket.prefix}{self.prefix}".encode()
        return {
            key.removeprefix(start).decode(): datetime.fromisoformat(modified)
            for page in self.bucket.list_pages(self.prefix)
            for key, modified in zip(page.keys, page.modified, strict=True)
        }


def _can_create_once(bucket: ConditionalBucket, canary: str) -> bool:
    bucket.put_if_absent(canary, b"first").require()
    second = bucket.put_if_absent(canary, b"second")
    if second.verdict == "changed":
        return bucket.read(canary)[0] == b"first"
    if not second.is_done:
        second.require()
    return False


def _can_replace_if_match(bucket: ConditionalBucket, canary: str) -> bool:
    _, current = bucket.read(canary)
    right = bucket.put_if_match(canary, b"replaced", token_of(current.identity))
    if right.verdict not in {"done", "changed", "unsupported"}:
        right.require()
    if bucket.read(canary)[0] != b"replaced":
        return False
    wrong = bucket.put_if_match(canary, b"unexpected", bucket.unknown_token)
    _require_answer(wrong)
    return not wrong.is_done and bucket.read(canary)[0] == b"replaced"


def keeps_unknown_token(bucket: ConditionalBucket, canary: str) -> bool:
    """Return True if a canary object survives a delete request with a wrong token (etag).

    Raises:
        OSError: If the request is denied or keeps failing, so that the test has no result.
    """
    wrong = repeat_unknown(lambda: bucket.delete_if_match(canary, bucket.unknown_token))
    _require_answer(wrong)
    return wrong.verdict == "changed"


def require_no_obstacle(location: str, find_obstacle: Callable[[], str | None]) -> None:
    """Check with a canary object that plans can be applied in a bucket.

    Raises:
        StoreError: If plans cannot be applied, or if this cannot be determined.
    """
    try:
        obstacle = find_obstacle()
    except OSError as error:
        found = f"cannot test the server with a canary object: {error.filename or location}: {error.strerror or error}"
        raise StoreError(f"storage {location}: {found}") from error
    if obstacle is not None:
        raise StoreError(f"storage {location}: {obstacle}")


def repeat_unknown(delete: Callable[[], Change]) -> Change:
    """Send a request to delete a canary, several times if the response is lost."""
    change = delete()
    for attempt in range(_ATTEMPTS):
        if change.verdict != "unknown":
            break
        pause_before_retry(attempt)
        change = delete()
    return change


def _test_conditional_delete(bucket: ConditionalBucket, canary: str) -> Literal["none", "one", "batch"]:
    """Find out whether the server compares tokens in delete requests for one object and for many.

    To pass the test, the server must keep an object if the token in the request is wrong, and
    delete it if the token is right.

    Returns:
        `none` if it never compares tokens, `one` if it does so in requests for a single object, and
        `batch` if it does so in all requests.
    """
    _require_answer(bucket.delete_if_match(canary, bucket.unknown_token))
    current = bucket.head(canary)
    if current is None:
        return "none"
    refused = bucket.delete([Deletion(canary, token=bucket.unknown_token)])
    _require_lost_none(refused)
    if bucket.head(canary) is None or any(change.verdict == "unsupported" for change in refused):
        return "one"
    _require_lost_none(bucket.delete([Deletion(canary, token=token_of(current.identity))]))
    return "batch" if bucket.head(canary) is None else "one"


def _can_create_after_delete(bucket: ConditionalBucket, canary: str) -> bool:
    """Return True if an object can be created where another one has been deleted.

    If the canary cannot be deleted, the result is True.
    """
    if bucket.delete_if_match(canary, None).verdict not in {"done", "absent"}:
        return True
    created = bucket.put_if_absent(canary, b"again")
    if created.verdict in {"failed", "unknown"}:
        created.require()
    return created.is_done or read_content(bucket, canary) == b"again"


def _require_answer(change: Change) -> None:
    """Raise the error of a denied or lost request, which proves nothing about the server."""
    if change.verdict in {"denied", "failed", "unknown"}:
        change.require()


def _require_lost_none(changes: Sequence[Change]) -> None:
    """Raise the error of a lost request. A denied key is no error, because a token may be rejected."""
    for change in changes:
        if change.verdict == "unknown":
            change.require()


def _remove_canary(bucket: ConditionalBucket, canary: str) -> None:
    versions = bucket.newest_versions(canary, _MAX_VERSIONS)
    for change in bucket.delete([Deletion(canary, version.version_id) for version in versions]):
        if not change.is_done:
            raise PermissionError(
                errno.EACCES, f"the canary cannot be removed, its DELETE was refused: {change.reason}", bucket.address(canary)
            )
