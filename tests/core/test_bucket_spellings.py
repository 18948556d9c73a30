"""Unusual spellings of the buckets of storages and aliases are unknown, and other buckets are outside."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gc_assets.core.external_addresses import ExternalAddresses
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.urls import storage_urls

AWS = ("s3://lake/w/", None)
ALIBABA = ("s3://lake/w/", "https://oss-cn-hangzhou.aliyuncs.com")
TENCENT = ("s3://lake-125/w/", "https://cos.ap-guangzhou.myqcloud.com")
CEPH = ("s3://lake/w/", "http://rgw.local:8080")
GOOGLE = ("gs://lake/w/", None)
SPACE = ("s3://lake/my data/w/", None)
ENCODED = ("gs://lake/my%20data/w/", None)
AZURE = ("abfss://lake@acct.dfs.core.windows.net/w/", None)

UNKNOWN = [
    (AWS, "s3a://lake.s3.amazonaws.com/w/x"),
    (AWS, "s3://us-east-1/lake/w/x"),
    (AWS, "s3://s3.eu-west-1.amazonaws.com/lake/w/x"),
    (AWS, "s3://LAKE/w/x"),
    (AWS, "s3a://lake//w/x"),
    (AWS, "s3a://lake/./w/x"),
    (AWS, "s3://lake/w%2Fx"),
    (AWS, "s3://lake/a\\w\\x"),
    (AWS, "https://lake.s3.amazonaws.com//w/x"),
    (ALIBABA, "oss://lake.oss-cn-hangzhou.aliyuncs.com/w/x"),
    (ALIBABA, "oss://lake.oss-cn-hangzhou-internal.aliyuncs.com/w/x"),
    (ALIBABA, "oss://lake.cn-hangzhou.oss-dls.aliyuncs.com/w/x"),
    (ALIBABA, "oss://id:secret@lake/w/x"),
    (ALIBABA, "oss://id:secret@lake.oss-cn-hangzhou.aliyuncs.com/w/x"),
    (ALIBABA, "oss://lake//w/x"),
    (ALIBABA, "https://lake.oss-cn-hangzhou-internal.aliyuncs.com/w/x"),
    (ALIBABA, "https://oss-accelerate.aliyuncs.com/lake/w/x"),
    (TENCENT, "https://lake-125.cos.accelerate.myqcloud.com/w/x"),
    (TENCENT, "cosn://lake-125.cos.ap-guangzhou.myqcloud.com/w/x"),
    (CEPH, "s3a://lake//w/x"),
    (GOOGLE, "gs://LAKE/w/x"),
    (GOOGLE, "gs://lake//w/x"),
    (GOOGLE, "https://storage.googleapis.com/storage/v1/b/lake/o/w%2Fx"),
    (GOOGLE, "https://storage.googleapis.com/download/storage/v1/b/lake/o/w%2Fx?alt=media"),
    (AZURE, "abfss://Lake@acct.dfs.core.windows.net/w/x"),
    (AZURE, "abfss://lake@acct.dfs.core.windows.net//w/x"),
    (AZURE, "https://acct.blob.core.windows.net/lake//w/x"),
    (AZURE, "abfss://lake@acct.dfs.core.windows.net/%77/x"),
    (SPACE, "s3a://lake/my%20data/w/x"),
    (SPACE, "s3://lake/my%2520data/w/a/x"),
    (ENCODED, "gs://lake/my data/w/x"),
]
OUTSIDE = [
    (AWS, "s3://lake/other/x"),
    (AWS, "s3://other//w/x"),
    (AWS, "s3://lake.backup/w/x"),
    (AWS, "s3://backup/lake/w/x"),
    (AWS, "s3://lake/other/day=1%3A2/x"),
    (AWS, "oss://lake.oss-cn-hangzhou.aliyuncs.com/w/x"),
    (ALIBABA, "oss://other.oss-cn-hangzhou.aliyuncs.com/w/x"),
    (ALIBABA, "oss://id:secret@other/w/x"),
    (ALIBABA, "oss://lake/other/x"),
    (ALIBABA, "https://other.oss-cn-hangzhou.aliyuncs.com/w/x"),
    (TENCENT, "cosn://lake-124/w/x"),
    (GOOGLE, "gs://lake/other/x"),
    (GOOGLE, "https://storage.googleapis.com/other/w/x"),
    (AZURE, "abfss://lake@acct.dfs.core.windows.net/other/x"),
    (AZURE, "abfss://lake@other.dfs.core.windows.net//w/x"),
    (SPACE, "s3://lake/my%20data/v/x"),
    (SPACE, "s3://other/my%20data/w/x"),
    (SPACE, "gs://lake/my%20data/w/x"),
    (ENCODED, "gs://lake/my data/v/x"),
]


def is_unknown(storage: tuple[str, str | None], address: str, *aliases: str) -> bool:
    location, endpoint = storage
    resolver = KeyResolver([("lake", location)], [("lake", url) for url in (*storage_urls(location, endpoint), *aliases)])
    assert resolver.resolve_one(address) is None
    classifier = ExternalAddresses.of([storage], lambda _: None, lambda _: True, aliases)
    return classifier.find_reasons(pa.array([address])).null_count == 0


@pytest.mark.parametrize("storage, address", UNKNOWN)
def test_unusual_spelling_of_a_bucket_is_unknown(storage: tuple[str, str | None], address: str) -> None:
    assert is_unknown(storage, address)


@pytest.mark.parametrize("storage, address", OUTSIDE)
def test_other_bucket_or_prefix_is_outside_storage(storage: tuple[str, str | None], address: str) -> None:
    assert not is_unknown(storage, address)


@pytest.mark.parametrize(
    "alias, address, unknown",
    [
        ("oss://lake/w/", "oss://lake.oss-cn-hangzhou.aliyuncs.com/w/x", True),
        ("oss://lake/w/", "oss://id:secret@lake/w/x", True),
        ("oss://lake/w/", "oss://other.oss-cn-hangzhou.aliyuncs.com/w/x", False),
        ("s3a://lake/w/", "s3a://lake//w/x", True),
        ("s3a://lake/w/", "s3a://lake/other/x", False),
        ("s3a://lake/w/", "s3a://other//w/x", False),
    ],
)
def test_unusual_spelling_of_alias_bucket_is_unknown(alias: str, address: str, unknown: bool) -> None:
    assert is_unknown(("/srv/lake/", None), address, alias) == unknown
