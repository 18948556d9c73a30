"""Other addresses of a storage: aliases, web addresses of its server, and addresses that may be
equivalent.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.errors import FormatError, UsageError
from gc_assets.core.external_addresses import ExternalAddresses, split_tail
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.urls import overlapping_aliases, parse_alias, storage_urls

STORAGES = [("disk", "/srv/lake/"), ("aws", "s3://lake/w/"), ("ceph", "s3://rgw/"), ("google", "s3://gbucket/w/")]
ENDPOINTS = {"aws": None, "ceph": "http://rgw.example.org:8080/", "google": "https://storage.googleapis.com"}
ALIASES = [
    ("disk", "/mnt/lake"),
    ("disk", "file://nas/export/lake/"),
    ("disk", "dbfs:/mnt/lake/"),
    ("disk", "https://files.example.org/lake"),
    ("aws", "s3://ap-x1y2-s3alias/w/"),
    ("aws", "s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/w/"),
    ("aws", "viewfs://cluster/lake/"),
    ("aws", "https://ap-1.s3-accesspoint.eu-west-1.amazonaws.com/w/"),
    ("ceph", "s3://tenant-rgw/"),
]


def resolver_of(*aliases: tuple[str, str]) -> KeyResolver:
    urls = [(name, url) for name, location in STORAGES if name in ENDPOINTS for url in storage_urls(location, ENDPOINTS[name])]
    return KeyResolver(STORAGES, [*aliases, *urls])


RESOLVED = [
    # Aliases.
    ("/mnt/lake/db//t/x", "disk", "db/t/x"),
    ("file:///mnt/lake/a%20b", "disk", "a%20b"),
    ("file://NAS/export/lake//db/x", "disk", "db/x"),
    ("dbfs:/mnt/lake/db/x", "disk", "db/x"),
    ("dbfs:///mnt/lake/db/./x", "disk", "db/x"),
    ("https://files.example.org/lake/a%20b?sig=x", "disk", "a b"),
    ("https://files.example.org/lake/x?a=/b/c", "disk", "x"),
    ("https://files.example.org/lake/y?a=/b/c", "disk", "y"),
    ("HTTP://user@FILES.example.org:80/lake/x#y", "disk", "x"),
    ("s3://ap-x1y2-s3alias/w/t/x", "aws", "t/x"),
    ("s3a://ap-x1y2-s3alias/w//x", "aws", "/x"),
    ("s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/w/t/x", "aws", "t/x"),
    ("viewfs://cluster/lake/t//x", "aws", "t//x"),
    ("https://ap-1.s3-accesspoint.eu-west-1.amazonaws.com/w/x", "aws", "x"),
    ("s3n://tenant-rgw/x", "ceph", "x"),
    # Web addresses of servers.
    ("https://lake.s3.amazonaws.com/w/t/x", "aws", "t/x"),
    ("https://lake.s3.eu-west-1.amazonaws.com/w/t/x?versionId=1", "aws", "t/x"),
    ("https://lake.s3-eu-west-1.amazonaws.com/w/x", "aws", "x"),
    ("https://lake.s3.dualstack.eu-west-1.amazonaws.com/w/x", "aws", "x"),
    ("https://lake.s3-accelerate.amazonaws.com/w/x", "aws", "x"),
    ("http://lake.s3-website-us-east-1.amazonaws.com/w/x", "aws", "x"),
    ("https://s3.us-gov-west-1.amazonaws.com/lake/w/a+b%2Bc", "aws", "a+b+c"),
    ("https://lake.s3.cn-north-1.amazonaws.com.cn/w/x", "aws", "x"),
    ("http://rgw.example.org:8080/rgw/t/x", "ceph", "t/x"),
    ("https://rgw.rgw.example.org:8080/t/x", "ceph", "t/x"),
    ("gs://gbucket/w/x", "google", "x"),
    ("gcs://gbucket/w/x", "google", "x"),
    ("https://storage.googleapis.com/gbucket/w/x", "google", "x"),
]


@pytest.mark.parametrize("address, storage, key", RESOLVED)
def test_alias_address_resolves_to_storage(address: str, storage: str, key: str) -> None:
    resolver = resolver_of(*ALIASES)
    assert resolver.resolve_one(address) == (storage, key)
    assert resolver.translate(address) in {resolver.address(storage, key), address}


def test_web_address_of_a_storage_is_percent_encoded() -> None:
    """The prefix of a storage on S3 may contain every character."""
    location = "s3://rgw/lake/ä b+%2F?#/"
    urls = [("odd", url) for endpoint in ("http://rgw:8080", "https://storage.googleapis.com") for url in storage_urls(location, endpoint)]
    resolver = KeyResolver([("odd", location)], urls)
    for address in (
        "http://rgw:8080/rgw/lake/%C3%A4%20b%2B%252F%3F%23/t/%20x",
        "http://rgw:8080/rgw/lake/ä b+%252F%3F%23/t/ x",
        "gs://rgw/lake/ä b+%2F?#/t/ x",
    ):
        assert resolver.resolve_one(address) == ("odd", "t/ x")


@pytest.mark.parametrize(
    "address",
    [
        "gs://lake/w/ä b%2F/x",
        "gcs://lake/w/ä b%2F/x",
        "https://storage.googleapis.com/lake/w/%C3%A4%20b%252F/x",
        "https://lake.storage.googleapis.com/w/%C3%A4%20b%252F/x?alt=media",
        "https://storage.cloud.google.com/lake/w/%C3%A4%20b%252F/x",
    ],
)
def test_all_google_cloud_address_forms_resolve_to_storage(address: str) -> None:
    location = "gs://lake/w/ä b%2F/"
    resolver = KeyResolver([("lake", location)], [("lake", url) for url in storage_urls(location, None)])
    assert resolver.resolve_one(address) == ("lake", "x")


def test_s3_address_of_a_bucket_on_google_cloud_is_unknown() -> None:
    """Google serves its buckets by an interface of S3 too."""
    classifier = ExternalAddresses.of([("gs://lake/w/", None)], lambda _: None, lambda _: True)
    reasons = classifier.find_reasons(pa.array(["s3://lake/w/x", "s3://other/x", "gs://other/x"])).to_pylist()
    assert reasons == ["a bucket name that Google Cloud also serves by its S3 interface", None, None]


def test_batch_resolves_like_single_addresses() -> None:
    resolver = pickle.loads(pickle.dumps(resolver_of(*ALIASES)))  # noqa: S301  (bytes made on this line)
    addresses = [address for address, _, _ in RESOLVED] * 2 + ["https://other.example.org/x", "/srv/lake/x", "s3://lake/w/x"]
    names, keys = (column.to_pylist() for column in resolver.resolve(pa.array(addresses)))
    expected = [resolver.resolve_one(address) or (None, None) for address in addresses]
    assert list(zip(names, keys, strict=True)) == expected


@pytest.mark.parametrize("address", [address for address, storage, _ in RESOLVED if storage == "disk" or "amazonaws" not in address][:10])
def test_alias_resolves_only_if_configured(address: str) -> None:
    resolver = resolver_of()
    if address.startswith("file://NAS"):
        with pytest.raises(FormatError, match="contains the host 'NAS'"):
            resolver.resolve_one(address)
    else:
        assert resolver.resolve_one(address) is None
    assert resolver.settings_digest != resolver_of(*ALIASES).settings_digest


@pytest.mark.parametrize("address", ["https://files.example.org/lake/../x", "viewfs://cluster/lake/a/../x", "/mnt/lake/../x"])
def test_alias_with_parent_component_is_rejected(address: str) -> None:
    with pytest.raises(FormatError, match=r"`\.\.`"):
        resolver_of(*ALIASES).resolve_one(address)


def test_translation_does_not_change_other_addresses() -> None:
    resolver = resolver_of(*ALIASES)
    assert resolver.translate("/mnt/lake/db//x") == "file:///srv/lake/db/x"
    assert resolver.translate("viewfs://cluster/lake/a//x") == "s3://lake/w/a//x"
    for address in ("/srv/lake//x", "s3://lake/w/x", "s3://other/x", "https://other/x", "../x", "/mnt/lake/../x", "s3://u@b/x"):
        assert resolver.translate(address) == address


@pytest.mark.parametrize(
    "alias", ["x", "", "https:", "https://h/a?b", "https://h/#a", "/a/../b", "dbfs:/a/../b", "gs://", "s3:///x", "file:x", "file://"]
)
def test_alias_without_a_location_is_refused(alias: str) -> None:
    with pytest.raises(UsageError, match="alias "):
        parse_alias(alias)


def test_overlapping_aliases_and_storages_are_found(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storages = [("a", str(tmp_path / "real")), ("b", "s3://b/x/")]
    own = [("a", str(tmp_path / "real")), ("a", str(tmp_path / "link")), ("b", "https://h/x/")]
    assert overlapping_aliases(storages, own) == []
    assert overlapping_aliases(storages, [("b", f"{tmp_path}/link/")]) == [("a", f"b (alias {tmp_path}/link/)")]
    assert overlapping_aliases(storages, [("a", "https://h/"), ("b", "http://h:80/x")]) == [
        ("a (alias https://h/)", "b (alias http://h:80/x)")
    ]
    assert overlapping_aliases(storages, [("b", "s3a://b/")]) == [("b", "b (alias s3a://b/)")]


DISK, AWS, CEPH, GOOGLE = (
    ("/srv/lake/", None),
    ("s3://lake/w/", None),
    ("s3://rgw/", "http://rgw:8080"),
    ("s3://g/", "https://storage.googleapis.com"),
)

# Address, and the storages with which it is unknown.
CLASSES = [
    # Paths. A file that exists on this machine is compared by inode.
    ("/exists/x.parquet", ""),
    ("file:///exists/x.parquet", ""),
    ("/missing/x.parquet", "disk aws ceph google"),
    # The directory may be a mount point whose mount is absent.
    ("/exists/gone.parquet", "disk aws ceph google"),
    ("FILE:///exists/gone.parquet", "disk aws ceph google"),
    # Buckets. Names are unique on AWS and on known providers.
    ("s3://other/x", "ceph"),
    ("S3N://other/x", "ceph"),
    ("s3://ap-x1y2z3-s3alias/x", "aws ceph google"),
    ("s3a://olap--ol-s3/x", "aws ceph google"),
    ("s3://ap--xa-s3/x", "aws ceph google"),
    ("s3://mfzwi23gnjvgw.mrap/x", "aws ceph google"),
    ("s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/x", "aws ceph google"),
    ("https://other.s3.eu-west-1.amazonaws.com/x", "ceph"),
    ("https://s3.amazonaws.com/ap-s3alias/x", "aws ceph google"),
    ("https://ap-1.s3-accesspoint.eu-west-1.amazonaws.com/x", "aws ceph google"),
    # Other providers.
    ("gs://other/x", "ceph"),
    ("abfss://c@a.dfs.core.windows.net/x", "ceph"),
    ("wasbs://c@a.blob.core.windows.net/x", "ceph"),
    ("oss://other/x", "ceph"),
    ("cosn://other/x", "ceph"),
    ("https://storage.googleapis.com/other/x", "ceph"),
    ("https://a.blob.core.windows.net/c/x", "ceph"),
    ("hdfs://nn:8020/x", "disk ceph"),
    # Anything else.
    ("https://files.example.org/x", "disk aws ceph google"),
    ("http://files.example.org/a/b/x?y", "disk aws ceph google"),
    ("viewfs://cluster/x", "disk aws ceph google"),
    ("dbfs:/mnt/x", "disk aws ceph google"),
    ("vcc://box/x", "disk aws ceph google"),
    ("C:/data/x", "disk aws ceph google"),
    ("memory://x", "disk aws ceph google"),
]


@pytest.mark.parametrize("name, storage", [("disk", DISK), ("aws", AWS), ("ceph", CEPH), ("google", GOOGLE)])
def test_external_address_is_outside_or_unknown(name: str, storage: tuple[str, str | None]) -> None:
    classifier = ExternalAddresses.of(
        [storage], lambda path: None if path == "/exists/" else f"no {path}", lambda address: "gone" not in address
    )
    addresses = [address for address, _ in CLASSES]
    reasons = classifier.find_reasons(pa.array(addresses)).to_pylist()
    unknown = [address for address, reason in zip(addresses, reasons, strict=True) if reason is not None]
    assert unknown == [address for address, names in CLASSES if name in names.split()]


# Alias of a disk, addresses that may belong to an object under it, and addresses that cannot.
OF_ALIASES = [
    ("gs://lake/w/", ["s3://lake/w/x", "oss://lake/w/x"], ["s3://other/x", "gs://other/x", "gs://lake/other/x"]),
    (
        "s3://lake/w/",
        [
            "gs://lake/w/x",
            "s3://lake-1-s3alias/w/x",
            "s3://arn:aws:s3:eu-west-1:1:accesspoint/ap/w/x",
            "https://lake.s3.amazonaws.com/w/x",
            "https://storage.googleapis.com/lake/w/x",
            "https://lake.oss-cn-hangzhou.aliyuncs.com/w/x",
        ],
        ["s3a://lake/other/x", "s3://other/x", "gs://other/x", "https://storage.googleapis.com/other/x"],
    ),
    (
        "abfss://lake@acct.dfs.core.windows.net/w/",
        ["az://lake/w/x", "s3://lake/w/x"],
        ["abfss://lake@other.dfs.core.windows.net/w/x", "https://other.blob.core.windows.net/lake/w/x", "s3://other/x"],
    ),
    ("oss://lake/w/", ["s3://lake/w/x"], ["oss://lake/other/x", "s3://other/x"]),
    ("/mnt/lake/", [], ["s3://lake/x", "gs://lake/x"]),
    # Web addresses.
    ("https://minio.local/lake/w/", ["s3://lake/w/x", "s3a://lake/w/x", "gs://lake/w/x"], ["s3://other/x", "gs://other/x"]),
    ("https://my.lake.minio.local/w/", ["s3://my.lake/w/x"], ["s3://other/x"]),
    (
        "https://lake.s3.eu-west-1.amazonaws.com/w/",
        ["s3://lake/w/x", "s3://lake-1-s3alias/w/x"],
        ["s3://other/x", "https://lake.s3.amazonaws.com/other/x", "https://other.s3.amazonaws.com/x", "gs://other/x"],
    ),
    (
        "https://acct.blob.core.windows.net/lake/w/",
        ["az://lake/w/x", "s3://lake/w/x"],
        ["abfss://lake@other.dfs.core.windows.net/w/x", "s3://other/x"],
    ),
    ("https://storage.googleapis.com/lake/w/", ["s3://lake/w/x"], ["s3://other/x", "gs://other/x"]),
    ("https://lake.storage.googleapis.com/w/", ["s3://lake/w/x"], ["s3://other/x", "gs://other/x"]),
    # An access point does not show its bucket.
    ("s3://ap-abc-s3alias/w/", ["s3://other/w/x", "https://other.s3.amazonaws.com/w/x"], ["gs://other/x"]),
    ("https://ap-1.s3-accesspoint.eu-west-1.amazonaws.com/w/", ["s3://other/w/x"], ["gs://other/x"]),
]


@pytest.mark.parametrize("alias, unknown, outside", OF_ALIASES)
def test_address_with_the_bucket_of_an_alias_is_unknown(alias: str, unknown: list[str], outside: list[str]) -> None:
    """The server that serves an alias is unknown, and may have several interfaces."""
    classifier = ExternalAddresses.of([DISK], lambda _: None, lambda _: True, [alias])
    assert classifier.find_reasons(pa.array([*unknown, *outside])).is_valid().to_pylist() == [True] * len(unknown) + [False] * len(outside)


def test_every_bucket_is_unknown_if_storage_uses_access_point() -> None:
    classifier = ExternalAddresses.of([("s3://ap-abc-s3alias/w/", None)], lambda _: None, lambda _: True)
    assert classifier.find_reasons(pa.array(["s3://bucket/w/x", "gs://bucket/w/x"])).to_pylist() == [
        "a bucket that the access point of a storage may show",
        None,
    ]


def test_other_hdfs_addresses_are_unknown_if_hdfs_is_alias() -> None:
    classifier = ExternalAddresses.of([AWS], lambda _: None, lambda _: True, ["hdfs://nn/lake/"])
    assert classifier.find_reasons(pa.array(["webhdfs://nn:9870/lake/x"])).to_pylist() == ["the scheme webhdfs"]


def test_unknown_address_has_a_reason() -> None:
    classifier = ExternalAddresses.of([AWS, CEPH], lambda path: None if path == "/exists/" else f"no {path}", lambda _: False)
    addresses = ["/a/b/c", "/exists/x", "s3://other/x", "s3://a-s3alias/x", "https://h/x", "gs://b/x", "https://x.amazonaws.com/"]
    served = "that the server http://rgw:8080 may also serve"
    assert classifier.find_reasons(pa.array(addresses)).to_pylist() == [
        "no /a/b/",
        "a file that does not exist on this machine",
        f"a bucket {served}",
        "an S3 access point",
        "a web address",
        f"the scheme gs {served}",
        "a host of AWS",
    ]
    assert classifier.find_reasons(pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize(
    "address", ["db/x", "/exists/../x", "file://nas/exists/x", "s3://lake/a/../x", "s3://user@lake/x", "s3://lake:9000/x", ""]
)
def test_unresolvable_address_is_unknown(address: str) -> None:
    classifier = ExternalAddresses.of([DISK, AWS], lambda _: None, lambda _: True)
    assert classifier.find_reasons(pa.array([address, "s3://other/x"])).is_valid().to_pylist() == [True, False]


UNIQUE = (
    "00000-0-7B1B337A-438a-41ec-ac91-8dc526adb402.parquet",
    "part-7b1b337a438a41ecac918dc526adb402.parquet",
    "1CECHNKREP0F1RSTCMT0",
)
TAILS = [
    ("db/t/data/a%20b.parquet", "data", "a b.parquet"),
    ("x.parquet", None, "x.parquet"),
    ("https://h/lake/t//a%2520b.parquet?versionId=1/2", "t", "a b.parquet"),
    ("https://h/x", None, "x"),
    ("s3://ap-s3alias/x", None, "x"),
    ("s3://ap-s3alias/data/x?y", "data", "x?y"),
    ("hdfs:/data/./x", "data", "x"),
    ("file:///mnt/x", "mnt", "x"),
    ("/mnt/data/x", "data", "x"),
    ("C:/data/x", "data", "x"),
    (r"C:\data\x", "data", "x"),
    ("vcc://box/cafe\u0301", None, "caf\u00e9"),
    # Common names.
    ("a/metadata/v1.metadata.json", "metadata", "v1.metadata.json"),
    ("a/data/part-00000.snappy.parquet", "data", "part-00000.snappy.parquet"),
    ("a/2025/era5-20250101T000000Z.nc", "2025", "era5-20250101T000000Z.nc"),
    # Unique names.
    *((f"a/data/{name}", None, name) for name in UNIQUE),
]


def test_file_name_of_keys_and_addresses_is_independent_of_spelling() -> None:
    parents, bases = split_tail(pa.array([name for name, _, _ in TAILS]))
    assert list(zip(parents.to_pylist(), bases.to_pylist(), strict=True)) == [(parent, base) for _, parent, base in TAILS]
    assert [len(column) for column in split_tail(pa.array([], pa.string()))] == [0, 0]
