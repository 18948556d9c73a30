"""An address that no configured store reads may be another address of a directory in a storage."""

from __future__ import annotations

import pytest

from gc_assets.core.key_resolver import KeyResolver

FILE = "metadata/00001-a.metadata.json"


def find(root: str, address: str) -> set[str]:
    return {key for _, key in KeyResolver([("main", root)]).find_namesakes(address)}


@pytest.mark.parametrize(
    "address",
    [
        f"hdfs://nn:8020/warehouse/db/t/{FILE}",
        f"http://gateway:9000/bucket/warehouse/db/t/{FILE}",
        f"oss://bucket/warehouse/db//t/./{FILE}",
        f"file:///warehouse/x/../db/t/{FILE}",
        f"C:\\warehouse\\db\\t\\{FILE}".replace("/", "\\"),
    ],
)
@pytest.mark.parametrize("root", ["s3://bucket/", "file:///data/warehouse/"])
def test_storage_directory_is_found_at_end_of_address(root: str, address: str) -> None:
    assert "db/t/" in find(root, address)


@pytest.mark.parametrize(
    "address",
    [
        f"https://gateway/bucket/db/a%20b/{FILE}",
        f"https://gateway/bucket/db/a%20b/{FILE}?X-Signature=a/b",
        f"https://gateway/bucket/db/a%20b/{FILE.replace('/', '%2F')}",
    ],
)
def test_storage_directory_is_found_as_written_and_percent_decoded(address: str) -> None:
    assert {"db/a%20b/", "db/a b/"} & find("s3://bucket/", address)
    assert "db/a b/" in find("s3://bucket/", address)


def test_doubled_slash_in_a_bucket_is_found() -> None:
    assert {"db//t/", "db/t/"} <= find("s3://bucket/", f"oss://bucket/db//t/{FILE}")


@pytest.mark.parametrize(
    "root, address",
    [
        ("file:///data/warehouse/db/t", f"hdfs://nn/warehouse/db/t/{FILE}"),
        ("s3://bucket/db/t/data/", f"http://gateway/bucket/db/t/{FILE}"),
        ("s3://t/", f"http://gateway/t/{FILE}"),
        ("abfss://t@account.dfs.core.windows.net/", f"https://gateway/t/{FILE}"),
        ("file:///data/a b/", f"https://gateway/a%20b/{FILE}"),
    ],
)
def test_storage_at_or_under_directory_matches_completely(root: str, address: str) -> None:
    assert "" in find(root, address)


@pytest.mark.parametrize("address", ["", FILE, f"../{FILE}", f"/{FILE}", f"http://gateway/{FILE}", f"hdfs://nn/warehouse/db/t/{FILE}"])
def test_storage_never_matches_completely_without_its_directory_name(address: str) -> None:
    assert "" not in find("s3://bucket/warehouse/", address)
