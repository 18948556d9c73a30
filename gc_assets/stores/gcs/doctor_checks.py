"""Checks of `gc-assets doctor` that are specific to Google Cloud Storage.

They concern soft delete, lifecycle rules, retention, and whether deletes compare generations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.units import format_duration
from gc_assets.gcs import pages
from gc_assets.gcs.bucket import GcsBucket
from gc_assets.stores.conditional.doctor_checks import (
    StoreTerms,
    examine_bucket,
    report_lifecycle_rules,
    report_soft_delete,
    report_state_rules,
)
from gc_assets.stores.gcs.conditions import find_obstacle

# The conditions of lifecycle rules that count days. `age` counts from the creation of an object. An
# object in the trash was created when it was copied there.
_AGES: Final = ("age", "daysSinceNoncurrentTime", "daysSinceCustomTime")
_NONCURRENT: Final = ("daysSinceNoncurrentTime",)
_TERMS: Final = StoreTerms(
    {
        "versioned": "each object becomes noncurrent; it incurs costs until it is purged",
        "trash": "each object is copied under .gc-assets/ and deleted; one COPY per file, and minimum storage durations apply twice",
        "deferred": "objects are not moved; readers still find them, and they incur costs until they are purged",
    },
    "the changing role (`gcs.apply_service_account`)",
)
_ROLES: Final = "Grant storage.buckets.get (docs/gcs.md), or check the bucket manually."


def examine(bucket: GcsBucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """Check a bucket for `gc-assets doctor` (see `Store.examine`)."""
    settings = {"soft_delete": _check_soft_delete, "lifecycle": _check_lifecycle, "lock": _check_retention}
    read_settings = functools.cache(partial(_read_settings, bucket))
    settings_checks = [(name, partial(_check_setting, bucket, read_settings, name, check)) for name, check in settings.items()]
    further_checks = [("generations", partial(_check_generations, bucket))] if storage.mode == "apply" else []
    yield from examine_bucket(bucket, storage, now, _TERMS, settings_checks, further_checks)


def _read_settings(bucket: GcsBucket) -> Any:
    """Read the settings of the bucket. If that fails, return the error."""
    try:
        return bucket.resource("read")
    except OSError as error:
        return error


def _check_setting(bucket: GcsBucket, read_settings: Callable[[], Any], name: str, check: Any, storage: StorageConfig) -> Iterator[Finding]:
    resource = read_settings()
    if isinstance(resource, OSError):
        found = f"the settings of bucket {bucket.name} cannot be read: {resource.strerror or resource}"
        yield Finding(storage.name, name, WARN, found, _ROLES)
    else:
        yield from check(bucket, resource, storage)


def _check_generations(bucket: GcsBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Check with a canary object that deletes compare the generation."""
    obstacle = find_obstacle(bucket)
    if obstacle is None:
        yield Finding(storage.name, "generations", OK, "the server compares the generation in deletes")
    else:
        yield Finding(storage.name, "generations", FAIL, obstacle, "Google Cloud Storage compares generations. Check `gcs.endpoint`.")


def _check_soft_delete(bucket: GcsBucket, resource: Any, storage: StorageConfig) -> Iterator[Finding]:
    """Report how many soft-deleted objects there are, and how long they still incur costs."""
    seconds = int(resource.soft_delete_policy.retention_duration_seconds or 0)
    if not seconds:
        yield Finding(storage.name, "soft_delete", OK, f"bucket {resource.name} has no soft delete, so a purge is final")
        return
    kept = format_duration(timedelta(seconds=seconds))
    found = f"bucket {resource.name} keeps each deleted object for {kept}: it can be restored, and incurs costs until then"
    yield report_soft_delete(storage, found, partial(pages.count_soft_deleted, bucket.settings, bucket.name, bucket.prefix))


def _check_lifecycle(bucket: GcsBucket, resource: Any, storage: StorageConfig) -> Iterator[Finding]:
    conditions = _NONCURRENT if storage.quarantine == "versioned" else _AGES
    yield from report_lifecycle_rules(bucket, storage, list(_find_deleting_rules(bucket, resource, conditions)))


def examine_state(bucket: GcsBucket) -> Iterator[Finding]:
    """Check the lifecycle rules of a bucket with a state."""
    try:
        rules = list(_find_deleting_rules(bucket, bucket.resource("read")))
    except OSError as error:
        found = f"the lifecycle rules of bucket {bucket.name} cannot be read: {error.strerror or error}"
        yield Finding("state", "lifecycle", WARN, found, _ROLES)
        return
    yield from report_state_rules(bucket, rules)


def _find_deleting_rules(bucket: GcsBucket, resource: Any, conditions: Sequence[str] = _AGES) -> Iterator[tuple[int, str]]:
    """Find lifecycle rules that delete objects of the storage.

    Args:
        bucket: The storage.
        resource: The settings of the bucket.
        conditions: Names of the conditions in a rule, such as an age, that can match an object.

    Yields:
        For each rule, the number of days after which it may delete a quarantined object, and a
        description.
    """
    for rule in resource.lifecycle_rules:
        condition: Mapping[str, Any] = rule.get("condition", {})
        prefixes = condition.get("matchesPrefix") or [""]
        affected = [prefix for prefix in prefixes if prefix.startswith(bucket.prefix) or bucket.prefix.startswith(prefix)]
        if rule.get("action", {}).get("type") != "Delete" or not affected:
            continue
        ages = [int(condition[name]) for name in conditions if name in condition]
        terms = ", ".join(f"{name} {value}" for name, value in sorted(condition.items()) if name != "matchesPrefix")
        # A rule without an age, for example with numNewerVersions, may delete objects immediately.
        yield max(ages, default=0), f"a lifecycle rule of bucket {bucket.name} deletes objects under {affected[0]!r} ({terms or 'always'})"


def _check_retention(bucket: GcsBucket, resource: Any, storage: StorageConfig) -> Iterator[Finding]:
    """Warn about retention settings that would prevent a plan from deleting objects."""
    del bucket
    kept = list[str]()
    if resource.retention_period:
        locked = "locked " if resource.retention_policy_locked else ""
        kept.append(f"a {locked}retention policy of {format_duration(timedelta(seconds=resource.retention_period))}")
    if resource.default_event_based_hold:
        kept.append("an event-based hold on each new object")
    if resource.object_retention_mode:
        kept.append("retention configurations of single objects")
    if not kept:
        yield Finding(storage.name, "lock", OK, "the bucket has no retention policy and no default hold")
        return
    found = f"bucket {resource.name} has {' and '.join(kept)}. Deleting a protected object is `denied`, and it still incurs costs"
    action = "No data is lost. Plan again when the retention has ended; release holds manually."
    yield Finding(storage.name, "lock", WARN, found, action)
