"""Findings of `doctor` about a bucket of Google Cloud Storage."""

from __future__ import annotations

from typing import Any

import pytest

from gc_assets.buckets.protocol import Role
from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import Finding
from gc_assets.gcs.bucket import GcsBucket
from gc_assets.stores.store import open_store
from tests.stores.builders import NOW
from tests.stores.gcs_bench import GcsBench, open_gcs_bench


def examine(bench: GcsBench, **settings: Any) -> dict[str, Finding]:
    storage = {"name": "s", "location": bench.store.location, "quarantine": bench.mode, **settings}
    return {finding.check: finding for finding in bench.store.examine(StorageConfig.model_validate(storage), NOW)}


def test_soft_deleted_objects_are_counted() -> None:
    with open_gcs_bench(softDeletePolicy={"retentionDurationSeconds": "604800"}) as bench:
        for key in ("a", "b", "stays"):
            bench.put(key, b"12345")
        for key in ("a", "b"):
            bench.remove(key)
        found = examine(bench)["soft_delete"]
        assert found.verdict == "ok"
        assert "keeps each deleted object for 7d" in found.found
        assert "again to the copy after its purge" in found.found
        assert "The storage has 2 of them, 10 B" in found.found


@pytest.mark.parametrize("mode, verdict", [("plan", "warn"), ("apply", "fail")])
def test_lifecycle_rule_that_deletes_too_early_is_found(mode: str, verdict: str) -> None:
    early = {"action": {"type": "Delete"}, "condition": {"age": 3, "matchesPrefix": ["lake/"]}}
    other = {"action": {"type": "Delete"}, "condition": {"age": 1, "matchesPrefix": ["other/"]}}
    cheaper = {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 1}}
    with open_gcs_bench(lifecycle={"rule": [early, other, cheaper]}) as bench:
        found = examine(bench, mode=mode)["lifecycle"]
        assert (found.verdict, "under 'lake/' (age 3)" in found.found, bool(found.todo)) == (verdict, True, True)


def test_lifecycle_rule_by_age_fails_because_quarantine_keeps_object_age() -> None:
    """A version in quarantine keeps the age of its object, and a rule by age may delete it the next day."""
    by_age = {"action": {"type": "Delete"}, "condition": {"age": 365, "isLive": False}}
    by_quarantine = {"action": {"type": "Delete"}, "condition": {"daysSinceNoncurrentTime": 365}}
    for rule, verdict in ((by_age, "fail"), (by_quarantine, "warn")):
        with open_gcs_bench(versioned=True, lifecycle={"rule": [rule]}) as bench:
            assert examine(bench, quarantine="versioned", mode="apply")["lifecycle"].verdict == verdict


def test_retention_policy_and_default_hold_are_reported() -> None:
    settings = {"retentionPolicy": {"retentionPeriod": "86400"}, "defaultEventBasedHold": True}
    with open_gcs_bench(**settings) as bench:
        found = examine(bench)["lock"]
        assert found.verdict == "warn"
        assert "a retention policy of 1d and an event-based hold on each new object" in found.found


def test_bucket_settings_are_read_once_for_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    read, roles = GcsBucket.resource, list[str]()

    def record(self: GcsBucket, role: Role) -> Any:
        roles.append(role)
        return read(self, role)

    monkeypatch.setattr(GcsBucket, "resource", record)
    with open_gcs_bench() as bench:
        assert {"soft_delete", "lifecycle", "lock"} <= examine(bench).keys()
        # And once for the versioning.
        assert roles == ["read", "read"]


def test_quarantine_mode_unsuitable_for_the_bucket_is_reported() -> None:
    with open_gcs_bench() as bench:
        assert examine(bench, quarantine="versioned", mode="apply")["quarantine"].verdict == "fail"
    with open_gcs_bench(versioned=True) as bench:
        assert examine(bench, quarantine="trash", mode="apply")["quarantine"].verdict == "fail"
        assert examine(bench, mode="apply")["generations"].verdict == "ok"


def test_missing_bucket_is_reported() -> None:
    with open_gcs_bench() as bench:
        missing = {"name": "s", "location": f"gs://no-{bench.bucket}/"}
        store = open_store(missing["location"], bench.connections)
        (found,) = [item for item in store.examine(StorageConfig.model_validate(missing), NOW) if item.check == "listable"]
        assert found.verdict == "fail"
        assert "there is no such bucket" in found.found
