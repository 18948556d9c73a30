"""Spellings of addresses on Azure, and what is outside all storages there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gc_assets.core.errors import FormatError
from gc_assets.core.external_addresses import ExternalAddresses
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.paths import AZURE, Location, bucket_and_key
from gc_assets.core.urls import storage_urls, urls_without_account

LAKE = "abfss://lake@acct.dfs.core.windows.net/w h/ü/"
SPELLINGS = [
    LAKE,
    "abfs://lake@acct.dfs.core.windows.net/w h/ü/",
    "ABFSS://lake@Acct.DFS.core.windows.net/w h/ü/",
    "abfss://lake@acct.blob.core.windows.net/w h/ü/",
    "wasbs://lake@acct.blob.core.windows.net/w h/ü/",
    "wasb://lake@acct.blob.core.windows.net/w h/ü/",
    "az://lake@acct.dfs.core.windows.net/w h/ü/",
    "az://lake/w h/ü/",
    "abfs://lake/w h/ü/",
    "azure://lake/w h/ü/",
    "https://acct.blob.core.windows.net/lake/w%20h/%C3%BC/",
    "https://acct.dfs.core.windows.net/lake/w%20h/%c3%bc/",
    "http://acct.blob.core.windows.net:80/lake/w%20h/%C3%BC/",
    "https://acct-secondary.blob.core.windows.net/lake/w%20h/%C3%BC/",
    "https://acct.privatelink.blob.core.windows.net/lake/w%20h/%C3%BC/",
    "http://127.0.0.1:10000/acct/lake/w%20h/%C3%BC/",
]


def resolver(*storages: str, endpoint: str | None = None, account: str | None = None) -> KeyResolver:
    named = [(f"s{number}", location) for number, location in enumerate(storages)]
    urls = [(name, url) for name, location in named for url in storage_urls(location, endpoint)]
    return KeyResolver(named, [*urls, *urls_without_account(named, account)])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_azure_address_form_resolves_to_storage(spelling: str) -> None:
    found = resolver(LAKE, endpoint="http://127.0.0.1:10000/acct")
    names, keys = found.resolve(pa.array([f"{spelling}t/a.parquet", f"{spelling}t/b.parquet", None]))
    assert names.to_pylist() == ["s0", "s0", None]
    assert keys.to_pylist() == ["t/a.parquet", "t/b.parquet", None]
    assert found.translate(f"{spelling}t/a") in {f"{LAKE}t/a", f"{spelling}t/a"}


@pytest.mark.parametrize("spelling", [*SPELLINGS, LAKE.replace("/w h/", "\\w h\\"), SPELLINGS[10].replace("%20h/", "%20h%5C")])
def test_backslash_in_an_azure_address_is_a_slash(spelling: str) -> None:
    found = resolver(LAKE, endpoint="http://127.0.0.1:10000/acct")
    names = [r"t/a.parquet", r"t\b.parquet", r"t/c\d", r"t/e", r"t\f\g", r"\h"]
    assert found.resolve(pa.array([f"{spelling}{name}" for name in names]))[1].to_pylist() == [name.replace("\\", "/") for name in names]
    assert [found.resolve_one(f"{spelling}{name}") for name in names] == [("s0", name.replace("\\", "/")) for name in names]
    with pytest.raises(FormatError, match=r"contains `\.\.`"):
        found.resolve(pa.array([rf"{spelling}t\..\u\a"]))


def test_backslash_in_other_stores_is_part_of_a_name() -> None:
    found = resolver("s3://lake/w/", "gs://lake/w/", "/lake/w/")
    addresses = [r"s3://lake/w/a\b", r"gs://lake/w/a\..\b", r"/lake/w/a\b"]
    assert found.resolve(pa.array(addresses))[1].to_pylist() == [r"a\b", r"a\..\b", r"a\b"]


def test_object_is_read_at_an_address_with_a_backslash() -> None:
    assert bucket_and_key(rf"{LAKE}t\a", AZURE) == ("lake@acct.dfs.core.windows.net", "w h/ü/t/a")


def test_canonical_location_contains_account() -> None:
    assert str(Location.parse("wasbs://c@acct.blob.core.windows.net/p")) == "abfss://c@acct.dfs.core.windows.net/p/"
    assert str(Location.parse("abfs://c@acct.z12.blob.storage.azure.net")) == "abfss://c@acct.z12.dfs.storage.azure.net/"


def test_address_without_account_belongs_to_the_configured_one() -> None:
    other = "abfss://lake@other.dfs.core.windows.net/w h/ü/"
    assert resolver(LAKE, other).resolve_one("az://lake/w h/ü/x") is None
    assert resolver(LAKE, other, account="other").resolve_one("az://lake/w h/ü/x") == ("s1", "x")
    assert resolver(LAKE, account="other").resolve_one("az://lake/w h/ü/x") is None


@pytest.mark.parametrize(
    "address, reason",
    [
        ("abfss://other@acct.dfs.core.windows.net/x", None),
        ("wasbs://lake@other.blob.core.windows.net/x", None),
        ("https://other.blob.core.windows.net/lake/x", None),
        ("s3://lake/x", None),
        ("az://other/x", "without a storage account"),
        ("abfss://workspace@onelake.dfs.fabric.microsoft.com/house/x", "another host"),
        ("https://lake.example.org/x", "a web address"),
    ],
)
def test_address_outside_the_storage_is_outside_or_unknown(address: str, reason: str | None) -> None:
    classifier = ExternalAddresses.of([(LAKE, None)], lambda _: None, lambda _: True)
    (found,) = classifier.find_reasons(pa.array([address])).to_pylist()
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_custom_endpoint_may_serve_every_account() -> None:
    classifier = ExternalAddresses.of([(LAKE, "http://127.0.0.1:10000/acct")], lambda _: None, lambda _: True)
    found = classifier.find_reasons(pa.array(["abfss://other@third.dfs.core.windows.net/x"])).to_pylist()
    assert found == ["the scheme abfss that the server http://127.0.0.1:10000/acct may also serve"]
