"""Checks of `gc-assets doctor` that are specific to S3.

They find out whether settings of the bucket delete or retain objects, and whether unfinished
uploads can be aborted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.units import count_of
from gc_assets.s3.bucket import S3Bucket
from gc_assets.s3.client import error_code, translate_errors
from gc_assets.stores.conditional.doctor_checks import StoreTerms, examine_bucket, report_lifecycle_rules, report_state_rules

# With these error codes, servers report that a setting is missing or not supported.
_UNSET: Final = frozenset(
    {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "ObjectLockConfigurationNotFound", "NotImplemented"}
)
_EXPIRATIONS: Final = ("Expiration", "NoncurrentVersionExpiration")
_COSTS: Final = {
    "versioned": "a delete marker hides each object; its version incurs costs until it is purged",
    "trash": "each object is copied under .gc-assets/ and deleted; one COPY per file, copies incur costs, minimum durations apply twice",
    "deferred": "objects are not moved; readers still find them, and they incur costs until they are purged",
}


def examine(bucket: S3Bucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """Check an S3 bucket for `gc-assets doctor` (see `Store.examine`)."""
    uploads = [("uploads", partial(_check_uploads, bucket))] if storage.abort_uploads else []
    settings = [("lifecycle", partial(_check_lifecycle, bucket)), ("lock", partial(_check_lock, bucket))]
    return examine_bucket(bucket, storage, now, _TERMS, settings, uploads)


def _find_wrong_server(storage: StorageConfig, error: OSError) -> Finding | None:
    """Explain an error with an HTTP status but no S3 error code, which no S3 server would send."""
    code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
    if not code.isdigit():
        return None
    found = f"{storage.location} cannot be listed: the answer has HTTP status {code} and no S3 error, expected a list of keys"
    return Finding(storage.name, "listable", FAIL, found, "Check `s3.endpoint`: it may be another kind of server.")


_TERMS: Final = StoreTerms(_COSTS, "the changing role (`s3.apply_profile`, `s3.apply_role_arn`)", _find_wrong_server)


def _read_setting(bucket: S3Bucket, subject: str, check: str, operation: str, unset: str) -> Iterator[Finding | dict[str, Any]]:
    """Read a setting of the bucket. If the setting is missing or unreadable, yield a finding."""
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


def _check_lifecycle(bucket: S3Bucket, storage: StorageConfig) -> Iterator[Finding]:
    for answer in _read_setting(
        bucket, storage.name, "lifecycle", "get_bucket_lifecycle_configuration", "the bucket has no lifecycle rules"
    ):
        if isinstance(answer, Finding):
            yield answer
        else:
            yield from report_lifecycle_rules(bucket, storage, list(_find_deleting_rules(bucket, answer)))


def examine_state(bucket: S3Bucket) -> Iterator[Finding]:
    """Check the lifecycle rules of a bucket with a state."""
    for answer in _read_setting(bucket, "state", "lifecycle", "get_bucket_lifecycle_configuration", "its bucket has no lifecycle rules"):
        if isinstance(answer, Finding):
            yield answer
        else:
            yield from report_state_rules(bucket, list(_find_deleting_rules(bucket, answer)))


def _find_deleting_rules(bucket: S3Bucket, answer: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Find enabled lifecycle rules that delete objects of the storage.

    Yields:
        For each rule, the smallest number of days after which it deletes an object (0 for a rule
        with a date), and a description.
    """
    for rule in answer.get("Rules", []):
        prefix = _rule_prefix(rule)
        names = [name for name in _EXPIRATIONS if _describe_end(rule, name)]
        if rule.get("Status") == "Enabled" and names and (prefix.startswith(bucket.prefix) or bucket.prefix.startswith(prefix)):
            ends = " and ".join(f"{name} after {_describe_end(rule, name)}" for name in names)
            soonest = min((days for name in names if (days := _read_days(rule, name)) is not None), default=0)
            yield soonest, f"rule {rule.get('ID', '')!r} of bucket {bucket.name} deletes objects under {prefix!r} by {ends}"


def _rule_prefix(rule: dict[str, Any]) -> str:
    filters = rule.get("Filter") or {}
    return str(filters.get("Prefix") or filters.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _describe_end(rule: dict[str, Any], name: str) -> str:
    """Describe when a lifecycle rule expires objects, or return "" for delete markers only."""
    days = _read_days(rule, name)
    setting = rule.get(name, {})
    return count_of(days, "day") if days is not None else f"{setting['Date']:%F}" if "Date" in setting else ""


def _read_days(rule: dict[str, Any], name: str) -> int | None:
    setting = rule.get(name, {})
    return setting.get("Days", setting.get("NoncurrentDays"))


def _check_lock(bucket: S3Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warn about Object Lock, because locked objects cannot be purged."""
    for answer in _read_setting(bucket, storage.name, "lock", "get_object_lock_configuration", "the bucket has no Object Lock"):
        if isinstance(answer, Finding):
            yield answer
            continue
        retention = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
        period = (
            count_of(retention["Days"], "day")
            if "Days" in retention
            else count_of(retention["Years"], "year")
            if "Years" in retention
            else ""
        )
        effect = (
            f"new objects are kept for {period} ({retention.get('Mode')})"
            if period
            else "no default retention; single objects may be locked"
        )
        found = f"bucket {bucket.name} has Object Lock: {effect}. A purge of locked objects is `denied`, and they still incur costs"
        action = "No data is lost. Plan again when the retention has ended; release legal holds manually."
        yield Finding(storage.name, "lock", WARN, found, action)


def _check_uploads(bucket: S3Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Check that unfinished uploads can be listed and, in `apply` mode, aborted.

    The permission to abort is tested with an upload that does not exist.
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
