"""Checks of `gc-assets doctor` that are specific to Azure.

They concern soft delete, retention, lifecycle rules and the kind of namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Final

from gc_assets.azure.bucket import AzureBucket
from gc_assets.azure.client import get_service, translate_errors
from gc_assets.azure.pages import count_soft_deleted
from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.units import count_of
from gc_assets.stores.azure.conditions import HIERARCHICAL, find_obstacle
from gc_assets.stores.conditional.doctor_checks import StoreTerms, examine_bucket, report_soft_delete
from gc_assets.stores.protocol import RESERVED_PREFIX

_TERMS: Final = StoreTerms(
    {
        "versioned": "each blob becomes a previous version; it incurs costs until it is purged",
        "trash": "each blob is copied under .gc-assets/ and deleted; one COPY per file, and early deletion fees of cool tiers apply twice",
        "deferred": "blobs are not moved; readers still find them, and they incur costs until they are purged",
    },
    "the changing role (`azure.apply_client_id`, `azure.apply_secret_variable`)",
)


def examine(bucket: AzureBucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """Check a container for `gc-assets doctor` (see `Store.examine`)."""
    checks = {"namespace": _check_namespace, "soft_delete": _check_soft_delete, "lifecycle": _check_lifecycle, "lock": _check_retention}
    settings_checks = [(name, partial(check, bucket)) for name, check in checks.items()]
    yield from examine_bucket(bucket, storage, now, _TERMS, settings_checks)


def _check_namespace(bucket: AzureBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Check that the account has a flat namespace and respects conditions in deletes."""
    if storage.mode == "apply":
        obstacle = find_obstacle(bucket)
        if obstacle is not None:
            yield Finding(storage.name, "namespace", FAIL, obstacle, "Plans cannot be applied in this account.")
            return
    try:
        with translate_errors(bucket.location):
            is_hierarchical = bucket.container("read").get_account_information().get("is_hns_enabled")
    except OSError as error:
        found = f"it is unknown if the account has a hierarchical namespace: {error.strerror or error}"
        if storage.mode == "apply":
            yield Finding(storage.name, "namespace", OK, "canary objects show no hierarchical namespace")
        else:
            yield Finding(storage.name, "namespace", WARN, found, "An apply tests it with a canary object.")
        return
    if is_hierarchical:
        yield Finding(
            storage.name, "namespace", FAIL if storage.mode == "apply" else WARN, HIERARCHICAL, "Use `mode: plan` in this account."
        )
    else:
        yield Finding(storage.name, "namespace", OK, "the account has a flat namespace")


def _check_soft_delete(bucket: AzureBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Report how long deleted blobs can be undeleted, during which time they still incur costs."""
    host = bucket.name.partition("@")[2]
    try:
        with translate_errors(bucket.location):
            policy = get_service(bucket.settings, host, "read").get_service_properties()["delete_retention_policy"]
    except OSError as error:
        found = f"the soft delete of {host} cannot be read: {error.strerror or error}"
        yield Finding(storage.name, "soft_delete", WARN, found, "Check it in the portal, or grant `blobServices/read` (docs/azure.md).")
        return
    if not policy.enabled:
        yield Finding(storage.name, "soft_delete", OK, f"account {host} has no soft delete, so a purge is final")
        return
    found = f"account {host} keeps each deleted blob for {count_of(policy.days, 'day')}: it can be undeleted, and incurs costs until then"
    yield report_soft_delete(storage, found, partial(count_soft_deleted, bucket.container("read"), bucket.location, bucket.prefix))


def _check_lifecycle(bucket: AzureBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Remind the user to check lifecycle rules, because only the management API can read them."""
    end = f"{bucket.prefix}{RESERVED_PREFIX}"
    found = f"lifecycle rules of the account are not readable here. Make sure that none deletes blobs under {end}"
    yield Finding(storage.name, "lifecycle", OK, found)


def _check_retention(bucket: AzureBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warn about retention policies that would prevent a plan from deleting blobs."""
    try:
        with translate_errors(bucket.location):
            found = bucket.container("read").get_container_properties()
    except OSError as error:
        text = f"the properties of container {bucket.name} cannot be read: {error.strerror or error}"
        yield Finding(storage.name, "lock", WARN, text, "Check its immutability policies and legal holds in the portal.")
        return
    kept = ["an immutability policy"] if found.has_immutability_policy else []
    kept += ["a legal hold"] if found.has_legal_hold else []
    if not kept:
        yield Finding(storage.name, "lock", OK, "the container has no immutability policy and no legal hold")
        return
    text = f"container {bucket.name} has {' and '.join(kept)}. Deleting a protected blob is `denied`, and it still incurs costs"
    yield Finding(storage.name, "lock", WARN, text, "No data is lost. Plan again when the policy has ended; remove legal holds manually.")


def examine_state(bucket: AzureBucket) -> Iterator[Finding]:
    """Check a state in this container (see `StoreKind.examine_state`)."""
    found = f"lifecycle rules of the account are not readable here. Make sure that none deletes blobs under {bucket.location}"
    yield Finding("state", "lifecycle", OK, found)
