"""What `doctor` asks of a bucket: can it be reached, listed and read, does the quarantine fit it,
what else deletes or holds objects there, and who changes it now.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from botocore.exceptions import ClientError

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.findings import FAIL, OK, WARN, Finding, run_check
from gc_assets.core.units import format_duration
from gc_assets.s3 import pages
from gc_assets.s3.client import error_code, get_client, payer_params, translate_errors
from gc_assets.stores.doctor_checks import check_lease
from gc_assets.stores.protocol import RESERVED_PREFIX
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.lease import read_holder
from gc_assets.stores.s3.probe import probe

# The first request of all: a server that is not there is not asked for minutes.
_ATTEMPTS: Final = 2
# Top-level prefixes that are tried one by one. A policy may refuse one of them alone.
_PREFIXES: Final = 50
# How a server says that there is no such setting, or that it knows none.
_UNSET: Final = frozenset(
    {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "ObjectLockConfigurationNotFound", "NotImplemented"}
)
_ENDS: Final = ("Expiration", "NoncurrentVersionExpiration")
_COSTS: Final = {
    "versioned": "a delete marker hides each object; its version bills until it is purged",
    "trash": "each object is copied below .gc-assets/ and deleted; one COPY a file, the copy bills, and early-delete minimums apply twice",
    "deferred": "nothing moves, readers still find each object, and it bills until it is purged",
}


def examine(bucket: Bucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """As `Store.examine` says. Canaries are written in a storage of mode `apply` only."""
    for look in (_reachable, _listable):
        findings = list(run_check(storage.name, "listable", lambda look=look: look(bucket, storage)))
        yield from findings
        if any(finding.verdict == FAIL for finding in findings):
            return
    yield from run_check(storage.name, "quarantine", lambda: _quarantine(bucket, storage))
    yield from run_check(storage.name, "lifecycle", lambda: _lifecycle(bucket, storage))
    yield from run_check(storage.name, "lock", lambda: _lock(bucket, storage))
    if storage.mode == "apply":
        yield from run_check(storage.name, "traits", lambda: _traits(bucket, storage))
        yield from run_check(storage.name, "deletable", lambda: _deletable(bucket, storage))
    if storage.abort_uploads:
        yield from run_check(storage.name, "uploads", lambda: _uploads(bucket, storage))
    yield from run_check(storage.name, "lease", lambda: check_lease(storage.name, lambda: read_holder(bucket), now))


def _reachable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Asks for one key, and compares the time of the answer with ours."""
    try:
        with translate_errors(f"s3://{bucket.name}/{bucket.prefix}"):
            asked = {"Bucket": bucket.name, "Prefix": bucket.prefix, "MaxKeys": 1, **payer_params(bucket.settings)}
            answer = get_client(bucket.settings, "read", _ATTEMPTS).list_objects_v2(**asked)
    except OSError as error:
        code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        if code.isdigit():  # a status, and no error of S3 beside it
            found = f"{storage.location} cannot be listed: the answer is none of S3 (read as HTTP status {code}), expected a list of keys"
            yield Finding(storage.name, "listable", FAIL, found, "Look at `s3.endpoint`: another kind of server may be there.")
        else:
            yield _refused(storage, f"{storage.location} cannot be listed", error)
        return
    told_at = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not told_at:
        found = f"the answers of the server of {storage.location} have no Date header, so its clock cannot be compared"
        yield Finding(storage.name, "clock", WARN, found, "Make sure that its clock is right: the grace period counts from its times.")
        return
    skew = parsedate_to_datetime(told_at) - datetime.now(UTC).replace(microsecond=0)
    found = f"the server's clock differs by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= MAX_SKEW:
        yield Finding(storage.name, "clock", OK, found)
    else:
        found += f" ({'ahead of' if skew.total_seconds() > 0 else 'behind'} this machine's), expected at most {format_duration(MAX_SKEW)}"
        yield Finding(storage.name, "clock", WARN, found, "Set the clocks: what they differ by eats into the grace period.")


def _refused(storage: StorageConfig, what: str, error: OSError, check: str = "listable") -> Finding:
    return Finding(storage.name, check, FAIL, f"{what}: {error.strerror or error}", "Mend what it names, then ask doctor again.")


def _listable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Lists the storage and its first prefixes, and looks at an object of each: a policy may refuse
    any one of them.
    """
    try:
        page = next(pages.list_objects(bucket.settings, bucket.name, bucket.prefix))
    except OSError as error:
        yield _refused(storage, f"{storage.location} cannot be listed", error)
        return
    more = "at least " if len(page.keys) == pages.PAGE_KEYS else ""
    found = f"{storage.location} has {more}{len(page.keys):,} objects"
    try:
        prefixes = next(pages.list_objects(bucket.settings, bucket.name, bucket.prefix, delimiter="/")).common
        first = [_first(bucket, prefix.decode()) for prefix in prefixes[:_PREFIXES]]
    except UnicodeDecodeError:  # the listing of a night names such a key
        first = []
    except OSError as error:
        yield _refused(storage, f"{storage.location} can be listed, but not {error.filename}", error)
        return
    for key in [*(key for key in first if key is not None), *(_readable(page.keys[:1]))]:
        try:
            bucket.head(key.removeprefix(bucket.prefix), role="read")
        except OSError as error:
            yield _refused(storage, f"{storage.location} can be listed, but s3://{bucket.name}/{key} cannot be read", error, "readable")
            return
    yield Finding(storage.name, "listable", OK, found)


def _first(bucket: Bucket, prefix: str) -> str | None:
    keys = next(pages.list_objects(bucket.settings, bucket.name, prefix)).keys
    return next(_readable(keys[:1]), None)


def _readable(keys: list[bytes]) -> Iterator[str]:
    for key in keys:
        try:
            yield key.decode()
        except UnicodeDecodeError:
            return


def _quarantine(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Says whether the mode fits the bucket, what it costs, and which would fit."""
    status, days = bucket.versioning("read").status, f"{storage.quarantine_days} days"
    refusal = FAIL if storage.mode == "apply" else WARN
    if storage.quarantine == "versioned" and status != "Enabled":
        why = "has its versioning suspended" if status else "keeps no versions"
        found = f"bucket {bucket.name} {why}, so a delete there is for good; `versioned` needs versioning enabled"
        yield Finding(storage.name, "quarantine", refusal, found, f"Enable versioning, or use `quarantine: trash`: {_COSTS['trash']}.")
    elif storage.quarantine == "trash" and status == "Enabled":
        found = f"bucket {bucket.name} keeps versions, so a copy in the trash frees nothing"
        yield Finding(storage.name, "quarantine", refusal, found, f"Use `quarantine: versioned`: {_COSTS['versioned']}.")
    elif status == "Suspended":
        found = f"bucket {bucket.name} has its versioning suspended: versions from before bill on, and no purge frees them"
        yield Finding(storage.name, "quarantine", WARN, found, "Enable it and use `versioned`, or remove the old versions by a rule.")
    else:
        other = {"deferred": "versioned" if status else "trash"}.get(storage.quarantine, "deferred")
        found = f"{storage.quarantine}: {_COSTS[storage.quarantine]}; purged after {days}; mode {storage.mode}. "
        found += f"It fits this bucket, which keeps {'' if status else 'no '}versions; so does {other}: {_COSTS[other]}"
        yield Finding(storage.name, "quarantine", OK, found)


def _setting(bucket: Bucket, subject: str, check: str, ask: str, unset: str) -> Iterator[Finding | dict[str, Any]]:
    """Yields what a bucket says of one setting, or the finding that it has none or does not tell."""
    try:
        with translate_errors(f"s3://{bucket.name}"):
            yield getattr(bucket.client("read"), ask)(Bucket=bucket.name)
    except OSError as error:
        code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        if code in _UNSET:
            yield Finding(subject, check, OK, unset)
        else:
            found = f"{ask} of bucket {bucket.name} was refused: {error.strerror or error}"
            yield Finding(subject, check, WARN, found, "Allow it to the reading role, or look at the bucket by hand.")


def _lifecycle(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warns of the bucket's own rules that may delete what lies in quarantine. One that does so
    before a purge is due fails a storage where plans are applied.
    """
    for answer in _setting(bucket, storage.name, "lifecycle", "get_bucket_lifecycle_configuration", "the bucket has no lifecycle rules"):
        if isinstance(answer, Finding):
            yield answer
            continue
        rules = list(_deleting(bucket, answer))
        for rule, words in rules:
            soonest = min((days for name in _ENDS if (days := _days_of(rule, name)) is not None), default=0)
            verdict = FAIL if storage.mode == "apply" and soonest < storage.quarantine_days else WARN
            todo = f"Keep it longer than {storage.quarantine_days} days, or leave {bucket.prefix}{RESERVED_PREFIX} and the lakes out."
            yield Finding(storage.name, "lifecycle", verdict, f"{words}, quarantined objects too", todo)
        if not rules:
            yield Finding(storage.name, "lifecycle", OK, "no lifecycle rule of the bucket deletes here")


def examine_state(bucket: Bucket) -> Iterator[Finding]:
    """As `StoreKind.examine_state` says. What lies there are plans, approvals and the record of
    quarantine.
    """
    for answer in _setting(bucket, "state", "lifecycle", "get_bucket_lifecycle_configuration", "its bucket has no lifecycle rules"):
        if isinstance(answer, Finding):
            yield answer
            continue
        rules = list(_deleting(bucket, answer))
        for _, words in rules:
            yield Finding("state", "lifecycle", FAIL, f"{words}, the state too", f"Leave {bucket.prefix} out of the rule.")
        if not rules:
            yield Finding("state", "lifecycle", OK, "no lifecycle rule of its bucket deletes here")


def _deleting(bucket: Bucket, answer: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the enabled rules that delete something below the bucket's prefix, each in words."""
    for rule in answer.get("Rules", []):
        below = _prefix_of(rule)
        ends = [name for name in _ENDS if _days(rule, name)]
        if rule.get("Status") == "Enabled" and ends and (below.startswith(bucket.prefix) or bucket.prefix.startswith(below)):
            said = " and ".join(f"{name} after {_days(rule, name)}" for name in ends)
            yield rule, f"the rule {rule.get('ID', '')!r} of bucket {bucket.name} deletes below {below!r} by {said}"


def _prefix_of(rule: dict[str, Any]) -> str:
    kept = rule.get("Filter") or {}
    return str(kept.get("Prefix") or kept.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _days(rule: dict[str, Any], name: str) -> str:
    """Returns when a rule ends an object, or nothing where it only removes markers that hide
    nothing.
    """
    days = _days_of(rule, name)
    said = rule.get(name, {})
    return f"{days} days" if days is not None else f"{said['Date']:%F}" if "Date" in said else ""


def _days_of(rule: dict[str, Any], name: str) -> int | None:
    said = rule.get(name, {})
    return said.get("Days", said.get("NoncurrentDays"))


def _lock(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warns of Object Lock: what it holds cannot be purged."""
    for answer in _setting(bucket, storage.name, "lock", "get_object_lock_configuration", "the bucket locks no objects"):
        if isinstance(answer, Finding):
            yield answer
            continue
        kept = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
        long = f"{kept['Days']} days" if "Days" in kept else f"{kept['Years']} years" if "Years" in kept else ""
        how = f"new objects are kept for {long} ({kept.get('Mode')})" if long else "without a default retention; single objects may be held"
        found = f"bucket {bucket.name} has Object Lock: {how}. A purge of what is held gets the outcome `denied`, and it bills on"
        todo = "Nothing is lost by it. Plan again when the retention has ended; release legal holds by hand."
        yield Finding(storage.name, "lock", WARN, found, todo)


def _deletable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Asks to delete a key that never was: where no versions are kept, that changes nothing and
    needs the same permission.
    """
    if bucket.versioning("change").has_versions:
        return
    try:
        bucket.remove(f"gc-assets-canary-{secrets.token_hex(8)}")
    except OSError as error:
        what = f"nothing can be deleted below {storage.location} by who applies (`s3.apply_profile`, `s3.apply_role_arn`)"
        yield _refused(storage, what, error, "deletable")
        return
    yield Finding(storage.name, "deletable", OK, f"who applies may delete below {storage.location}")


def _uploads(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warns where unfinished uploads cannot be listed, or cannot be aborted by who applies. It asks
    to abort one that never was.
    """
    todo = "Grant what docs/s3-reference.md lists for uploads, or set `abort_uploads: false` and let a lifecycle rule abort them."
    try:
        asked = {"Bucket": bucket.name, "Prefix": bucket.prefix, "MaxUploads": 1}
        with translate_errors(bucket.location):
            bucket.client("read").list_multipart_uploads(**asked)
        if storage.mode == "apply":
            with suppress(FileNotFoundError), translate_errors(bucket.location):
                canary = f"gc-assets-canary-{secrets.token_hex(8)}"
                bucket.client("change").list_multipart_uploads(**asked)
                bucket.client("change").abort_multipart_upload(**bucket.target(canary), UploadId=canary)
    except OSError as error:
        yield Finding(storage.name, "uploads", WARN, f"uploads that nobody finished stay: {error.strerror or error}", todo)
        return
    can = "listed and aborted" if storage.mode == "apply" else "listed"
    yield Finding(storage.name, "uploads", OK, f"uploads that nobody finished can be {can}")


def _traits(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Says by canaries what the server can do."""
    try:
        traits = probe(bucket)
    except OSError as error:
        who = "who applies (`s3.apply_profile`, `s3.apply_role_arn`)"
        yield _refused(storage, f"canaries below {bucket.address(RESERVED_PREFIX)} cannot be written and removed by {who}", error, "traits")
        return
    compares = {"none": "does not compare as it deletes", "one": "compares as it deletes one object", "batch": "compares as it deletes"}
    if not traits.create_if_absent and traits.versions:
        # `lease` keeps a lease single by its versions.
        found = f"this server ignores If-None-Match in bucket {bucket.name}; its versions tell which of two plans was first"
        yield Finding(storage.name, "traits", WARN, found, "Plans can be applied. Histories of Icechunk here cannot be edited.")
    elif not traits.create_if_absent:
        found = "two writers can create the same object: this server ignores If-None-Match"
        yield Finding(storage.name, "traits", FAIL, found, "Nothing can be applied here: no lease keeps two plans apart.")
    elif not traits.replace_if_match:
        found = "an object cannot be replaced on a condition: this server does not honour If-Match"
        yield Finding(storage.name, "traits", WARN, found, "Histories of Icechunk repositories here cannot be edited.")
    else:
        found = f"canary objects were created once and replaced on a condition; the server {compares[traits.delete_if_match]}"
        yield Finding(storage.name, "traits", OK, found)
