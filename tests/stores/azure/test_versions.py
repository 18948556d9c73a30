"""Accounts with versions. Azurite has none, so a proxy puts their ids into its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from gc_assets.azure.bucket import AzureBucket
from gc_assets.stores.azure.store import AzureStore
from tests.azure.answers import change_answers, show_times, show_versions
from tests.azure.servers import shared_server
from tests.s3.proxy import run_proxy
from tests.stores.azure_bench import AzureBench, open_azure_bench
from tests.stores.builders import PLAN
from tests.stores.contract import QuarantineBench, inventory

FIRST, SECOND = "2026-11-26T06:00:00Z", "2026-11-26T07:00:00Z"
EARLIER = datetime(2026, 11, 26, 5, tzinfo=UTC)


@contextmanager
def open_versions(
    ids: Mapping[str, str], *, writes_versions: bool = True, times: Mapping[str, datetime] | None = None
) -> Iterator[AzureBench]:
    """Return a storage in an account whose blobs have these version ids. Keys of `times` are relative."""
    shown = dict[str, datetime]()
    rule = change_answers(show_versions(ids, writes_versions=writes_versions), show_times(shown))
    with run_proxy(shared_server(), rule) as proxy, open_azure_bench(server=proxy.server) as bench:
        shown |= {bench.prefix + key: at for key, at in (times or {}).items()}
        yield bench


def bucket_of(bench: AzureBench) -> AzureBucket:
    return cast("AzureStore", bench.store).bucket


def act(bench: AzureBench, key: str) -> tuple[str, str]:
    (result,) = bench.store.quarantine("versioned", PLAN).act([QuarantineBench(bench, "versioned").plan_row(key)])
    return result.verdict, result.error or ""


def test_listing_contains_version_ids_if_versioning_was_enabled_later() -> None:
    with open_versions({"t/b": FIRST}) as bench:
        for key in ("a", "t/b", "t/c"):  # the first listed blob has no version
            bench.put(key, b"x")
        assert {key: row["version_id"] for key, row in inventory(bench.store).items()} == {"a": None, "t/b": FIRST, "t/c": None}


@pytest.mark.parametrize(
    "ids, newest, status",
    [({}, "b", None), ({"b": FIRST}, "b", "Enabled"), ({"a": FIRST, "b": SECOND}, "a", "Enabled"), ({"a": FIRST}, "b", "Suspended")],
)
def test_versioning_status_is_read_from_the_newest_blob(ids: dict[str, str], newest: str, status: str | None) -> None:
    with open_versions(ids, times={newest: EARLIER + timedelta(days=9000)}) as bench:
        for key in ("a", "b"):
            bench.put(key, b"x")
        assert bucket_of(bench).versioning("read").status == status


def test_versioning_status_is_read_from_the_newest_lease() -> None:
    lease = ".gc-assets/lease/000000000001.json"
    with open_versions({lease: FIRST}, times={"a": EARLIER}) as bench:
        bench.put("a", b"x")
        bench.put(lease, b"{}")
        assert bucket_of(bench).versioning("read").status == "Enabled"


@pytest.mark.parametrize("writes_versions", [True, False])
def test_change_role_detects_versioning_with_a_canary_blob(writes_versions: bool) -> None:
    with open_versions({"a": FIRST}, writes_versions=writes_versions) as bench:
        bench.put("a", b"x")
        assert bucket_of(bench).versioning("change").is_on == writes_versions
        assert bench.everything() == {"a"}


def test_blob_from_before_versioning_is_denied_with_reason() -> None:
    """Its delete would keep a version with an id that is not in any record."""
    with open_versions({"b": FIRST}) as bench:
        bench.put("a", b"x")
        bench.put("b", b"x")
        verdict, error = act(bench, "a")
        assert (verdict, "it has no version id" in error) == ("denied", True)
        assert bench.get("a") == b"x"


def test_archived_blob_is_denied_in_an_account_with_versions() -> None:
    with open_versions({"a": FIRST}) as bench:
        bench.put("a", b"x")
        bench.client.get_blob_client(bench.prefix + "a").set_standard_blob_tier("Archive")
        verdict, error = act(bench, "a")
        assert (verdict, "archive tier; move it to another tier" in error) == ("denied", True)
        assert bench.everything() == {"a"}
