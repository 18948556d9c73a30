"""Checks that `doctor` makes for a bucket.

Can it be reached, listed and read, does the quarantine mode suit it, what else deletes or retains
its objects, and is the lease held.
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
from gc_assets.core.causes import cause_of
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

# The first request: it should not take minutes to find that a server does not exist.
_ATTEMPTS: Final = 2
# Top-level prefixes that are listed one by one, because a policy may refuse a single one.
_PREFIXES: Final = 50
# Error codes for a missing or unsupported setting.
_UNSET: Final = frozenset(
    {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "ObjectLockConfigurationNotFound", "NotImplemented"}
)
_EXPIRATIONS: Final = ("Expiration", "NoncurrentVersionExpiration")
_COSTS: Final = {
    "versioned": "a delete marker hides each object; its version incurs costs until it is purged",
    "trash": "each object is copied under .gc-assets/ and deleted; one COPY per file, and the copy incurs costs, minimum durations twice",
    "deferred": "nothing moves, readers still find each object, and it incurs costs until it is purged",
}


def examine(bucket: Bucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """Yield the findings of `Store.examine`.

    Canaries are written only in a storage of mode `apply`.
    """
    for look in (_check_reachable, _check_listable):
        findings = list(run_check(storage.name, "listable", lambda look=look: look(bucket, storage)))
        yield from findings
        if any(finding.verdict == FAIL for finding in findings):
            return
    yield from run_check(storage.name, "quarantine", lambda: _check_quarantine(bucket, storage))
    yield from run_check(storage.name, "lifecycle", lambda: _check_lifecycle(bucket, storage))
    yield from run_check(storage.name, "lock", lambda: _check_lock(bucket, storage))
    if storage.mode == "apply":
        yield from run_check(storage.name, "traits", lambda: _check_traits(bucket, storage))
        yield from run_check(storage.name, "deletable", lambda: _check_deletable(bucket, storage))
    if storage.abort_uploads:
        yield from run_check(storage.name, "uploads", lambda: _check_uploads(bucket, storage))
    yield from run_check(storage.name, "lease", lambda: check_lease(storage.name, lambda: read_holder(bucket), now))


def _check_reachable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """List one key, and compare the time of the answer with this machine's."""
    try:
        with translate_errors(f"s3://{bucket.name}/{bucket.prefix}"):
            params = {"Bucket": bucket.name, "Prefix": bucket.prefix, "MaxKeys": 1, **payer_params(bucket.settings)}
            answer = get_client(bucket.settings, "read", _ATTEMPTS).list_objects_v2(**params)
    except OSError as error:
        code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        if code.isdigit():  # an HTTP status without an S3 error code
            found = f"{storage.location} cannot be listed: the answer has HTTP status {code} and no S3 error, expected a list of keys"
            yield Finding(storage.name, "listable", FAIL, found, "Check `s3.endpoint`: it may be another kind of server.")
        else:
            yield _refusal(storage, f"{storage.location} cannot be listed", error)
        return
    server_date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not server_date:
        found = f"the answers of the server for {storage.location} have no Date header, so its clock cannot be compared"
        yield Finding(storage.name, "clock", WARN, found, "Make sure that its clock is correct: the grace period uses its times.")
        return
    skew = parsedate_to_datetime(server_date) - datetime.now(UTC).replace(microsecond=0)
    found = f"the server's clock differs by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= MAX_SKEW:
        yield Finding(storage.name, "clock", OK, found)
    else:
        found += f" ({'ahead of' if skew.total_seconds() > 0 else 'behind'} this machine's), expected at most {format_duration(MAX_SKEW)}"
        yield Finding(storage.name, "clock", WARN, found, "Set the clocks: the difference shortens the grace period.")


def _refusal(storage: StorageConfig, problem: str, error: OSError, check: str = "listable") -> Finding:
    found = f"{problem}: {error.strerror or error}"
    return Finding(storage.name, check, FAIL, found, "Fix the reported cause, then run doctor again.", cause_of(error))


def _check_listable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """List the storage and its first prefixes, and read an object of each.

    A policy may refuse any one of them.
    """
    try:
        page = next(pages.list_objects(bucket.settings, bucket.name, bucket.prefix))
    except OSError as error:
        yield _refusal(storage, f"{storage.location} cannot be listed", error)
        return
    more = "at least " if len(page.keys) == pages.PAGE_KEYS else ""
    found = f"{storage.location} has {more}{len(page.keys):,} objects"
    try:
        prefixes = next(pages.list_objects(bucket.settings, bucket.name, bucket.prefix, delimiter="/")).common
        first = [_find_first_key(bucket, prefix.decode()) for prefix in prefixes[:_PREFIXES]]
    except UnicodeDecodeError:  # the listing of a run reports such a key
        first = []
    except OSError as error:
        yield _refusal(storage, f"{storage.location} can be listed, but {error.filename} cannot", error)
        return
    for key in [*(key for key in first if key is not None), *(_decode_keys(page.keys[:1]))]:
        try:
            bucket.head(key.removeprefix(bucket.prefix), role="read")
        except OSError as error:
            yield _refusal(storage, f"{storage.location} can be listed, but s3://{bucket.name}/{key} cannot be read", error, "readable")
            return
    yield Finding(storage.name, "listable", OK, found)


def _find_first_key(bucket: Bucket, prefix: str) -> str | None:
    keys = next(pages.list_objects(bucket.settings, bucket.name, prefix)).keys
    return next(_decode_keys(keys[:1]), None)


def _decode_keys(keys: list[bytes]) -> Iterator[str]:
    for key in keys:
        try:
            yield key.decode()
        except UnicodeDecodeError:
            return


def _check_quarantine(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Yield whether the mode suits the bucket, what it costs, and which other mode would suit."""
    status, days = bucket.versioning("read").status, f"{storage.quarantine_days} days"
    refusal = FAIL if storage.mode == "apply" else WARN
    if storage.quarantine == "versioned" and status != "Enabled":
        reason = "has versioning suspended" if status else "keeps no versions"
        found = f"bucket {bucket.name} {reason}, so a delete is permanent; `versioned` needs versioning enabled"
        yield Finding(storage.name, "quarantine", refusal, found, f"Enable versioning, or use `quarantine: trash`: {_COSTS['trash']}.")
    elif storage.quarantine == "trash" and status == "Enabled":
        found = f"bucket {bucket.name} keeps versions, so a copy in the trash frees nothing"
        yield Finding(storage.name, "quarantine", refusal, found, f"Use `quarantine: versioned`: {_COSTS['versioned']}.")
    elif status == "Suspended":
        found = f"bucket {bucket.name} has versioning suspended: older versions still incur costs, and no purge deletes them"
        yield Finding(
            storage.name, "quarantine", WARN, found, "Enable it and use `versioned`, or delete the old versions with a lifecycle rule."
        )
    else:
        other = {"deferred": "versioned" if status else "trash"}.get(storage.quarantine, "deferred")
        found = f"{storage.quarantine}: {_COSTS[storage.quarantine]}; purged after {days}; mode {storage.mode}. "
        found += f"It suits this bucket, which keeps {'' if status else 'no '}versions. The alternative is {other}: {_COSTS[other]}"
        yield Finding(storage.name, "quarantine", OK, found)


def _read_setting(bucket: Bucket, subject: str, check: str, operation: str, unset: str) -> Iterator[Finding | dict[str, Any]]:
    """Yield one setting of a bucket, or a finding that it is missing or cannot be read."""
    try:
        with translate_errors(f"s3://{bucket.name}"):
            yield getattr(bucket.client("read"), operation)(Bucket=bucket.name)
    except OSError as error:
        code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        if code in _UNSET:
            yield Finding(subject, check, OK, unset)
        else:
            found = f"{operation} was refused for bucket {bucket.name}: {error.strerror or error}"
            yield Finding(subject, check, WARN, found, "Allow it for the reading role, or check the bucket manually.")


def _check_lifecycle(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warn of lifecycle rules of the bucket that may delete quarantined objects.

    A rule that does so before a purge is due is a failure in a storage of mode `apply`.
    """
    for answer in _read_setting(
        bucket, storage.name, "lifecycle", "get_bucket_lifecycle_configuration", "the bucket has no lifecycle rules"
    ):
        if isinstance(answer, Finding):
            yield answer
            continue
        rules = list(_find_deleting_rules(bucket, answer))
        for rule, description in rules:
            soonest = min((days for name in _EXPIRATIONS if (days := _read_days(rule, name)) is not None), default=0)
            verdict = FAIL if storage.mode == "apply" and soonest < storage.quarantine_days else WARN
            action = f"Extend it beyond {storage.quarantine_days} days, or exclude {bucket.prefix}{RESERVED_PREFIX} and the lakes."
            yield Finding(storage.name, "lifecycle", verdict, f"{description}, including quarantined objects", action)
        if not rules:
            yield Finding(storage.name, "lifecycle", OK, "no lifecycle rule of the bucket deletes objects of the storage")


def examine_state(bucket: Bucket) -> Iterator[Finding]:
    """Yield the findings of `StoreKind.examine_state`.

    The state contains plans, approvals and the record of the quarantine.
    """
    for answer in _read_setting(bucket, "state", "lifecycle", "get_bucket_lifecycle_configuration", "its bucket has no lifecycle rules"):
        if isinstance(answer, Finding):
            yield answer
            continue
        rules = list(_find_deleting_rules(bucket, answer))
        for _, description in rules:
            yield Finding("state", "lifecycle", FAIL, f"{description}, including the state", f"Exclude {bucket.prefix} from the rule.")
        if not rules:
            yield Finding("state", "lifecycle", OK, "no lifecycle rule of its bucket deletes objects of the state")


def _find_deleting_rules(bucket: Bucket, answer: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the enabled rules that delete objects of the storage, each with a description."""
    for rule in answer.get("Rules", []):
        prefix = _rule_prefix(rule)
        names = [name for name in _EXPIRATIONS if _describe_end(rule, name)]
        if rule.get("Status") == "Enabled" and names and (prefix.startswith(bucket.prefix) or bucket.prefix.startswith(prefix)):
            ends = " and ".join(f"{name} after {_describe_end(rule, name)}" for name in names)
            yield rule, f"rule {rule.get('ID', '')!r} of bucket {bucket.name} deletes objects under {prefix!r} by {ends}"


def _rule_prefix(rule: dict[str, Any]) -> str:
    filters = rule.get("Filter") or {}
    return str(filters.get("Prefix") or filters.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _describe_end(rule: dict[str, Any], name: str) -> str:
    """Return when a rule expires objects. Empty if it only removes expired delete markers."""
    days = _read_days(rule, name)
    setting = rule.get(name, {})
    return f"{days} days" if days is not None else f"{setting['Date']:%F}" if "Date" in setting else ""


def _read_days(rule: dict[str, Any], name: str) -> int | None:
    setting = rule.get(name, {})
    return setting.get("Days", setting.get("NoncurrentDays"))


def _check_lock(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warn of Object Lock: locked objects cannot be purged."""
    for answer in _read_setting(bucket, storage.name, "lock", "get_object_lock_configuration", "the bucket has no Object Lock"):
        if isinstance(answer, Finding):
            yield answer
            continue
        retention = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
        period = f"{retention['Days']} days" if "Days" in retention else f"{retention['Years']} years" if "Years" in retention else ""
        effect = (
            f"new objects are kept for {period} ({retention.get('Mode')})"
            if period
            else "no default retention; single objects may be locked"
        )
        found = f"bucket {bucket.name} has Object Lock: {effect}. A purge of locked objects is `denied`, and they still incur costs"
        action = "No data is lost. Plan again when the retention has ended; release legal holds manually."
        yield Finding(storage.name, "lock", WARN, found, action)


def _check_deletable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Delete a key that does not exist.

    Without versions this changes nothing and needs the permission.
    """
    if bucket.versioning("change").has_versions:
        return
    try:
        bucket.remove(f"gc-assets-canary-{secrets.token_hex(8)}")
    except OSError as error:
        problem = f"the changing role (`s3.apply_profile`, `s3.apply_role_arn`) cannot delete under {storage.location}"
        yield _refusal(storage, problem, error, "deletable")
        return
    yield Finding(storage.name, "deletable", OK, f"the changing role may delete under {storage.location}")


def _check_uploads(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warn if unfinished uploads cannot be listed, or the changing role cannot abort them.

    Aborts an upload that does not exist.
    """
    action = (
        "Grant the permissions for uploads in docs/s3-reference.md, or set `abort_uploads: false` and abort them with a lifecycle rule."
    )
    try:
        params = {"Bucket": bucket.name, "Prefix": bucket.prefix, "MaxUploads": 1}
        with translate_errors(bucket.location):
            bucket.client("read").list_multipart_uploads(**params)
        if storage.mode == "apply":
            with suppress(FileNotFoundError), translate_errors(bucket.location):
                canary = f"gc-assets-canary-{secrets.token_hex(8)}"
                bucket.client("change").list_multipart_uploads(**params)
                bucket.client("change").abort_multipart_upload(**bucket.target(canary), UploadId=canary)
    except OSError as error:
        yield Finding(storage.name, "uploads", WARN, f"unfinished uploads cannot be aborted: {error.strerror or error}", action)
        return
    actions = "listed and aborted" if storage.mode == "apply" else "listed"
    yield Finding(storage.name, "uploads", OK, f"unfinished uploads can be {actions}")


def _check_traits(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Test the server with canary objects."""
    try:
        traits = probe(bucket)
    except OSError as error:
        role = "the changing role (`s3.apply_profile`, `s3.apply_role_arn`)"
        yield _refusal(storage, f"{role} cannot write and remove canaries under {bucket.address(RESERVED_PREFIX)}", error, "traits")
        return
    compares = {"none": "ignores etags in deletes", "one": "compares the etag in single deletes", "batch": "compares etags in all deletes"}
    if not traits.create_if_absent and traits.versions:
        # The lease uses versions to detect a second writer.
        found = f"this server ignores If-None-Match in bucket {bucket.name}; its versions show which of two plans was first"
        yield Finding(
            storage.name, "traits", WARN, found, "Plans can be applied, but the history of Icechunk repositories in it cannot be edited."
        )
    elif not traits.create_if_absent:
        found = "two writers can create the same object: this server ignores If-None-Match"
        yield Finding(storage.name, "traits", FAIL, found, "Plans cannot be applied: without a lease, two plans could run concurrently.")
    elif not traits.replace_if_match:
        found = "an object cannot be replaced conditionally: this server ignores If-Match"
        yield Finding(storage.name, "traits", WARN, found, "The history of Icechunk repositories in it cannot be edited.")
    else:
        found = f"canary objects were created once and replaced conditionally; the server {compares[traits.delete_if_match]}"
        yield Finding(storage.name, "traits", OK, found)
